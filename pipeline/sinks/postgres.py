"""
Counts in Postgres, exactly once: a batch's counts and its number are committed in one transaction.

Spark repeats a batch that it does not know to be finished, also when only its last step, the
checkpoint, was missing. The ledger then says that the counts are there already. Its row is that of
the query, whose id stands in the checkpoint: a new checkpoint is a new query and counts anew.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cached_property

import psycopg
from pyspark.sql import DataFrame, SparkSession

from pipeline.errors import PipelineError
from pipeline.transforms import per_minute

TABLES = """
CREATE TABLE IF NOT EXISTS minute_counts (
  minute timestamptz NOT NULL,
  source text NOT NULL,
  type text NOT NULL,
  events bigint NOT NULL,
  PRIMARY KEY (minute, source, type)
);
CREATE TABLE IF NOT EXISTS pipeline_ledger (
  query_id text PRIMARY KEY,
  batch_id bigint NOT NULL,
  committed_at timestamptz NOT NULL DEFAULT now()
);
"""

_ENTER = """
INSERT INTO pipeline_ledger AS ledger (query_id, batch_id) VALUES (%s, %s)
ON CONFLICT (query_id) DO UPDATE SET batch_id = excluded.batch_id, committed_at = now()
WHERE ledger.batch_id < excluded.batch_id
"""
_STAGE = "CREATE TEMPORARY TABLE batch_counts (LIKE minute_counts) ON COMMIT DROP"
_COPY = "COPY batch_counts (minute, source, type, events) FROM STDIN"
_ADD = """
INSERT INTO minute_counts AS counts SELECT * FROM batch_counts
ON CONFLICT (minute, source, type) DO UPDATE SET events = counts.events + excluded.events
"""


class PostgresCounts:
    """Adds the counts of each batch of records; what `foreachBatch` calls."""

    def __init__(self, spark: SparkSession, url: str, checkpoint: str) -> None:
        """
        Create the tables that are not there yet.

        Raises:
            PipelineError: Postgres does not let us.
        """
        self._spark, self._url, self._checkpoint = spark, url, checkpoint
        try:
            with psycopg.connect(url) as connection:
                connection.execute(TABLES)
        except psycopg.Error as err:
            raise PipelineError(f"Postgres refused: {err}") from err

    def __call__(self, records: DataFrame, batch_id: int) -> None:
        """Add one batch, unless it has been added before."""
        # As many rows as the batch has minutes, sources and types: the driver can hold them.
        counts = list(_rows(records.transform(per_minute)))
        with psycopg.connect(self._url) as connection, connection.cursor() as cursor:
            cursor.execute(_ENTER, (self._query_id, batch_id))
            if cursor.rowcount == 0:
                return
            cursor.execute(_STAGE)
            with cursor.copy(_COPY) as copy:
                for row in counts:
                    copy.write_row(row)
            cursor.execute(_ADD)

    @cached_property
    def _query_id(self) -> str:
        """Read from the checkpoint, which exists when the first batch comes."""
        lines = self._spark.read.text(f"{self._checkpoint}/metadata").collect()
        return str(json.loads("".join(line[0] for line in lines))["id"])


def _rows(counts: DataFrame) -> Iterator[tuple[datetime, str, str, int]]:
    seconds = counts.selectExpr("unix_seconds(minute) AS seconds", "source", "type", "events")
    for row in seconds.toLocalIterator():
        yield datetime.fromtimestamp(row["seconds"], UTC), row["source"], row["type"], row["events"]
