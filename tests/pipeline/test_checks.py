"""Claim: each way in which a topic can break the promise is found and named, alone, by a check of its own."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from dedupe.model.identity import Identity
from dedupe.model.types import NewRecord
from pipeline.audit import checks
from pipeline.audit.checks import (
    BEFORE_FIRST,
    check_order,
    check_records,
    faulty,
    outside_retention,
    repeated_hashes,
    repeats,
    with_earlier_keys,
)
from pipeline.audit.deep import wrong_keys
from pipeline.audit.evaluation import summarize
from pipeline.audit.forgotten import DedupeBounds
from pipeline.schema import RECORD
from tests.support.foreign import without_checksum
from tests.support.records import SECRET, RecordMaker

PARTITIONS = 2
BOUNDS = DedupeBounds(timedelta(days=7), 1000)
FROM_FIRST = dict.fromkeys(range(PARTITIONS), BEFORE_FIRST)

Lanes = dict[int, list[NewRecord]]


def test_clean_lanes_have_nothing_to_name(spark: SparkSession) -> None:
    records = as_dataframe(spark, clean(RecordMaker()))

    summaries, timeline = summarize(check_records(records, PARTITIONS), FROM_FIRST, {0: (0, 10), 1: (5, 7)})

    assert [(s.partition, s.records, s.counted, s.faults) for s in summaries] == [
        (0, 20, 10, 0),
        (1, 20, 2, 0),
    ]
    assert all(summary.is_in_order for summary in summaries)
    assert (timeline.step_s, sum(timeline.records.values())) == (60, 40)
    assert named(records) == []
    assert wrong_keys(records, secret=SECRET, partitions=PARTITIONS).collect() == []


def test_partition_that_was_divided_off_has_the_keys_of_its_first_ancestor(spark: SparkSession) -> None:
    maker = RecordMaker()
    lanes = clean(maker)
    lanes[2] = [maker.record(maker.event_of(int(place == 7)), partition=2) for place in range(20)]

    records = as_dataframe(spark, lanes)
    checked = check_records(records, PARTITIONS)
    found = faulty(check_order(checked, dict.fromkeys(range(3), BEFORE_FIRST))).collect()

    assert [(row["kind"], row["partition"], row["offset"]) for row in found] == [
        (checks.WRONG_PARTITION, 2, 7)
    ]
    wrong = wrong_keys(records, secret=SECRET, partitions=PARTITIONS).collect()
    assert [(row["kind"], row["partition"], row["offset"]) for row in wrong] == [(checks.WRONG_KEY, 2, 7)]


def plant_change(maker: RecordMaker, lanes: Lanes) -> None:
    changed = lanes[0][3].value.replace(b"Tested", b"Forged")
    lanes[0][3] = lanes[0][3]._replace(value=changed)


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


def plant_head(_maker: RecordMaker, lanes: Lanes) -> None:
    del lanes[0][:2]


def plant_value(_maker: RecordMaker, lanes: Lanes) -> None:
    lanes[0].append(without_checksum(lanes[0].pop())._replace(value=lanes[0][0].value))


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
        (plant_foreign, {checks.FOREIGN}, "not exactly one header 'gw'"),
        (plant_head, {checks.GAP}, "2 missing: lane_seq 2 is the first"),
        (plant_value, {checks.VALUE}, ""),
        (plant_change, {checks.ALTERED}, "its content differs from its checksum"),
        (plant_version, {checks.VERSION}, ""),
        (plant_wrong_partition, {checks.WRONG_PARTITION}, "belongs to partition 1"),
        (plant_time_disorder, {checks.TIME_ORDER}, "2026-01-01 00:00:00.01 after 2026-01-01 00:00:00.2"),
    ],
)
def test_planted_violation_is_named(
    spark: SparkSession, plant: Callable[[RecordMaker, Lanes], None], kinds: set[str], detail: str
) -> None:
    maker = RecordMaker()
    lanes = clean(maker)
    plant(maker, lanes)
    rows = named(as_dataframe(spark, lanes))

    assert {row["kind"] for row in rows} == kinds
    first = next(row for row in rows if detail == row["detail"])
    planted = lanes[0][first["offset"]]
    assert (first["partition"], first["message_id"]) == (0, planted.key.decode())
    assert first["source"] == ("web" if planted.headers else None)


@pytest.mark.parametrize(
    ("bounds", "kind"),
    [
        (BOUNDS, checks.DUPLICATE),
        (BOUNDS._replace(window=timedelta(milliseconds=360)), checks.DUPLICATE),
        (BOUNDS._replace(window=timedelta(milliseconds=350)), checks.ALLOWED_REPEAT),
        (BOUNDS._replace(keys_max=17), checks.DUPLICATE),
        (BOUNDS._replace(keys_max=16), checks.ALLOWED_REPEAT),
        (DedupeBounds(timedelta(milliseconds=350), None), checks.ALLOWED_REPEAT),
        (DedupeBounds(None, 16), checks.ALLOWED_REPEAT),
        (DedupeBounds(timedelta(days=7), None), checks.REPEATED),
        (DedupeBounds(None, 1000), checks.REPEATED),
        (DedupeBounds(), checks.REPEATED),
    ],
)
def test_repeat_is_judged_by_both_bounds_of_what_is_remembered(
    spark: SparkSession, bounds: DedupeBounds, kind: str
) -> None:
    maker = RecordMaker()
    lanes = clean(maker)
    again = maker.record(maker.event(message_id(lanes, 3)), partition=0)
    lanes[0].append(again._replace(timestamp_ms=lanes[0][3].timestamp_ms + 355))

    assert [row["kind"] for row in named(as_dataframe(spark, lanes), bounds)] == [kind]


def test_copy_in_another_partition_is_named_though_the_partition_count_is_not_known(
    spark: SparkSession,
) -> None:
    maker = RecordMaker()
    lanes = clean(maker)
    lanes[1].append(maker.record(maker.event(message_id(lanes, 3)), partition=1))

    rows = named(as_dataframe(spark, lanes), partitions=None)

    assert [(row["kind"], row["partition"], row["offset"]) for row in rows] == [(checks.DUPLICATE, 1, 20)]


@pytest.mark.regression("The audit told a gap where retention had deleted records.")
def test_lane_that_goes_on_at_its_offset_after_retention_has_no_gap_in_an_archive(
    spark: SparkSession,
) -> None:
    maker = RecordMaker()
    archived = clean(maker)[0]
    maker.skip(0, 5)  # as many markers as transactions took offsets before
    later = [maker.record(maker.event_of(0)) for _ in range(2)]
    offsets = [n + n // 4 for n in range(20)] + [25, 26]

    records = as_dataframe(spark, {0: archived + later}, offsets)
    kinds = {
        outlives: [row["kind"] for row in named(records, outlives_retention=outlives)]
        for outlives in (True, False)
    }

    assert kinds == {True: [checks.RENUMBERED], False: [checks.GAP]}


def test_records_that_an_archive_lost_are_a_gap_though_lane_seq_equals_the_offset(
    spark: SparkSession,
) -> None:
    lane = clean(RecordMaker())[0]

    records = as_dataframe(spark, {0: lane[:5] + lane[9:]}, [*range(5), *range(9, 20)])

    assert [row["kind"] for row in named(records, outlives_retention=True)] == [checks.GAP]


def test_year_of_records_is_folded_before_it_reaches_the_driver(spark: SparkSession) -> None:
    maker = RecordMaker(step_ms=3_600_000)
    lane = [maker.record(maker.event_of(0)) for _ in range(8760)]

    records = as_dataframe(spark, {0: lane})
    _, timeline = summarize(check_records(records, PARTITIONS), {}, {})

    assert (timeline.step_s, len(timeline.records), sum(timeline.records.values())) == (86_400, 366, 8760)


def test_key_of_another_secret_is_named(spark: SparkSession) -> None:
    maker, stranger = RecordMaker(), RecordMaker(identity=Identity(b"another deployment's secret"))
    lanes = clean(maker)
    lanes[1][7] = stranger.record(stranger.event("a-stranger"), partition=1, lane_seq=7)
    lanes[1][8] = without_checksum(lanes[1][8])._replace(key=b"somebody-else")

    named = wrong_keys(as_dataframe(spark, lanes), secret=SECRET, partitions=PARTITIONS).collect()

    assert [(row["kind"], row["partition"], row["offset"], row["message_id"]) for row in named] == [
        (checks.WRONG_KEY, 1, 7, "a-stranger"),
        (checks.WRONG_KEY, 1, 8, "somebody-else"),
    ]


def test_record_older_than_the_retention_is_noticed(spark: SparkSession) -> None:
    lanes = clean(RecordMaker(step_ms=1000))

    found = outside_retention(
        check_records(as_dataframe(spark, lanes), PARTITIONS), timedelta(seconds=35)
    ).collect()

    assert [row["offset"] for row in found] == [0, 1, 2, 3]


def named(
    records: DataFrame,
    bounds: DedupeBounds = BOUNDS,
    *,
    partitions: int | None = PARTITIONS,
    outlives_retention: bool = False,
) -> list[Row]:
    """The findings that follow from the records alone."""
    checked = check_records(records, partitions)
    found = faulty(check_order(checked, FROM_FIRST, outlives_retention=outlives_retention))
    own = with_earlier_keys(checked, None)
    return found.unionByName(repeats(own, repeated_hashes(own), bounds)).collect()


def clean(maker: RecordMaker) -> Lanes:
    """Twenty records in each of two lanes."""
    lanes: Lanes = {0: [], 1: []}
    for lane, records in lanes.items():
        records.extend(maker.record(maker.event_of(lane)) for _ in range(20))
    return lanes


def message_id(lanes: Lanes, offset: int) -> str:
    return lanes[0][offset].key.decode()


def as_dataframe(spark: SparkSession, lanes: Lanes, offsets: list[int] | None = None) -> DataFrame:
    rows = [
        (
            "events",
            partition,
            offsets[place] if offsets else place,
            datetime.fromtimestamp(record.timestamp_ms / 1000, UTC),
            record.key,
            record.value,
            dict(record.headers)["source"].decode() if record.headers else None,
            dict(record.headers)["gw"] if record.headers else None,
            dict(record.headers).get("gs"),
        )
        for partition, records in lanes.items()
        for place, record in enumerate(records)
    ]
    return spark.createDataFrame(rows, RECORD)
