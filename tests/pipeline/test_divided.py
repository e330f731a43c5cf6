"""
Claim: the audit of a topic that was divided knows with which numbers the records of each partition begin and
go on, from the output of `gateway reshard status`: what jumps is no loss, and a record that is missing before
or behind it is found.
"""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from pyspark.sql import SparkSession

from dedupe.model.types import NewRecord
from pipeline.audit.checks import (
    ALLOWED_REPEAT,
    DUPLICATE,
    check_records,
    repeated_hashes,
    repeats,
    with_earlier_keys,
)
from pipeline.audit.division import OFFSET_END, Inherited, Jump, read_division
from pipeline.audit.forgotten import DedupeBounds
from pipeline.errors import UsageError
from tests.pipeline.conftest import JobRunner
from tests.pipeline.test_checks import as_dataframe
from tests.support.logs import append_to_log
from tests.support.records import START_MS, RecordMaker

FIRST = 10
JUMP = 1 << 32
Lineage: TypeAlias = tuple[int, list[tuple[int, int, int, int, int]]]


def row(
    partition: int, *begins: tuple[int, int, int], slots: int = 2048, lineage: Lineage | None = None
) -> dict[str, Any]:
    """
    Return a line on a partition, by where its records begin and go on: offset, lane_seq, ended_seq.

    Its lineage is where its own log begins, and levels: partition, start, end, shift, lane_seq_min.
    """
    names = ("offset", "lane_seq", "ended_seq")
    starts = [dict(zip(names, each, strict=True)) for each in begins]
    told = None
    if lineage is not None:
        fields = ("partition", "start", "end", "shift", "lane_seq_min")
        levels = [dict(zip(fields, each, strict=True)) for each in lineage[1]]
        told = {"begins_at": lineage[0], "levels": levels}
    return {"partition": partition, "slots": slots, "begun_with": 1, "begins": starts, "lineage": told}


def written(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "reshard.json"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A log of which partition 1 was divided off partition 0: its first record has the number FIRST."""
    maker = RecordMaker(2)
    lanes = maker.lanes([maker.event(f"id-{number}") for number in range(60)])
    append_to_log(tmp_path / "log", {0: lanes[0], 1: lanes[1][FIRST:]})
    return f"log://{tmp_path / 'log'}"


@pytest.mark.regression(
    "Partitions that `gateway reshard` had divided off were said to lack all records before."
)
def test_records_of_a_new_partition_go_on_from_its_parents(
    source: str, job: JobRunner, tmp_path: Path
) -> None:
    told = written(tmp_path, row(0, (0, 0, 0)), row(1, (0, FIRST, 0)))
    known = job("audit", "--source", source, "--reshard", told, "--engine", "spark")
    unknown = job("audit", "--source", source, "--begun-with", 1, "--engine", "spark")

    assert known.exit_code == 0, known
    assert unknown.exit_code == 0, unknown


def test_missing_first_record_of_a_new_partition_is_found(
    source: str, job: JobRunner, tmp_path: Path
) -> None:
    told = written(tmp_path, row(0, (0, 0, 0)), row(1, (0, FIRST - 1, 0)))
    done = job("audit", "--source", source, "--reshard", told, "--engine", "spark")

    assert done.exit_code == 1, done
    assert f"1 missing: lane_seq {FIRST} follows {FIRST - 2}" in done.stdout


def merged(folder: Path, *, lacks: int = -1) -> str:
    """
    Return a log of which partition 0 was divided, and had its slots back: behind 12 records of its own its
    numbers go on with 20. One of its records may be lacking, by its place.
    """
    maker = RecordMaker(1)
    lane = maker.lanes([maker.event(f"id-{number}") for number in range(40)])[0]
    kept = [*lane[:12], *lane[20:]]
    append_to_log(folder / "log", {0: [record for place, record in enumerate(kept) if place != lacks]})
    return f"log://{folder / 'log'}"


def test_numbers_that_go_on_behind_a_cut_are_no_loss(job: JobRunner, tmp_path: Path) -> None:
    source = merged(tmp_path)
    told = written(tmp_path, row(0, (0, 0, 0), (5, 5, 5), (12, 20, 12)))

    known = job("audit", "--source", source, "--reshard", told)
    assert (known.exit_code, "CLEAN" in known.stdout) == (0, True), known
    unknown = job("audit", "--source", source, "--begun-with", 1)
    assert "8 missing: lane_seq 20 follows 11" in unknown.stdout


@pytest.mark.parametrize(
    ("lacks", "said"),
    [(11, "lane_seq 20 follows 18"), (12, "lane_seq 21 follows 19"), (4, "lane_seq 5 follows 3")],
    ids=["last before the jump", "first behind it", "in the middle"],
)
def test_record_that_is_missing_beside_a_jump_is_found(
    lacks: int, said: str, job: JobRunner, tmp_path: Path
) -> None:
    source = merged(tmp_path, lacks=lacks)
    behind = 12 - (lacks < 12)  # this log has no gaps between offsets
    told = written(tmp_path, row(0, (0, 0, 0), (behind, 20, 12)))

    done = job("audit", "--source", source, "--reshard", told)

    assert done.exit_code == 1, done
    assert f"1 missing: {said}" in done.stdout


@pytest.mark.parametrize(("end", "exit_code"), [(60, 0), (59, 1)], ids=["at the cut", "behind it"])
def test_record_behind_the_cut_of_a_partition_that_rests_is_found(
    end: int, exit_code: int, job: JobRunner, tmp_path: Path
) -> None:
    maker = RecordMaker(1)
    lane = maker.lanes([maker.event(f"id-{number}") for number in range(100)])[0]
    append_to_log(tmp_path / "log", {0: lane[:40], 1: lane[40:]})
    told = written(tmp_path, row(0, (0, 0, 0)), row(1, (0, 40, 0), (end, 100, 100), slots=0))

    done = job("audit", "--source", f"log://{tmp_path / 'log'}", "--reshard", told)

    assert (done.exit_code, "no slots since before it" in done.stdout) == (exit_code, exit_code == 1), done


def test_file_says_where_numbers_jump(tmp_path: Path) -> None:
    told = written(tmp_path, row(0, (0, 0, 0), (9, 9, 9), (20, 33, 17)), row(3, (0, 7, 0), slots=0))
    division = read_division(told)
    assert not division.periods
    assert division[:4] == (1, {0: 0, 3: 7}, (Jump(0, 20, 16),), {3: 0})


def test_file_says_what_each_index_counts(tmp_path: Path) -> None:
    cuts = ((0, 0, 0), (9, 9, 9), (20, 33, 17), (30, 43, 43))
    told = written(tmp_path, row(0, *cuts, lineage=(20, [(1, 5, 8, 25, 3), (0, 9, 20, 16, 0)])))
    assert read_division(told).inherited == (
        Inherited(0, 0, 9, 0, 0, 9, 0, 0),
        Inherited(0, 9, 20, 0, 9, 20, 0, 0),
        Inherited(0, 9, 20, 0, 0, 9, 0, 8),
        Inherited(0, 20, OFFSET_END, 0, 20, OFFSET_END, 0, 0),
        Inherited(0, 20, OFFSET_END, 1, 5, 8, 25, 3),
        Inherited(0, 20, OFFSET_END, 0, 9, 20, 16, 0),
    )


def test_partition_that_only_gave_slots_has_the_index_of_before(tmp_path: Path) -> None:
    told = written(tmp_path, row(0, (0, 0, 0), (9, 9, 9)))
    assert read_division(told).inherited == (Inherited(0, 0, OFFSET_END, 0, 0, OFFSET_END, 0, 0),)


def repeated(*, partition: int = 0) -> dict[int, list[NewRecord]]:
    """
    Return the records of a log whose partition 0 was cut behind 12 records. Behind 20 of its own since, or of
    partition 1, whose numbers begin JUMP above, id-3 is stored again.
    """
    maker = RecordMaker(1)
    events = [maker.event(f"id-{number}") for number in range(32)]
    before = [maker.record(event) for event in events[:12]]
    own = [maker.record(event, lane_seq=JUMP + n) for n, event in enumerate([*events[12:], events[3]])]
    return {0: [*before, *own]} if partition == 0 else {0: before, 1: own}


LINEAGE: Lineage = (12, [(0, 0, 12, JUMP - 12, 0)])
"""Of partition 0: all that was before counts, up to its new numbers."""

ROUNDABOUT: Lineage = (12, [(0, 0, 12, JUMP - 12 + 5, 0)])
"""Its slots were elsewhere meanwhile, where fewer records came than in the partition itself."""

AT_ONCE: Lineage = (12, [(0, 0, 12, 0, JUMP - 1)])
"""All that was before counts as the one number before the new ones."""


@pytest.mark.parametrize(
    ("lineage", "keys_max"), [(LINEAGE, 29), (ROUNDABOUT, 24), (AT_ONCE, 21)], ids=["line", "round", "marks"]
)
def test_a_jump_excuses_no_repeat(
    lineage: Lineage, keys_max: int, spark: SparkSession, tmp_path: Path
) -> None:
    told = written(tmp_path, row(0, (0, 0, 0), (12, JUMP, 12), lineage=lineage))
    assert kinds(spark, repeated(), told, keys_max) == [DUPLICATE]
    assert kinds(spark, repeated(), told, keys_max - 1) == [ALLOWED_REPEAT]


@pytest.mark.regression("Numbers that jump at a cut excused a repeat: an audit said CLEAN.")
def test_audit_of_a_repeat_behind_a_jump_is_not_clean(job: JobRunner, tmp_path: Path) -> None:
    """Its partition was the only one within the window, and remembers as many ids as then."""
    maker = RecordMaker(1)
    other = maker.record(maker.event("of partition 1"), lane_seq=JUMP)
    append_to_log(tmp_path / "log", repeated() | {1: [other]})
    rows = row(0, (0, 0, 0), (12, JUMP, 12), lineage=LINEAGE), row(1, (0, JUMP, 0))
    told = written(tmp_path, *(each | {"counts": [count(START_MS, 1)]} for each in rows))
    options = ("--reshard", told, "--window", "7d", "--index-keys-max", 29)
    done = job("audit", "--source", f"log://{tmp_path / 'log'}", *options)
    assert (done.exit_code, "its event is stored before, within the window" in done.stdout) == (1, True), done


def test_file_of_a_command_that_tells_no_lineages_excuses_no_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    line = row(0, (0, 0, 0), (12, JUMP, 12))
    del line["lineage"]
    told = written(tmp_path, line)
    assert kinds(spark, repeated(), told, 21) == [DUPLICATE]
    assert kinds(spark, repeated(), told, 20) == [ALLOWED_REPEAT]


@pytest.mark.regression("An audit blamed the gateway for an id that had been forgotten before its cut.")
def test_what_came_before_the_cut_counts_for_an_heir(spark: SparkSession, tmp_path: Path) -> None:
    heir = row(1, (0, JUMP, 0), lineage=(0, [(0, 0, 12, JUMP - 12, 0)]))
    told = written(tmp_path, row(0, (0, 0, 0), (12, 12, 12)), heir)
    assert kinds(spark, repeated(partition=1), told, 29) == [DUPLICATE]
    assert kinds(spark, repeated(partition=1), told, 28) == [ALLOWED_REPEAT]


@pytest.mark.regression("An audit excused repeats by the share of more partitions than a gateway had.")
def test_partitions_that_were_divided_remember_as_many_as_before_for_a_window(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The repeat is 29 records behind its event."""
    day_ms, plan = 86_400_000, row(0, (0, 0, 0), (12, JUMP, 12), lineage=LINEAGE)
    more = row(1, (0, JUMP, 0))
    lately = written(tmp_path, *(each | {"counts": [count(START_MS + 50, 1)]} for each in (plan, more)))
    assert kinds(spark, repeated(), lately, 29) == [DUPLICATE]
    assert kinds(spark, repeated(), lately, 28) == [ALLOWED_REPEAT]
    long_ago = [count(START_MS - 8 * day_ms, 1)]
    told = written(tmp_path, *(each | {"counts": long_ago} for each in (plan, more)))
    assert kinds(spark, repeated(), told, 2 * 29) == [DUPLICATE]
    assert kinds(spark, repeated(), told, 2 * 29 - 1) == [ALLOWED_REPEAT]
    later = written(tmp_path, plan | {"counts": [count(START_MS + day_ms, 2)]})
    assert kinds(spark, repeated(), later, 2 * 29) == [DUPLICATE]
    assert kinds(spark, repeated(), later, 2 * 29 - 1) == [ALLOWED_REPEAT]


def count(until_ms: int, partitions: int) -> dict[str, int]:
    return {"until_ms": until_ms, "partitions": partitions}


def kinds(spark: SparkSession, lanes: dict[int, list[NewRecord]], told: Path, keys_max: int) -> list[str]:
    checked = with_earlier_keys(check_records(as_dataframe(spark, lanes), 1), None)
    division = read_division(told)
    bounds = DedupeBounds(timedelta(days=7), keys_max, division.periods)
    found = repeats(checked, repeated_hashes(checked), bounds, division)
    return [record["kind"] for record in found.collect()]


@pytest.mark.parametrize("text", ["", "nothing", '{"partition":0}\n'])
def test_file_that_is_something_else_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "reshard.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"reshard\.json"):
        read_division(path)


def test_two_ways_to_say_it_exclude_each_other(source: str, job: JobRunner, tmp_path: Path) -> None:
    told = written(tmp_path, row(0, (0, 0, 0)), row(1, (0, FIRST, 0)))
    done = job("audit", "--source", source, "--reshard", told, "--begun-with", 1)
    assert (done.exit_code, "exclude each other" in done.stderr) == (2, True), done
