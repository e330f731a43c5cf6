"""
Claim: a person is erased from every output, wherever the job dies, no later job brings them back, and the
audit names erasures as such and anything else as a fault.
"""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from pipeline.jobs.erase import remains
from pipeline.runtime.erasures import KEY_VARIABLE, LIST_VARIABLE
from pipeline.sinks.erasing import Erased, Eraser
from tests.pipeline.conftest import Done, JobRunner
from tests.support.gateway import Gateway
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker
from tests.support.verdict import read_sqlite

Event = dict[str, Any]
FORMATS = ["delta", "iceberg", "parquet"]
PERSON = ("--user-id", "gone-u", "--anonymous-id", "gone-a")
SECRETS = ("gone-u", "gone-a", "secret-p")

EVENTS: list[Event] = [
    {"type": "track", "event": "Order", "userId": "gone-u", "properties": {"card": "secret-p"}},
    {"type": "track", "event": "Order", "userId": "stays", "properties": {"card": "public"}},
    {"type": "page", "name": "secret-p", "anonymousId": "gone-a"},
    {"type": "identify", "userId": "gone-u", "traits": {"email": "secret-p"}},
    {"type": "identify", "userId": "stays", "traits": {"email": "other"}},
    {"type": "identify", "userId": "stays", "anonymousId": "gone-a", "traits": {"email": "secret-p"}},
    {"type": "alias", "userId": "stays", "previousId": "gone-u"},
    {"type": "custom", "userId": "gone-u", "note": "secret-p"},
]
GONE = 6


class Outputs:
    """An archive, tables and sessions of one log, in one format."""

    def __init__(self, folder: Path, job: JobRunner, lake_format: str, *jobs: str) -> None:
        self.folder, self.job, self.format, self.jobs = folder, job, lake_format, jobs
        self._maker = RecordMaker(2, step_ms=60_000)
        self._made = 0

    def add(self, events: list[Event]) -> None:
        made = []
        for event in events:
            made.append(self._maker.event(f"id-{self._made}", type_=event["type"], more=event))
            self._made += 1
        append_to_log(self.folder / "log", self._maker.lanes(made))

    def run(self) -> None:
        """Run the jobs up to the end of the log."""
        log = f"log://{self.folder / 'log'}"
        for name in self.jobs:
            command = [name, "--source", log, "--out", self.folder / name, "--format", self.format]
            done = self.job(*command, "--once" if name != "sessionize" else "--close")
            assert done.exit_code == 0, done

    def erase(self, *more: str) -> Done:
        outputs = [f"{self.format}://{self.folder / name}" for name in self.jobs]
        return self.job("erase", *(word for url in outputs for word in ("--from", url)), *more)

    def audit(self, *more: object) -> tuple[int, dict[str, int]]:
        report = self.folder / "report"
        source = f"{self.format}://{self.folder / 'archive'}"
        done = self.job("audit", "--source", source, "--report", report, *more)
        document = json.loads((report / "audit.json").read_text())
        kinds = document["violations"] | document["notices"]
        return done.exit_code, {kind: found["count"] for kind, found in kinds.items() if found["count"]}

    def texts(self, spark: SparkSession) -> str:
        """Return all that readers of the outputs see."""
        folders = [self.folder / name for name in self.jobs]
        folders += [path for folder in folders for path in folder.iterdir() if path.is_dir()]
        marks = {"_delta_log", "metadata", "_gateway"}
        named = [path for path in folders if marks & {each.name for each in path.iterdir()}]
        read = spark.read.format(self.format)
        rows = [row for path in named for row in read.load(str(path)).toJSON().collect()]
        assert rows
        return "\n".join(rows)

    def files(self) -> str:
        """Return what the files of data hold, whoever reads them."""
        paths = [path for path in self.folder.rglob("*.parquet") if path.name[0] != "."]
        paths = [path for path in paths if "_delta_log" not in path.parts and "log" not in path.parts[-2:-1]]
        return "\n".join(str(ds.dataset(path, partitioning=None).to_table().to_pylist()) for path in paths)


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "key").write_text("5" * 64)
    monkeypatch.setenv(LIST_VARIABLE, str(tmp_path / "erasures"))
    monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / "key"))
    return tmp_path / "erasures"


def named_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


def die_at(patched: pytest.MonkeyPatch, step: int) -> None:
    """Let the job die after so many of its steps."""
    left = step

    def lethal(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if not left:
                raise RuntimeError("the process is gone")
            left -= 1
            return call(*arguments, **named)

        return run

    for name in ("_change", "_rewrite", "_compute_latest"):
        patched.setattr(Eraser, name, lethal(getattr(Eraser, name)))


@pytest.mark.slow
@pytest.mark.parametrize("lake_format", FORMATS)
def test_a_person_is_erased_and_the_audit_names_only_that(
    lake_format: str, job: JobRunner, spark: SparkSession, keys: Path, tmp_path: Path
) -> None:
    outputs = Outputs(tmp_path, job, lake_format, "sessionize", "archive")
    outputs.add(EVENTS)
    outputs.run()

    counted = outputs.erase(*PERSON, "--dry-run")
    assert named_in(outputs.texts(spark)) == list(SECRETS)
    assert not keys.exists()
    with pytest.MonkeyPatch.context() as patched:
        die_at(patched, 1)
        died = outputs.erase(*PERSON, "--keep", "0s")
    done = outputs.erase("--keep", "0s")

    assert (counted.exit_code, died.exit_code, done.exit_code) == (0, 2, 0), (counted, died, done)
    archive = f"{lake_format}://{tmp_path / 'archive'}: {GONE} rows"
    assert f"{archive} to erase" in counted.stdout
    assert f"{archive} erased" in done.stdout
    assert named_in(outputs.texts(spark)) == []
    assert named_in(outputs.files()) == []
    listed = [path for path in keys.iterdir() if path.suffix != ".crc"]
    assert len(listed) == 3
    assert named_in("".join(path.name + path.read_text() for path in listed)) == []
    assert outputs.audit("--against", f"log://{tmp_path / 'log'}") == (0, {"erased": GONE})

    outputs.add(EVENTS[:1])
    shutil.rmtree(tmp_path / "sessionize")
    outputs.run()
    assert named_in(outputs.texts(spark)) == []
    assert outputs.audit() == (0, {"erased": GONE + 1})


@pytest.mark.slow
@pytest.mark.parametrize("lake_format", FORMATS)
def test_a_person_has_no_row_in_any_table_now_and_after_the_next_run(
    lake_format: str, job: JobRunner, spark: SparkSession, keys: Path, tmp_path: Path
) -> None:
    outputs = Outputs(tmp_path, job, lake_format, "tables")
    outputs.add([EVENTS[n] for n in (0, 1, 3, 4, 5)])
    outputs.run()

    with pytest.MonkeyPatch.context() as patched:
        die_at(patched, 2)
        died = outputs.erase(*PERSON, "--keep", "0s")
    done = outputs.erase("--keep", "0s")

    assert (died.exit_code, done.exit_code) == (2, 0), (died, done)
    assert named_in(outputs.texts(spark)) == []
    assert named_in(outputs.files()) == []
    rows = outputs.texts(spark).splitlines()
    outputs.add([EVENTS[n] for n in (0, 3, 4, 6)])
    outputs.run()
    assert named_in(outputs.texts(spark)) == []
    assert named_in(outputs.files()) == []
    later = outputs.texts(spark).splitlines()
    for found, identifies in ((rows, 1), (later, 2)):
        of_other = [row for row in found if '"email":"other"' in row]
        of_users = [row for row in of_other if '"_positions"' in row]
        assert len(of_users) == (lake_format != "parquet")
        assert len(of_other) - len(of_users) == identifies


def test_backfills_replays_and_other_outputs_do_not_bring_a_person_back(
    job: JobRunner, spark: SparkSession, keys: Path, tmp_path: Path
) -> None:
    outputs = Outputs(tmp_path, job, "delta", "archive")
    outputs.add(EVENTS)
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv(LIST_VARIABLE)
        patched.delenv(KEY_VARIABLE)
        outputs.run()
    archive = f"delta://{tmp_path / 'archive'}"
    list_only = ("erase", "--from", archive, *PERSON)
    with pytest.MonkeyPatch.context() as patched:
        die_at(patched, 0)
        assert job(*list_only).exit_code == 2
    assert outputs.audit() == (1, {"unerased": GONE})
    assert outputs.audit("--engine", "spark") == (1, {"unerased": GONE})

    log = f"log://{tmp_path / 'log'}"
    days = ("--since", "2026-01-01", "--until", "2026-01-02")
    done = [
        job("archive", "--source", log, "--out", tmp_path / "archive", *days),
        job("tables", "--source", archive, "--out", tmp_path / "tables", "--once"),
        job("clean", "--source", log, "--to", f"parquet://{tmp_path / 'clean'}"),
    ]

    assert [d.exit_code for d in done] == [0] * 3, done
    assert outputs.audit("--against", log) == (0, {"erased": GONE})
    for folder in ("tables/tracks", "tables/identifies", "tables/users"):
        rows = spark.read.format("delta").load(str(tmp_path / folder)).toJSON().collect()
        assert (len(rows), named_in("".join(rows))) == (1, [])
    cleaned = spark.read.parquet(str(tmp_path / "clean" / "original")).toJSON().collect()
    assert (len(cleaned), named_in("".join(cleaned))) == (len(EVENTS) - GONE, [])


def test_a_replay_of_the_topic_or_of_an_archive_posts_nothing_of_a_person(
    job: JobRunner, keys: Path, tmp_path: Path
) -> None:
    """Into a real gateway: of the topic, which still has them, and of the archive, which has what is left."""
    outputs = Outputs(tmp_path, job, "parquet", "archive")
    outputs.add(EVENTS)
    outputs.run()
    assert outputs.erase(*PERSON).exit_code == 0
    write_keys = tmp_path / "keys.yaml"
    write_keys.write_text("- {key: web, source: web, scopes: [ingest, replay]}\n")
    sources = (f"log://{tmp_path / 'log'}", f"parquet://{tmp_path / 'archive'}")

    with Gateway(tmp_path / "gateway", {"GATEWAY_WRITE_KEYS_FILE": str(write_keys)}) as gateway:
        command = ["replay", "--gateway", gateway.url]
        done = [
            job(*command, "--source", source, "--checkpoint", tmp_path / f"replayed-{n}")
            for n, source in enumerate(sources)
        ]
        stored = read_sqlite(gateway.data)

    left = len(EVENTS) - GONE
    assert [d.stdout for d in done] == [
        f"{left} accepted, 0 duplicates, 0 conflicts, 0 rejected\n",
        f"0 accepted, {left} duplicates, 0 conflicts, 0 rejected\n",
    ], done
    assert len(stored) == left
    assert named_in(str(stored)) == []


def test_what_still_holds_a_person_is_told() -> None:
    now, newest = datetime(2026, 1, 10, tzinfo=UTC), datetime(2026, 1, 5, tzinfo=UTC)
    found = [Erased("delta://a", 5, newest), Erased("delta://b", 0)]

    lines = remains(found, timedelta(days=7), timedelta(days=30), now)

    assert "erase runs again after 2026-01-17T00:00Z" in lines[0]
    assert "the topic has them until 2026-02-04T00:00Z" in lines[1]
    assert "the topic has them until its retention deletes them" in remains(found, timedelta(0), None, now)[0]
