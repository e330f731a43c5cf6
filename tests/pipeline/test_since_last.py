"""
Claim: `audit --since-last` judges each record once, and all of them together as one audit would: it reads
what is new alone, and knows of the rest all that its verdict needs.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dedupe.model.types import NewRecord
from pipeline.audit.saved_state import StateFolder
from tests.pipeline.conftest import Done, JobRunner
from tests.support.logs import append_to_log, trim_log
from tests.support.records import RecordMaker

PROMISE = ("--window", "7d", "--index-keys-max", 1000)
HOUR_MS = 3_600_000


class Log:
    """An embedded log of one partition, and its audits."""

    def __init__(self, job: JobRunner, folder: Path, step_ms: int = 10) -> None:
        self._job, self.report = job, folder / "report"
        self.maker = RecordMaker(1, step_ms=step_ms)
        self.memory = str(folder / "memory")
        self.data = folder / "data"
        self.records: list[NewRecord] = []

    def append(self, count: int = 1) -> None:
        self.add(*(self.maker.record(self.maker.event_of(0)) for _ in range(count)))

    def append_copy_of(self, place: int) -> None:
        self.add(self.maker.record(self.maker.event(self.records[place].key.decode())))

    def add(self, *records: NewRecord) -> None:
        self.records += records
        append_to_log(self.data, {0: records})

    def audit(self, *options: object) -> tuple[Done, dict[str, Any]]:
        source = ("--source", f"log://{self.data}", "--since-last", self.memory, "--report", self.report)
        done = self._job("audit", *source, *(options or PROMISE))
        found = self.report / "audit.json"
        return done, json.loads(found.read_text()) if found.exists() else {}


@pytest.fixture
def log(job: JobRunner, tmp_path: Path) -> Log:
    return Log(job, tmp_path)


def test_next_audit_reads_what_is_new_and_finds_it_clean(log: Log) -> None:
    log.append(40)
    first, _ = log.audit()
    log.append(3)
    second, report = log.audit()
    third, nothing = log.audit()

    assert [done.exit_code for done in (first, second, third)] == [0, 0, 0], (first, second, third)
    assert "reading 40 offsets" in first.stderr
    assert "reading 3 offsets" in second.stderr
    assert "reading 0 offsets" in third.stderr
    assert (report["records"], nothing["records"]) == (3, 0)
    assert report["scope"].startswith("what came since the audit of 20")


def test_copy_of_an_event_that_an_earlier_audit_judged_is_a_duplicate(log: Log) -> None:
    log.append(20)
    log.audit()
    log.append(5)
    log.audit()
    log.append_copy_of(3)
    log.append_copy_of(22)

    done, report = log.audit()
    after, _ = log.audit()

    assert (done.exit_code, set(report["violations"])) == (1, {"duplicate"})
    named = report["violations"]["duplicate"]["first"]
    assert [(n["offset"], n["message_id"], n["detail"]) for n in named] == [
        (25, log.records[3].key.decode(), "the first is in partition 0 at offset 3"),
        (26, log.records[22].key.decode(), "the first is in partition 0 at offset 22"),
    ]
    # It was named once; alerts count on.
    assert after.exit_code == 0
    metrics = (log.report / "audit.prom").read_text()
    assert 'pipeline_audit_violations_total{kind="duplicate"} 2.0' in metrics
    assert 'pipeline_audit_verdict{verdict="clean"} 1.0' in metrics


def test_gap_between_two_audits_is_found(log: Log) -> None:
    log.append(5)
    log.audit()
    log.maker.skip(0, 2)
    log.append()

    done, report = log.audit()

    assert done.exit_code == 1
    assert [n["detail"] for n in report["violations"]["gap"]["first"]] == ["2 missing: lane_seq 7 follows 4"]


def test_time_that_falls_between_two_audits_is_found(log: Log) -> None:
    log.append(5)
    log.audit()
    log.add(log.maker.record(log.maker.event_of(0))._replace(timestamp_ms=log.records[0].timestamp_ms))

    _, report = log.audit()

    assert set(report["violations"]) == {"time_order"}


def test_audit_without_a_verdict_is_made_again(log: Log) -> None:
    log.append(5)
    log.append_copy_of(1)

    undecided, _ = log.audit("--window", "7d")
    decided, report = log.audit()

    assert (undecided.exit_code, decided.exit_code, report["records"]) == (2, 1, 6)


def test_audit_that_died_before_its_state_was_kept_is_made_again(log: Log, spark: SparkSession) -> None:
    log.append(5)
    log.audit()
    log.append(2)
    before = StateFolder(spark, log.memory).load(state_of(log, spark).source)
    log.audit()
    spark.createDataFrame([("",)], "value string").where("false").write.mode("overwrite").text(
        f"{log.memory}/state-0"
    )
    log.append_copy_of(6)

    done, report = log.audit()

    assert before.run == 1
    assert (done.exit_code, report["records"], set(report["violations"])) == (1, 3, {"duplicate"})


def test_keys_that_the_window_has_passed_are_forgotten(
    job: JobRunner, tmp_path: Path, spark: SparkSession
) -> None:
    log = Log(job, tmp_path, step_ms=HOUR_MS)
    for _ in range(4):
        log.append(24)
        log.audit("--window", "1d", "--index-keys-max", 1000)

    assert set(state_of(log, spark).runs) == {3, 4}
    assert spark.read.parquet(f"{log.memory}/keys/00000001").count() == 0


def test_state_of_another_log_is_refused(log: Log, job: JobRunner, tmp_path: Path) -> None:
    log.append(2)
    log.audit()
    other = Log(job, tmp_path / "other")
    other.append(2)
    other.memory = log.memory

    done, _ = other.audit()

    assert done.exit_code == 2
    assert f"--since-last {log.memory} remembers " in done.stderr


def test_records_that_retention_took_before_an_audit_came_are_told(log: Log) -> None:
    log.append(5)
    log.audit()
    log.append(5)
    trim_log(log.data, 0, 8)

    done, report = log.audit()

    assert (done.exit_code, report["records"]) == (0, 2), done
    assert [(n["offset"], n["detail"]) for n in report["notices"]["unjudged"]["first"]] == [
        (5, "up to offset 7")
    ]


def state_of(log: Log, spark: SparkSession) -> Any:
    """The state of the last audit, for any name of its source."""
    states = spark.read.text(
        [f"{log.memory}/state-{slot}" for slot in (0, 1) if Path(f"{log.memory}/state-{slot}").exists()]
    )
    sources = {json.loads(row["value"])["source"] for row in states.collect()}
    return StateFolder(spark, log.memory).load(sources.pop())
