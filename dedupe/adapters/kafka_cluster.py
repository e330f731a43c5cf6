"""
Questions to the cluster outside of any transaction: topics, offsets, notes.

All lanes share one connection. It is replaced when a question fails on it, so that none stays stuck
to brokers that went away; who fails with it asks again.

A note is the metadata of a committed consumer offset of a group that never has members: durable,
replicated, deleted with the topic, and forgotten `offsets.retention.minutes` after its last write.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import CoordinationType
from aiokafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    KafkaError,
    NotCoordinatorError,
    for_code,
)
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record._protocols import DefaultRecordBatchProtocol
from aiokafka.record.memory_records import MemoryRecords

from dedupe.adapters.kafka_client import (
    READ_COMMITTED,
    Background,
    KafkaConfig,
    bounded,
    close_client,
    mark_retrieved,
)
from dedupe.errors import ConfigurationError, RetriableError
from dedupe.types import Offset

T = TypeVar("T")

EARLIEST, LATEST = -2, -1  # instead of a timestamp
NO_OFFSET = -1
UNKNOWN_TOPIC = 3  # UNKNOWN_TOPIC_OR_PARTITION; any other error says nothing about whether it exists
GROUP_AUTHORIZATION_FAILED = 30
FETCH_BYTES = 64 * 1024
"""Of a look for a marker. The broker answers with one whole batch where that is larger."""
LEADER_TRIES = 15  # a second and a half: as long as an election may take
LEADER_RETRY_S = 0.1
NO_MEMBER = -1  # the generation of a group without members
BROKER_RETENTION = -1  # keep a commit for as long as the broker keeps others


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int


class Connection:
    """An admin client, from its creation to the end of the last question on it."""

    def __init__(self, config: KafkaConfig) -> None:
        """Begin to connect."""
        self.admin = config.admin()
        self.questions = 0
        self.is_broken = False
        self._started = asyncio.ensure_future(bounded(self.admin.start(), config.request_timeout_s))
        self._started.add_done_callback(mark_retrieved)

    async def ask(self, question: Callable[[AIOKafkaAdminClient], Coroutine[Any, Any, T]]) -> T:
        """Put a question once it is connected; unbounded. Raises KafkaError, OSError."""
        await asyncio.shield(self._started)
        return await question(self.admin)

    async def close(self) -> None:
        """Bounded, raises nothing."""
        self._started.cancel()
        await asyncio.wait({self._started})
        await close_client(self.admin._client)


class KafkaCluster:
    """Asks the cluster on behalf of all lanes."""

    def __init__(self, config: KafkaConfig, background: Background) -> None:
        """Connect at the first question."""
        self._config = config
        self._background = background
        self._connection: Connection | None = None
        self._leaders: dict[TopicPartition, int] = {}

    async def ask(self, question: Callable[[AIOKafkaAdminClient], Coroutine[Any, Any, T]]) -> T:
        """
        Put a question to the cluster, within the request timeout as a whole.

        Raises:
            RetriableError: no answer, or an error; the next question goes out on a new connection.
            GatewayError: as `question` does, about its answer.
        """
        connection = self._connection = self._connection or Connection(self._config)
        connection.questions += 1
        try:
            return await bounded(connection.ask(question), self._config.request_timeout_s)
        except (KafkaError, OSError) as err:
            connection.is_broken = True
            self._leaders.clear()
            raise RetriableError(f"Kafka does not answer: {err!r}") from err
        finally:
            connection.questions -= 1
            self._release_if_broken(connection)

    async def partitions_of(self, topic: str) -> int:
        """See LogStore."""
        (found,) = await self.ask(lambda admin: admin.describe_topics([topic]))
        if found["error_code"] not in (0, UNKNOWN_TOPIC):
            raise RetriableError(f"cannot describe topic {topic}: {_name(found['error_code'])}")
        return len(found["partitions"])

    async def offsets(self, tp: TopicPartition, *timestamps: int) -> list[Offset]:
        """
        Return for each timestamp, in turn, the first offset that is as new; NO_OFFSET if there is none.

        What is at or above the last stable offset is not looked at.

        Args:
            tp: a partition.
            timestamps: in milliseconds since 1970; or EARLIEST; or LATEST, the last stable offset itself.

        Raises:
            RetriableError: no answer, or there is no such partition.
        """

        async def question(admin: AIOKafkaAdminClient) -> list[Offset]:
            return [await self._offset(admin, tp, timestamp) for timestamp in timestamps]

        return await self.ask(question)

    async def end_of(self, tp: TopicPartition) -> Offset:
        """Return the last stable offset. Raises as `offsets` does."""
        (end,) = await self.offsets(tp, LATEST)
        return end

    async def is_marked(
        self, tp: TopicPartition, producer_id: int, epoch: int, *, start: Offset, end: Offset
    ) -> bool:
        """
        Whether the leader shows a producer's marker in [start, end): what it had before lies below it.

        A leader that was deposed and has not noticed shows none. One above the end says nothing: another
        leader may have said where that is. Raises RetriableError.
        """
        position = start
        while position < end:
            batches = await self.ask(partial(self._fetch, tp, position))
            if not batches:
                break
            owners = [
                (batch.producer_id, batch.producer_epoch)
                for batch in batches
                if batch.is_control_batch and batch.next_offset <= end
            ]
            if (producer_id, epoch) in owners:
                return True
            position = batches[-1].next_offset
        return False

    async def leader_of(self, tp: TopicPartition) -> Address:
        """Return where the leader of a partition listens now. Raises RetriableError."""

        async def question(admin: AIOKafkaAdminClient) -> Address:
            self._leaders.pop(tp, None)
            leader = self._leaders[tp] = await _leader_of(admin, tp)
            return _address_of(admin, leader)

        return await self.ask(question)

    async def coordinator_of(self, name: str, kind: int = CoordinationType.TRANSACTION) -> Address | None:
        """
        Return where the coordinator listens, None if there is none yet.

        Args:
            name: a transactional.id, or a group.
            kind: which of both.

        Raises:
            RetriableError: no answer, or another error.
            ConfigurationError: Kafka's ACLs are in the way of a group.
        """

        async def question(admin: AIOKafkaAdminClient) -> Address | None:
            try:
                found = await admin._client.coordinator_lookup(kind, name)
            except (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError):
                return None
            except GroupAuthorizationFailedError as err:
                raise unauthorized(name) from err
            return _address_of(admin, found)

        return await self.ask(question)

    async def notes(self, name: str, topic: str) -> dict[int, str]:
        """See LogStore."""
        group = group_of(name, topic)

        async def question(admin: AIOKafkaAdminClient) -> Any:
            coordinator = await _coordinator(admin, group)
            return await admin._client.send(coordinator, OffsetFetchRequest(group, None))

        answer = await self.ask(question)
        _judge_note(group, answer.error_code)
        kept: dict[int, str] = {}
        for _, partitions in answer.topics:
            for partition, _, text, code in partitions:
                _judge_note(group, code)
                kept[partition] = text
        return kept

    async def note(self, name: str, topic: str, partition: int, text: str) -> None:
        """See LogStore."""
        group = group_of(name, topic)
        request = OffsetCommitRequest(
            group, NO_MEMBER, "", BROKER_RETENTION, [(topic, [(partition, 0, text)])]
        )

        async def question(admin: AIOKafkaAdminClient) -> Any:
            return await admin._client.send(await _coordinator(admin, group), request)

        answer = await self.ask(question)
        ((_, ((_, code),)),) = answer.topics
        _judge_note(group, code)

    def close(self) -> None:
        """Release the connection in the background."""
        if self._connection is not None:
            self._connection.is_broken = True
            self._release_if_broken(self._connection)

    def _release_if_broken(self, connection: Connection) -> None:
        """Stop using a broken connection; close it once nobody waits for an answer on it."""
        if connection.is_broken:
            if self._connection is connection:
                self._connection = None
            if connection.questions == 0:
                self._background.run(connection.close())

    async def _fetch(
        self, tp: TopicPartition, start: Offset, admin: AIOKafkaAdminClient
    ) -> list[DefaultRecordBatchProtocol]:
        """Return the record batches from an offset on, without waiting for any."""
        places = [(tp.topic, [(tp.partition, start, FETCH_BYTES)])]
        request = FetchRequest(0, 1, FETCH_BYTES, READ_COMMITTED, places)
        leader = self._leaders.get(tp) or await _leader_of(admin, tp)
        while (found := fetched_in(answer := await admin._client.send(leader, request))) is None:  # noqa: ASYNC110
            await asyncio.sleep(answer.throttle_time_ms / 1000)
        *_, raw = found
        return list(_batches_in(raw))

    async def _offset(self, admin: AIOKafkaAdminClient, tp: TopicPartition, timestamp: int) -> Offset:
        """Ask the partition's leader, and again while it is just becoming or ceasing to be it."""
        request = OffsetRequest(-1, READ_COMMITTED, [(tp.topic, [(tp.partition, timestamp)])])
        tries = 0
        while True:
            if tp not in self._leaders:
                self._leaders[tp] = await _leader_of(admin, tp)
            answer = await admin._client.send(self._leaders[tp], request)
            ((_, ((_, code, _, offset),)),) = answer.topics
            if code == 0:
                return int(offset)
            self._leaders.pop(tp, None)
            tries += 1
            if tries == LEADER_TRIES:
                raise RetriableError(f"cannot read the offsets of {tp}: {_name(code)}")
            await asyncio.sleep(LEADER_RETRY_S)


def fetched_in(answer: Any) -> tuple[Any, ...] | None:
    """
    Return what the answer to a Fetch of one partition says of it; the record batches stand last.

    None if a quota is used up: then the broker reads nothing more for the answer's throttle time.
    Raises KafkaError.
    """
    if not answer.topics:
        return None
    ((_, (found,)),) = answer.topics
    _, code, *_ = found
    if code != 0:
        raise for_code(code)(f"error {code}")
    return tuple(found)


def _batches_in(raw: bytes) -> Iterator[DefaultRecordBatchProtocol]:
    records = MemoryRecords(raw)
    while records.has_next():
        batch = records.next_batch()
        if batch is not None:
            yield cast(DefaultRecordBatchProtocol, batch)


async def _leader_of(admin: AIOKafkaAdminClient, tp: TopicPartition) -> int:
    """Ask who leads a partition. Raises RetriableError if nobody does."""
    answer = await admin._get_cluster_metadata([tp.topic])
    admin._client.cluster.update_metadata(answer)
    (topic,) = answer.to_object()["topics"]
    if topic["error_code"] == UNKNOWN_TOPIC:
        raise RetriableError(f"topic {tp.topic} does not exist")
    if topic["error_code"] != 0:
        raise RetriableError(f"cannot describe topic {tp.topic}: {_name(topic['error_code'])}")
    leaders = {found["partition"]: int(found["leader"]) for found in topic["partitions"]}
    if leaders.get(tp.partition, -1) < 0:
        raise RetriableError(f"{tp} has no leader")
    return leaders[tp.partition]


def _address_of(admin: AIOKafkaAdminClient, node: int) -> Address:
    broker = admin._client.cluster.broker_metadata(node)
    if broker is None:
        raise RetriableError(f"broker {node} is not known yet")
    return Address(broker.host, broker.port)


async def _coordinator(admin: AIOKafkaAdminClient, group: str) -> int:
    try:
        return await admin.find_coordinator(group)
    except GroupAuthorizationFailedError as err:
        raise unauthorized(group) from err


def group_of(name: str, topic: str) -> str:
    """Return the consumer group that the gateways of a topic use for something."""
    return f"gateway-{topic}-{name}"


def transactional_id_of(tp: TopicPartition) -> str:
    """Return as whom a partition is written to, by whichever gateway: it follows from the partition (R4)."""
    return f"gateway-{tp.topic}-{tp.partition}"


def _judge_note(group: str, code: int) -> None:
    """Raise what an error code of a group means."""
    if code == GROUP_AUTHORIZATION_FAILED:
        raise unauthorized(group)
    if code != 0:
        raise RetriableError(f"consumer group {group}: {_name(code)}")


def unauthorized(group: str) -> ConfigurationError:
    """Say which right is missing."""
    return ConfigurationError(
        f"Kafka does not let the gateway use the consumer group {group}: "
        "it needs the ACL that allows Read on this group"
    )


def _name(code: int) -> str:
    return for_code(code).__name__
