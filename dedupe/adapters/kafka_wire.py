"""
The requests of a transaction as bytes, and what their answers say. Pure.

Everything of a request that stays the same is laid down once for a partition; of an answer only what is
decided by is read. Brokers speak one of two protocols, by the cluster's feature `transaction.version`
(KIP-890). The first is spoken by all: AddPartitionsToTxn, Produce, EndTxn, under one epoch and with
sequence numbers that go on. From 2 on Produce adds the partition itself, and EndTxn gives the next epoch,
under which sequence numbers begin anew; so what comes late from an earlier transaction is refused.
"""

import struct
from io import BytesIO
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

from dedupe.types import Offset

PRODUCE, API_VERSIONS, ADD_PARTITIONS_TO_TXN, END_TXN = 0, 18, 24, 26
UNSUPPORTED_VERSION = 35
ALL_REPLICAS = -1
SEQUENCES = 2**31
"""A producer counts its records of a partition, and begins anew here."""

CLIENT_ID = "gateway"
FINALIZED_FEATURES = 2  # the tag of what the whole cluster has agreed on, in the answer to ApiVersions
TRANSACTION_VERSION = "transaction.version"
IMPLICIT = 2
"""From this version of transactions on, partitions are added by Produce."""

_CLIENT = struct.pack(">h", len(CLIENT_ID)) + CLIENT_ID.encode()
_NO_TAGS = b"\0"
_ONE, _ONE_COMPACT = struct.pack(">i", 1), b"\2"  # element in an array

_BEFORE_CLIENT = 8  # key, version, correlation id
_INT = struct.Struct(">i")
_PRODUCER = struct.Struct(">qh")
_END = struct.Struct(">qh?")
_CODE = struct.Struct(">h")
_LANDED = struct.Struct(">hq")  # error code, base offset
_ENDED = struct.Struct(">ih")  # throttle time, error code
_ENDED_WITH_NEXT = struct.Struct(">xihqh")  # no tags, throttle time, error code, producer id and epoch


class ApiVersionsResponse(Response):
    """Version 3, in the form that all later ones begin with."""

    API_KEY = API_VERSIONS
    API_VERSION = 3
    SCHEMA = Schema(
        ("error_code", Int16),
        ("api_keys", CompactArray(("key", Int16), ("min", Int16), ("max", Int16), ("tags", TaggedFields))),
        ("throttle_time_ms", Int32),
        ("tags", TaggedFields),
    )


class ApiVersionsRequest(RequestStruct):
    """The first version whose answer tells the cluster's features; aiokafka knows earlier ones only."""

    API_KEY = API_VERSIONS
    API_VERSION = 3
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = ApiVersionsResponse
    SCHEMA = Schema(
        ("name", CompactString("utf-8")), ("version", CompactString("utf-8")), ("tags", TaggedFields)
    )


FEATURES = CompactArray(
    ("name", CompactString("utf-8")), ("max", Int16), ("min", Int16), ("tags", TaggedFields)
)


class Producer(NamedTuple):
    """Whom a broker takes a batch from: its id and epoch, and the number of its next record."""

    id: int
    epoch: int
    sequence: int = 0


class Request(NamedTuple):
    """A request without what the connection adds: size, key, version and correlation id."""

    key: int
    version: int
    parts: tuple[bytes, ...]


def request_of(structure: RequestStruct) -> Request:
    """Return one of aiokafka's structures as a request."""
    header = structure.build_request_header(0, CLIENT_ID).encode()
    part = header[_BEFORE_CLIENT:] + structure.encode()
    return Request(structure.API_KEY, structure.API_VERSION, (part,))


class TransactionWire:
    """
    One of the two protocols, for one partition.

    What reads an answer raises KafkaError or struct.error if that has another shape.
    """

    def __init__(self, transactional_id: str, tp: TopicPartition, *, timeout_ms: int, version: int) -> None:
        """
        Lay down what stays the same.

        Args:
            transactional_id: whose transactions.
            tp: the one partition they have.
            timeout_ms: how long its leader may wait for replicas.
            version: the cluster's `transaction.version`.
        """
        self.is_implicit = version >= IMPLICIT
        """Whether a transaction begins with its batch: there is no `begin`, and `end` gives an epoch."""
        client, text, one = (
            (_CLIENT + _NO_TAGS, _compact, _ONE_COMPACT) if self.is_implicit else (_CLIENT, _string, _ONE)
        )
        self._tags = _NO_TAGS if self.is_implicit else b""
        self._head = client + text(transactional_id)
        self._place = one + text(tp.topic) + one + _INT.pack(tp.partition)
        self._produce = self._head + struct.pack(">hi", ALL_REPLICAS, timeout_ms) + self._place

    def begin(self, producer: Producer) -> Request:
        """Return the request that adds the partition."""
        parts = (self._head, _PRODUCER.pack(producer.id, producer.epoch), self._place)
        return Request(ADD_PARTITIONS_TO_TXN, 0, parts)

    def begun(self, answer: bytes) -> tuple[int]:
        """Read an error code off the answer to `begin`."""
        (code,) = _CODE.unpack_from(answer, _past(self._place, answer, _INT.size))
        return (code,)

    def produce(self, batch: bytes) -> Request:
        """Return the request that sends a record batch."""
        if self.is_implicit:
            return Request(PRODUCE, 12, (self._produce, _varint(len(batch) + 1), batch, 3 * _NO_TAGS))
        return Request(PRODUCE, 3, (self._produce, _INT.pack(len(batch)), batch))

    def landed(self, answer: bytes) -> tuple[int, Offset]:
        """Read an error code and the batch's offset off the answer to `produce`."""
        code, offset = _LANDED.unpack_from(answer, _past(self._tags + self._place, answer))
        return code, offset

    def end(self, producer: Producer) -> Request:
        """Return the request that commits."""
        version = 5 if self.is_implicit else 0
        parts = (self._head, _END.pack(producer.id, producer.epoch, True), self._tags)
        return Request(END_TXN, version, parts)

    def ended(self, answer: bytes, producer: Producer, records: int) -> tuple[int, Producer]:
        """Read an error code off the answer to `end`, and who sends what comes after so many records."""
        if self.is_implicit:
            _, code, producer_id, epoch = _ENDED_WITH_NEXT.unpack_from(answer)
            return code, Producer(producer_id, epoch)
        _, code = _ENDED.unpack_from(answer)
        return code, producer._replace(sequence=(producer.sequence + records) % SEQUENCES)


def transaction_version(answer: bytes) -> int:
    """
    Read the cluster's version of transactions off the answer to ApiVersionsRequest.

    A broker that knows no such request, or no such feature, speaks the first. ValueError or
    struct.error if it is no such answer.
    """
    (code,) = _CODE.unpack_from(answer)
    if code == UNSUPPORTED_VERSION:
        return 1
    if code != 0:
        raise for_code(code)()
    told: Any = ApiVersionsResponse.decode(answer)
    if FINALIZED_FEATURES not in told.tags:
        return 1
    features: Any = FEATURES.decode(BytesIO(told.tags[FINALIZED_FEATURES]))
    return next((level for name, level, _, _ in features if name == TRANSACTION_VERSION), 1)


def _past(expected: bytes, answer: bytes, start: int = 0) -> int:
    """Return where what is expected ends; KafkaError if something else stands there."""
    if not answer.startswith(expected, start):
        raise KafkaError("a broker answered something else than it was asked")
    return start + len(expected)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _compact(text: str) -> bytes:
    encoded = text.encode()
    return _varint(len(encoded) + 1) + encoded


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
