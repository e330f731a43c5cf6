"""The headers that tell where the record of an event comes from, and those that its input keeps. Pure."""

from app.inputs.input_file import InputSpec
from dedupe.model.record import HEADER_ORIGIN, HEADER_ORIGIN_TIME
from dedupe.model.types import Headers, LogRecord

KEPT_BYTES_MAX = 2048
"""Of one record: a longer header is left out. app.settings.limits.RECORD_MARGIN_BYTES includes it."""


class Origins:
    """The headers of one input's events."""

    def __init__(self, spec: InputSpec) -> None:
        self._place = f"{spec.name}:{spec.topic}" if spec.origin else None
        self._kept = frozenset(spec.keep_headers)

    def headers_of(self, partition: int, record: LogRecord) -> Headers:
        """Return the headers of each event of a record; of several with one name it keeps the last."""
        headers: Headers = []
        if self._place is not None:
            place = f"{self._place}/{partition}/{record.offset}"
            headers = [
                (HEADER_ORIGIN, place.encode()),
                (HEADER_ORIGIN_TIME, str(record.timestamp_ms).encode()),
            ]
        bytes_left = KEPT_BYTES_MAX
        for name, value in dict(record.headers).items() if self._kept else ():
            if name in self._kept and len(name) + len(value) <= bytes_left:
                headers.append((name, value))
                bytes_left -= len(name) + len(value)
        return headers
