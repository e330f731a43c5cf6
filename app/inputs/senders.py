"""Who sent the events of an input's records: one source, or one of a list that a header names. Pure."""

from collections.abc import Sequence

from app.inputs.input_file import InputSpec
from dedupe.model.types import LogRecord


class Senders:
    """The sources of one input."""

    def __init__(self, spec: InputSpec) -> None:
        self._default = spec.source
        self._header = spec.source_header
        self._named = {source.encode(): source for source in spec.sources}
        self.all = list(dict.fromkeys([spec.source, *spec.sources]))
        """Every source that its events may have."""

    def source_of(self, record: LogRecord) -> str | None:
        """Return the source of a record; None if it names one that is not in the list, or several."""
        named = [value for name, value in record.headers if name == self._header]
        if not named:
            return self._default
        return self._named.get(named[0]) if len(named) == 1 else None

    def parts_of(self, records: Sequence[LogRecord]) -> dict[str | None, Sequence[LogRecord]]:
        """Return the records of each source, in their order: ids of two sources never meet."""
        if self._header is None:
            return {self._default: records}
        parts: dict[str | None, list[LogRecord]] = {}
        for record in records:
            parts.setdefault(self.source_of(record), []).append(record)
        return dict(parts)
