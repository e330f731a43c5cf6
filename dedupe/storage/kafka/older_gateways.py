"""
What gateways of before the routing topic have noted on Kafka, and how they are kept from going on.

Their notes are the metadata of committed consumer offsets, of groups without members. They are read once,
when such a topic is adopted; one is written, by which they refuse to start.
"""

from collections.abc import Sequence

from aiokafka import TopicPartition
from aiokafka.protocol.commit import OffsetCommitRequest_v3, OffsetFetchRequest_v3

from dedupe.model.errors import RetriableError
from dedupe.model.types import Topic
from dedupe.storage.kafka.cluster import (
    GROUP_AUTHORIZATION_FAILED,
    KafkaCluster,
    error_name,
    group_of,
    unauthorized,
)
from dedupe.storage.kafka.wire import response_for
from dedupe.storage.notes import PIN, PIN_FORMAT, Pin

NO_MEMBER = -1  # the generation of a group without members
KEPT_MS = 100 * 365 * 86_400_000
"""For ever, instead of the week of `offsets.retention.minutes`."""


async def old_notes(cluster: KafkaCluster, name: str, topic: str) -> dict[int, str]:
    """
    Return the notes of this name by partition.

    Raises:
        RetriableError: no answer.
        ConfigurationError: the ACLs do not allow to read the group.
    """
    group = group_of(name, topic)
    response = await cluster.send_to_coordinator(group, OffsetFetchRequest_v3(group, None))
    _raise_for(group, response.error_code)
    notes: dict[int, str] = {}
    for _, partitions in response.topics:
        for partition, _, text, code in partitions:
            _raise_for(group, code)
            notes[partition] = text
    return notes


async def stop_older_gateways(cluster: KafkaCluster, topics: Sequence[Topic], key_check: bytes) -> None:
    """Note that these topics need a newer gateway, unless it is noted. Raises as old_notes does."""
    for topic in topics:
        text = Pin(topic.partitions, key_check.hex(), PIN_FORMAT).encoded()
        if (await old_notes(cluster, PIN, topic.name)).get(0) == text:
            continue
        group = group_of(PIN, topic.name)
        offsets = [(topic.name, [(0, 0, text)])]
        request = OffsetCommitRequest_v3(group, NO_MEMBER, "", KEPT_MS, offsets)
        response = await cluster.send_to_coordinator(group, request)
        (code,) = response_for(TopicPartition(topic.name, 0), response.topics)
        _raise_for(group, code)


def _raise_for(group: str, code: int) -> None:
    if code == GROUP_AUTHORIZATION_FAILED:
        raise unauthorized(group)
    if code != 0:
        raise RetriableError(f"consumer group {group}: {error_name(code)}")
