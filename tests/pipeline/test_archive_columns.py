"""
Claim: an archive has the fields that queries want as columns; one that was begun without some of them gets
them, and its rows of before are no fault, while a row of later that lacks them is.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pipeline.audit.checks import ALTERED
from pipeline.schema import ARCHIVE, ARCHIVE_VERSION, LATER_COLUMNS
from pipeline.sinks.lake import lake_sink
from pipeline.sinks.ledger import Ledger, with_columns
from pipeline.sources.records import LakeSource, LogSource, Selection, read_lake, read_records
from pipeline.transforms.clean_topic import archived
from tests.pipeline.conftest import Done, JobRunner
from tests.pipeline.test_content import rewritten
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker

PARTITIONS = 2
CALLS: list[dict[str, Any]] = [
    {"type": "group", "groupId": "g-1", "traits": {"plan": "free", "seats": 7}},
    {"type": "alias", "userId": "u-1", "previousId": "a-1"},
    {"type": "page", "name": "Home", "category": "Shop", "properties": {"url": "https://shop.example/"}},
    {"type": "identify", "userId": "u-1", "traits": {"name": "Ünal"}, "context": {"ip": "203.0.113.7"}},
    {"type": "track", "event": "Tested", "sentAt": "2026-01-01T10:00:00.123Z"},
    {"type": "track", "event": "Tested", "sentAt": "yesterday", "context": "none", "name": 7},
]
EVERY: dict[str, Any] = {
    "sentAt": "2026-01-01T10:00:00Z",
    "context": {"library": {"name": "x"}, "ip": "::1"},
    "traits": {},
}


class Log:
    """A log whose events have something in each later column."""

    def __init__(self, data: Path) -> None:
        self.source, self.made = LogSource(str(data), "events"), 0
        self._data, self._maker = data, RecordMaker(PARTITIONS)

    def grow(self, *fields: dict[str, Any]) -> None:
        events = []
        for more in fields:
            events.append(self._maker.event(f"id-{self.made}", more=more))
            self.made += 1
        append_to_log(self._data, self._maker.lanes(events))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


def test_fields_of_calls_are_columns(spark: SparkSession, log: Log) -> None:
    log.grow(*CALLS)
    rows = read_records(spark, log.source, Selection()).transform(archived)
    sent = F.date_format("sent_at", "yyyy-MM-dd'T'HH:mm:ss.SSS").alias("sent_at")
    names = [sent if name == "sent_at" else name for name in LATER_COLUMNS]
    found = {row["message_id"]: row.asDict() for row in rows.select("message_id", *names).collect()}

    expected: list[dict[str, Any]] = [
        {"group_id": "g-1", "traits": '{"plan":"free","seats":7}'},
        {"previous_id": "a-1"},
        {"name": "Home", "category": "Shop"},
        {"traits": '{"name":"Ünal"}', "context": '{"ip":"203.0.113.7"}'},
        {"sent_at": "2026-01-01T10:00:00.123"},
        {"context": "none", "name": "7"},
    ]
    nothing = dict.fromkeys(LATER_COLUMNS)
    assert found == {f"id-{n}": {"message_id": f"id-{n}"} | nothing | row for n, row in enumerate(expected)}


def archive_of_before(
    log: Log, lake_format: str, job: JobRunner, out: Path, monkeypatch: pytest.MonkeyPatch
) -> LakeSource:
    """Archive a log as a release did that did not know the later columns."""
    before = T.StructType([column for column in ARCHIVE if column.name not in LATER_COLUMNS])
    with monkeypatch.context() as release:
        release.setattr("pipeline.jobs.archive.archived", lambda rows: archived(rows).select(*before.names))
        release.setattr("pipeline.jobs.archive.lake_sink", lambda lake, layout: lake_sink(lake, before))
        release.setattr("pipeline.jobs.archive.ARCHIVE_VERSION", None)
        archive = LakeSource(lake_format, str(out))
        done = grown(job, log, archive)
    assert done.exit_code == 0, done
    return archive


def grown(job: JobRunner, log: Log, archive: LakeSource) -> Done:
    command = ("archive", "--source", log.source, "--out", archive.path, "--format", archive.format)
    return job(*command, "--once")


@pytest.mark.parametrize("lake_format", ["delta", "iceberg", "parquet"])
def test_archive_of_before_gets_the_columns_and_is_clean(
    lake_format: str,
    log: Log,
    job: JobRunner,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log.grow(*[EVERY] * 6)
    archive = archive_of_before(log, lake_format, job, tmp_path / "lake", monkeypatch)
    done = [job("audit", "--source", archive, "--engine", "spark")]
    log.grow(*[EVERY] * 4)
    done.append(grown(job, log, archive))
    engines = ("spark",) if lake_format == "iceberg" else ("spark", "local")
    done += [job("audit", "--source", archive, "--engine", engine) for engine in engines]
    if lake_format != "parquet":
        done.append(job("compact", "--source", archive, "--before", "9999-01-01"))
        done.append(job("audit", "--source", archive, "--engine", "spark"))

    assert [d.exit_code for d in done] == [0] * len(done), done
    rows = read_lake(spark, archive)
    assert rows.where("context IS NULL").count() == 6
    assert rows.where("sent_at IS NULL").count() == 6
    assert rows.where("""context = '{"library":{"name":"x"},"ip":"::1"}'""").count() == 4


def without_later(row: dict[str, object]) -> None:
    row |= dict.fromkeys(LATER_COLUMNS)


def with_a_context(row: dict[str, object]) -> None:
    row["context"] = "{}"


@pytest.mark.parametrize(
    ("of_row", "change"),
    [("new", without_later), ("new", with_a_context), ("old", with_a_context)],
)
def test_only_a_row_of_before_may_lack_them(
    of_row: str,
    change: Callable[[dict[str, object]], None],
    log: Log,
    job: JobRunner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log.grow(*[EVERY] * 6)
    archive = archive_of_before(log, "parquet", job, tmp_path / "lake", monkeypatch)
    log.grow(*[EVERY] * 6)
    assert grown(job, log, archive).exit_code == 0
    message_id = "id-8" if of_row == "new" else "id-2"

    def changed(row: dict[str, object]) -> None:
        if row["message_id"] == message_id and "context" in row:
            change(row)

    if of_row == "old":  # its files have no such column: give them one, as a compaction does
        copy = LakeSource("parquet", str(tmp_path / "copy"))
        done = job("compact", "--source", archive, "--out", copy.path, "--before", "9999-01-01")
        assert done.exit_code == 0, done
        archive = copy
    rewritten(archive, changed)
    audited = job("audit", "--source", archive, "--partitions", PARTITIONS, "--report", tmp_path)
    local = job("audit", "--source", archive, "--partitions", PARTITIONS, "--engine", "local")

    assert (audited.exit_code, local.exit_code) == (1, 2), (audited, local)
    violations = json.loads((tmp_path / "audit.json").read_text())["violations"]
    assert [found["message_id"] for found in violations[ALTERED]["first"]] == [message_id]
    assert "context" in violations[ALTERED]["first"][0]["detail"]


def test_compacted_copy_knows_which_rows_are_of_before(
    log: Log, job: JobRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.grow(*[EVERY] * 6)
    archive = archive_of_before(log, "parquet", job, tmp_path / "lake", monkeypatch)
    log.grow(*[EVERY] * 6)
    assert grown(job, log, archive).exit_code == 0
    copy = LakeSource("parquet", str(tmp_path / "copy"))
    done = [job("compact", "--source", archive, "--out", copy.path, "--before", "9999-01-01")]
    audit = ("audit", "--source", copy, "--partitions", PARTITIONS)
    done += [job(*audit, "--engine", engine) for engine in ("spark", "local")]
    assert [d.exit_code for d in done] == [0] * 3, done

    rewritten(copy, lambda row: without_later(row) if row["message_id"] == "id-8" else None)
    assert job(*audit).exit_code == 1


def ledger_of(commit: int, end: int) -> Ledger:
    held = {0: (0, end), 1: (0, 0)}
    return Ledger("archive", commit, "log:1/events", 2, held, held)


def test_ledger_knows_from_which_offset_on_rows_have_all_columns() -> None:
    first = with_columns(ledger_of(1, 5), None, ARCHIVE_VERSION)
    later = with_columns(ledger_of(2, 9), ledger_of(1, 5), ARCHIVE_VERSION)
    last = with_columns(ledger_of(3, 12), later, ARCHIVE_VERSION)
    copied = Ledger("archive", 1, "delta://x", 0, {}, {})

    assert first.columns_from == {ARCHIVE_VERSION: {}}
    assert later.columns_from == last.columns_from == {ARCHIVE_VERSION: {0: 5}}
    assert with_columns(copied, None, ARCHIVE_VERSION).columns_from == {ARCHIVE_VERSION: {}}
    assert with_columns(copied, copied, ARCHIVE_VERSION).columns_from == {}
    for ledger in (first, last, copied):
        assert Ledger.from_json(ledger.to_json()) == ledger
