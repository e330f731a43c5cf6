"""
Counts in Postgres: one transaction commits the counts of a batch and the ledger.

It updates the ledger's row only if that is the predecessor; so a batch that comes again, from a second
job or one that ends late, changes nothing.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg
from pyspark.sql import DataFrame, SparkSession

from pipeline.errors import PipelineError
from pipeline.sinks.ledger import Ledger

TABLES = """
CREATE TABLE IF NOT EXISTS minute_counts (
  minute timestamptz NOT NULL,
  source text NOT NULL,
  type text NOT NULL,
  events bigint NOT NULL,
  PRIMARY KEY (minute, source, type)
);
CREATE TABLE IF NOT EXISTS minute_counts_ledger (
  only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
  commit bigint NOT NULL,
  ledger jsonb NOT NULL,
  committed_at timestamptz NOT NULL DEFAULT now()
);
"""

_ENTER = """
INSERT INTO minute_counts_ledger (commit, ledger) VALUES (%(commit)s, %(ledger)s) ON CONFLICT DO NOTHING
"""
_ADVANCE = """
UPDATE minute_counts_ledger SET commit = %(commit)s, ledger = %(ledger)s, committed_at = now()
WHERE commit = %(commit)s - 1
"""
_STAGE = "CREATE TEMPORARY TABLE batch_counts (LIKE minute_counts) ON COMMIT DROP"
_COPY = "COPY batch_counts (minute, source, type, events) FROM STDIN"
_ADD = """
INSERT INTO minute_counts AS counts SELECT * FROM batch_counts
ON CONFLICT (minute, source, type) DO UPDATE SET events = counts.events + excluded.events
"""


@dataclass(frozen=True)
class PostgresCounts:
    """A sink of rows in schema.MINUTE_COUNTS, which it adds to the stored counts."""

    url: str

    def ledger(self, spark: SparkSession) -> Ledger | None:
        """Return the ledger; creates the tables if they do not exist."""
        try:
            with psycopg.connect(self.url) as connection:
                connection.execute(TABLES)
                row = connection.execute("SELECT ledger FROM minute_counts_ledger").fetchone()
                has_counts = connection.execute("SELECT FROM minute_counts LIMIT 1").fetchone() is not None
        except psycopg.Error as err:
            text = " ".join(str(err).split())  # libpq's text has several lines
            raise PipelineError(f"Postgres refused: {text}") from err
        if row is None and has_counts:
            raise PipelineError("minute_counts holds rows and no ledger: empty it, or name another database")
        return None if row is None else Ledger.from_json(json.dumps(row[0]))

    def store(self, rows: DataFrame, ledger: Ledger) -> None:
        # One row for each minute, source and type of the batch, which fit into the driver.
        counts = rows.selectExpr("unix_seconds(minute)", "source", "type", "events").collect()
        with psycopg.connect(self.url) as connection, connection.cursor() as cursor:
            cursor.execute(
                _ENTER if ledger.commit == 1 else _ADVANCE,
                {"commit": ledger.commit, "ledger": ledger.to_json()},
            )
            if cursor.rowcount == 0:
                raise PipelineError("another job counts into this database: stop one of them")
            cursor.execute(_STAGE)
            with cursor.copy(_COPY) as copy:
                for seconds, *others in counts:
                    copy.write_row([datetime.fromtimestamp(seconds, UTC), *others])
            cursor.execute(_ADD)
