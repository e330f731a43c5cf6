"""Claim: sessions end with a pause, and a stream stores each of them once, over several starts."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from dedupe.model.types import NewRecord
from pipeline.runtime.session import IcebergTable
from pipeline.schema import RECORD, SESSIONS
from pipeline.transforms.clean_topic import sessions
from tests.conftest import TopicFactory
from tests.pipeline.conftest import JobRunner
from tests.support.logs import append_to_log
from tests.support.records import START_MS, RecordMaker, fill_topic

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEPT = {"retention.ms": "-1"}
MINUTE_MS = 60_000
WRONG_CLOCKS = {"ahead": "2030-01-01T00:00:00Z", "behind": "1999-01-01T00:00:00Z", "none": "noon"}


def test_pause_ends_a_session(spark: SparkSession) -> None:
    def row(minute: int, value: bytes) -> tuple[Any, ...]:
        return ("events", 0, minute, NOON + timedelta(minutes=minute), b"id", value, "web", None, None)

    records = [
        row(0, b'{"userId":"u"}'),
        row(29, b'{"userId":"u","anonymousId":"x"}'),
        row(58, b'{"userId":"u"}'),
        row(89, b'{"userId":"u"}'),
        row(10, b'{"anonymousId":"x"}'),
        row(11, b'{"type":"track"}'),
        row(12, b'{"userId":"","anonymousId":"x"}'),
        row(13, '{"userId":" \\t\u200b\ufeff","anonymousId":"\u00a0"}'.encode()),
    ]

    found = spark.createDataFrame(records, RECORD).transform(
        sessions, timedelta(minutes=30), timedelta(hours=2)
    )

    expected = [
        ("u", "web", NOON, NOON + timedelta(minutes=58), 3, "u"),
        ("u", "web", NOON + timedelta(minutes=89), NOON + timedelta(minutes=89), 1, "u"),
        ("x", "web", NOON + timedelta(minutes=10), NOON + timedelta(minutes=12), 2, "x"),
    ]
    assertDataFrameEqual(found, spark.createDataFrame(expected, SESSIONS))


def test_session_of_a_visitor_goes_on_over_a_login(spark: SparkSession) -> None:
    values = [
        b'{"anonymousId":"device"}',
        b'{"anonymousId":"device","userId":"u"}',
        b'{"anonymousId":"device","userId":"v"}',
        b'{"anonymousId":"device"}',
        b'{"anonymousId":"other"}',
        b'{"userId":"server-side"}',
    ]
    rows = [
        ("events", 0, n, NOON + timedelta(minutes=n), b"id", value, "web", None, None)
        for n, value in enumerate(values)
    ]

    found = sessions(
        spark.createDataFrame(rows, RECORD), timedelta(minutes=30), timedelta(hours=2), by_visitor=True
    )

    assert sorted((row["visitor"], row["user"], row["events"]) for row in found.collect()) == [
        ("device", "v", 4),
        ("other", "other", 1),
        ("server-side", "server-side", 1),
    ]


def test_session_by_event_time_is_what_the_client_did_and_no_clock_gets_ahead(spark: SparkSession) -> None:
    """A phone that was offline sends in the evening what was done at noon; a clock may also be wrong."""
    evening = NOON + timedelta(hours=5)
    happened = [0, 20, 45, 300]  # minutes after noon; the last one at once
    rows = [
        (evening, f'{{"userId":"u","timestamp":"{NOON + timedelta(minutes=minute):%Y-%m-%dT%H:%M:%SZ}"}}')
        for minute in happened
    ]
    rows += [(evening, f'{{"userId":"{user}","timestamp":"{time}"}}') for user, time in WRONG_CLOCKS.items()]
    records = spark.createDataFrame(
        [
            ("events", 0, n, moment, b"id", value.encode(), "web", None, None)
            for n, (moment, value) in enumerate(rows)
        ],
        RECORD,
    )

    found = sessions(records, timedelta(minutes=30), timedelta(hours=6), by_event_time=True).collect()

    began = {(row["user"], row["began"].astimezone(UTC)): row["events"] for row in found}
    assert began == {("u", NOON): 3, ("u", evening): 1} | {(user, evening): 1 for user in WRONG_CLOCKS}


async def test_stream_stores_a_session_once_it_is_over(
    job: JobRunner, spark: SparkSession, kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    name = await topic("sessions", configs=KEPT)
    maker = RecordMaker(1)
    command = ["sessionize", "--source", f"kafka://{kafka_bootstrap}/{name}", "--out", tmp_path / "sessions"]
    command += ["--once", "--lateness", "1h"]

    def stored() -> list[int]:
        rows = spark.read.schema(SESSIONS).parquet(str(tmp_path / "sessions")).collect()
        return sorted(row["events"] for row in rows)

    await fill_topic(kafka_bootstrap, name, {0: [at(maker, minute) for minute in (0, 10, 20)]})
    first = job(*command)
    nothing_yet = stored()
    await fill_topic(kafka_bootstrap, name, {0: [at(maker, minute) for minute in (25, 300)]})
    second = job(*command)
    await fill_topic(kafka_bootstrap, name, {0: [at(maker, minute) for minute in (600, 900)]})
    third = job(*command)

    assert (first.exit_code, second.exit_code, third.exit_code) == (0, 0, 0), (first, second, third)
    assert nothing_yet == []
    assert "3 events read; 0 sessions closed, 1 open until events of about 2026-01-01T" in first.stdout
    assert "1 sessions closed, 1 open until" in second.stdout
    assert stored() == [1, 1, 4]


async def test_source_that_has_ended_gives_its_last_sessions_too(
    job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    maker = RecordMaker(1)
    append_to_log(tmp_path / "log", {0: [at(maker, minute) for minute in (0, 10, 20, 300)]})
    command = ["sessionize", "--source", f"log://{tmp_path}/log", "--out", tmp_path / "sessions", "--close"]

    done, again = job(*command), job(*command)

    assert done.exit_code == 0, done
    assert "2 sessions closed" in done.stdout
    rows = spark.read.parquet(str(tmp_path / "sessions")).collect()
    assert sorted((row["user"], row["events"]) for row in rows) == [("u", 1), ("u", 3)]
    assert again.exit_code == 2
    assert "--close needs an --out of its own" in again.stderr
    stream = job(*command[:-1], "--once")
    assert stream.exit_code == 2
    assert "name that --checkpoint, or another output" in stream.stderr


@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
async def test_days_of_sessions_are_replaced_over_midnight_on_both_sides(
    lake_format: str, job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    maker, out = RecordMaker(1), tmp_path / "sessions"
    table = f"delta.`{out}`" if lake_format == "delta" else IcebergTable(str(out)).sql_name
    minutes = (0, 1430, 1450, 1500, 1510, 2000, 2870, 2890, 3200, 9000, 9001)
    append_to_log(tmp_path / "log", {0: [at(maker, minute) for minute in minutes]})
    command = ["sessionize", "--source", f"log://{tmp_path}/log", "--out", out, "--format", lake_format]
    days = ["--since", "2026-01-02", "--until", "2026-01-03"]

    def stored() -> list[tuple[Any, ...]]:
        columns = ("began", "ended", "events", "dt")
        rows = spark.read.format(lake_format).load(str(out)).select(*columns).orderBy("began").collect()
        return [tuple(row) for row in rows]

    first, before = job(*command, "--once"), stored()
    spark.sql(f"UPDATE {table} SET events = 0 WHERE dt = '2026-01-02'")
    spark.sql(f"DELETE FROM {table} WHERE ended > '2026-01-02T12:00' AND dt = '2026-01-02'")
    replaced, after = job(*command, *days), stored()
    too_early = job(*command, "--since", "2026-01-06", "--until", "2026-01-07")

    assert (first.exit_code, replaced.exit_code) == (0, 0), (first, replaced)
    assert [row[2] for row in before] == [1, 2, 2, 1, 2, 1]
    assert [row[3] for row in before] == [f"2026-01-0{day}" for day in (1, 1, 2, 2, 2, 3)]
    assert after == before
    assert too_early.exit_code == 2
    assert "the stream may not have stored all of 2026-01-06 to 2026-01-06" in too_early.stderr


def at(maker: RecordMaker, minute: int) -> NewRecord:
    """Return a record of the one user, at a minute of the day."""
    record = maker.record(maker.event(f"at-{minute}"))
    value = b'{"userId":"u","type":"track"}'
    return record._replace(timestamp_ms=START_MS + minute * MINUTE_MS, value=value)
