"""Claim: each way in which a topic can break the promise is found and named, alone, by a check of its own."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from dedupe.types import NewRecord, Session
from pipeline.audit import checks
from pipeline.audit.checks import client_gaps, examined, has_faults, outside_retention, surveyed, violations
from pipeline.audit.deep import wrong_keys
from pipeline.schema import RECORD
from tests.support.records import SECRET, RecordMaker

PARTITIONS = 2
WINDOW = timedelta(days=7)

Lanes = dict[int, list[NewRecord]]


def test_clean_lanes_have_nothing_to_name(spark: SparkSession) -> None:
    records = as_dataframe(spark, clean(RecordMaker()))

    rows = surveyed(examined(records, PARTITIONS), {0: (0, 10), 1: (5, 7)}).collect()

    assert not any(has_faults(row["faults"], row["copies"]) for row in rows)
    assert sum(row["records"] for row in rows) == 40
    assert {row["partition"]: row["counted"] for row in rows} == {0: 10, 1: 2}
    assert violations(examined(records, PARTITIONS), WINDOW).collect() == []
    assert wrong_keys(records, secret=SECRET, partitions=PARTITIONS).collect() == []


def plant_duplicate(maker: RecordMaker, lanes: Lanes) -> None:
    lanes[0].append(maker.record(maker.event(message_id(lanes, 3)), partition=0))


def plant_copy(maker: RecordMaker, lanes: Lanes) -> None:
    lanes[0].append(lanes[0][3]._replace(timestamp_ms=lanes[0][-1].timestamp_ms))


def plant_conflict(maker: RecordMaker, lanes: Lanes) -> None:
    event = maker.event(message_id(lanes, 3))._replace(fingerprint=b"another!")
    lanes[0].append(maker.record(event, partition=0))


def plant_gap(maker: RecordMaker, lanes: Lanes) -> None:
    maker.skip(0, 3)
    lanes[0].append(maker.record(maker.event_of(0)))


def plant_disorder(maker: RecordMaker, lanes: Lanes) -> None:
    lanes[0][4], lanes[0][5] = lanes[0][5], lanes[0][4]._replace(timestamp_ms=lanes[0][5].timestamp_ms)


def plant_foreign(_maker: RecordMaker, lanes: Lanes) -> None:
    lanes[0].append(lanes[0][-1]._replace(key=b"planted", headers=[]))


def plant_version(maker: RecordMaker, lanes: Lanes) -> None:
    source, (name, gw) = lanes[0][-1].headers
    lanes[0].append(lanes[0][-1]._replace(headers=[source, (name, b"\x02" + gw[1:])]))


def plant_wrong_partition(maker: RecordMaker, lanes: Lanes) -> None:
    lanes[0].append(maker.record(maker.event_of(1), partition=0))


def plant_time_disorder(maker: RecordMaker, lanes: Lanes) -> None:
    lanes[0].append(maker.record(maker.event_of(0))._replace(timestamp_ms=lanes[0][0].timestamp_ms))


@pytest.mark.parametrize(
    ("plant", "kinds", "detail"),
    [
        (plant_duplicate, {checks.DUPLICATE}, "the first is in partition 0 at offset 3"),
        (plant_copy, {checks.DUPLICATE, checks.ORDER}, "the first is in partition 0 at offset 3"),
        (plant_conflict, {checks.CONFLICT}, "the first is in partition 0 at offset 3"),
        (plant_gap, {checks.GAP}, "3 missing: lane_seq 23 follows 19"),
        (plant_disorder, {checks.GAP, checks.ORDER}, "1 missing: lane_seq 5 follows 3"),
        (plant_foreign, {checks.FOREIGN}, ""),
        (plant_version, {checks.VERSION}, ""),
        (plant_wrong_partition, {checks.WRONG_PARTITION}, "belongs into partition 1"),
        (plant_time_disorder, {checks.TIME_ORDER}, "2026-01-01 00:00:00.01 after 2026-01-01 00:00:00.2"),
    ],
)
def test_planted_violation_is_named(
    spark: SparkSession, plant: Callable[[RecordMaker, Lanes], None], kinds: set[str], detail: str
) -> None:
    maker = RecordMaker()
    lanes = clean(maker)
    plant(maker, lanes)
    found = examined(as_dataframe(spark, lanes), PARTITIONS)

    rows = surveyed(found, {}).collect()
    named = violations(found, WINDOW).collect()

    assert any(has_faults(row["faults"], row["copies"]) for row in rows)
    assert {row["kind"] for row in named} == kinds
    first = next(row for row in named if detail == row["detail"])
    planted = lanes[0][first["offset"]]
    assert (first["partition"], first["message_id"]) == (0, planted.key.decode())
    assert first["source"] == ("web" if planted.headers else None)


def test_same_event_after_the_window_is_no_duplicate(spark: SparkSession) -> None:
    maker = RecordMaker()
    lanes = clean(maker)
    again = maker.record(maker.event(message_id(lanes, 3)), partition=0)
    window_ms = int(WINDOW.total_seconds() * 1000)
    lanes[0].append(again._replace(timestamp_ms=lanes[0][3].timestamp_ms + window_ms))

    found = examined(as_dataframe(spark, lanes), PARTITIONS)

    assert violations(found, WINDOW).collect() == []


def test_key_of_another_secret_is_named(spark: SparkSession) -> None:
    maker = RecordMaker()
    lanes = clean(maker)
    honest = lanes[1][7]
    lanes[1][7] = honest._replace(key=b"somebody-else")

    named = wrong_keys(as_dataframe(spark, lanes), secret=SECRET, partitions=PARTITIONS).collect()

    assert [(row["kind"], row["partition"], row["offset"], row["message_id"]) for row in named] == [
        (checks.WRONG_KEY, 1, 7, "somebody-else")
    ]


def test_gap_in_a_clients_sequence_is_noticed_and_no_violation(spark: SparkSession) -> None:
    maker = RecordMaker()
    client, session = b"c" * 16, b"s" * 16
    events = [
        maker.event(f"id-{n}", session=Session(client, session, sequence=n)) for n in (1, 2, 4, 3, 7, 8)
    ]
    records = as_dataframe(spark, maker.lanes(events))

    found = examined(records, PARTITIONS)

    assert [(row["message_id"], row["detail"]) for row in client_gaps(found).collect()] == [
        ("id-7", "2 events after sequence 4")
    ]
    assert violations(found, WINDOW).collect() == []
    assert wrong_keys(records, secret=SECRET, partitions=PARTITIONS).collect() == []


def test_record_older_than_the_retention_is_noticed(spark: SparkSession) -> None:
    lanes = clean(RecordMaker(step_ms=1000))

    found = outside_retention(
        examined(as_dataframe(spark, lanes), PARTITIONS), timedelta(seconds=35)
    ).collect()

    assert [row["offset"] for row in found] == [0, 1, 2, 3]


def clean(maker: RecordMaker) -> Lanes:
    """Twenty records in each of two lanes."""
    lanes: Lanes = {0: [], 1: []}
    for lane, records in lanes.items():
        records.extend(maker.record(maker.event_of(lane)) for _ in range(20))
    return lanes


def message_id(lanes: Lanes, offset: int) -> str:
    return lanes[0][offset].key.decode()


def as_dataframe(spark: SparkSession, lanes: Lanes) -> DataFrame:
    rows = [
        (
            "events",
            partition,
            offset,
            datetime.fromtimestamp(record.timestamp_ms / 1000, UTC),
            record.key,
            record.value,
            dict(record.headers)["source"].decode() if record.headers else None,
            dict(record.headers)["gw"] if record.headers else None,
        )
        for partition, records in lanes.items()
        for offset, record in enumerate(records)
    ]
    return spark.createDataFrame(rows, RECORD)
