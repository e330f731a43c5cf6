"""Requests that aiokafka knows no structures for: version 2 of transactions, and how it is told of."""

import struct
from typing import Any

from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
    UnsignedVarInt32,
)

from dedupe.adapters import kafka_wire

TEXT = CompactString("utf-8")
TAGS = ("tags", TaggedFields)
FINALIZED_FEATURES = 2


class ProduceResponse12(Response):
    API_KEY = 0
    API_VERSION = 12
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic", TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("offset", Int64),
                        ("timestamp", Int64),
                        ("log_start", Int64),
                        ("record_errors", CompactArray(("index", Int32), ("message", TEXT), TAGS)),
                        ("message", TEXT),
                        TAGS,
                    ),
                ),
                TAGS,
            ),
        ),
        ("throttle_time_ms", Int32),
        TAGS,
    )


class ProduceRequest12(RequestStruct):
    API_KEY = 0
    API_VERSION = 12
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = ProduceResponse12
    SCHEMA = Schema(
        ("transactional_id", TEXT),
        ("required_acks", Int16),
        ("timeout", Int32),
        (
            "topics",
            CompactArray(
                ("topic", TEXT),
                ("partitions", CompactArray(("partition", Int32), ("records", CompactBytes), TAGS)),
                TAGS,
            ),
        ),
        TAGS,
    )


class EndTxnResponse5(Response):
    API_KEY = 26
    API_VERSION = 5
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        TAGS,
    )


class EndTxnRequest5(RequestStruct):
    API_KEY = 26
    API_VERSION = 5
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = EndTxnResponse5
    SCHEMA = Schema(
        ("transactional_id", TEXT),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("transaction_result", Boolean),
        TAGS,
    )


ApiVersionsRequest3 = kafka_wire.ApiVersionsRequest

STRUCTS: dict[tuple[int, int], Any] = {
    (kind.API_KEY, kind.API_VERSION): kind for kind in RequestStruct.__subclasses__()
}


def produced(request: Any, code: int, offset: int) -> Any:
    """Return the answer to a Produce of one batch."""
    topic, partition, _ = batch_of(request)
    kind = request.RESPONSE_TYPE
    if kind is ProduceResponse12:
        return kind([(topic, [(partition, code, offset, -1, 0, [], None, {})], {})], 0, {})
    return kind([(topic, [(partition, code, offset, -1)])], 0)


def batch_of(request: Any) -> tuple[str, int, bytes]:
    """Return topic, partition and records of a Produce of one batch."""
    ((topic, ((partition, raw, *_),), *_),) = request.topics
    return topic, partition, raw


def ended(request: Any, code: int, producer_id: int = -1, epoch: int = -1) -> Any:
    """Return the answer to an EndTxn."""
    kind = request.RESPONSE_TYPE
    return kind(0, code, producer_id, epoch, {}) if kind is EndTxnResponse5 else kind(0, code)


def versions_answer(features: dict[str, int]) -> bytes:
    """Return a flexible answer to ApiVersions that names no request, but what the cluster has agreed on."""
    names = [TEXT.encode(name) + struct.pack(">hhx", level, level) for name, level in features.items()]
    agreed = UnsignedVarInt32.encode(len(names) + 1) + b"".join(names)
    tags = bytes([1, FINALIZED_FEATURES]) + UnsignedVarInt32.encode(len(agreed)) + agreed
    return struct.pack(">h", 0) + b"\1" + struct.pack(">i", 0) + tags


def versions_unknown() -> bytes:
    """Return the answer of a broker that knows no such version of ApiVersions: in the form of the first."""
    unsupported_version, no_requests = 35, 0
    return struct.pack(">hi", unsupported_version, no_requests)
