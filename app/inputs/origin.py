"""The headers that tell where the record of an event comes from, and those that its input keeps. Pure."""

from collections.abc import Iterator, Sequence

from app.inputs.input_file import InputSpec
from dedupe.model.record import HEADER_ORIGIN, HEADER_ORIGIN_TIME
from dedupe.model.types import Headers, LogRecord

KEPT_BYTES_MAX = 2048
"""Of one record: a longer header is left out. app.settings.limits.RECORD_MARGIN_BYTES includes it."""


class Origins:
    """The headers of one input's events."""

    def __init__(self, spec: InputSpec) -> None:
        self._place = f"{spec.name}:{spec.topic}".encode() if spec.origin else None
        self._kept = frozenset(spec.keep_headers)

    def headers_of_each(self, partition: int, records: Sequence[LogRecord]) -> list[Headers]:
        """Return the headers of an event of each record; of several with one name a record keeps the last."""
        if self._place is None and not self._kept:
            return [[]] * len(records)
        place = None if self._place is None else b"%b/%d/" % (self._place, partition)
        found: list[Headers] = []
        headers: Headers = []
        before: LogRecord | None = None
        for record in records:
            if record is not before:  # else it has several events
                headers, before = _origin_of(place, record), record
                if self._kept and record.headers:
                    headers += self._kept_of(record)
            found.append(headers)
        return found

    def _kept_of(self, record: LogRecord) -> Iterator[tuple[str, bytes]]:
        bytes_left = KEPT_BYTES_MAX
        for name, value in dict(record.headers).items():
            if name in self._kept and len(name) + len(value) <= bytes_left:
                yield name, value
                bytes_left -= len(name) + len(value)


def _origin_of(place: bytes | None, record: LogRecord) -> Headers:
    if place is None:
        return []
    return [
        (HEADER_ORIGIN, b"%b%d" % (place, record.offset)),
        (HEADER_ORIGIN_TIME, b"%d" % record.timestamp_ms),
    ]
