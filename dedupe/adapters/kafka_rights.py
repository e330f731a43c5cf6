"""
Which of the rights that the gateway needs Kafka's ACLs do not give it, as far as Kafka tells.

Brokers say for topics and groups what the asker may do with them. Of a transactional id they tell only
whether it may be described: whether it may be written to shows when a partition is fenced.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError
from aiokafka.protocol.admin import DescribeGroupsRequest_v3, DescribeGroupsResponse_v3
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String

from dedupe.adapters.kafka_client import bounded
from dedupe.adapters.kafka_cluster import Address, group_of, transactional_id_of
from dedupe.adapters.kafka_connection import Connection
from dedupe.adapters.kafka_log import KafkaStore
from dedupe.adapters.kafka_wire import request_of
from dedupe.errors import ConfigurationError, RetriableError
from dedupe.notes import PIN

ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""A topic of 1,024 partitions takes 50 KB, and each broker 50 bytes."""

COORDINATOR_TRIES, COORDINATOR_RETRY_S = 40, 0.25

OPERATIONS = {"Read": 3, "Write": 4, "Describe": 8, "DescribeConfigs": 10}
"""Kafka's numbers; in what a broker tells of them, each is a bit."""
UNTOLD = -(2**31)
NEEDED_OF_TOPICS = ("Read", "Write", "Describe", "DescribeConfigs")
TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED = 29, 30


class MetadataResponse(Response):
    """Version 8, the first one that tells rights; aiokafka knows earlier ones only."""

    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            Array(("node_id", Int32), ("host", String()), ("port", Int32), ("rack", String())),
        ),
        ("cluster_id", String()),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String()),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
        ("cluster_authorized_operations", Int32),
    )


class MetadataRequest(RequestStruct):
    """See MetadataResponse."""

    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = MetadataResponse
    SCHEMA = Schema(
        ("topics", Array(String())),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class GroupsRequest(RequestStruct):
    """Version 3; aiokafka's own reads the answer as one of version 2, without the rights."""

    API_KEY = DescribeGroupsRequest_v3.API_KEY
    API_VERSION = DescribeGroupsRequest_v3.API_VERSION
    RESPONSE_TYPE = DescribeGroupsResponse_v3
    SCHEMA = DescribeGroupsRequest_v3.SCHEMA


async def missing_rights(store: KafkaStore, topics: Sequence[str]) -> list[str]:
    """
    Return a sentence for each right that is missing; changes nothing.

    Args:
        store: the cluster, as the gateway's user.
        topics: the clean one, and the one of quarantine.

    Raises:
        RetriableError: the cluster does not answer.
    """
    try:
        missing = await _missing_of_topics(store, topics)
        for topic in topics:
            missing += await _missing_of_group(store, group_of(PIN, topic))
            missing += await _missing_of_transactions(store, transactional_id_of(TopicPartition(topic, 0)))
    except (KafkaError, OSError, ValueError, struct.error) as err:
        raise RetriableError(f"Kafka does not tell rights: {err!r}") from err
    return missing


async def _missing_of_topics(store: KafkaStore, topics: Sequence[str]) -> list[str]:
    cluster = await store.cluster.ask(lambda admin: admin.describe_cluster())
    broker = cluster["brokers"][0]
    answer = await _asked(
        store, broker["host"], broker["port"], MetadataRequest(list(topics), False, False, True)
    )
    missing = []
    for code, topic, _, _, told in answer.topics:
        may = () if code == TOPIC_AUTHORIZATION_FAILED else _operations(told)
        if code in (0, TOPIC_AUTHORIZATION_FAILED):
            missing += [
                f"topic {topic}: Kafka does not allow {name} on it: add the ACL"
                for name in NEEDED_OF_TOPICS
                if name not in may
            ]
    return missing


async def _missing_of_group(store: KafkaStore, group: str) -> list[str]:
    sentence = f"group {group}: Kafka does not allow Read on it: add the ACL, for all groups gateway-*"
    try:
        coordinator = await _coordinator(store, group)
    except ConfigurationError:
        return [sentence]
    answer = await _asked(store, coordinator.host, coordinator.port, GroupsRequest([group], True))
    ((code, *_, told),) = answer.groups
    is_missing = code == GROUP_AUTHORIZATION_FAILED or (code == 0 and "Read" not in _operations(told))
    return [sentence] if is_missing else []


async def _coordinator(store: KafkaStore, group: str) -> Address:
    """A cluster that has never had a group makes the topic of all groups first. Raises RetriableError."""
    for _ in range(COORDINATOR_TRIES):
        found = await store.cluster.coordinator_of(group, CoordinationType.GROUP)
        if found is not None:
            return found
        await asyncio.sleep(COORDINATOR_RETRY_S)
    raise RetriableError(f"group {group} has no coordinator yet")


async def _missing_of_transactions(store: KafkaStore, transactional_id: str) -> list[str]:
    try:
        await store.cluster.coordinator_of(transactional_id)
    except RetriableError as err:
        if "TransactionalIdAuthorizationFailed" not in str(err):
            raise
        return [
            f"transactional id {transactional_id}: Kafka does not allow Describe on it: add the ACLs for "
            "Describe and Write, for all transactional ids gateway-*"
        ]
    return []


def _operations(told: int) -> tuple[str, ...]:
    """Return what may be done; everything where the cluster has no ACLs."""
    return tuple(name for name, number in OPERATIONS.items() if told == UNTOLD or told >> number & 1)


async def _asked(store: KafkaStore, host: str, port: int, request: RequestStruct) -> Any:
    """Return a broker's answer, on a connection of its own. Raises KafkaError or OSError."""
    connection: Connection | None = None

    async def ask() -> bytes:
        nonlocal connection
        connection = await Connection.open(store.config, host, port, answer_bytes_max=ANSWER_BYTES_MAX)
        return await connection.ask(request_of(request))

    try:
        answer = await bounded(ask(), store.config.request_timeout_s)
    finally:
        if connection is not None:
            connection.close()
    return request.RESPONSE_TYPE.decode(answer)
