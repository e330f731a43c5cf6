"""
Requests as bytes, and checked reading of responses. Pure.

aiokafka's structures encode and decode every request but Produce, which is packed by hand: all of it but the
record batch is constant for a partition.
"""

import struct
from collections.abc import Sequence
from io import BytesIO
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    String,
    TaggedFields,
)

from dedupe.model.errors import RetriableError
from dedupe.model.record import HEADER_FENCE_TEST
from dedupe.model.types import Offset

UUID_BYTES = 16
NO_TOPIC_ID = bytes(UUID_BYTES)
"""In a request instead of an id, and in the response of a cluster whose topics have none."""
PRODUCE, PRODUCE_VERSIONS = 0, (3, 4, 5, 6, 7, 8)
"""They differ in the response only, behind the offset; from version 9 on the encoding is another one."""
ALL_REPLICAS = -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
CONSUMER = -1
"""The replica id of a client that is no broker."""

PROBE_HEADERS: list[tuple[str, bytes | None]] = [(HEADER_FENCE_TEST, b"")]
"""The headers of the record that tests whether a broker fences; readers skip it."""

CREATE_TIME = -1
"""In a response to Produce: the records have kept their timestamps."""

_NO_TRANSACTIONAL_ID = struct.pack(">h", -1)
_ONE_ELEMENT = struct.pack(">i", 1)
_HEAD = 10  # key, version, correlation id, and the empty client.id
_INT = struct.Struct(">i")
_CODE_OFFSET_AND_TIME = struct.Struct(">hqq")


class ProducerIdAndEpoch(NamedTuple):
    """The producer that a leader accepts batches from, or refuses as fenced."""

    id: int
    epoch: int


class Produced(NamedTuple):
    """The response to a Produce of one batch."""

    code: int
    offset: Offset  # the batch's base offset, if the code is 0
    log_time_ms: int  # CREATE_TIME, or what the broker has replaced all timestamps by
    throttle_s: float  # the time for which the broker does not read from the connection


class Request(NamedTuple):
    """An encoded request without what the connection adds: size, key, version, correlation id, client.id."""

    key: int
    version: int
    parts: tuple[bytes, ...]


def request_of(structure: RequestStruct) -> Request:
    """Encode one of aiokafka's structures."""
    header = structure.build_request_header(0, "").encode()
    part = header[_HEAD:] + structure.encode()
    return Request(structure.API_KEY, structure.API_VERSION, (part,))


def response_for(tp: TopicPartition, topics: Any) -> tuple[Any, ...]:
    """
    Return the fields of one partition in a response about that partition only.

    Args:
        tp: the partition of the request.
        topics: the response's topics: [(topic, [(partition, field, ...)])].

    Raises:
        RetriableError: the response is about something else.
    """
    try:
        ((topic, ((partition, *fields),)),) = topics
    except (TypeError, ValueError) as err:
        raise RetriableError(f"a broker's response about {tp} cannot be read") from err
    if (topic, partition) != tp:
        raise RetriableError(f"a broker's response is about {topic}-{partition} instead of {tp}")
    return tuple(fields)


class ProduceCodec:
    """
    Encodes Produce requests with one record batch for one partition, and decodes their responses.

    `version` is that of the next request.
    """

    def __init__(self, tp: TopicPartition, *, timeout_ms: int) -> None:
        """Encode the constant part; `timeout_ms` bounds the leader's wait for its replicas."""
        topic = tp.topic.encode()
        self._partition = b"".join(
            (_ONE_ELEMENT, struct.pack(">h", len(topic)), topic, _ONE_ELEMENT, _INT.pack(tp.partition))
        )
        acks = struct.pack(">hi", ALL_REPLICAS, timeout_ms)
        self.version = PRODUCE_VERSIONS[0]
        self._prefix = _NO_TRANSACTIONAL_ID + acks + self._partition

    def encode(self, batch: bytes) -> Request:
        """Return the request that appends a record batch outside of any transaction."""
        return Request(PRODUCE, self.version, (self._prefix, _INT.pack(len(batch)), batch))

    def decode(self, response: bytes) -> Produced:
        """
        Return the error code, the batch's base offset, its log time, and the throttle time, the last field.

        Raises:
            RetriableError: the response is cut off, or about another partition.
        """
        size = len(self._partition)
        is_whole = len(response) >= size + _CODE_OFFSET_AND_TIME.size + _INT.size
        if not is_whole or not response.startswith(self._partition):
            raise RetriableError("a broker's response to Produce is not about its partition")
        code, offset, log_time_ms = _CODE_OFFSET_AND_TIME.unpack_from(response, size)
        (throttle_ms,) = _INT.unpack_from(response, len(response) - _INT.size)
        return Produced(code, offset, log_time_ms, max(throttle_ms, 0) / 1000)


class MetadataResponse(Response):
    """Version 8, the first one with authorized operations; aiokafka ends at version 5."""

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


class Uuid(AbstractType[bytes]):
    """16 bytes; aiokafka has no such type."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(UUID_BYTES)


class TopicIdsResponse(Response):
    """Version 10 of Metadata, the first one with topic ids, behind the tags of its header."""

    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("header_tags", TaggedFields),
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString()),
                ("port", Int32),
                ("rack", CompactString()),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString()),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString()),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class TopicIdsRequest(RequestStruct):
    """See TopicIdsResponse."""

    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = TopicIdsResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", Uuid), ("topic", CompactString()), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


def topic_id_request(topic: str) -> TopicIdsRequest:
    """Return a request for the id of a topic; it makes no broker create the topic."""
    return TopicIdsRequest([(NO_TOPIC_ID, topic, {})], False, False, False, {})


def metadata_request(topics: Sequence[str], *, with_operations: bool = False) -> MetadataRequest:
    """
    Return a request for brokers and topics that makes no broker create a topic.

    Args:
        topics: names; none for the brokers alone.
        with_operations: whether to request the allowed operations on the topics.
    """
    return MetadataRequest(list(topics), False, False, with_operations)
