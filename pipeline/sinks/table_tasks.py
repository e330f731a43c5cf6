"""What the tasks of the job `tables` do with Arrow batches of records, by the pure modules `table_*`."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.schema import LOG_EPOCH
from pipeline.transforms.erased import is_erased
from pipeline.transforms.table_latest import latest_rows, owner_of
from pipeline.transforms.table_layout import Layout, SeenTables
from pipeline.transforms.table_names import LATEST_TABLES
from pipeline.transforms.table_rows import Record, cells_of, read_entry, row_of, tables_of

ENTRY = T.StructType(
    [
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField("timestamp", T.TimestampType()),
        T.StructField("source", T.StringType()),
        T.StructField("key", T.BinaryType()),
        T.StructField("value", T.BinaryType()),
        T.StructField("gw", T.BinaryType()),
        T.StructField(LOG_EPOCH, T.IntegerType()),
        T.StructField("tables", T.ArrayType(T.StringType())),  # null in the last row of a task
        T.StructField("owner", T.StringType()),  # whose traits these are
        T.StructField("seen", T.StringType()),  # in the last row of a task
    ]
)

Batches = Iterable[pa.RecordBatch]


def entries_of(empty: SeenTables, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a task, and what it saw in a last row."""
    schema = to_arrow_schema(ENTRY)
    seen = SeenTables(empty.known, empty.tables_max, empty.columns_max)
    for batch in batches:
        rows = []
        for record in _records(batch):
            entry = read_entry(record)
            tables = [] if is_erased(entry.event, record.gw) else list(tables_of(entry))
            for table in tables:
                seen.see(table, (record.partition, record.offset), cells_of(entry, table))
            latest = LATEST_TABLES.get(entry.table) if tables else None
            owner = None if latest is None else owner_of(entry, latest)
            rows.append({**record._asdict(), "tables": tables, "owner": owner})
        yield pa.RecordBatch.from_pylist(rows, schema)
    yield pa.RecordBatch.from_pylist([{"seen": seen.to_json()}], schema)


def rows_of(table: str, layout: Layout, schema: pa.Schema, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table."""
    for batch in batches:
        rows = [row_of(read_entry(record), table, layout) for record in _records(batch)]
        yield pa.RecordBatch.from_pylist(rows, schema)


def latest_of(table: str, layout: Layout, schema: pa.Schema, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield a row for each user or group of a task."""
    entries = (read_entry(record) for batch in batches for record in _records(batch))
    yield pa.RecordBatch.from_pylist(latest_rows(entries, table, layout), schema)


def _records(batch: pa.RecordBatch) -> Iterator[Record]:
    columns = (batch.column(name).to_pylist() for name in Record._fields)
    return map(Record._make, zip(*columns, strict=True))
