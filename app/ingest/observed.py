"""
Observe-only: a topic of its own gets every decided event, with its verdict in the header `gw`.

It is for a trial beside another pipeline, and promises nothing: what cannot be appended in time is counted
and left out, and what was under way in a doubt may be there twice. The gateway's own log decides as always.

routes.post_events, InputAdmission.admit -> **Observed.note**
app.main -> **Observed.run** -> PartitionLog.append
"""

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Sequence

import structlog

from dedupe.decide.admission import COPIES, Admission
from dedupe.model.clock import Clock
from dedupe.model.errors import RecordsRefusedError, RetriableError
from dedupe.model.inherited import place_of
from dedupe.model.record import HEADER_GATEWAY, HEADER_REASON, HEADER_SOURCE
from dedupe.model.types import Event, Headers, NewRecord, Offset
from dedupe.storage.log import PartitionLog
from dedupe.submission import Outcomes

HEADER_ORIGINAL = "original"
"""`<partition>/<offset>` in the clean topic of the event that a copy or a conflict has the id of."""

WAITING_BYTES_MAX = 16 * 1024 * 1024
BATCH_RECORDS_MAX, BATCH_BYTES_MAX = 1_000, 512 * 1024

RETRY_S = 1.0
LAST_APPEND_S = 1.0

ACCEPTED, DUPLICATE, CONFLICT, REJECTED = "accepted", "duplicate", "conflict", "rejected"
_VERDICTS = dict.fromkeys(COPIES, DUPLICATE) | {Admission.NEW: ACCEPTED, Admission.CONFLICT: CONFLICT}
_LATER = {Admission.GAP, Admission.TOO_FAR}
"""Not stored: the client sends them again."""

logger = structlog.get_logger(__name__)


class Observed:
    """The events of one process, which is the topic's only writer."""

    def __init__(self, log: PartitionLog, clock: Clock) -> None:
        """`log`: the topic's one partition."""
        self._log = log
        self._clock = clock
        self._waiting: deque[NewRecord] = deque()
        self._waiting_bytes = 0
        self._has_more = asyncio.Event()
        self._is_fenced = False
        self.appended = self.dropped = 0
        """Records in the topic, and those left out."""
        self.verdicts: Counter[str] = Counter()
        """Of all events noted."""

    def note(self, events: Sequence[Event], outcomes: Outcomes, rejected: Sequence[Event]) -> None:
        """Take the decided events of a request, or of records of an input. Never raises, never waits."""
        now_ms = self._clock.now_ms()
        for verdict, event, original in _verdicts_of(events, outcomes, rejected):
            self.verdicts[verdict] += 1
            record = _record_of(event, verdict, original, now_ms)
            size_bytes = len(record.value)
            if self._waiting_bytes + size_bytes > WAITING_BYTES_MAX:
                self.dropped += 1
                continue
            self._waiting.append(record)
            self._waiting_bytes += size_bytes
        self._has_more.set()

    async def run(self) -> None:
        """Append what is noted, until cancelled; then once more."""
        try:
            while True:
                await self._has_more.wait()
                self._has_more.clear()
                while self._waiting:
                    await self._append_next()
        finally:
            try:
                async with asyncio.timeout(LAST_APPEND_S):
                    while self._waiting:
                        await self._append_next()
            except TimeoutError:
                self.dropped += len(self._waiting)
            await self._log.close()

    async def _append_next(self) -> None:
        batch = list(self._batch())
        newest_ms = max(record.timestamp_ms for record in batch)
        try:
            if not self._is_fenced:
                await self._log.fence()
                self._is_fenced = True
            await self._log.append([record._replace(timestamp_ms=newest_ms) for record in batch])
        except RecordsRefusedError as err:
            logger.warning("observed events are left out", count=len(batch), error=str(err))
            self.dropped += len(batch)
        except RetriableError as err:
            self._is_fenced = False
            logger.warning("observed events are not appended yet", error=str(err))
            await asyncio.sleep(RETRY_S)
            return
        else:
            self.appended += len(batch)
        for record in batch:
            self._waiting.popleft()
            self._waiting_bytes -= len(record.value)

    def _batch(self) -> Iterator[NewRecord]:
        """Yield the first records that wait, at least one, of bounded count and bytes."""
        size_bytes = 0
        for number, record in enumerate(self._waiting):
            size_bytes += len(record.value)
            if number and (number == BATCH_RECORDS_MAX or size_bytes > BATCH_BYTES_MAX):
                return
            yield record


def _verdicts_of(
    events: Sequence[Event], outcomes: Outcomes, rejected: Sequence[Event]
) -> Iterator[tuple[str, Event, Offset | None]]:
    for event, admission, offset in zip(events, *outcomes, strict=True):
        if admission not in _LATER:
            verdict = _VERDICTS.get(admission, REJECTED)
            yield verdict, event, offset if verdict in {DUPLICATE, CONFLICT} else None
    for event in rejected:
        yield REJECTED, event, None


def _record_of(event: Event, verdict: str, original: Offset | None, now_ms: int) -> NewRecord:
    headers: Headers = [(HEADER_SOURCE, event.source.encode()), (HEADER_GATEWAY, verdict.encode())]
    if original is not None and original >= 0:
        partition, offset = place_of(event.partition, original)
        headers.append((HEADER_ORIGINAL, f"{partition}/{offset}".encode()))
    if event.reason is not None:
        headers.append((HEADER_REASON, event.reason.encode()))
    return NewRecord(now_ms, event.message_id.encode(), event.value, headers + event.headers)
