"""
The ids of a Kafka cluster and of a topic, which tell a topic from another one of its name.

aiokafka speaks metadata up to version 5, and topic ids came with 10; so that request is written here.
"""

import uuid
from io import BytesIO
from typing import Any, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

_TEXT = CompactString("utf-8")


class _Uuid(AbstractType[uuid.UUID]):
    """Sixteen bytes."""

    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        return uuid.UUID(bytes=data.read(16))


_PARTITION = (
    ("error_code", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", CompactArray(Int32)),
    ("isr", CompactArray(Int32)),
    ("offline_replicas", CompactArray(Int32)),
    ("tags", TaggedFields),
)
_TOPIC = (
    ("error_code", Int16),
    ("topic", _TEXT),
    ("topic_id", _Uuid),
    ("is_internal", Boolean),
    ("partitions", CompactArray(*_PARTITION)),
    ("authorized_operations", Int32),
    ("tags", TaggedFields),
)
_BROKER = (("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), ("tags", TaggedFields))


class _Answer(Response):
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(*_BROKER)),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        ("topics", CompactArray(*_TOPIC)),
        ("authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _Question(RequestStruct):
    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("topic", _TEXT), ("tags", TaggedFields))),
        ("may_create", Boolean),
        ("wants_cluster_operations", Boolean),
        ("wants_topic_operations", Boolean),
        ("tags", TaggedFields),
    )


class _Describe(Request[_Question]):
    API_KEY = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[_Question]) -> _Question:
        return request_struct_class([(uuid.UUID(int=0), self._topic, {})], False, False, False, {})


class TopicId(NamedTuple):
    """What a topic has in common with no other one, whatever it is called."""

    cluster_id: str
    topic_id: str  # its name where the brokers know no ids
    partitions: int
    error_code: int


async def describe_topic(admin: AIOKafkaAdminClient, topic: str) -> TopicId:
    """
    Ask the cluster for a topic's identity.

    Raises:
        KafkaError: it does not answer, or is older than Kafka 2.8.
    """
    answer: Any = await admin._send_request(_Describe(topic))
    (error_code, _, topic_id, _, partitions, *_) = answer.topics[0]
    known = str(topic_id) if topic_id.int else topic
    return TopicId(answer.cluster_id or "", known, len(partitions), error_code)
