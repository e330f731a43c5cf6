"""
Requests to the cluster outside of appends and reads: topics, leaders, coordinators, offsets.

All lanes share one connection to each broker. A broker that does not answer is tried last from then on, over
a new connection; the caller repeats the request.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.admin import DescribeConfigsRequest_v2
from aiokafka.protocol.api import RequestStruct
from aiokafka.protocol.coordination import FindCoordinatorRequest_v1
from aiokafka.protocol.offset import OffsetRequest_v3

from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.model.types import Offset
from dedupe.storage.kafka.broker_connection import BrokerConnection, ConnectionPool
from dedupe.storage.kafka.config import Address, KafkaConfig
from dedupe.storage.kafka.wire import (
    CONSUMER,
    NO_TOPIC_ID,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    metadata_request,
    response_for,
    topic_id_request,
)

EARLIEST, LATEST = -2, -1  # instead of a timestamp
NO_OFFSET = -1
UNKNOWN_TOPIC = 3  # UNKNOWN_TOPIC_OR_PARTITION; after any other error the topic may exist
NO_COORDINATOR_CODES = frozenset({14, 15, 16})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""
GROUP_AUTHORIZATION_FAILED = 30
RESPONSE_BYTES_MAX = 16 * 1024 * 1024
"""More than any response to a question has."""
LEADER_TRIES = 15  # a second and a half: as long as an election may take
LEADER_RETRY_S = 0.1
SHARED_S = 0.5


class Cluster(NamedTuple):
    """A broker's description of its cluster."""

    cluster_id: str | None
    controller: Address | None
    brokers: dict[int, Address]
    topics: list[dict[str, Any]]  # of the request, as in MetadataResponse


class KafkaCluster:
    """Sends requests to the cluster on behalf of all lanes."""

    def __init__(self, config: KafkaConfig) -> None:
        """Connect to nothing yet. Raises ConfigurationError, see KafkaConfig.bootstrap_addresses."""
        self._config = config
        self._bootstrap = config.bootstrap_addresses()
        self._any = [*self._bootstrap]
        """Brokers for requests that any broker answers, in the order in which they are tried."""
        self._connections = ConnectionPool(config, response_bytes_max=RESPONSE_BYTES_MAX)
        self._leaders: dict[TopicPartition, Address] = {}
        self._shared: dict[tuple[str, str], tuple[float, asyncio.Task[Any]]] = {}  # and when each was asked

    async def send(self, broker: Address, request: RequestStruct, *, limit_s: float | None = None) -> Any:
        """
        Send a request once, and return the response.

        Args:
            broker: where to.
            request: what.
            limit_s: of the answer; None for that of a question.

        Raises:
            RetriableError: no response in time. The broker's connection is closed.
        """
        answers, loop = self._config.answers, asyncio.get_running_loop()
        limit_s = limit_s or self._config.answer_s
        connection: BrokerConnection | None = None
        try:
            async with asyncio.timeout(self._config.request_timeout_s):  # a login may take as long
                connection = await self._connections.connect(broker)
            await connection.rest()
            began_at = loop.time()
            response = await connection.send(request, timeout_s=limit_s)
        except (KafkaError, OSError) as err:
            if connection is not None:
                connection.close()
                if isinstance(err, TimeoutError):
                    answers.note_silence(limit_s)
            self.distrust(broker)
            raise RetriableError(f"Kafka does not answer: {self._config.explain(err, limit_s)}") from err
        answers.note_answer(loop.time() - began_at)
        return response

    async def send_to_any(self, request: RequestStruct) -> Any:
        """
        Send a request to one broker, to the next one where that fails, and return the response.

        Raises:
            RetriableError: no broker answers within the request timeout.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._config.request_timeout_s
        broker, *others = self._any
        while True:
            try:
                return await self.send(broker, request)
            except RetriableError:
                if loop.time() >= give_up_at or not others:
                    raise
                broker = others.pop(0)

    async def describe(self, *topics: str, with_operations: bool = False) -> Cluster:
        """
        Return the brokers and these topics, as one broker knows them; creates no topic.

        Raises:
            RetriableError: no answer.
        """
        request = metadata_request(topics, with_operations=with_operations)
        metadata = (await self.send_to_any(request)).to_object()
        brokers = {each["node_id"]: Address(each["host"], each["port"]) for each in metadata["brokers"]}
        known = dict.fromkeys((*self._bootstrap, *brokers.values()))
        self._any = [*dict.fromkeys(address for address in (*self._any, *known) if address in known)]
        controller = brokers.get(metadata["controller_id"])
        return Cluster(metadata["cluster_id"], controller, brokers, metadata["topics"])

    async def topic_id(self, topic: str) -> bytes:
        """
        Return the id that tells a topic from one of the same name that was made anew.

        All who ask within SHARED_S share one request.

        Returns:
            16 bytes; NO_TOPIC_ID if the cluster gives topics no ids, or there is no such topic.

        Raises:
            RetriableError: no answer.
        """
        topic_id: bytes = await self._share("id", topic, self._ask_topic_id)
        return topic_id

    async def topic_settings(self, topic: str) -> dict[str, str | None]:
        """Return the effective settings that the cluster shows of a topic. Raises RetriableError."""
        return configs_in(await self.send_to_any(configs_request(ConfigResourceType.TOPIC, topic)))

    async def partitions_of(self, topic: str) -> int:
        _, described = await self._describe_topic(topic)
        return len(described["partitions"])

    async def offsets(self, tp: TopicPartition, *timestamps: int) -> list[Offset]:
        """
        Return for each timestamp the first offset that is as new; NO_OFFSET if there is none.

        Records at or above the last stable offset do not count.

        Args:
            tp: a partition.
            timestamps: in milliseconds since 1970; or EARLIEST; or LATEST, the last stable offset itself.

        Raises:
            RetriableError: no answer, or there is no such partition.
        """
        return [await self._offset(tp, timestamp) for timestamp in timestamps]

    async def end(self, tp: TopicPartition) -> Offset:
        """Return the end of all records, those of open transactions included. Raises RetriableError."""
        return await self._offset(tp, LATEST, READ_UNCOMMITTED)

    def known_leader_of(self, tp: TopicPartition) -> Address | None:
        """Return the leader of a partition as the last request for its offsets found it."""
        return self._leaders.get(tp)

    async def leader_of(self, tp: TopicPartition) -> Address:
        """Return the leader of a partition. Raises RetriableError: no answer, no topic, or no leader."""
        self._leaders.pop(tp, None)
        cluster, topic = await self._describe_topic(tp.topic)
        if topic["error_code"] == UNKNOWN_TOPIC:
            raise RetriableError(f"topic {tp.topic} does not exist")
        leaders = {each["partition"]: each["leader"] for each in topic["partitions"]}
        leader = cluster.brokers.get(leaders.get(tp.partition, -1))
        if leader is None:
            raise RetriableError(f"{tp} has no leader")
        self._leaders[tp] = leader
        return leader

    async def is_led_elsewhere(self, tp: TopicPartition, broker: Address) -> bool:
        """
        Whether a partition has a leader, and another one than this broker.

        All who ask about one topic within SHARED_S share one request. Raises RetriableError: no answer.
        """
        cluster, topic = await self._share("leaders", tp.topic, self._describe_topic)
        leaders = (each["leader"] for each in topic["partitions"] if each["partition"] == tp.partition)
        leader: Address = cluster.brokers.get(next(leaders, -1), broker)
        return leader != broker

    async def find_coordinator(self, name: str, kind: int) -> tuple[int, Address]:
        """Return an error code and the coordinator's address. Arguments and errors as of `coordinator_of`."""
        response = await self.send_to_any(FindCoordinatorRequest_v1(name, kind))
        return response.error_code, Address(response.host, response.port)

    async def coordinator_of(self, name: str, kind: int = CoordinationType.TRANSACTION) -> Address | None:
        """
        Return the address of a coordinator, None if there is none yet.

        Args:
            name: a transactional.id, or a group.
            kind: which of both.

        Raises:
            RetriableError: no answer, or another error.
            ConfigurationError: the ACLs do not allow to read the group.
        """
        code, coordinator = await self.find_coordinator(name, kind)
        if code in NO_COORDINATOR_CODES:
            return None
        if code == GROUP_AUTHORIZATION_FAILED:
            raise unauthorized(name)
        if code != 0:
            raise RetriableError(f"{name} has no coordinator: {error_name(code)}")
        return coordinator

    def distrust(self, broker: Address) -> None:
        """Ask other brokers first from now on; the address may be out of date, as may be all leaders."""
        self._leaders.clear()
        if broker in self._any:
            self._any.remove(broker)
            self._any.append(broker)

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    async def _share(self, kind: str, topic: str, ask: Callable[[str], Coroutine[Any, Any, Any]]) -> Any:
        """Return the answer to a question about a topic, which all who ask within SHARED_S share."""
        now = asyncio.get_running_loop().time()
        asked_at, asked = self._shared.get((kind, topic), (-math.inf, None))
        if asked is None or now - asked_at > SHARED_S or (asked.done() and asked.exception()):
            asked = asyncio.ensure_future(ask(topic))
            asked.add_done_callback(_retrieve)
            self._shared[kind, topic] = now, asked
        return await asyncio.shield(asked)

    async def _ask_topic_id(self, topic: str) -> bytes:
        try:
            response = await self.send_to_any(topic_id_request(topic))
        except ConfigurationError:  # a broker of before topic ids
            return NO_TOPIC_ID
        (described,) = response.to_object()["topics"]
        code, topic_id = described["error_code"], described["topic_id"]
        if code not in (0, UNKNOWN_TOPIC):
            raise RetriableError(f"cannot describe topic {topic}: {error_name(code)}")
        return bytes(topic_id)

    async def _describe_topic(self, topic: str) -> tuple[Cluster, dict[str, Any]]:
        """Return the topic, known or unknown, within its cluster. Raises RetriableError: another error."""
        cluster = await self.describe(topic)
        (described,) = cluster.topics
        if described["error_code"] not in (0, UNKNOWN_TOPIC):
            raise RetriableError(f"cannot describe topic {topic}: {error_name(described['error_code'])}")
        return cluster, described

    async def _offset(self, tp: TopicPartition, timestamp: int, isolation: int = READ_COMMITTED) -> Offset:
        """Send the request to the partition's leader, again while leadership moves."""
        request = OffsetRequest_v3(CONSUMER, isolation, [(tp.topic, [(tp.partition, timestamp)])])
        code = 0
        for _ in range(LEADER_TRIES):
            leader = self._leaders.get(tp) or await self.leader_of(tp)
            response = await self.send(leader, request)
            code, _, offset = response_for(tp, response.topics)
            if code == 0:
                return int(offset)
            self._leaders.pop(tp, None)
            await asyncio.sleep(LEADER_RETRY_S)
        raise RetriableError(f"cannot read the offsets of {tp}: {error_name(code)}")

    async def send_to_coordinator(self, group: str, request: RequestStruct) -> Any:
        """Send a request to a group's coordinator. Raises RetriableError, ConfigurationError."""
        coordinator = await self.coordinator_of(group, CoordinationType.GROUP)
        if coordinator is None:
            raise RetriableError(f"consumer group {group} has no coordinator yet")
        return await self.send(coordinator, request)


def group_of(name: str, topic: str) -> str:
    """Return the consumer group that the gateways of a topic use for something."""
    return f"gateway-{topic}-{name}"


def transactional_id_of(tp: TopicPartition) -> str:
    """Return the transactional.id of every gateway that writes to a partition (rule R4)."""
    return f"gateway-{tp.topic}-{tp.partition}"


def unauthorized(group: str) -> ConfigurationError:
    """Return the error that names the missing right on a group."""
    return ConfigurationError(
        f"Kafka does not let the gateway use the consumer group {group}: "
        "it needs the ACL that allows Read on this group"
    )


def error_name(code: int) -> str:
    """Return the name of an error code of Kafka's."""
    return for_code(code).__name__


def configs_request(kind: ConfigResourceType, name: str) -> DescribeConfigsRequest_v2:
    """Return a request for the settings of a topic or a broker."""
    return DescribeConfigsRequest_v2([(kind, name, None)], False)


def configs_in(response: Any) -> dict[str, str | None]:
    """Return the effective settings of one topic or broker; none if the cluster does not show them."""
    return {
        setting: value
        for code, _, _, _, entries in response.resources
        if code == 0
        for setting, value, *_ in entries
    }


def _retrieve(asked: "asyncio.Task[Any]") -> None:
    """Mark the error of a request as retrieved, for which nobody waits any more."""
    if not asked.cancelled():
        asked.exception()
