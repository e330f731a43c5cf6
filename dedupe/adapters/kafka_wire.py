"""
The requests of a producer as bytes, and what their answers say. Pure.

Everything of a request that stays the same is laid down once for a partition; of an answer only what is
decided by is read.
"""

import struct
from typing import NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.protocol.api import RequestStruct

from dedupe.types import Offset

PRODUCE, ADD_PARTITIONS_TO_TXN, END_TXN = 0, 24, 26
ALL_REPLICAS = -1
SEQUENCES = 2**31
"""A producer counts its records of a partition, and begins anew here."""

CLIENT_ID = "gateway"

_CLIENT = struct.pack(">h", len(CLIENT_ID)) + CLIENT_ID.encode()
_NO_TRANSACTION = struct.pack(">h", -1)
_ONE = struct.pack(">i", 1)  # element in an array

_BEFORE_CLIENT = 8  # key, version, correlation id
_INT = struct.Struct(">i")
_PRODUCER = struct.Struct(">qh")
_END = struct.Struct(">qh?")
_CODE = struct.Struct(">h")
_LANDED = struct.Struct(">hq")  # error code, base offset
_ENDED = struct.Struct(">ih")  # throttle time, error code


class Producer(NamedTuple):
    """Whom a broker takes a batch from: its id and epoch, and the number of its next record."""

    id: int
    epoch: int
    sequence: int = 0

    def after(self, records: int) -> "Producer":
        """Return who sends what follows so many records."""
        return self._replace(sequence=(self.sequence + records) % SEQUENCES)


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


class ProducerWire:
    """
    The requests of one partition's producer, in versions that brokers from 2.1 on know.

    What reads an answer raises KafkaError or struct.error if that has another shape.
    """

    def __init__(self, transactional_id: str, tp: TopicPartition, *, timeout_ms: int) -> None:
        """
        Lay down what stays the same.

        Args:
            transactional_id: whose epochs.
            tp: the one partition it writes to.
            timeout_ms: how long its leader may wait for replicas.
        """
        self._head = _CLIENT + _string(transactional_id)
        self._place = _ONE + _string(tp.topic) + _ONE + _INT.pack(tp.partition)
        self._produce = _CLIENT + _NO_TRANSACTION + struct.pack(">hi", ALL_REPLICAS, timeout_ms) + self._place

    def begin(self, producer: Producer) -> Request:
        """Return the request that adds the partition to a transaction."""
        parts = (self._head, _PRODUCER.pack(producer.id, producer.epoch), self._place)
        return Request(ADD_PARTITIONS_TO_TXN, 0, parts)

    def begun(self, answer: bytes) -> tuple[int]:
        """Read an error code off the answer to `begin`."""
        (code,) = _CODE.unpack_from(answer, _past(self._place, answer, _INT.size))
        return (code,)

    def end(self, producer: Producer) -> Request:
        """Return the request that commits it."""
        return Request(END_TXN, 0, (self._head, _END.pack(producer.id, producer.epoch, True)))

    def ended(self, answer: bytes) -> tuple[int]:
        """Read an error code off the answer to `end`."""
        _, code = _ENDED.unpack_from(answer)
        return (code,)

    def produce(self, batch: bytes) -> Request:
        """Return the request that sends a record batch, outside of any transaction."""
        return Request(PRODUCE, 3, (self._produce, _INT.pack(len(batch)), batch))

    def landed(self, answer: bytes) -> tuple[int, Offset]:
        """Read an error code and the batch's offset off the answer to `produce`."""
        code, offset = _LANDED.unpack_from(answer, _past(self._place, answer))
        return code, offset


def _past(expected: bytes, answer: bytes, start: int = 0) -> int:
    """Return where what is expected ends; KafkaError if something else stands there."""
    if not answer.startswith(expected, start):
        raise KafkaError("a broker answered something else than it was asked")
    return start + len(expected)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded
