"""Claim: the job `tables` stores each event once in each table, wherever it dies, and the latest traits."""

import asyncio
import json
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from dedupe.model.record import FLAG_CLOUDEVENT
from pipeline.sinks.delta import DeltaTable
from pipeline.sinks.iceberg import IcebergLake
from pipeline.sinks.parquet import ParquetFolder
from pipeline.sinks.table_store import TableStore
from pipeline.sources.records import LakeSource
from pipeline.transforms.table_rows import Record, read_entry, tables_of
from tests.conftest import TopicFactory
from tests.pipeline.conftest import Done, JobRunner
from tests.support.jobs import JobProcess
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker, fill_topic

SINKS: dict[str, Any] = {"delta": DeltaTable, "iceberg": IcebergLake, "parquet": ParquetFolder}
PARTITIONS = 2
COMMITS_A_RUN = 3
RUNS_MAX = 20
POLL_S = 0.01

Event = dict[str, Any]


def track(event: object, **properties: object) -> Event:
    return {"type": "track", "event": event, "userId": "u", "properties": properties}


def identify(user: str, **traits: object) -> Event:
    return {"type": "identify", "userId": user, "traits": traits}


FIRST: list[Event] = [
    track("Order Completed", total=10, coupon="X", user="a"),
    track("order_completed", total=11),
    track("users", total=1),
    {"type": "page", "name": "Home", "anonymousId": "a", "context": {"page": {"path": "/"}}},
    identify("u", plan="free", age=7),
    identify("v", plan="paid"),
    {"type": "group", "groupId": "g", "userId": "u", "traits": {"seats": 5}},
    {"type": "custom"},
    {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.made", "data": {"total": 5}},
]
SECOND: list[Event] = [
    track("Order Completed", total=12.5, coupon=5),
    identify("u", plan="paid"),
    identify("u", age="old", email="u@example.org"),
    identify("v", plan=None),
]


LATE = identify("v", plan="trial", age=1)
"""Accepted before all others, and read after them."""


class Log:
    """A log of given events, and the rows that they should have in each table."""

    def __init__(self, data: Path) -> None:
        self.data, self.rows = data, Counter[str]()
        self._maker = RecordMaker(PARTITIONS, step_ms=60_000)
        self._made = 0

    def add(self, events: list[Event], *, late_ms: int = 0) -> None:
        made = []
        for event in events:
            flags = FLAG_CLOUDEVENT if "specversion" in event else 0
            identified = self._maker.event(f"id-{self._made}", type_=event["type"], more=event)
            made.append(identified._replace(flags=flags))
            self._made += 1
            record = Record(0, 0, None, "web", b"", json.dumps(event).encode(), bytes([0, flags]))
            self.rows.update(tables_of(read_entry(record)))
        lanes = self._maker.lanes(made)
        append_to_log(
            self.data,
            {
                p: [r._replace(timestamp_ms=r.timestamp_ms - late_ms) for r in rows]
                for p, rows in lanes.items()
            },
        )


def die_at(patched: pytest.MonkeyPatch, lake_format: str, commits: int) -> None:
    """Let a job die at one of its commits: before it if their number is odd, else after it."""
    left = commits

    def lethal(commit: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any, **named: Any) -> None:
            nonlocal left
            left -= 1
            if left or commits % 2 == 0:
                commit(*arguments, **named)
            if not left:
                raise RuntimeError("the process is gone")

        return call

    for owner, name in [(SINKS[lake_format], "store"), (TableStore, "merge"), (TableStore, "widen")]:
        patched.setattr(owner, name, lethal(getattr(owner, name)))


def run_to_the_end(run: Callable[[], Done], lake_format: str) -> int:
    """Start a job that dies again and again until it does not, and return how often it died."""
    for deaths in range(RUNS_MAX):
        with pytest.MonkeyPatch.context() as patched:
            die_at(patched, lake_format, COMMITS_A_RUN + deaths % 2)
            done = run()
        if done.exit_code == 0:
            return deaths
        assert "the process is gone" in done.stderr, done
    raise AssertionError("the job never came to its end")


@pytest.mark.slow
@pytest.mark.parametrize("lake_format", ["delta", "iceberg", "parquet"])
def test_each_event_is_once_in_each_table_and_traits_are_the_last_wherever_the_job_dies(
    lake_format: str, job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    log, out, checkpoint = Log(tmp_path / "log"), tmp_path / "tables", tmp_path / "checkpoint"
    command = ["tables", "--source", f"log://{log.data}", "--out", out, "--format", lake_format, "--once"]
    command += ["--checkpoint", checkpoint]
    log.add(FIRST)
    deaths = run_to_the_end(lambda: job(*command), lake_format) if lake_format == "delta" else 3
    first = job(*command)
    shutil.rmtree(checkpoint)
    log.add(SECOND)
    log.add([LATE], late_ms=3_600_000)
    with pytest.MonkeyPatch.context() as patched:
        die_at(patched, lake_format, COMMITS_A_RUN)
        died = job(*command)
    shutil.rmtree(checkpoint)
    log.add([track("Order Completed", total=1)])
    done = job(*command)

    assert (first.exit_code, died.exit_code, done.exit_code) == (0, 2, 0), (first, died, done)
    assert deaths >= 3
    tables = Tables(spark, lake_format, out)
    for table, count in log.rows.items():
        places = tables.rows(f"SELECT log_partition, log_offset FROM {table}")
        assert (table, len(places), len(set(places))) == (table, count, count)
    assert tables.types("order_completed", "total", "coupon", "_user", "log_offset") == [
        "bigint" if lake_format == "parquet" else "double",
        "string",
        "string",
        "bigint",
    ]
    orders = tables.rows("SELECT total, coupon, _user, event_text, _rescued FROM order_completed")
    drifted = {"properties.coupon": 5} | ({"properties.total": 12.5} if lake_format == "parquet" else {})
    assert sorted((*row[:4], json.loads(row[4] or "{}")) for row in orders if row[0] in (10, 11)) == [
        (10, "X", "a", "Order Completed", {}),
        (11, None, None, "order_completed", {}),
    ]
    assert [json.loads(row[4]) for row in orders if row[4]] == [drifted]
    drift = tables.rows("SELECT table_name, column_name, column_type, found, row_count FROM drift")
    assert ("order_completed", "coupon", "string", "integer", 1) in drift
    assert "values of order_completed.coupon, a string, are in _rescued" in died.stderr + done.stderr
    assert sum(row[0] for row in tables.rows("SELECT events FROM loads")) == 15
    assert tables.rows("SELECT type, event_source, data FROM cloudevents") == [
        ("order.made", "/shop", '{"total":5}')
    ]
    if lake_format == "parquet":
        assert not (out / "users").exists()
        return
    users = tables.rows("SELECT id, source, plan, age, email, to_json(_rescued) FROM users ORDER BY id")
    assert users == [
        ("u", "web", "paid", None, "u@example.org", '{"age":"\\"old\\""}'),
        ("v", "web", None, 1, None, "{}"),
    ]
    assert tables.rows("SELECT id, seats FROM accounts") == [("g", 5)]


@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
def test_properties_and_traits_are_variants_on_demand(
    lake_format: str, job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    """In a folder of Delta tables, and in a schema of the user's own Iceberg catalog."""
    catalog, log = "spark.sql.catalog.analysts", Log(tmp_path / "log")
    out = str(tmp_path / "tables") if lake_format == "delta" else "table:analysts.web"
    conf = [f"{catalog}=org.apache.iceberg.spark.SparkCatalog", f"{catalog}.type=hadoop"]
    conf += [f"{catalog}.warehouse={tmp_path}/warehouse"]
    log.add([track("Seen", items=[{"sku": 5}]), identify("u", address={"city": "Oslo"}, gone=None)])
    command = ["tables", "--source", f"log://{log.data}", "--out", out, "--format", lake_format, "--variant"]

    command += [
        "--checkpoint",
        str(tmp_path / "checkpoint"),
        *(word for text in conf for word in ("--conf", text)),
    ]
    done = [job(*command, "--once")]
    log.add([track("Seen", items=[])])
    done.append(job(*command, "--once"))

    assert [d.exit_code for d in done] == [0, 0], done
    tables = Tables(spark, lake_format, out)
    found = [
        tables.rows(f"SELECT to_json(variant_get({column}, '{path}')) FROM {table}")
        for table, column, path in (
            ("seen", "properties", "$.items[0].sku"),
            ("tracks", "properties", "$.items[0].sku"),
            ("identifies", "traits", "$.address.city"),
        )
    ]
    assert [sorted(str(row[0]) for row in rows) for rows in found] == [["5", "None"]] * 2 + [['"Oslo"']]
    assert tables.rows("SELECT address_city FROM users") == [("Oslo",)]


@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
def test_compaction_merges_the_files_of_each_table_and_the_job_goes_on(
    lake_format: str, job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    log, out = Log(tmp_path / "log"), tmp_path / "tables"
    command = ["tables", "--source", f"log://{log.data}", "--out", out, "--format", lake_format, "--once"]
    done = []
    for _ in range(2):
        log.add([track("Seen", n=1), identify("u", plan="free"), identify("v", plan="paid")])
        done.append(job(*command))
    tables = Tables(spark, lake_format, out)
    loose = [tables.files(name) for name in ("tracks", "seen", "identifies", "loads")]
    done.append(job("compact", "--source", f"{lake_format}://{out}", "--before", "9999-01-01"))
    tight = [tables.files(name) for name in ("tracks", "seen", "identifies", "loads", "users")]
    log.add([track("Seen", n=2), identify("v", plan=None)])
    done.append(job(*command))

    assert [d.exit_code for d in done] == [0] * 4, done
    assert (loose, tight) == ([2] * 4, [1] * 5)
    for table, count in log.rows.items():
        places = tables.rows(f"SELECT log_partition, log_offset FROM {table}")
        assert (table, len(places), len(set(places))) == (table, count, count)
    assert tables.rows("SELECT id, plan FROM users ORDER BY id") == [("u", "free"), ("v", None)]
    assert len(tables.rows("SELECT load FROM loads")) == 3


def test_tables_in_parquet_are_not_compacted(job: JobRunner, tmp_path: Path) -> None:
    log, out = Log(tmp_path / "log"), tmp_path / "tables"
    log.add(FIRST[:1])
    command = ["tables", "--source", f"log://{log.data}", "--out", out, "--format", "parquet", "--once"]
    assert job(*command).exit_code == 0

    refused = job("compact", "--source", f"parquet://{out}", "--out", tmp_path / "copy")

    assert (refused.exit_code, "which cannot be replaced" in refused.stderr) == (2, True), refused


@pytest.mark.slow
async def test_topic_is_in_each_table_once_after_kills_between_two_tables(
    job: JobRunner, spark: SparkSession, kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    """With kill -9 of the whole job once the first, and once the last table of a batch has it."""
    name = await topic("tables", partitions=PARTITIONS, configs={"retention.ms": "-1"})
    maker, out = RecordMaker(PARTITIONS), tmp_path / "tables"
    made = []
    for number in range(900):
        call = identify(f"u-{number % 20}", n=number) if number % 3 == 0 else track("Seen", n=number)
        made.append(maker.event(f"id-{number}", type_=call["type"], more=call))
    await fill_topic(kafka_bootstrap, name, maker.lanes(made))
    command: list[object] = [
        "tables",
        "--source",
        f"kafka://{kafka_bootstrap}/{name}",
        "--out",
        out,
        "--once",
    ]

    for table in ("identifies", "tracks"):
        victim = JobProcess(tmp_path, *command, "--batch-offsets", 100)
        while commits(out, table) <= commits(out, "loads"):
            assert not victim.has_ended, victim.said
            await asyncio.sleep(POLL_S)
        assert victim.kill() == -signal.SIGKILL, victim.said
        assert commits(out, table) > commits(out, "loads")
    done = job(*command)

    assert done.exit_code == 0, done
    tables = Tables(spark, "delta", out)
    for table, numbers in (("tracks", 600), ("seen", 600), ("identifies", 300)):
        rows = tables.rows(f"SELECT id, log_partition, log_offset FROM {table}")
        assert (table, len(rows), len({row[0] for row in rows})) == (table, numbers, numbers)
        assert len({row[1:] for row in rows}) == numbers
    assert sum(row[0] for row in tables.rows("SELECT events FROM loads")) == 900
    last = {f"u-{user}": max(n for n in range(0, 900, 3) if n % 20 == user) for user in range(20)}
    assert dict(tables.rows("SELECT id, n FROM users")) == last


def commits(out: Path, table: str) -> int:
    """Return how many commits a Delta table of an output has."""
    return len(list((out / table / "_delta_log").glob("*.json")))


class Tables:
    """The tables of an output: Parquet read by DuckDB, others by Spark."""

    def __init__(self, spark: SparkSession, lake_format: str, out: Path | str) -> None:
        self._spark, self._store = spark, TableStore(LakeSource(lake_format, str(out)))
        self._names = self._store.names(spark)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query that names tables."""
        table = query.split(" FROM ")[1].split(maxsplit=1)[0]
        assert table in self._names
        if self._store.lake.format == "parquet":
            files = f"read_parquet('{self._store.path(table)}/**/*.parquet', union_by_name = true)"
            return duckdb.execute(query.replace(f"FROM {table}", f"FROM {files}")).fetchall()
        rows = self._spark.sql(query.replace(f"FROM {table}", f"FROM {self._store.sql_name(table)}"))
        return [tuple(row) for row in rows.collect()]

    def files(self, table: str) -> int:
        """Return how many files of data a table has now."""
        name = self._store.sql_name(table)
        if self._store.lake.format == "delta":
            return int(self._spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["numFiles"])
        self._spark.sql(f"REFRESH TABLE {name}")
        return self._spark.table(f"{name}.files").count()

    def types(self, table: str, *columns: str) -> list[str]:
        """Return the types of some columns."""
        schema = self._store.columns(self._spark, table)
        return [schema[column].dataType.simpleString() for column in columns]
