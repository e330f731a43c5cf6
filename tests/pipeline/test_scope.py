"""
Claim: a verdict covers only what was audited: records that an archive lacks at its ends are found if its
topic is given, unknown facts are reported as such, and a range that makes no sense is refused at once.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dedupe.model.types import NewRecord
from dedupe.storage.kafka.store import KafkaStore
from pipeline.sources.records import LogSource, Selection, read_records
from pipeline.transforms.clean_topic import archived
from tests.conftest import TopicFactory
from tests.pipeline.conftest import Done, JobRunner
from tests.support.logs import append_to_log, trim_log
from tests.support.records import RecordMaker
from tests.support.settings import kafka_config

PARTITIONS = 3
HOUR_MS = 3_600_000
RECORDS = 60  # a partition, an hour apart in all partitions together: seven and a half days


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log whose records are spread over days; partition 2 has none."""
    maker = RecordMaker(PARTITIONS, step_ms=HOUR_MS)
    lanes: dict[int, list[NewRecord]] = {p: [] for p in range(PARTITIONS)} | maker.lanes(
        maker.event_of(n % 2) for n in range(2 * RECORDS)
    )
    folder = tmp_path_factory.mktemp("log")
    append_to_log(folder, lanes)
    return folder


class Auditor:
    """Audits what is left of the log in an archive."""

    def __init__(self, spark: SparkSession, job: JobRunner, data: Path, folder: Path) -> None:
        self._spark, self._job, self._data, self._folder = spark, job, data, folder

    def archive(self, kept: str, *options: object) -> tuple[Done, dict[str, Any]]:
        records = read_records(self._spark, LogSource(str(self._data), "events"), Selection())
        where = self._folder / "archive"
        records.transform(archived).where(kept).write.partitionBy("dt").parquet(str(where))
        return self.run("--source", f"parquet://{where}", *options)

    def run(self, *arguments: object) -> tuple[Done, dict[str, Any]]:
        done = self._job("audit", *arguments, "--report", self._folder / "report")
        return done, json.loads((self._folder / "report" / "audit.json").read_text())

    @property
    def topic(self) -> str:
        return f"log://{self._data}"

    def archived(self, lake: str) -> Path:
        """Return an archive that its own job made, with its ledger: a copy where there can be one."""
        made = Path(f"{self._data}.{lake}")
        if not made.exists():
            command = ("archive", "--source", self.topic, "--out", made, "--once", "--format", lake)
            done = self._job(*command)
            assert done.exit_code == 0, done
        if lake == "iceberg":  # its files name their own paths
            return made
        return shutil.copytree(made, self._folder / lake)


@pytest.fixture
def auditor(spark: SparkSession, job: JobRunner, data: Path, tmp_path: Path) -> Auditor:
    return Auditor(spark, job, data, tmp_path)


ALL = "true"


def test_headline_of_a_topic_names_how_much_was_judged(auditor: Auditor) -> None:
    done, report = auditor.run("--source", auditor.topic)

    assert done.exit_code == 0, done
    assert report["scope"] == (
        "everything that the topic lists in 3 partitions, 1 of them without a record, "
        "up to 2026-01-06T00:00:00Z"
    )
    assert done.stdout.splitlines()[-1] == (
        f"CLEAN: each event once, in order, without gaps, in {report['scope']}"
    )
    assert report["checks"] == {
        **dict.fromkeys(
            ("records", "values", "partitions", "sequence", "duplicates", "completeness"), "passed"
        ),
        **dict.fromkeys(("identity", "counters"), "not made"),
    }


def test_whole_archive_beside_its_topic_is_clean(auditor: Auditor) -> None:
    done, report = auditor.archive(ALL, "--against", auditor.topic)

    assert (done.exit_code, report["checks"]["completeness"]) == (0, "passed"), done


@pytest.mark.parametrize(
    ("kept", "missing"),
    [
        pytest.param("partition != 0 OR offset >= 5", [(0, 0, "5 records up to offset 4")], id="head"),
        pytest.param(
            "dt > '2026-01-01'",
            [(0, 0, "12 records up to offset 11"), (1, 0, "11 records up to offset 10")],
            id="first day",
        ),
    ],
)
def test_head_that_an_archive_lacks_is_missed(
    auditor: Auditor, kept: str, missing: list[tuple[int, int, str]]
) -> None:
    done, report = auditor.archive(kept, "--against", auditor.topic)

    found = report["violations"]["missing"]["first"]
    assert done.exit_code == 1
    assert [(n["partition"], n["offset"], n["detail"]) for n in found] == missing


TAILS = [
    pytest.param(
        "partition != 0 OR offset < 55", "partition 0: the topic holds 5 records from offset 55", id="tail"
    ),
    pytest.param("partition != 1", "partition 1: the topic holds 60 records from offset 0", id="partition"),
    pytest.param("dt < '2026-01-05'", "partition 0: the topic holds", id="last days"),
]


@pytest.mark.parametrize(("kept", "sentence"), TAILS)
def test_tail_that_an_archive_lacks_is_undecided_without_its_ledger(
    auditor: Auditor, kept: str, sentence: str
) -> None:
    done, report = auditor.archive(kept, "--against", auditor.topic)

    assert (done.exit_code, report["verdict"]) == (2, "undecided")
    assert sentence in report["no_verdict_because"][0]


@pytest.mark.parametrize(("kept", "sentence"), TAILS)
def test_tail_that_an_archive_lacks_is_missed_once_it_is_due(
    auditor: Auditor, kept: str, sentence: str
) -> None:
    done, report = auditor.archive(kept, "--against", auditor.topic, "--until", "2026-02-01")

    assert (done.exit_code, set(report["violations"])) == (1, {"missing"})


def test_archive_of_which_nobody_knows_more_says_so(auditor: Auditor) -> None:
    done, report = auditor.archive("dt > '2026-01-01'", "--partitions", PARTITIONS)

    assert done.exit_code == 0, done
    assert report["scope"].endswith("whether it should hold more is unknown")
    assert report["checks"]["completeness"] == "not made"


def test_one_event_in_an_archive_is_in_no_wrong_partition(auditor: Auditor) -> None:
    done, report = auditor.archive("partition = 1 AND offset = 0")

    assert (done.exit_code, report["violations"]) == (2, {})
    assert "how many partitions" in report["no_verdict_because"][0]
    assert report["checks"]["partitions"] == "not made"


@pytest.mark.parametrize("lake", ["parquet", "delta", "iceberg"])
def test_archive_with_a_ledger_needs_to_be_told_nothing(auditor: Auditor, lake: str) -> None:
    where = auditor.archived(lake)

    done, report = auditor.run("--source", f"{lake}://{where}")

    assert (done.exit_code, report["partition_count"], report["records"]) == (0, PARTITIONS, 2 * RECORDS), (
        done
    )
    assert {report["checks"][name] for name in ("partitions", "completeness")} == {"passed"}
    assert report["scope"].startswith("everything that its ledger lists in 3 partitions")


@pytest.mark.parametrize(
    ("lost", "kind", "places"),
    [
        pytest.param("dt = '2026-01-01'", "gap", [(0, 12), (1, 11)], id="first day"),
        pytest.param("dt >= '2026-01-05'", "missing", [(0, 48), (1, 47)], id="last days"),
        pytest.param("partition = 1", "missing", [(1, 0)], id="partition"),
        pytest.param("partition = 0 AND offset < 5", "gap", [(0, 5)], id="head"),
        pytest.param("partition = 0 AND offset >= 55", "missing", [(0, 55)], id="tail"),
    ],
)
def test_what_an_archive_has_lost_is_missed_by_its_ledger(
    auditor: Auditor, spark: SparkSession, lost: str, kind: str, places: list[tuple[int, int]]
) -> None:
    where = auditor.archived("delta")
    spark.sql(f"DELETE FROM delta.`{where}` WHERE {lost}")

    done, report = auditor.run("--source", f"delta://{where}")

    assert (done.exit_code, set(report["violations"])) == (1, {kind}), done
    assert [(n["partition"], n["offset"]) for n in report["violations"][kind]["first"]] == places


def test_day_that_was_deleted_on_purpose_is_left_out_by_since(auditor: Auditor) -> None:
    where = auditor.archived("parquet")
    shutil.rmtree(where / "dt=2026-01-01")

    whole, _ = auditor.run("--source", f"parquet://{where}")
    since, _ = auditor.run("--source", f"parquet://{where}", "--since", "2026-01-02")

    assert (whole.exit_code, since.exit_code) == (1, 0), since


def test_archive_is_compared_with_the_topic_of_its_ledger_alone(
    auditor: Auditor, job: JobRunner, tmp_path: Path
) -> None:
    where = auditor.archived("parquet")
    maker = RecordMaker(1)
    append_to_log(tmp_path / "other", {0: [maker.record(maker.event_of(0))]})
    copied = tmp_path / "copied"
    shutil.copytree(auditor.topic.removeprefix("log://"), copied)
    more = RecordMaker(PARTITIONS, step_ms=HOUR_MS)
    append_to_log(copied, {0: [more.record(more.event_of(0), lane_seq=RECORDS)]})

    refused = job("audit", "--source", f"parquet://{where}", "--against", f"log://{tmp_path}/other")
    done, report = auditor.run("--source", f"parquet://{where}", "--against", f"log://{copied}")

    assert (refused.exit_code, done.exit_code) == (2, 0), (refused, done)
    assert "is not what the archive was taken from" in refused.stderr
    named = report["notices"]["not_archived"]["first"]
    assert [(n["partition"], n["offset"], n["detail"]) for n in named] == [(0, RECORDS, "1 records")]


def test_archive_of_two_topics_is_undecided(auditor: Auditor, spark: SparkSession, tmp_path: Path) -> None:
    records = read_records(spark, parse(auditor.topic), Selection()).transform(archived)
    other = records.withColumn("topic", F.lit("other")).where("partition = 0")
    for topic in (records.where("partition = 1"), other):
        topic.write.mode("append").partitionBy("dt").parquet(str(tmp_path / "two"))

    done, report = auditor.run("--source", f"parquet://{tmp_path}/two", "--partitions", PARTITIONS)

    assert done.exit_code == 2
    assert report["no_verdict_because"] == ["the archive holds 2 topics, events, other: audit one at a time"]


def parse(source: str) -> LogSource:
    return LogSource(source.removeprefix("log://"), "events")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--from-offsets", "0:10", "--to-offsets", "0:10,1:0,2:0"], "holds no record in this range"),
        (["--since", "2030-01-01"], "holds no record in this range"),
        (["--until", "2020-01-01"], "holds no record in this range"),
        (["--from-offsets", "0:61"], "--from-offsets names offset 61 of partition 0, which ends at 60"),
        (["--to-offsets", "1:5000"], "--to-offsets names offset 5000 of partition 1, which ends at 60"),
        (["--to-offsets", "7:5"], "--to-offsets names partition 7, and there are 3"),
        (["--partitions", "4"], "--partitions says 4, and the topic has 3"),
        (["--against", "log://nowhere"], "--against compares an archive with its topic"),
    ],
)
def test_range_that_makes_no_sense_is_refused_before_spark_starts(
    options: list[str], sentence: str, data: Path, job_without_spark: Callable[..., Done]
) -> None:
    done = job_without_spark("audit", "--source", f"log://{data}", *options)

    assert (done.exit_code, sentence in done.stderr) == (2, True), done
    assert "starting Spark" not in done.stderr


def test_range_before_what_retention_left_is_refused(
    tmp_path: Path, job_without_spark: Callable[..., Done]
) -> None:
    maker = RecordMaker(1)
    append_to_log(tmp_path, {0: [maker.record(maker.event_of(0)) for _ in range(9)]})
    trim_log(tmp_path, 0, 4)

    done = job_without_spark("audit", "--source", f"log://{tmp_path}", "--from-offsets", "0:3")

    assert done.exit_code == 2
    assert "offset 3 of partition 0, which begins at 4 now" in done.stderr


def test_times_mean_the_offsets_of_the_first_record_as_new(auditor: Auditor) -> None:
    _, report = auditor.run(
        "--source", auditor.topic, "--since", "2026-01-02T00:00Z", "--until", "2026-01-02T10:00Z"
    )

    assert [(p["first_offset"], p["last_offset"]) for p in report["partitions"]] == [(12, 16), (11, 15)]
    assert report["span"]["since"] == "2026-01-02T00:00:00Z"
    assert report["scope"].startswith("the selected part of what the topic lists")


@pytest.mark.kafka
async def test_ledger_of_a_topic_tells_markers_from_records_that_are_lost(
    job: JobRunner, spark: SparkSession, kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    name, maker = await topic("markers", partitions=PARTITIONS), RecordMaker(PARTITIONS)
    store = await KafkaStore.open(kafka_config(kafka_bootstrap))
    logs = [store.partition_log(name, partition) for partition in range(PARTITIONS)]
    for log in logs:
        await log.fence()
    for partition in (0, 1):  # partition 2 has markers alone
        await logs[partition].append([maker.record(maker.event_of(partition)) for _ in range(5)])
    for log in logs:  # a restart of a gateway that is sent nothing any more
        await log.fence()
        await log.fence()
        await log.close()
    await store.close()
    where = tmp_path / "archive"
    made = job("archive", "--source", f"kafka://{kafka_bootstrap}/{name}", "--out", where, "--once")

    whole = job("audit", "--source", f"delta://{where}")
    spark.sql(f"DELETE FROM delta.`{where}` WHERE partition = 1 AND offset = 5")
    short = job("audit", "--source", f"delta://{where}", "--report", tmp_path)

    assert (made.exit_code, whole.exit_code, short.exit_code) == (0, 0, 1), (made, whole, short)
    missing = json.loads((tmp_path / "audit.json").read_text())["violations"]["missing"]["first"]
    assert [(named["partition"], named["offset"]) for named in missing] == [(1, 5)]
