"""
The deep check: the gateway's own code and the identity secret verify every key and partition.

The only check that runs Python for each record: Spark has no keyed BLAKE2b.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from dedupe.model.errors import LogCorruptError
from dedupe.model.identity import Identity
from dedupe.model.record import (
    FLAG_CHECKSUM,
    HEADER_GATEWAY,
    HEADER_REASON,
    HEADER_SOURCE,
    is_identified_by,
    parse_identity,
)
from dedupe.model.types import Headers, LogRecord
from pipeline.audit.checks import WRONG_KEY
from pipeline.audit.rules import QUARANTINE_SUFFIX
from pipeline.errors import UsageError

SECRET_VARIABLE = "GATEWAY_IDENTITY_SECRET"

_Row: TypeAlias = tuple[str, int, int, str, str | None, str]
_WRONG_KEYS = pa.schema(
    [
        ("kind", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("message_id", pa.string()),
        ("source", pa.string()),
        ("detail", pa.string()),
    ]
)


def identity_secret() -> bytes:
    """Return the deployment's secret, from the gateway's variable. Raises UsageError."""
    secret = os.environ.get(SECRET_VARIABLE, "").encode()
    try:
        Identity(secret)
    except ValueError as err:
        raise UsageError(f"--deep needs {SECRET_VARIABLE}: {err}") from None
    return secret


def wrong_keys(records: DataFrame, *, secret: bytes, partitions: int) -> DataFrame:
    """
    Return every record whose key or partition does not follow from the secret.

    Leaves out records that no gateway wrote: checks.check_records reports them.

    Args:
        records: schema.RECORD.
        secret: the deployment's.
        partitions: how many the topic began with, see checks.check_records.

    Returns:
        kind, partition, offset, message_id, source, detail.
    """
    find = finder(secret, partitions)
    return records.select(*_Record._fields).mapInArrow(find, from_arrow_schema(_WRONG_KEYS))


class _Record(NamedTuple):
    topic: str
    partition: int
    offset: int
    key: Any  # null only if no gateway wrote it
    source: str | None
    gw: bytes | None

    def as_log_record(self) -> LogRecord:
        """Return the record without its value, which no key depends on, hence without its checksum."""
        headers: Headers = []
        if self.source is not None:
            headers.append((HEADER_SOURCE, self.source.encode()))
        if self.gw is not None:
            unchecked = bytes(byte & ~FLAG_CHECKSUM for byte in self.gw[1:2])
            headers.append((HEADER_GATEWAY, self.gw[:1] + unchecked + self.gw[2:]))
        if self.topic.endswith(QUARANTINE_SUFFIX):
            headers.append((HEADER_REASON, b""))
        return LogRecord(self.offset, 0, self.key, b"", headers)


def finder(secret: bytes, partitions: int) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Return the function that finds the rows of wrong_keys in batches of schema.RECORD."""

    def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        identity = Identity(secret)
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in _Record._fields)
            records = map(_Record, *columns)
            rows = [row for record in records if (row := _wrong_key(identity, partitions, record))]
            values = list(zip(*rows, strict=True)) or [()] * len(_WRONG_KEYS)
            arrays = [pa.array(v, field.type) for v, field in zip(values, _WRONG_KEYS, strict=True)]
            yield pa.record_batch(arrays, schema=_WRONG_KEYS)

    return find


def _wrong_key(identity: Identity, partitions: int, record: _Record) -> _Row | None:
    log_record = record.as_log_record()
    try:
        parsed = parse_identity(log_record)
    except LogCorruptError:
        return None
    if is_identified_by(
        log_record, parsed, identity, partition=record.partition % partitions, partitions=partitions
    ):
        return None
    place = f"partition {record.partition} of {partitions}"
    detail = f"key {parsed.key.hex()} is not of this secret, or not in {place}"
    return WRONG_KEY, record.partition, record.offset, parsed.message_id, parsed.source, detail
