"""
Records of sources as Arrow batches, without Spark: of a topic, and on this machine of an embedded log,
Parquet files and Delta.

Batches have the columns of schema.RECORD, and those of schema.ARCHIVE that are to be compared with them.
"""

import json
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.schema import ARCHIVE, DERIVED, LATER_COLUMNS, LOG_EPOCH, RECORD
from pipeline.sources.delta_log import TableFile, read_snapshot
from pipeline.sources.embedded_log import LogReader
from pipeline.sources.extent import OffsetRanges, selection_of
from pipeline.sources.local_kafka import read_topic
from pipeline.sources.records import KafkaSource, LakeSource, LogSource, Selection, Source

BATCH_ROWS = 10_000

LOCAL_RECORDS_MAX = 5_000_000
"""Most records that are read without Spark unless the user says so: some 30 s of one core, 8 bytes each."""

LOCAL_TOPIC_RECORDS_MAX = 1_000_000
"""Of a topic on Kafka: some 13 s of one core, about what Spark needs to start."""

_ARCHIVE, _RECORD = to_arrow_schema(ARCHIVE), to_arrow_schema(RECORD)
_BYTES = {"key": ("message_id_bytes", "message_id"), "value": ("value_bytes", "value")}


class LocalRecords(NamedTuple):
    """The records of a source that needs no Spark."""

    source: KafkaSource | LogSource | LakeSource
    files: list[TableFile]
    """Of an archive."""
    size: int
    """At least as many records as there are within a selection."""
    messages: list[str]
    """Of a Delta table: the user metadata of its commits."""

    @property
    def is_small(self) -> bool:
        """Whether reading them without Spark costs less."""
        is_topic = isinstance(self.source, KafkaSource)
        return self.size <= (LOCAL_TOPIC_RECORDS_MAX if is_topic else LOCAL_RECORDS_MAX)

    def batches(
        self, ranges: OffsetRanges, selection: Selection, *, compares: bool
    ) -> Iterator[pa.RecordBatch]:
        """
        Yield the records of a selection.

        Args:
            ranges: of a log or topic, the offsets [start, end) of each partition.
            selection: of records.
            compares: whether to add the columns that an archive computes.
        """
        if isinstance(self.source, KafkaSource):
            for batch in read_topic(self.source.brokers, self.source.topic, ranges, self.source.login):
                yield _within(batch, selection.of_times)
            return
        if isinstance(self.source, LogSource):
            for batch in _log_batches(self.source, ranges, selection):
                yield _within(batch, selection.of_times)
            return
        for file in self.files:
            with pq.ParquetFile(file.path, coerce_int96_timestamp_unit="us") as parquet:
                for batch in parquet.iter_batches(BATCH_ROWS):
                    archived = _from_archive(batch, file.values, self.source.format, compares=compares)
                    yield _within(archived, selection)


def open_locally(source: Source, ranges: OffsetRanges) -> LocalRecords | None:
    """Return the records of a source; None if it cannot be read without Spark."""
    match source:
        case LogSource() | KafkaSource(client_options=()):
            return LocalRecords(source, [], sum(end - start for start, end in ranges.values()), [])
        case LakeSource(format="parquet" | "delta") if source.path.startswith("/"):
            return _open_archive(source)
    return None


def _open_archive(source: LakeSource) -> LocalRecords | None:
    folder, messages = Path(source.path), list[str]()
    if not folder.is_dir():
        return None
    if source.format == "delta":
        snapshot = read_snapshot(folder)
        if snapshot is None:
            return None
        files, messages = snapshot.files, snapshot.messages
    else:
        files = [TableFile(path, _folder_values(path.relative_to(folder))) for path in parquet_files(folder)]
    if not files:
        return None
    return LocalRecords(source, files, sum(pq.read_metadata(file.path).num_rows for file in files), messages)


def parquet_files(folder: Path) -> list[Path]:
    """Return the files that Spark reads: those whose path has no name with a dot or underscore before it."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(
        path for path in paths if not any(name[0] in "._" for name in path.relative_to(folder).parts)
    )


def _folder_values(path: Path) -> dict[str, str]:
    return dict(name.split("=", 1) for name in path.parts[:-1] if "=" in name)


def _log_batches(source: LogSource, ranges: OffsetRanges, selection: Selection) -> Iterator[pa.RecordBatch]:
    bounds = selection_of(ranges, selection)
    options = {"path": source.data_dir, "topic": source.topic}
    options["starting"] = json.dumps(bounds.from_offsets or {})
    options["ending"] = json.dumps(bounds.to_offsets or {})
    reader = LogReader(options)
    for part in reader.partitions():
        yield from reader.read(part)


def _from_archive(
    batch: pa.RecordBatch, values: Mapping[str, str | None], format_: str, *, compares: bool
) -> pa.RecordBatch:
    """Return rows of schema.ARCHIVE as records, and the columns that an archive computes."""
    stored = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, value in values.items():
        stored[name] = pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)

    def column(name: str) -> pa.Array:
        type_ = _ARCHIVE.field(name).type
        return stored[name].cast(type_) if name in stored else pa.nulls(batch.num_rows, type_)

    arrays = {name: column(name) for name in _RECORD.names if name not in _BYTES}
    for name, (original, text) in _BYTES.items():
        arrays[name] = pc.coalesce(column(original), column(text).cast(pa.binary()))
    # Spark reads files by a schema, and has null where a file has no such column.
    is_read = set(DERIVED) if format_ == "parquet" else {*stored, *LATER_COLUMNS}
    arrays[LOG_EPOCH] = column(LOG_EPOCH)
    arrays |= {name: column(name) for name in DERIVED if compares and name in is_read and name != "value"}
    return pa.RecordBatch.from_pydict(arrays)


def _within(batch: pa.RecordBatch, selection: Selection) -> pa.RecordBatch:
    """Return the rows of a selection, as pipeline.sources.records.within."""
    conditions = []
    time = batch.column("timestamp")
    if selection.since:
        conditions.append(pc.greater_equal(time, pa.scalar(selection.since, time.type)))
    if selection.until:
        conditions.append(pc.less(time, pa.scalar(selection.until, time.type)))
    for bounds, fits in ((selection.from_offsets, pc.greater_equal), (selection.to_offsets, pc.less)):
        for partition, offset in (bounds or {}).items():
            is_other = pc.not_equal(batch.column("partition"), partition)
            conditions.append(pc.or_(is_other, fits(batch.column("offset"), offset)))
    return batch.filter(reduce(pc.and_, conditions)) if conditions else batch
