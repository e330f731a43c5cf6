"""
The routing topic of a clean topic: its notes and plans, in the order in which they were written.

Partition 0 has them; the others are for what is decided of the clean partitions, one for each. A process
reads what was written since it last asked. Records are written once, by one request: if its outcome is
unknown the caller writes the record again, which changes nothing.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError

from dedupe.decide.resharding import Decision, Marking, Plan, Routing
from dedupe.model.errors import ConfigurationError, IdentityMismatchError, RetriableError
from dedupe.model.types import LogRecord, NewRecord, Offset
from dedupe.storage.kafka.cluster import EARLIEST, LATEST, UNKNOWN_TOPIC, KafkaCluster, error_name
from dedupe.storage.kafka.config import KafkaConfig
from dedupe.storage.kafka.plain_producer import PlainProducer
from dedupe.storage.kafka.reader import FETCH_BYTES_OF_FEW, PartitionReader
from dedupe.storage.kafka.wire import NO_TOPIC_ID
from dedupe.storage.log import Crashpoint, no_crashpoint
from dedupe.storage.routing_records import (
    Close,
    Note,
    Notes,
    Said,
    Seal,
    close_record,
    marking_record,
    note_record,
    plan_record,
    routing_topic_of,
)
from dedupe.storage.signs import CUT_NOW, PREPARED, Signs, signs_of

NOTES_PARTITION = 0
TOPIC_AUTHORIZATION_FAILED = 29
READ_RECORDS_MAX = 1_000
READ_AT_ONCE = 16
"""Partitions whose decisions are read at the same time."""


class RoutingKey(NamedTuple):
    """Whose routing topic it is, and how its records are proved."""

    topic: str  # the clean one
    mac_key: bytes


class Beside(NamedTuple):
    """What was read of a partition with decisions."""

    position: Offset
    records: tuple[LogRecord, ...]


class RoutingTopic:
    """Reads and writes the notes of one clean topic and of its quarantine, and its plans."""

    def __init__(
        self,
        config: KafkaConfig,
        cluster: KafkaCluster,
        key: RoutingKey,
        log_id: Callable[[], str],
        crashpoint: Crashpoint = no_crashpoint,
    ) -> None:
        """Connect to nothing yet; `log_id` returns the id of the cluster."""
        self.name = routing_topic_of(key.topic)
        self._config = config
        self._cluster = cluster
        self._key = key
        self._log_id = log_id
        self._crashpoint = crashpoint
        self._tp = TopicPartition(self.name, NOTES_PARTITION)
        self._producer = PlainProducer(config, cluster, self._tp)
        self._notes = Notes()
        self._plans: list[Plan | Marking] = []
        self._plans_known = 0  # of these, to whoever has asked for the routing
        self._closed: set[int] = set()  # plans
        self._position: Offset = 0
        self._beside: dict[int, Beside] = {}
        self._turn = asyncio.Lock()

    async def notes(self, name: str, topic: str) -> dict[int, str]:
        """
        Return the notes of this name by partition; none if there is no routing topic.

        Raises:
            RetriableError: no answer, or the routing topic is gone.
            ConfigurationError: a right is missing, or the topic has lost records.
            IdentityMismatchError: a record is of another secret, cluster or topic, or of a newer gateway.
        """
        async with self._turn:
            await self._catch_up()
        return self._notes.of(name, topic)

    async def note(self, note: Note) -> None:
        """
        Write a note.

        Raises:
            RetriableError: its outcome is unknown; call again.
            ConfigurationError: a right is missing.
        """
        await self._write(partial(note_record, note))
        self._crashpoint("noted")

    async def write_plan(self, plan: Plan) -> None:
        """Write a plan. Raises as `note` does."""
        await self._write(partial(plan_record, plan))
        self._crashpoint("planned")

    async def write_marking(self, marking: Marking) -> None:
        """Write more marks of a plan. Raises as `note` does."""
        await self._write(partial(marking_record, marking))
        self._crashpoint("marked")

    async def close_plan(self, number: int) -> None:
        """Write the wish that a plan end. Raises as `note` does."""
        await self._write(partial(close_record, Close(number)))

    async def routing(self, partitions: int) -> tuple[Routing, bool]:
        """
        Return where slots are at home, of a topic that began with so many partitions.

        Returns:
            The routing, and whether an operator wants its plan to end.

        Raises as `notes` does.
        """
        async with self._turn:
            await self._catch_up()
        self._plans_known = len(self._plans)
        routing = Routing.begun_with(partitions)
        for said in self._plans:
            routing = routing.with_plan(said) if isinstance(said, Plan) else routing.with_marking(said)
        if self._plans:
            seal, slots = await self.seal(), asyncio.Semaphore(READ_AT_ONCE)
            plans = [said for said in self._plans if isinstance(said, Plan)]
            partitions_of_log = range(max(plan.partitions for plan in plans))
            beside = await asyncio.gather(*(self._decisions_of(each, slots) for each in partitions_of_log))
            for partition, records in enumerate(beside):
                routing = routing.with_all(seal.decisions_in(partition, records))
        return routing, routing.version.plan in self._closed

    async def signs(self, plan: int) -> Signs:
        """Return what is said of a plan. Raises as `notes` does."""
        async with self._turn:
            await self._catch_up()
        told, cut_now = (self._notes.of(name, self._key.topic) for name in (PREPARED, CUT_NOW))
        return signs_of(plan, told, cut_now, is_closing=plan in self._closed)

    async def has_new_plan(self) -> bool:
        """Whether a plan, or marks, were written since `routing` was asked for. Raises as `notes` does."""
        async with self._turn:
            await self._catch_up()
        return len(self._plans) > self._plans_known

    async def seal(self) -> Seal:
        """
        Return how records are proved; those of before the cluster gave topics ids name none.

        Raises RetriableError.
        """
        ids = dict.fromkeys((await self._cluster.topic_id(self._key.topic), NO_TOPIC_ID))
        return Seal(self._log_id(), tuple(ids), self._key.mac_key)

    async def _decisions_of(self, partition: int, slots: asyncio.Semaphore) -> Sequence[LogRecord]:
        """Return the records beside a clean partition; only what was written since the last time is read."""
        tp = TopicPartition(self.name, partition + 1)
        async with slots:
            start, end = await self._cluster.offsets(tp, EARLIEST, LATEST)
            position, records = self._beside.get(partition, (start, ()))
            if end < position:
                del self._beside[partition]  # what was read may be lost
                raise RetriableError(f"{tp} ends at {end}, and was read to {position}")
            if position < end:
                with closing(
                    PartitionReader(self._config, self._cluster, tp, position, fetch_bytes=FETCH_BYTES_OF_FEW)
                ) as reader:
                    while reader.position < end:
                        records = (*records, *await self._read(reader))
                    self._beside[partition] = Beside(reader.position, records)
        return records

    async def _write(self, record_of: Callable[..., NewRecord]) -> None:
        """Write a record into partition 0. Raises as `note` does."""
        if not await self._cluster.partitions_of(self._key.topic):
            raise RetriableError(f"topic {self._key.topic} does not exist")  # and has no id to bind a note to
        place = (await self.seal()).places(NOTES_PARTITION)[0]
        record = record_of(place, self._key.mac_key, now_ms=time.time_ns() // 1_000_000)
        produced = await self._producer.produce([record])
        if produced.code == TOPIC_AUTHORIZATION_FAILED:
            raise self._without_right("Write")
        if produced.code:
            raise RetriableError(f"a note is refused by {self.name}: {error_name(produced.code)}")

    async def exists(self) -> bool:
        """Whether the routing topic exists. Raises RetriableError, ConfigurationError."""
        (topic,) = (await self._cluster.describe(self.name)).topics
        code = topic["error_code"]
        if code == TOPIC_AUTHORIZATION_FAILED:
            raise self._without_right("Describe")
        if code not in (0, UNKNOWN_TOPIC):
            raise RetriableError(f"cannot describe topic {self.name}: {error_name(code)}")
        return bool(code == 0)

    async def close(self) -> None:
        """Close all connections."""
        await self._producer.close()

    async def _catch_up(self) -> None:
        """Read what was written since the last time."""
        if self._position == 0 and not await self.exists():
            return
        start, end = await self._cluster.offsets(self._tp, EARLIEST, LATEST)
        if start > 0 or end < self._position:
            raise ConfigurationError(
                f"topic {self.name} has lost records, by which the gateway knows how {self._key.topic} is "
                "written: see docs/operations.md"
            )
        if end == self._position:
            return
        seal = await self.seal()
        with closing(
            PartitionReader(
                self._config, self._cluster, self._tp, self._position, fetch_bytes=FETCH_BYTES_OF_FEW
            )
        ) as reader:
            while reader.position < end:
                for record in await self._read(reader):
                    self._take(seal.read(record, NOTES_PARTITION))
                self._position = reader.position

    def _take(self, said: Said) -> None:
        """Remember the next record of partition 0."""
        match said:
            case Note():
                self._notes.add(said)
            case Plan() | Marking():
                self._plans.append(said)
            case Close(number):
                self._closed.add(number)
            case Decision():
                raise IdentityMismatchError(f"{self.name} has a decision among its notes: nobody wrote it")

    async def _read(self, reader: PartitionReader) -> list[LogRecord]:
        try:
            return [*await reader.read(READ_RECORDS_MAX)]
        except RetriableError as err:
            if isinstance(err.__cause__, TopicAuthorizationFailedError):
                raise self._without_right("Read") from err
            raise

    def _without_right(self, operation: str) -> ConfigurationError:
        return ConfigurationError(f"topic {self.name}: Kafka does not allow {operation} on it: add the ACL")
