"""
Reads one partition of an input: several batches are decided at once, and offsets committed behind verdicts.

Input.run -> **InputPartition.run** -> InputAdmission.identify, InFlight.begin -> InputAdmission.decide
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog

from app.auth.quotas import Bucket
from app.inputs.admission import CHUNK_RECORDS_MAX, Counts, InputAdmission, chunks_of
from app.inputs.control import InputControl
from app.inputs.in_flight import InFlight
from app.inputs.input_file import InputSpec
from app.inputs.notes import InputNotes
from dedupe.model.clock import Clock
from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.model.types import LogRecord, Offset
from dedupe.storage.input_log import CommittedOffset, InputLog, InputReader

COMMIT_S = 1.0
"""Between two commits of offsets: a killed gateway reads the records of this time again."""

RENEWAL_S = 3600.0
"""An offset is committed again after it: Kafka deletes those of groups without members after a week."""

POLL_S_MAX = 60.0
"""For an answer of the client, whose own limits are shorter: one that hangs is replaced."""

PAUSE_POLL_S = 0.5
"""Between two looks whether a pause is over."""

LOOK_S = 10.0
"""Between two looks at the end of the topic, which tell how much is left to read."""

LAST_COMMIT_S = 1.0
"""For the commit of a partition that is not read on here: without it, some records are read again."""

RETRY_S = 1.0
"""Before a cluster is asked again that did not answer."""

CONFLICTS_SHARE_MAX, CONFLICTS_AMONG = 0.05, 1_000
"""More conflicts among so many events, or more, mean a wrong rule of ids."""

logger = structlog.get_logger(__name__)


class InputStoppedError(Exception):
    """An input must not be read on: one sentence on the reason."""


class NotedStopError(InputStoppedError):
    """The same, by a reason that a restart would forget: it is noted, and all workers stop."""


class Place(NamedTuple):
    """What a partition of an input is."""

    spec: InputSpec
    group: str
    topic_id: str
    partition: int
    partitions: int
    """How many there are."""
    window_s: float
    is_younger: bool
    """Whether it was added to the topic after a gateway first read that."""


class InputPartition:
    """One partition of an input."""

    def __init__(
        self,
        place: Place,
        log: InputLog,
        notes: InputNotes,
        control: InputControl,
        admission: InputAdmission,
        counts: Counts,
        *,
        clock: Clock,
        may_commit: Callable[[], bool],
    ) -> None:
        """Read nothing yet; `may_commit`: whether this process surely still is the reader."""
        self._place = place
        self._spec = place.spec
        self._log = log
        self._notes = notes
        self._control = control
        rate = None if self._spec.events_per_s is None else self._spec.events_per_s / place.partitions
        self._pace = None if rate is None else Bucket(rate, max(1.0, rate), clock.monotonic())
        self._seek = 0  # the number of the last one that was done
        self._may_commit = may_commit
        self._admission = admission
        self.counts = counts
        self._clock = clock
        self._in_flight = InFlight()
        self.committed: Offset | None = None
        self.end: Offset | None = None
        """The end of committed records, as last seen; None until it is known."""
        self.records_per_s: float | None = None
        """How many records were read a second between the last two looks at the end; None until then."""
        self._committed_at = self._looked_at = 0.0
        self._looked_records = counts.records

    async def run(self) -> None:
        """Read until cancelled, then commit once more. Raises InputStoppedError: it must not be read on."""
        try:
            await self._read()
        finally:
            with suppress(TimeoutError, RetriableError, ConfigurationError):
                async with asyncio.timeout(LAST_COMMIT_S):
                    await self._commit()

    async def _read(self) -> None:
        is_told = False
        while True:
            try:
                await self._read_on()
            except ConfigurationError as err:
                raise InputStoppedError(str(err)) from err
            except RetriableError as err:
                if not is_told:
                    logger.warning("an input cannot be read, trying again", **self._named, error=str(err))
                is_told = True
                await asyncio.sleep(RETRY_S)

    @property
    def _named(self) -> dict[str, object]:
        return {
            "input": self._spec.name,
            "topic": self._spec.topic,
            "partition": self._place.partition,
        }

    async def _read_on(self) -> None:
        """Read from the position on, after a proof that it is one of this topic, until the next seek."""
        await self._check_topic()
        self._in_flight.position = start = await self._checked(self.position)
        reader = self._log.reader(self._spec.topic, self._place.partition, start)
        try:
            with self._admission.memory.reading():
                await self._read_by(reader)
        except RetriableError:
            await self._in_flight.drain()  # what is read already is not read anew
            raise
        finally:
            await self._in_flight.end()
            reader.close()

    async def _read_by(self, reader: InputReader) -> None:
        while True:
            self._in_flight.settle()
            self._check_conflicts()
            if self._is_sought:
                await self._in_flight.drain()
                self._in_flight.position = self.committed = None
                return
            if pause_s := self._pause_s():
                await asyncio.sleep(pause_s)
            else:
                await self._read_next(reader)
            await self._commit_if_due()
            await self._look_at_end_if_due()

    def _pause_s(self) -> float:
        """Return how long to read nothing."""
        if self._control.told.is_paused:
            return PAUSE_POLL_S
        pace_s = 0.0 if self._pace is None else self._pace.wait_s(1, self._clock.monotonic())
        pause_s = min(PAUSE_POLL_S, max(pace_s, self._admission.quotas.wait_s()))
        self.counts.throttled_s += pause_s
        return pause_s

    async def _read_next(self, reader: InputReader) -> None:
        """Read on, and have what was read decided. Raises RetriableError: read anew from the position."""
        await self._in_flight.make_room()
        for chunk in chunks_of(await self._polled(reader)):
            await self._in_flight.make_room()
            batch = await self._admission.identify(self._place.partition, chunk)
            if self._pace is not None:
                self._pace.take(batch.events)
            try:
                await self._in_flight.when_apart(keys := batch.keys)
            except BaseException:
                batch.held.release()
                raise
            deciding = self._admission.decide(batch, self.counts)
            batch.held.release_after(self._in_flight.begin(chunk[-1].offset + 1, keys, deciding))
        self._in_flight.pass_markers(reader.position)

    async def _polled(self, reader: InputReader) -> Sequence[LogRecord]:
        """Return the next records, which the client has proved to be that. Raises RetriableError."""
        position = reader.position
        try:
            reader.fetch_bytes = self._admission.memory.fetch_bytes
            async with asyncio.timeout(POLL_S_MAX):
                records = await reader.poll(CHUNK_RECORDS_MAX)
        except TimeoutError as err:
            raise RetriableError(f"no answer of the client in {POLL_S_MAX:g} s") from err
        for record in records:
            if record.offset < position:
                self.counts.misdelivered += 1
                raise RetriableError(f"offset {record.offset} was delivered again, behind {position}")
            position = record.offset + 1
        return records

    @property
    def _is_sought(self) -> bool:
        seek = self._control.told.seeks.get(self._place.partition)
        return seek is not None and seek.number > self._seek

    async def _check_topic(self) -> None:
        topic_id = await self._log.topic_id(self._spec.topic)
        if topic_id != self._place.topic_id:
            raise InputStoppedError(
                f"topic {self._spec.topic} is not the one that was read: its id was {self._place.topic_id}, "
                f"and is {topic_id or 'none'}; to read the new one, give the input another name"
            )

    async def _checked(self, position: Offset | None) -> Offset:
        """Return where to read on: a position, else what is committed or told. Raises InputStoppedError."""
        spec, partition = self._spec, self._place.partition
        start, end = await self._log.bounds(spec.topic, partition)
        self.end, self._looked_at, self._looked_records = end, self._clock.monotonic(), self.counts.records
        may_repeat = False
        if position is None:
            position, may_repeat = await self._begin(start, end)
        if position < start:
            raise InputStoppedError(
                f"partition {partition} of {spec.topic} has lost its records {position} to {start - 1} "
                "before they were read: they have expired or were deleted; gateway inputs "
                "seek and resume go on without them"
            )
        if position > end:
            raise InputStoppedError(
                f"partition {partition} of {spec.topic} ends at offset {end}, below offset {position} that "
                "was read already: it has lost its tail, or was made anew"
            )
        if may_repeat and not spec.reads_past_window:
            since_ms = self._clock.now_ms() - round(self._place.window_s * 1000)
            first = await self._log.first_since(spec.topic, partition, since_ms)
            if position < first:
                raise InputStoppedError(
                    f"partition {partition} of {spec.topic} would be read from offset {position} on, where "
                    f"records are older than the window (its first is {first}): if they have been read "
                    "before, they would be stored twice; set reads_past_window: true to read them"
                )
        return position

    async def _begin(self, start: Offset, end: Offset) -> tuple[Offset, bool]:
        """Return the offset to begin with, and whether records behind it may have been read before."""
        spec, partition = self._spec, self._place.partition
        committed = await self._log.committed(self._place.group, spec.topic)
        found = committed.get(partition)
        if found is not None and found.topic_id not in {"", self._place.topic_id}:
            raise InputStoppedError(
                f"topic {spec.topic} was made anew: offset {found.offset} of partition {partition} "
                f"belongs to the topic of id {found.topic_id}, and this has {self._place.topic_id}; "
                "to read the new one, give the input another name"
            )
        seek = self._control.told.seeks.get(partition)
        if seek is not None:
            self._seek = seek.number
            if found is None or (found.topic_id and found.seek < seek.number):
                return seek.offset, not seek.reads_past_window
        if found is not None:
            return found.offset, not found.topic_id
        begin = await self._notes.begin(partition)
        if begin is not None:
            return begin, True  # what was committed is lost
        if self._place.is_younger or any(not each.topic_id for each in committed.values()):
            return await self._notes.note_begin(partition, start), True
        if spec.start is None:
            raise InputStoppedError(
                f"nothing is committed for partition {partition} of {spec.topic} under group "
                f"{self._place.group}: set start: earliest or start: latest"
            )
        is_earliest = spec.start == "earliest"
        return await self._notes.note_begin(partition, start if is_earliest else end), is_earliest

    def _check_conflicts(self) -> None:
        counts = self.counts
        events = counts.accepted + counts.duplicates + counts.conflicts
        if events >= CONFLICTS_AMONG and counts.conflicts > CONFLICTS_SHARE_MAX * events:
            raise NotedStopError(
                f"{counts.conflicts} of {events} events of partition {self.number} of {self._spec.topic} "
                "are conflicts: their ids do not name events; see the rule of ids"
            )

    @property
    def position(self) -> Offset | None:
        """Behind the last record before which all events have verdicts; None until a start is known."""
        return self._in_flight.position

    @property
    def number(self) -> int:
        """The number of the partition."""
        return self._place.partition

    @property
    def lag(self) -> int | None:
        """How many offsets are still to be read, as last seen; None until it is known."""
        return None if self.position is None or self.end is None else max(0, self.end - self.position)

    async def _look_at_end_if_due(self) -> None:
        passed_s = (now := self._clock.monotonic()) - self._looked_at
        if passed_s < LOOK_S:
            return
        self.records_per_s = (self.counts.records - self._looked_records) / passed_s
        self._looked_at, self._looked_records = now, self.counts.records
        with suppress(RetriableError):  # the reader tells
            _, self.end = await self._log.bounds(self._spec.topic, self._place.partition)

    async def _commit_if_due(self) -> None:
        """Commit the position, which is behind verdicts alone. What cannot be committed is read again."""
        age_s = self._clock.monotonic() - self._committed_at
        if age_s < COMMIT_S or (self.position == self.committed and age_s < RENEWAL_S):
            return
        await self._check_topic()
        try:
            await self._commit()
        except RetriableError as err:
            logger.warning("offset of an input not committed, trying again", **self._named, error=str(err))

    async def _commit(self) -> None:
        """Commit the position, unless another reader's may be further by now. Raises RetriableError."""
        position = self.position
        if position is None or not self._may_commit():
            return
        self._committed_at = self._clock.monotonic()
        offset = CommittedOffset(position, self._place.topic_id, self._seek)
        await self._log.commit(self._place.group, self._spec.topic, self._place.partition, offset)
        self.committed = position
