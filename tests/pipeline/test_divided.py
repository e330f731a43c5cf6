"""
Claim: the audit of a topic that was divided knows with which numbers the records of each partition begin and
go on, from the output of `gateway reshard status`: what jumps is no loss, and a record that is missing before
or behind it is found.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.audit.division import Division, Jump, read_division
from pipeline.errors import UsageError
from tests.pipeline.conftest import JobRunner
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker

FIRST = 10


def row(partition: int, *begins: tuple[int, int, int], slots: int = 2048) -> dict[str, Any]:
    """Return a line on a partition, by where its records begin and go on: offset, lane_seq, ended_seq."""
    names = ("offset", "lane_seq", "ended_seq")
    starts = [dict(zip(names, each, strict=True)) for each in begins]
    return {"partition": partition, "slots": slots, "begun_with": 1, "begins": starts}


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
    assert read_division(told) == Division(1, {0: 0, 3: 7}, (Jump(0, 20, 16),), {3: 0})


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
