"""
The deep check: every key and partition is judged by the gateway's own rules and the identity secret.

The one place where Python runs once a record: keyed BLAKE2b is not among Spark's functions, and the
rules themselves are the gateway's own (dedupe.record), not a copy of them.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from dedupe.errors import LogCorruptError
from dedupe.identity import Identity
from dedupe.record import HEADER_GATEWAY, HEADER_REASON, HEADER_SOURCE, is_identified_by, parse_identity
from dedupe.types import Headers, LogRecord
from pipeline.audit.checks import WRONG_KEY
from pipeline.audit.rules import QUARANTINE_SUFFIX
from pipeline.errors import UsageError

SECRET_VARIABLE = "GATEWAY_IDENTITY_SECRET"

_Found: TypeAlias = tuple[str, int, int, str, str | None, str]
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
_COLUMNS = ("topic", "partition", "offset", "key", "source", "gw")


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

    Records that no gateway wrote are left out: they are named as foreign, or of another version.

    Args:
        records: schema.RECORD.
        secret: the deployment's.
        partitions: how many the topic has.

    Returns:
        kind, partition, offset, message_id, source, detail.
    """
    return records.select(*_COLUMNS).mapInArrow(_finder(secret, partitions), _FOUND)


class _Claim(NamedTuple):
    """One record, in the order of _COLUMNS."""

    topic: str
    partition: int
    offset: int
    key: Any  # may be null, where no gateway wrote it
    source: str | None
    gw: bytes | None

    @property
    def record(self) -> LogRecord:
        headers: Headers = []
        if self.source is not None:
            headers.append((HEADER_SOURCE, self.source.encode()))
        if self.gw is not None:
            headers.append((HEADER_GATEWAY, self.gw))
        if self.topic.endswith(QUARANTINE_SUFFIX):
            headers.append((HEADER_REASON, b""))
        return LogRecord(self.offset, 0, self.key, b"", headers)


def _finder(secret: bytes, partitions: int) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        identity = Identity(secret)
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in _COLUMNS)
            claims = (_Claim(*row) for row in zip(*columns, strict=True))
            yield _arrow([found for claim in claims if (found := _judge(identity, partitions, claim))])

    return find


def _judge(identity: Identity, partitions: int, claim: _Claim) -> _Found | None:
    record = claim.record
    try:
        found = parse_identity(record)
    except LogCorruptError:
        return None
    if is_identified_by(record, found, identity, partition=claim.partition, partitions=partitions):
        return None
    place = f"partition {claim.partition} of {partitions}"
    detail = f"key {found.key.hex()} is not of this secret, or not in {place}"
    return WRONG_KEY, claim.partition, claim.offset, found.message_id, found.source, detail


def _arrow(found: list[_Found]) -> pa.RecordBatch:
    columns = list(zip(*found, strict=True)) or [()] * len(_ARROW)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)]
    return pa.record_batch(arrays, schema=_ARROW)
