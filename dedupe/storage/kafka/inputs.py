"""A Kafka cluster whose topics are inputs, see dedupe.storage.input_log."""

import re
from collections.abc import Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import CoordinationType
from aiokafka.protocol.api import RequestStruct
from aiokafka.protocol.commit import OffsetCommitRequest_v3, OffsetFetchRequest_v3

from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.model.types import Offset
from dedupe.storage.input_log import CommittedOffset
from dedupe.storage.kafka.cluster import (
    EARLIEST,
    GROUP_AUTHORIZATION_FAILED,
    LATEST,
    NO_OFFSET,
    KafkaCluster,
    error_name,
    unauthorized,
)
from dedupe.storage.kafka.config import KafkaConfig
from dedupe.storage.kafka.reader import PartitionReader
from dedupe.storage.kafka.wire import NO_TOPIC_ID, response_for

NO_MEMBER = -1
"""The generation of a group without members."""
BROKER_RETENTION = -1
"""Keep a commit for as long as the broker keeps others."""

FETCH_BYTES = 1024 * 1024
"""Of one response; a larger record batch comes whole."""

WAIT_MS = 500
"""How long a broker without records waits: two requests a second for an idle partition."""

IN_USE_CODES: Mapping[int, str] = {22: "ILLEGAL_GENERATION", 25: "UNKNOWN_MEMBER_ID", 27: "REBALANCE"}
"""Of a group that has members: another program consumes under its name."""

_COMMITTED = re.compile(r"([0-9a-f]{32})(?: ([0-9]{1,9}))?")
"""A topic id, and the number of a seek."""


class KafkaInputs:
    """Reads topics of one cluster as inputs."""

    def __init__(self, config: KafkaConfig) -> None:
        """Connect to nothing yet; `config` must decode records of any program (no `native_decode`)."""
        self._config = config
        self._cluster = KafkaCluster(config)

    async def cluster_id(self) -> str:
        return (await self._cluster.describe()).cluster_id or ""

    async def topic_id(self, topic: str) -> str | None:
        topic_id = await self._cluster.topic_id(topic)
        return None if topic_id == NO_TOPIC_ID else topic_id.hex()

    async def partitions_of(self, topic: str) -> int:
        return await self._cluster.partitions_of(topic)

    async def bounds(self, topic: str, partition: int) -> tuple[Offset, Offset]:
        start, end = await self._cluster.offsets(TopicPartition(topic, partition), EARLIEST, LATEST)
        return start, end

    async def first_since(self, topic: str, partition: int, timestamp_ms: int) -> Offset:
        tp = TopicPartition(topic, partition)
        first, end = await self._cluster.offsets(tp, timestamp_ms, LATEST)
        return end if first == NO_OFFSET else first

    async def committed(self, group: str, topic: str) -> dict[int, CommittedOffset]:
        response = await self._ask(group, OffsetFetchRequest_v3(group, None))
        _raise_for(group, response.error_code)
        found: dict[int, CommittedOffset] = {}
        for name, partitions in response.topics:
            for partition, offset, text, code in partitions:
                _raise_for(group, code)
                if name == topic and offset != NO_OFFSET:
                    found[partition] = CommittedOffset(offset, *_read(text))
        return found

    async def commit(self, group: str, topic: str, partition: int, committed: CommittedOffset) -> None:
        offsets = [(topic, [(partition, committed.offset, f"{committed.topic_id} {committed.seek}")])]
        request = OffsetCommitRequest_v3(group, NO_MEMBER, "", BROKER_RETENTION, offsets)
        response = await self._ask(group, request)
        (code,) = response_for(TopicPartition(topic, partition), response.topics)
        _raise_for(group, code)

    def reader(self, topic: str, partition: int, start: Offset) -> PartitionReader:
        tp = TopicPartition(topic, partition)
        return PartitionReader(
            self._config, self._cluster, tp, start, fetch_bytes=FETCH_BYTES, wait_ms=WAIT_MS
        )

    def close(self) -> None:
        self._cluster.close()

    async def _ask(self, group: str, request: RequestStruct) -> Any:
        coordinator = await self._cluster.coordinator_of(group, CoordinationType.GROUP)
        if coordinator is None:
            raise RetriableError(f"consumer group {group} has no coordinator yet")
        return await self._cluster.send(coordinator, request)


def _read(text: str | None) -> tuple[str, int]:
    """Return the topic id and the seek that a commit of a gateway names; "" and 0 of another program's."""
    found = _COMMITTED.fullmatch(text or "")
    return (found[1], int(found[2] or 0)) if found else ("", 0)


def _raise_for(group: str, code: int) -> None:
    if code == GROUP_AUTHORIZATION_FAILED:
        raise unauthorized(group)
    if code in IN_USE_CODES:
        raise ConfigurationError(
            f"another program consumes as group {group} ({IN_USE_CODES[code]}): it must use another name"
        )
    if code != 0:
        raise RetriableError(f"consumer group {group}: {error_name(code)}")
