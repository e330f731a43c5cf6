"""
Admits the events of input records: identified and submitted as those of a request are, again until decided.

InputPartition.run -> **InputAdmission.identify** -> Identifier.identify
InFlight.begin -> **InputAdmission.decide** -> Router.submit -> Lane.submit
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple, Self

import structlog

from app.ingest.event_limits import STEP_BYTES
from app.ingest.identified import Arrival, Dialect, Identified
from app.ingest.items import Fragment
from app.ingest.large_json import JSONLimits
from app.ingest.payload import Expected, Payload
from app.ingest.routes.events import Ingest
from app.inputs.cloudevents import is_empty, payload_of
from app.inputs.input_file import CLOUDEVENTS, FieldId, InputSpec
from app.inputs.memory import Held, InputMemory
from app.inputs.origin import Origins
from app.inputs.senders import Senders
from app.inputs.source_quotas import SourceQuotas
from app.inputs.values import MESSAGE_ID, Read, Topic, Values
from dedupe.decide.admission import COPIES, Admission
from dedupe.decide.rejection import RejectionCode
from dedupe.model.clock import Deadline
from dedupe.model.errors import RetriableError
from dedupe.model.record import FLAG_ID_ASSIGNED
from dedupe.model.types import EventKey, LogRecord, Offset, with_headers
from dedupe.submission import Outcomes

CHUNK_RECORDS_MAX, CHUNK_BYTES_MAX = 1_000, 512 * 1024
"""The records that are submitted together, unless one alone is larger."""

RETRY_S = 0.2
"""Before records are submitted again that were not taken, or whose outcome is unknown."""

DIALECTS = (Dialect.EVENTS, Dialect.CLOUDEVENTS)

logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class Counts:
    """What became of the records of one partition since the start, or since the input was resumed."""

    records: int = 0
    empty: int = 0
    """Records without a value: tombstones."""
    accepted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    rejected: int = 0
    misdelivered: int = 0
    """How often the client delivered other records than the next ones."""
    throttled_s: float = 0.0
    """How long reading paused since events_per_s or a quota of its source was used up."""

    @property
    def events(self) -> int:
        """The number of events of all verdicts."""
        return self.accepted + self.duplicates + self.conflicts + self.rejected

    @classmethod
    def total_of(cls, each: Iterable[Self]) -> Self:
        """Return the sum of some."""
        rows = list(map(astuple, each))
        return cls(*map(sum, zip(*rows, strict=True))) if rows else cls()


class Batch(NamedTuple):
    """Records of one partition, identified."""

    partition: int
    between: tuple[Offset, Offset]
    """The first and the last offset."""
    records: int
    """How many there are, and how many of them have no value."""
    empty: int
    received_ms: int
    identified: Identified
    held: Held
    """Its room in memory, to be released when it is decided or given up."""

    @property
    def keys(self) -> frozenset[EventKey]:
        """The ids of its events, those in quarantine included."""
        events = chain(self.identified.events, self.identified.quarantined)
        return frozenset([event.key for event in events])

    @property
    def events(self) -> int:
        """How many it has."""
        return len(self.identified.events) + len(self.identified.rejections)


class InputAdmission:
    """Admits the records of one input's topic."""

    def __init__(self, ingest: Ingest, spec: InputSpec, topic: Topic, memory: InputMemory) -> None:
        """Take what requests are admitted by; `memory` is that of all inputs."""
        self._ingest = ingest
        self._spec = spec
        limits = ingest.identifier.limits
        self._limits = JSONLimits(ingest.request_events_max, limits.event_bytes_max)
        self._values = Values(spec, topic, self._limits)
        self._origins = Origins(spec)
        self._senders = Senders(spec)
        self.quotas = SourceQuotas(ingest.write_keys, self._senders.all)
        self.memory = memory
        self._yield_to_others = partial(ingest.scheduler.yield_to_others, f"input {spec.name}")
        self._is_cloudevents = spec.format == CLOUDEVENTS
        self._reads_joined = (
            ingest.identifier.native is not None
            and spec.format == "event"
            and isinstance(spec.id, FieldId)
            and spec.id.field == MESSAGE_ID
        )

    async def identify(self, partition: int, records: Sequence[LogRecord]) -> Batch:
        """Return what records hold, once there is room for it in memory: the batch holds that from now on."""
        held = await self.memory.hold(sum(len(record.value) for record in records))
        try:
            received_ms, identified = self._ingest.clock.now_ms(), Identified()
            for source, part in self._senders.parts_of(records).items():
                arrival = Arrival(
                    self._spec.source if source is None else source,
                    received_ms,
                    dialect=DIALECTS[self._is_cloudevents],
                )
                _add(identified, await self._identified(partition, part, arrival, is_listed=bool(source)))
        except BaseException:
            held.release()
            raise
        self.quotas.charge(identified)
        events = [*identified.events, *identified.quarantined]
        held.shrink(len(events), sum([len(event.value) for event in events]))
        return Batch(
            partition,
            (records[0].offset, records[-1].offset),
            len(records),
            sum(map(is_empty if self._is_cloudevents else _has_no_value, records)),
            received_ms,
            identified,
            held,
        )

    async def decide(self, batch: Batch, counts: Counts) -> None:
        """Return once each event of a batch has a verdict in the log, added to `counts`."""
        identified = batch.identified
        outcomes = await self._submit(batch)
        self._count(counts, batch, outcomes)
        self.quotas.charge_verdicts(identified.events, outcomes.admissions)
        if identified.events:
            self._ingest.use.note_input(identified.events, outcomes.admissions)
            if self._ingest.samples is not None:
                self._ingest.samples.note(identified.events, outcomes, None)
        if self._ingest.observed is not None:
            self._ingest.observed.note(identified.events, outcomes, identified.quarantined)

    async def _identified(
        self, partition: int, records: Sequence[LogRecord], arrival: Arrival, *, is_listed: bool
    ) -> Identified:
        """Identify the records of one source, or those that name none of the list."""
        if not is_listed:
            fragments: list[object] = [
                Fragment(0, record.value, RejectionCode.SOURCE_NOT_LISTED)
                for record in records
                if record.value
            ]
            full = [record for record in records if record.value]
            return await self._take([Read(Payload(fragments, None, {}), full)], partition, arrival)
        identified = await self._identify_joined(partition, records, arrival)
        return identified if identified is not None else await self._identify(partition, records, arrival)

    async def _identify_joined(
        self, partition: int, chunk: Sequence[LogRecord], arrival: Arrival
    ) -> Identified | None:
        """Identify plain events by the native module, as those of one body; None if any is not plain."""
        native = self._ingest.identifier.native
        values = [record.value for record in chunk if record.value]
        if not self._reads_joined or native is None or not values:
            return None
        if not all(value.startswith(b"{") and value.endswith(b"}") for value in values):
            return None
        body = b"[" + b",".join(values) + b"]"
        limits = JSONLimits(len(values), self._limits.event_bytes_max)
        payload = await native.read(body, limits, self._yield_to_others, Expected.EVENTS)
        if payload is None or len(payload.items) != len(values):
            return None
        read = Read(payload, [record for record in chunk if record.value])
        identified = await self._take([read], partition, arrival)
        if identified.rejections or any(event.flags & FLAG_ID_ASSIGNED for event in identified.events):
            return None  # what is wrong is quarantined as it is in its record
        return identified

    async def _identify(self, partition: int, chunk: Sequence[LogRecord], arrival: Arrival) -> Identified:
        await self._yield_to_others(sum(len(record.value) for record in chunk))
        if self._is_cloudevents:
            full = [record for record in chunk if not is_empty(record)]
            payloads = [await payload_of(record, self._limits, self._yield_to_others) for record in full]
            reads = [
                Read(payload, [record] * len(payload.items))
                for record, payload in zip(full, payloads, strict=True)
            ]
        else:
            reads = list(self._values.read(partition, chunk))
        return await self._take(reads, partition, arrival)

    async def _take(self, reads: Sequence[Read], partition: int, arrival: Arrival) -> Identified:
        identified = Identified()
        for payload, records in reads:
            part = Identified(lossy=identified.lossy)
            items = self._ingest.identifier.identify(payload, arrival, lossy=part.lossy)
            before = 0
            while part.take(items, STEP_BYTES):
                await self._yield_to_others(max(STEP_BYTES, part.work_bytes - before))
                before = part.work_bytes
            self._head(part, partition, records)
            _add(identified, part)
        return identified

    def _head(self, part: Identified, partition: int, records: Sequence[LogRecord]) -> None:
        """Give each event the headers of its record; `records` are by item."""
        headers = self._origins.headers_of_each(partition, records)
        if not any(headers):
            return
        part.events = [
            with_headers(event, headers[index])
            for event, index in zip(part.events, part.indexes(), strict=True)
        ]
        part.quarantined = [
            with_headers(event, headers[min(rejection.item_index, len(records) - 1)])
            for rejection in part.rejections
            for event in rejection.events
        ]

    async def _submit(self, batch: Batch) -> Outcomes:
        """Submit until everything is decided; the same keys, so that an unknown outcome is resolved by it."""
        identified = batch.identified
        if not identified.events and not identified.quarantined:
            return Outcomes([], [])
        is_told = False
        while True:
            deadline = Deadline(self._ingest.clock, self._ingest.answer_timeout_s)
            try:
                return await self._ingest.router.submit(
                    identified.events,
                    identified.quarantined,
                    received_ms=batch.received_ms,
                    deadline=deadline,
                    has_several_sources=len(self._senders.all) > 1,
                )
            except RetriableError as err:
                if not is_told:
                    is_told = True
                    logger.warning(
                        "records of an input wait for a lane",
                        input=self._spec.name,
                        partition=batch.partition,
                        offset=batch.between[0],
                        error=str(err),
                    )
                await asyncio.sleep(RETRY_S)

    def _count(self, counts: Counts, batch: Batch, outcomes: Outcomes) -> None:
        admissions, rejections = outcomes.admissions, batch.identified.rejections
        counts.records += batch.records
        counts.empty += batch.empty
        counts.accepted += admissions.count(Admission.NEW)
        counts.duplicates += sum(map(admissions.count, COPIES))
        counts.conflicts += admissions.count(Admission.CONFLICT)
        counts.rejected += len(rejections)
        if rejections:
            logger.warning(
                "records of an input are in quarantine",
                input=self._spec.name,
                topic=self._spec.topic,
                between=batch.between,
                count=len(rejections),
                first_reason=str(rejections[0].code),
            )


def _add(identified: Identified, more: Identified) -> None:
    identified.events += more.events
    identified.rejections += more.rejections
    identified.quarantined += more.quarantined


def _has_no_value(record: LogRecord) -> bool:
    return not record.value


def chunks_of(records: Sequence[LogRecord]) -> Iterator[Sequence[LogRecord]]:
    """Yield the records in parts of bounded count and bytes; a larger one is a part of its own."""
    first = size_bytes = 0
    for index, record in enumerate(records):
        if index > first and (
            index - first == CHUNK_RECORDS_MAX or size_bytes + len(record.value) > CHUNK_BYTES_MAX
        ):
            yield records[first:index]
            first, size_bytes = index, 0
        size_bytes += len(record.value)
    if records:
        yield records[first:]
