"""
Finds the rights that Kafka's ACLs do not give the gateway.

Brokers return the allowed operations on topics and groups. For a transactional.id they show whether Describe
is allowed; a missing Write shows when a partition is fenced.
"""

import asyncio
from collections.abc import Sequence

from aiokafka import TopicPartition
from aiokafka.client import CoordinationType
from aiokafka.protocol.admin import DescribeGroupsRequest_v3, DescribeGroupsResponse_v3
from aiokafka.protocol.api import RequestStruct

from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.storage.kafka.cluster import (
    GROUP_AUTHORIZATION_FAILED,
    KafkaCluster,
    group_of,
    transactional_id_of,
)
from dedupe.storage.kafka.config import Address
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.notes import PIN

COORDINATOR_TRIES, COORDINATOR_RETRY_S = 40, 0.25

OPERATIONS = {"Read": 3, "Write": 4, "Describe": 8, "DescribeConfigs": 10}
"""Kafka's numbers; of the operations in a response, each is a bit."""
NOT_INCLUDED = -(2**31)
NEEDED_OF_TOPICS = ("Read", "Write", "Describe", "DescribeConfigs")
TOPIC_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 29, 53


class DescribeGroupsRequest(RequestStruct):
    """Version 3; aiokafka's own decodes the response as version 2, without the operations."""

    API_KEY = DescribeGroupsRequest_v3.API_KEY
    API_VERSION = DescribeGroupsRequest_v3.API_VERSION
    RESPONSE_TYPE = DescribeGroupsResponse_v3
    SCHEMA = DescribeGroupsRequest_v3.SCHEMA


async def missing_rights(store: KafkaStore, topics: Sequence[str], routing: str) -> list[str]:
    """
    Return a sentence for each missing right; changes nothing.

    Args:
        store: the cluster, as the gateway's user.
        topics: the clean one, and the one of quarantine.
        routing: the routing topic.

    Raises:
        RetriableError: the cluster does not answer.
    """
    missing = await _missing_of_topics(store.cluster, [*topics, routing])
    for topic in topics:
        missing += await _missing_of_group(store.cluster, group_of(PIN, topic))
        missing += await _missing_of_transactions(
            store.cluster, transactional_id_of(TopicPartition(topic, 0))
        )
    return missing


async def _missing_of_topics(cluster: KafkaCluster, topics: Sequence[str]) -> list[str]:
    missing = []
    for topic in (await cluster.describe(*topics, with_operations=True)).topics:
        code, name = topic["error_code"], topic["topic"]
        is_refused = code == TOPIC_AUTHORIZATION_FAILED
        allowed = () if is_refused else _operations(topic["authorized_operations"])
        if code == 0 or is_refused:
            missing += [
                f"topic {name}: Kafka does not allow {operation} on it: add the ACL"
                for operation in NEEDED_OF_TOPICS
                if operation not in allowed
            ]
    return missing


async def _missing_of_group(cluster: KafkaCluster, group: str) -> list[str]:
    sentence = f"group {group}: Kafka does not allow Read on it: add the ACL, for all groups gateway-*"
    try:
        coordinator = await _coordinator(cluster, group)
    except ConfigurationError:
        return [sentence]
    (described,) = (await cluster.send(coordinator, DescribeGroupsRequest([group], True))).groups
    code, operations = described[0], described[-1]
    is_refused = code == GROUP_AUTHORIZATION_FAILED or (code == 0 and "Read" not in _operations(operations))
    return [sentence] if is_refused else []


async def _coordinator(cluster: KafkaCluster, group: str) -> Address:
    """Wait for the coordinator; the cluster's first group has its topic created. Raises RetriableError."""
    for _ in range(COORDINATOR_TRIES):
        coordinator = await cluster.coordinator_of(group, CoordinationType.GROUP)
        if coordinator is not None:
            return coordinator
        await asyncio.sleep(COORDINATOR_RETRY_S)
    raise RetriableError(f"group {group} has no coordinator yet")


async def _missing_of_transactions(cluster: KafkaCluster, transactional_id: str) -> list[str]:
    code, _ = await cluster.find_coordinator(transactional_id, CoordinationType.TRANSACTION)
    if code != TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return []
    return [
        f"transactional id {transactional_id}: Kafka does not allow Describe on it: add the ACLs for "
        "Describe and Write, for all transactional ids gateway-*"
    ]


def _operations(bits: int) -> tuple[str, ...]:
    """Return the allowed operations; all of them where the cluster has no ACLs."""
    return tuple(name for name, number in OPERATIONS.items() if bits == NOT_INCLUDED or bits >> number & 1)
