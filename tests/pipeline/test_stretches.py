"""
Claim: of what stretches prove to be in order, the comparison of record with record finds nothing to name.

Each partition is a random history of its own, in transactions as a gateway writes them, and most of them are
corrupted in one or two places.
"""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.audit.checks import BEFORE_FIRST, PrecedingRecord, check_order
from pipeline.audit.evaluation import summarize

HISTORIES = 400
HONEST = 40
"""Of the histories, so many are not corrupted."""

START = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = (
    "topic string, partition int, offset bigint, timestamp timestamp, lane_seq bigint, "
    "client_hash binary, faults int, is_unproved boolean, is_erased boolean"
)


class Record(NamedTuple):
    topic: str
    offset: int
    time_ms: int
    lane_seq: int | None


Records = list[Record]


def history(chance: random.Random) -> tuple[Records, PrecedingRecord]:
    """Return what a gateway wrote in a partition from some place on, and what stands before that."""
    offset, lane_seq, time_ms = chance.randrange(200), chance.randrange(100), 1_000
    before = PrecedingRecord(offset - 1, lane_seq - 1, START + timedelta(milliseconds=time_ms))
    records = []
    for _ in range(chance.randint(1, 8)):
        time_ms += chance.choice((0, 0, 1, 5, 70_000))
        for _ in range(chance.choice((1, 1, 2, 3, 10, 70))):
            records.append(Record("events", offset, time_ms, lane_seq))
            offset, lane_seq = offset + 1, lane_seq + 1
        offset += chance.choice((0, 1, 1, 1, 130))
    return records, before


def swap_lane_seqs(records: Records, chance: random.Random) -> None:
    a, b = (chance.randrange(len(records)) for _ in range(2))
    records[a], records[b] = (
        records[a]._replace(lane_seq=records[b].lane_seq),
        records[b]._replace(lane_seq=records[a].lane_seq),
    )


def swap_times(records: Records, chance: random.Random) -> None:
    a, b = (chance.randrange(len(records)) for _ in range(2))
    records[a], records[b] = (
        records[a]._replace(time_ms=records[b].time_ms),
        records[b]._replace(time_ms=records[a].time_ms),
    )


def lose(records: Records, chance: random.Random) -> None:
    first = chance.randrange(len(records))
    if len(records) > (count := chance.randint(1, 3)):
        del records[first : first + count]


def repeat(records: Records, chance: random.Random) -> None:
    records.insert(0, chance.choice(records))


def lose_one_and_repeat_its_neighbour(records: Records, chance: random.Random) -> None:
    place = chance.randrange(len(records))
    records[place] = records[place - 1]


def forget_lane_seq(records: Records, chance: random.Random) -> None:
    place = chance.randrange(len(records))
    records[place] = records[place]._replace(lane_seq=None)


def turn_time_back(records: Records, chance: random.Random) -> None:
    place = chance.randrange(len(records))
    records[place] = records[place]._replace(time_ms=records[place].time_ms - chance.choice((1, 900)))


def advance_time(records: Records, chance: random.Random) -> None:
    place = chance.randrange(len(records))
    records[place] = records[place]._replace(time_ms=records[place].time_ms + chance.choice((1, 900)))


def move_lane_seq(records: Records, chance: random.Random) -> None:
    place = chance.randrange(len(records))
    lane_seq = chance.choice((0, 2**63 - 1, place, (records[place].lane_seq or 0) + 1))
    records[place] = records[place]._replace(lane_seq=lane_seq)


def renumber(records: Records, chance: random.Random) -> None:
    place = chance.randrange(len(records))
    records[place:] = [r._replace(lane_seq=r.offset) for r in records[place:]]


def add_another_topic(records: Records, chance: random.Random) -> None:
    place = chance.randrange(len(records))
    records[place:] = [
        r._replace(topic="others", offset=r.offset - chance.randrange(2)) for r in records[place:]
    ]


CORRUPTIONS: list[Callable[[Records, random.Random], None]] = [
    swap_lane_seqs,
    swap_times,
    lose,
    repeat,
    lose_one_and_repeat_its_neighbour,
    forget_lane_seq,
    turn_time_back,
    advance_time,
    move_lane_seq,
    renumber,
    add_another_topic,
]
BEFORES: list[Callable[[PrecedingRecord], PrecedingRecord | None]] = [
    lambda place: place,
    lambda _place: None,
    lambda _place: BEFORE_FIRST,
    lambda place: place._replace(lane_seq=place.lane_seq - 1),
    lambda place: place._replace(timestamp=START + timedelta(days=1)),
]


def histories(spark: SparkSession, seed: int) -> tuple[DataFrame, dict[int, PrecedingRecord]]:
    """Return the records of all histories, a partition each, and what stands before some of them."""
    chance = random.Random(seed)
    rows, befores = [], {}
    for partition in range(HISTORIES):
        records, place = history(chance)
        before: PrecedingRecord | None = place
        if partition >= HONEST:
            for corrupt in chance.choices(CORRUPTIONS, k=chance.randint(0, 2)):
                corrupt(records, chance)
            before = chance.choice(BEFORES)(place)
        if before is not None:
            befores[partition] = before
        for n, record in enumerate(records):
            time = START + timedelta(milliseconds=record.time_ms)
            session = b"client" if n % 3 == 0 else None
            rows.append(
                (record.topic, partition, record.offset, time, record.lane_seq, session, 0, False, False)
            )
    chance.shuffle(rows)
    return spark.createDataFrame(rows, COLUMNS), befores


@pytest.mark.parametrize("outlives_retention", [True, False])
def test_partition_that_is_proven_in_order_has_no_record_out_of_order(
    spark: SparkSession, outlives_retention: bool
) -> None:
    records, before = histories(spark, seed=outlives_retention)

    summaries, timeline = summarize(records, before, {})
    one_by_one = check_order(records, before, outlives_retention=outlives_retention).groupBy("partition")
    found = one_by_one.agg(F.bit_or("faults").alias("faults"), F.count("*").alias("records")).collect()

    faults = {row["partition"]: row["faults"] for row in found}
    proven = {summary.partition for summary in summaries if summary.is_in_order}
    assert not {partition for partition in proven if faults[partition]}
    assert proven >= set(range(HONEST))
    assert sum(bool(bits) for bits in faults.values()) > HISTORIES / 2
    assert {s.partition: s.records for s in summaries} == {row["partition"]: row["records"] for row in found}
    assert sum(timeline.records.values()) == records.count()
