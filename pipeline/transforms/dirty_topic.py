"""
Classifies the records of a topic that other producers filled: originals, duplicates, conflicts, rejected.

The rules are the gateway's (dedupe.model.identity): messageId and source identify an event; its content,
without the fields that retries change, distinguishes duplicates from conflicts.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from dedupe.model.identity import (
    MESSAGE_ID_BYTES_MAX,
    canonical_content,
    fingerprint_of,
    take_message_id,
)
from dedupe.model.json_document import is_event_type, read_document

ORIGINAL, DUPLICATE, CONFLICT, REJECTED = "original", "duplicate", "conflict", "rejected"

_RECORD = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("source", pa.string()),
        ("value", pa.binary()),
    ]
)
_IDENTITY = pa.schema([("message_id", pa.string()), ("fingerprint", pa.binary()), ("problem", pa.string())])
_IDENTIFIED = pa.schema([*_RECORD, *_IDENTITY])


def classify(records: DataFrame, default_source: str) -> DataFrame:
    """
    Give each record of a dirty topic its verdict.

    Args:
        records: schema.RECORD; `gw` is ignored.
        default_source: of records without a `source` header.

    Returns:
        partition, offset, timestamp, source, value, message_id, and `verdict`: original, duplicate
        (an earlier record has its id and content), conflict (its id, but not its content) or rejected;
        `detail` gives the reason or the place of the first copy.
    """
    source = F.coalesce("source", F.lit(default_source)).alias("source")
    with_source = records.select("partition", "offset", "timestamp", source, "value")
    identified = with_source.mapInArrow(_identify, from_arrow_schema(_IDENTIFIED))
    earlier_first = ("timestamp", "partition", "offset")
    is_readable = F.col("problem").isNull()
    of_event = Window.partitionBy("source", "message_id", is_readable).orderBy(*earlier_first)
    of_content = Window.partitionBy("source", "message_id", "fingerprint").orderBy(*earlier_first)
    numbered = identified.select(
        "*",
        F.first("partition").over(of_event).alias("first_partition"),
        F.first("offset").over(of_event).alias("first_offset"),
        F.row_number().over(of_event).alias("of_event"),
        F.row_number().over(of_content).alias("of_content"),
    )
    verdict = (
        F.when(~is_readable, REJECTED)
        .when(F.col("of_event") == 1, ORIGINAL)
        .when(F.col("of_content") == 1, CONFLICT)
        .otherwise(DUPLICATE)
    )
    first = F.concat(
        F.lit("the first is in partition "), "first_partition", F.lit(" at offset "), "first_offset"
    )
    return numbered.select(
        *_RECORD.names,
        "message_id",
        verdict.alias("verdict"),
        F.when(is_readable, first).otherwise(F.col("problem")).alias("detail"),
    )


def not_originals(classified: DataFrame) -> DataFrame:
    """Return kind, partition, offset, message_id, source and detail of each record that is no original."""
    others = classified.where(F.col("verdict") != ORIGINAL)
    return others.select(
        F.col("verdict").alias("kind"), "partition", "offset", "message_id", "source", "detail"
    )


def _identify(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        identities = [_identity(value) for value in batch.column("value").to_pylist()]
        columns = [batch.column(field.name).cast(field.type) for field in _RECORD]
        columns += [pa.array([i[n] for i in identities], field.type) for n, field in enumerate(_IDENTITY)]
        yield pa.RecordBatch.from_arrays(columns, schema=_IDENTIFIED)


def _identity(value: bytes | None) -> tuple[str | None, bytes | None, str | None]:
    """Return messageId and fingerprint, and the problem if the value is no event."""
    try:
        event = read_document(value or b"")
    except ValueError:
        return None, None, "it is no JSON"
    message_id = take_message_id(event) if isinstance(event, dict) else None
    if not isinstance(event, dict) or message_id is None or not _has_length(message_id):
        return None, None, "it has no messageId of 1 to 255 bytes"
    event_type = event.get("type")
    if event_type is not None and not is_event_type(event_type):
        return message_id, None, "its type is no text of at most 100 characters without control characters"
    try:
        return message_id, fingerprint_of(canonical_content(event)), None
    except TypeError:
        return message_id, None, "it is nested too deep"


def _has_length(message_id: str) -> bool:
    return 1 <= len(message_id.encode()) <= MESSAGE_ID_BYTES_MAX
