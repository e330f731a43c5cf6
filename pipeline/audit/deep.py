"""
The deep check: every key and partition is recomputed from its record with the identity secret.

The one place where Python runs once a record: keyed BLAKE2b is not among Spark's functions, and the
rules themselves are the gateway's own (dedupe.identity, dedupe.routing), not a copy of them.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dedupe.identity import Identity
from dedupe.routing import partition_of
from pipeline.audit.checks import WRONG_KEY
from pipeline.errors import UsageError
from pipeline.transforms import decoded

SECRET_VARIABLE = "GATEWAY_IDENTITY_SECRET"

_Found: TypeAlias = tuple[str, int, int, str, str, str]
_FOUND = "kind string, partition int, offset bigint, message_id string, source string, detail string"
_ARROW = pa.schema(
    [
        ("kind", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("message_id", pa.string()),
        ("source", pa.string()),
        ("detail", pa.string()),
    ]
)
_COLUMNS = ("partition", "offset", "key", "source", "event_key", "client_hash", "session_hash", "sequence")


def identity_secret() -> bytes:
    """Return the deployment's secret, from the gateway's own variable. Raises UsageError."""
    secret = os.environ.get(SECRET_VARIABLE, "").encode()
    try:
        Identity(secret)
    except ValueError as err:
        raise UsageError(f"--deep needs {SECRET_VARIABLE}: {err}") from None
    return secret


def wrong_keys(records: DataFrame, *, secret: bytes, partitions: int) -> DataFrame:
    """
    Name every record whose key or partition does not follow from the secret.

    Records without a readable `gw` header are left out: they are named as foreign.

    Returns:
        kind, partition, offset, message_id, source, detail.
    """
    readable = records.transform(decoded).where(F.col("event_key").isNotNull()).select(*_COLUMNS)
    return readable.mapInArrow(_finder(secret, partitions), _FOUND)


class _Claim(NamedTuple):
    """What one record says about its identity, in the order of _COLUMNS."""

    partition: int
    offset: int
    key: bytes | None
    source: str | None
    event_key: bytes
    client_hash: bytes | None
    session_hash: bytes | None
    sequence: int | None


def _finder(secret: bytes, partitions: int) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        identity = Identity(secret)
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in _COLUMNS)
            claims = (_Claim(*row) for row in zip(*columns, strict=True))
            yield _arrow([found for claim in claims if (found := _judge(identity, partitions, claim))])

    return find


def _judge(identity: Identity, partitions: int, claim: _Claim) -> _Found | None:
    message_id, source = (claim.key or b"").decode(errors="replace"), claim.source or ""
    if claim.client_hash and claim.session_hash and claim.sequence is not None:
        expected = identity.sequence_key(claim.client_hash, claim.session_hash, claim.sequence)
        routing_key = claim.client_hash
    else:
        routing_key = expected = identity.message_key(source, message_id)
    place = partition_of(routing_key, partitions)
    if expected == claim.event_key and place == claim.partition:
        return None
    detail = f"key {claim.event_key.hex()}, expected {expected.hex()} in partition {place}"
    return WRONG_KEY, claim.partition, claim.offset, message_id, source, detail


def _arrow(found: list[_Found]) -> pa.RecordBatch:
    columns = list(zip(*found, strict=True)) or [()] * len(_ARROW)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)]
    return pa.record_batch(arrays, schema=_ARROW)
