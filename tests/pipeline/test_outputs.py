"""Claim: docs/pipeline/outputs.md is right about the jobs' tables; its queries run in Spark and DuckDB."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession

from dedupe.model.types import Event
from tests.pipeline.conftest import JobRunner
from tests.support.gateway import Gateway
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker

DOCS = Path(__file__).resolve().parents[2] / "docs" / "pipeline"
PAGE = DOCS / "outputs.md"
SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
QUERY = re.compile(r"^```sql\n-- (Spark|DuckDB)\n(.*?)```", re.MULTILINE | re.DOTALL)
ENGINES = DOCS.parents[1] / "build" / "engines" / "bin" / "python"
ENGINE_TIMEOUT_S = 120
STEP_MS = 10 * 60_000
EVENTS = 60
PLANS = ("free", "paid")


class Section(NamedTuple):
    """The part of the page on one job's output."""

    columns: dict[str, str]
    by_spark: list[str]
    by_duckdb: list[str]


def sections() -> dict[str, Section]:
    found = {}
    for name, text in SECTION.findall(PAGE.read_text()):
        columns: dict[str, str] = {}
        for names, types in re.findall(r"^\| (`.*?) \| (.*?) \|", text, re.MULTILINE):
            columns_named, of = re.findall(r"`(\w+)`", names), types.split(", ")
            columns |= dict(
                zip(columns_named, of * len(columns_named) if len(of) == 1 else of, strict=len(of) > 1)
            )
        queries = QUERY.findall(text)
        assert [engine for engine, _ in queries] == ["Spark", "DuckDB"] * (len(queries) // 2)
        found[name] = Section(
            columns, *([q for engine, q in queries if engine == e] for e in ("Spark", "DuckDB"))
        )
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of ten hours of two kinds of users; and one in which an event came again with other content."""
    maker, folder = RecordMaker(2, step_ms=STEP_MS), tmp_path_factory.mktemp("outputs")
    more = [{"userId": f"user-{n % 7}", "properties": {"plan": PLANS[n % 2]}} for n in range(EVENTS)]
    events: list[Event] = [maker.event(f"id-{n}", more=fields) for n, fields in enumerate(more)]
    append_to_log(folder / "data", maker.lanes(events))
    append_to_log(folder / "dirty", maker.lanes([*events, maker.event("id-3", type_="page")]))
    return folder


@pytest.fixture
def lake(data: Path, job: JobRunner) -> Path:
    """Every job's output of it; made once."""
    source, out = f"log://{data}/data", data / "lake"
    if not out.exists():
        stream = ("--source", source, "--once")
        done = [
            job("archive", *stream, "--out", out / "events"),
            job("archive", *stream, "--out", out / "parquet", "--format", "parquet"),
            job("archive", *stream, "--out", out / "iceberg", "--format", "iceberg"),
            job("minute_counts", *stream, "--to", f"parquet://{out}/counts"),
            job("sessionize", "--source", f"delta://{out}/events", "--once", "--out", out / "sessions"),
            job("clean", "--source", f"log://{data}/dirty", "--to", f"parquet://{out}/clean"),
        ]
        assert [d.exit_code for d in done] == [0] * len(done), done
    return out


@pytest.mark.parametrize(
    ("name", "folders"),
    [
        ("archive", ["events", "parquet"]),
        ("minute_counts", ["counts"]),
        ("sessionize", ["sessions"]),
        ("clean", ["clean/original", "clean/conflict", "clean/rejected"]),
    ],
)
def test_output_has_the_columns_and_answers_the_queries_that_its_page_names(
    name: str, folders: list[str], lake: Path, spark: SparkSession
) -> None:
    section = sections()[name]

    for folder in folders:
        assert columns_of(read(spark, lake / folder)) == section.columns
    assert section.by_spark
    for by_spark, by_duckdb in zip(section.by_spark, section.by_duckdb, strict=True):
        expected = spark.sql(by_spark.replace("`lake/", f"`{lake}/"))
        found = duckdb.execute(by_duckdb.replace("'lake/", f"'{lake}/"))
        assert [column[0] for column in found.description or ()] == expected.columns
        rows = [tuple(row) for row in expected.collect()]
        assert rows
        assert found.fetchall() == rows


def test_page_has_every_job_that_writes_tables() -> None:
    assert set(sections()) == {"archive", "minute_counts", "sessionize", "clean"}


def test_backfills_do_what_their_page_says(
    data: Path, lake: Path, job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    page = (DOCS / "backfill.md").read_text().replace("\\\n", " ")
    commands = [shlex.split(line)[3:] for line in page.splitlines() if line.startswith("python -m pipeline ")]
    shutil.copytree(lake / "events", tmp_path / "events")
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {key: my-write-key, source: web, scopes: [ingest, replay]}\n")

    with Gateway(tmp_path / "gateway", {"GATEWAY_WRITE_KEYS_FILE": str(keys)}) as gateway:
        named = {
            "log://data": f"log://{data}/data",
            "lake/": f"{tmp_path}/",
            "http://127.0.0.1:8080": gateway.url,
            "8": "2",
        }
        for command in commands:
            words = [named.get(word, word.replace("lake/", named["lake/"])) for word in command]
            done = job(*words)
            assert done.exit_code == 0, (words, done)
        accepted = gateway.stats()["totals"]["accepted"]

    assert [command[0] for command in commands] == [
        "archive",
        "minute_counts",
        "sessionize",
        "sessionize",
        "archive",
        "audit",
        "replay",
        "clean",
    ]
    assert accepted == EVENTS
    assert read(spark, tmp_path / "events").count() == EVENTS
    assert read(spark, tmp_path / "sessions-anew").count() == read(spark, lake / "sessions").count() > 0
    closed = read(spark, tmp_path / "sessions-closed")
    assert closed.count() > read(spark, lake / "sessions").count()
    counted = spark.read.parquet(f"{tmp_path}/counts-anew").groupBy().sum("events").collect()
    assert counted == [(EVENTS,)]
    assert spark.read.parquet(f"{tmp_path}/sorted/original").count() == EVENTS


def test_engines_read_the_tables_in_place(lake: Path) -> None:
    queries = [block for block in sql_blocks("warehouse.md") if block.startswith("-- ")]
    assert len(queries) == 5
    for block in queries:
        engine, _, query = block.removeprefix("-- ").replace("'lake/", f"'{lake}/").partition("\n")
        command: list[str | Path] = [
            ENGINES,
            Path(__file__).with_name("engines.py"),
            engine.partition(";")[0],
        ]
        done = subprocess.run(
            command,
            input=query,
            cwd=lake,
            capture_output=True,
            text=True,
            timeout=ENGINE_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.replace('"', "") == f"track,{EVENTS}\n", query


def sql_blocks(page: str) -> list[str]:
    return re.findall(r"^```sql\n(.*?)```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def test_warehouse_is_loaded_once_by_its_page_s_statements(lake: Path) -> None:
    statements = [block for block in sql_blocks("warehouse.md") if not block.startswith("-- ")]
    create, insert = (statement.replace("'lake/", f"'{lake}/") for statement in statements)

    files = f"read_parquet('{lake}/parquet/**/*.parquet')"

    with duckdb.connect() as warehouse:
        warehouse.execute(create)
        loaded = []
        for end in (EVENTS // 4, EVENTS, EVENTS):
            grown = f'(SELECT * FROM {files} WHERE "offset" < {end})'
            warehouse.execute(insert.replace(files, grown))
            loaded += warehouse.execute(
                'SELECT count(*), count(DISTINCT (partition, "offset")) FROM events'
            ).fetchall()

    assert 0 < loaded[0][0] < EVENTS
    assert loaded[1:] == [(EVENTS, EVENTS)] * 2


def read(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.format("delta" if (folder / "_delta_log").exists() else "parquet").load(str(folder))


def columns_of(table: DataFrame) -> dict[str, str]:
    """Name and type of each column; Spark guesses that of Parquet's folders."""
    guessed = {"dt": "string", "hr": "string"}
    return {f.name: guessed.get(f.name, f.dataType.simpleString()) for f in table.schema.fields}
