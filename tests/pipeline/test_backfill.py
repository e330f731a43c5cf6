"""Claim: days of an archive or of tables are replaced by what their source has; the stream goes on."""

from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.errors import UsageError
from pipeline.sinks.backfill import lacking, trimmed
from pipeline.sinks.days import Days, days_of
from pipeline.sinks.table_store import TableStore
from pipeline.sources.records import LakeSource
from tests.pipeline.conftest import JobRunner
from tests.support.logs import append_to_log, trim_log
from tests.support.records import RecordMaker

PARTITIONS = 2
HOURS_8_MS = 8 * 3_600_000
DAYS = ["--since", "2026-01-02", "--until", "2026-01-03"]
WRONG = "dt = '2026-01-02'"
OTHER_DAY = "dt = '2026-01-03'"


class Log:
    """A log of three events a day."""

    def __init__(self, data: Path) -> None:
        self.data, self.made = data, 0
        self._maker = RecordMaker(PARTITIONS, step_ms=HOURS_8_MS)

    def grow(self, count: int) -> None:
        events = []
        for number in range(self.made, self.made + count):
            more: dict[str, Any] = {"userId": f"u-{number % 2}", "properties": {"n": number}}
            type_ = "identify" if number % 3 == 0 else "track"
            if type_ == "identify":
                more["traits"] = {"n": number, f"only_{number % 4}": None if number == 9 else "x"}
            events.append(self._maker.event(f"id-{number}", type_=type_, more=more))
        append_to_log(self.data, self._maker.lanes(events))
        self.made += count


@pytest.mark.slow
@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
def test_wrong_day_costs_a_day(lake_format: str, job: JobRunner, spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.grow(12)
    of_tables, others = (
        TableStore(LakeSource(lake_format, str(tmp_path / name))) for name in ("lake", "more")
    )
    archive = ["archive", "--out", others.path("archived"), "--format", lake_format]
    tables = ["tables", "--out", of_tables.lake.path, "--format", lake_format]
    counts = ["minute_counts", "--to", f"{lake_format}://{others.path('counts')}"]
    jobs = (archive, tables, counts)
    source = ["--source", f"log://{log.data}"]
    lake = ["--source", f"{lake_format}://{others.path('archived')}"]
    done = [job(*command, *source, "--once") for command in jobs]
    named = [(others, "archived"), (others, "counts")]
    named += [(of_tables, table) for table in ("tracks", "tested", "identifies", "users")]
    before = {table: content(spark, store, table) for store, table in named}
    for store, table in named[:-1]:
        assert before[table]
        spark.sql(f"DELETE FROM {store.sql_name(table)} WHERE {WRONG}")
    spark.sql(f"UPDATE {of_tables.sql_name('users')} SET n = 0")
    spark.sql(f"UPDATE {of_tables.sql_name('tested')} SET user_id = 'edited' WHERE {OTHER_DAY}")

    done += [job(*archive, *source, *DAYS), job(*tables, *lake, *DAYS), job(*counts, *lake, *DAYS)]

    for store, table in named:
        found = [row for row in content(spark, store, table) if "edited" not in row]
        kept = [row for row in before[table] if table != "tested" or OTHER_DAY[6:-1] not in row]
        assert (table, found) == (table, kept)
    assert len(content(spark, of_tables, "tested")) == len(before["tested"])
    log.grow(6)
    done += [job(*command, *source, "--once") for command in jobs]
    done.append(job("audit", *lake, "--engine", "spark"))
    assert [d.exit_code for d in done] == [0] * len(done), done
    assert len(content(spark, others, "archived")) == log.made
    rows = [len(content(spark, of_tables, table)) for table in ("tracks", "identifies")]
    assert sum(rows) == log.made
    counted = spark.sql(f"SELECT sum(events) FROM {others.sql_name('counts')}").collect()
    assert counted[0][0] == log.made

    following = [*counts[:2], f"{lake_format}://{others.path('following')}"]
    done = [job(*following, *lake, "--once")]
    spark.sql(f"DELETE FROM {others.sql_name('following')} WHERE {WRONG}")
    log.grow(3)
    done += [job(*archive, *source, "--once"), job(*following, *lake, *DAYS)]
    counted = spark.sql(f"SELECT sum(events) FROM {others.sql_name('following')}").collect()
    assert ([d.exit_code for d in done], counted[0][0]) == ([0] * len(done), log.made), done

    trim_log(log.data, 0, 5)
    refused = [job(*archive, *source, *DAYS), job(*archive[:3], "--format", "parquet", *source, *DAYS)]
    log.grow(3)
    job(*tables, *source, "--once", "--accept-loss")
    refused.append(job(*tables, *lake, *DAYS))
    assert [d.exit_code for d in refused] == [2] * 3, refused
    for told, sentence in zip(
        refused,
        ["partition 0 begins at offset 5 now", "folder of Parquet files", "run `archive` first"],
        strict=True,
    ):
        assert sentence in told.stderr


def content(spark: SparkSession, store: TableStore, table: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table, in order."""
    rows = store.read(spark, table)
    return sorted(tuple(map(text_of, row)) for row in rows.select(sorted(rows.columns)).collect())


def text_of(value: object) -> str:
    """Return a value as text; the order of a map's entries is none."""
    return str(sorted(value.items()) if isinstance(value, dict) else value)


@pytest.mark.parametrize(
    ("since", "until"),
    [
        ("2026-01-01", None),
        (None, "2026-01-02"),
        ("2026-01-02", "2026-01-02"),
        ("2026-01-01T12:00", "2026-01-02"),
    ],
)
def test_only_whole_days_are_replaced(since: str | None, until: str | None) -> None:
    first, end = (
        text and datetime.fromisoformat(f"{text}+00:00" if "T" in text else f"{text}T00:00+00:00")
        for text in (since, until)
    )
    with pytest.raises(UsageError, match="--since"):
        days_of(first or None, end or None, is_parquet=False)


def test_days_are_those_from_the_first_to_before_the_end() -> None:
    first, end = (
        datetime.fromisoformat(text) for text in ("2026-01-01T00:00+00:00", "2026-01-02T01:00+01:00")
    )
    days = days_of(first, end, is_parquet=False)
    assert days == Days(date(2026, 1, 1), date(2026, 1, 2))
    assert str(days) == "2026-01-01 to 2026-01-01"
    assert days_of(None, None, is_parquet=False) is None


@pytest.mark.parametrize(
    ("check", "is_whole"),
    [
        (lambda: lacking({0: (5, 9)}, {0: (0, 9), 1: (0, 1)}), True),
        (lambda: lacking({0: (5, 9)}, {0: (5, 8)}), False),
        (lambda: lacking({0: (5, 9)}, {0: (6, 9)}), False),
        (lambda: lacking({0: (5, 9), 1: (0, 1)}, {0: (5, 9)}), False),
        (lambda: lacking({0: (5, 5)}, {}), True),
        (lambda: trimmed({0: (0, 9)}, {0: 0}, {0: 0}), True),
        (lambda: trimmed({0: (0, 9)}, {0: 4}, {0: 5}), True),
        (lambda: trimmed({0: (0, 9)}, {0: 4}, {0: 4}), False),
        (lambda: trimmed({0: (4, 9)}, {0: 4}, {0: 4}), True),
        (lambda: trimmed({0: (0, 9)}, {0: 9}, {}), False),
    ],
)
def test_what_is_not_whole_is_named(check: Callable[[], str | None], is_whole: bool) -> None:
    assert (check() is None) == is_whole
