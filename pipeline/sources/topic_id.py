"""
The ids of a Kafka cluster and of a topic, which tell a topic from another one of its name.

Metadata has topic ids from version 10 on; aiokafka ends at version 5.
"""

import uuid
from io import BytesIO
from typing import Any, NamedTuple

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

_TEXT = CompactString("utf-8")
_NUMBERS = CompactArray(Int32)
_TAGS = ("tags", TaggedFields)
_BROKERS = CompactArray(("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), _TAGS)


class _Uuid(AbstractType[uuid.UUID]):
    """Sixteen bytes."""

    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        return uuid.UUID(bytes=data.read(16))


class _MetadataResponse(Response):
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", _BROKERS),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", _TEXT),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", _NUMBERS),
                        ("isr", _NUMBERS),
                        ("offline_replicas", _NUMBERS),
                        _TAGS,
                    ),
                ),
                ("authorized_operations", Int32),
                _TAGS,
            ),
        ),
        ("authorized_operations", Int32),
        _TAGS,
    )


class _MetadataRequestStruct(RequestStruct):
    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("topic", _TEXT), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        _TAGS,
    )


class _MetadataRequest(Request[_MetadataRequestStruct]):
    API_KEY = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[_MetadataRequestStruct]) -> _MetadataRequestStruct:
        return request_struct_class([(uuid.UUID(int=0), self._topic, {})], False, False, False, {})


class TopicId(NamedTuple):
    """The identity of a topic, which no other topic of any name has."""

    cluster_id: str
    topic_id: str  # its name where the brokers know no ids
    partitions: int
    error_code: int


async def describe_topic(client: AIOKafkaClient, topic: str) -> TopicId:
    """
    Ask the cluster for a topic's identity; creates no topic.

    Raises:
        KafkaError: the cluster does not answer.
        NotImplementedError: it is older than Kafka 2.8.
    """
    answer: Any = await client.send(client.get_random_node(), _MetadataRequest(topic))
    (error_code, _, topic_id, _, partitions, *_) = answer.topics[0]
    known = str(topic_id) if topic_id.int else topic
    return TopicId(answer.cluster_id or "", known, len(partitions), error_code)
