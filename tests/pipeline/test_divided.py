"""
Claim: the audit of a topic that was divided knows the number with which the records of each new partition
begin, from the output of `gateway reshard status`, and so finds a first record that is missing.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.audit.division import Division, read_division
from pipeline.errors import UsageError
from tests.pipeline.conftest import JobRunner
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker

FIRST = 10


def row(partition: int, first_lane_seq: int, *inherits: str, slots: int = 2048) -> dict[str, Any]:
    return {
        "partition": partition,
        "slots": slots,
        "inherits": list(inherits),
        "first_lane_seq": first_lane_seq,
    }


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
    told = written(tmp_path, row(0, 0), row(1, FIRST, "0 below 10"))
    known = job("audit", "--source", source, "--reshard", told, "--engine", "spark")
    unknown = job("audit", "--source", source, "--begun-with", 1, "--engine", "spark")

    assert known.exit_code == 0, known
    assert unknown.exit_code == 0, unknown


def test_missing_first_record_of_a_new_partition_is_found(
    source: str, job: JobRunner, tmp_path: Path
) -> None:
    told = written(tmp_path, row(0, 0), row(1, FIRST - 1, "0 below 10"))
    done = job("audit", "--source", source, "--reshard", told, "--engine", "spark")

    assert done.exit_code == 1, done
    assert f"1 missing: lane_seq {FIRST} follows {FIRST - 2}" in done.stdout


def test_partition_that_got_no_slots_is_none_of_the_beginning(tmp_path: Path) -> None:
    told = written(
        tmp_path, row(0, 0), row(1, 0), row(2, 0, slots=0), row(3, 7, "1 below 9"), row(4, 5, "0 below 8")
    )
    assert read_division(told) == Division(2, {3: 7, 4: 5})


@pytest.mark.parametrize("text", ["", "nothing", '{"partition":0}\n'])
def test_file_that_is_something_else_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "reshard.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"reshard\.json"):
        read_division(path)


def test_two_ways_to_say_it_exclude_each_other(source: str, job: JobRunner, tmp_path: Path) -> None:
    told = written(tmp_path, row(0, 0), row(1, FIRST, "0 below 10"))
    done = job("audit", "--source", source, "--reshard", told, "--begun-with", 1)
    assert (done.exit_code, "exclude each other" in done.stderr) == (2, True), done
