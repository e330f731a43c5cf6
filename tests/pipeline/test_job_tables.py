"""Claim: the job `tables` stores each event once in each table, wherever it dies, and the latest traits."""

import json
import shutil
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
from tests.pipeline.conftest import Done, JobRunner
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker

SINKS: dict[str, Any] = {"delta": DeltaTable, "iceberg": IcebergLake, "parquet": ParquetFolder}
PARTITIONS = 2
COMMITS_A_RUN = 3
RUNS_MAX = 20

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

    def types(self, table: str, *columns: str) -> list[str]:
        """Return the types of some columns."""
        schema = self._store.columns(self._spark, table)
        return [schema[column].dataType.simpleString() for column in columns]
