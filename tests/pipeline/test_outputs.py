"""Claim: docs/pipeline/outputs.md is right about the jobs' tables; its queries run in Spark and DuckDB."""

import re
from pathlib import Path
from typing import NamedTuple

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession

from dedupe.types import Event
from tests.pipeline.conftest import JobRunner
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pipeline" / "outputs.md"
SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
QUERY = re.compile(r"^```sql\n-- (Spark|DuckDB)\n(.*?)```", re.MULTILINE | re.DOTALL)
STEP_MS = 10 * 60_000
EVENTS = 60
PLANS = ("free", "paid")


class Section(NamedTuple):
    """What the page says of one job's output."""

    columns: dict[str, str]
    by_spark: list[str]
    by_duckdb: list[str]


def sections() -> dict[str, Section]:
    found = {}
    for name, text in SECTION.findall(PAGE.read_text()):
        columns: dict[str, str] = {}
        for names, types in re.findall(r"^\| (`.*?) \| (.*?) \|", text, re.MULTILINE):
            told, of = re.findall(r"`(\w+)`", names), types.split(", ")
            columns |= dict(zip(told, of * len(told) if len(of) == 1 else of, strict=len(of) > 1))
        queries = QUERY.findall(text)
        assert [engine for engine, _ in queries] == ["Spark", "DuckDB"] * (len(queries) // 2)
        found[name] = Section(
            columns, *([q for engine, q in queries if engine == e] for e in ("Spark", "DuckDB"))
        )
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of ten hours of two kinds of users, with an event that came again with other content."""
    maker, folder = RecordMaker(2, step_ms=STEP_MS), tmp_path_factory.mktemp("outputs")
    more = [{"userId": f"user-{n % 7}", "properties": {"plan": PLANS[n % 2]}} for n in range(EVENTS)]
    events: list[Event] = [maker.event(f"id-{n}", more=said) for n, said in enumerate(more)]
    append_to_log(folder / "data", maker.lanes([*events, maker.event("id-3", type_="page")]))
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
            job("minute_counts", *stream, "--to", f"parquet://{out}/counts"),
            job("sessionize", *stream, "--out", out / "sessions", "--gap", "2h", "--lateness", "1s"),
            job("clean", "--source", source, "--to", f"parquet://{out}/clean"),
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
    told = sections()[name]

    for folder in folders:
        assert columns_of(read(spark, lake / folder)) == told.columns
    assert told.by_spark
    for by_spark, by_duckdb in zip(told.by_spark, told.by_duckdb, strict=True):
        expected = spark.sql(by_spark.replace("`lake/", f"`{lake}/"))
        found = duckdb.execute(by_duckdb.replace("'lake/", f"'{lake}/"))
        assert [column[0] for column in found.description or ()] == expected.columns
        rows = [tuple(row) for row in expected.collect()]
        assert rows
        assert found.fetchall() == rows


def test_page_has_every_job_that_writes_tables() -> None:
    assert set(sections()) == {"archive", "minute_counts", "sessionize", "clean"}


def read(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.format("delta" if (folder / "_delta_log").exists() else "parquet").load(str(folder))


def columns_of(table: DataFrame) -> dict[str, str]:
    """Name and type of each column; Spark guesses that of Parquet's folders."""
    guessed = {"dt": "string", "hr": "string"}
    return {f.name: guessed.get(f.name, f.dataType.simpleString()) for f in table.schema.fields}
