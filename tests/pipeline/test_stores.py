"""Claim: archives lie in stores like S3, and in tables of SQL and REST catalogs, as they lie in folders."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from pyspark.sql import SparkSession

from pipeline.runtime.session import IcebergTable
from pipeline.sinks.iceberg import layout_there
from pipeline.sources.records import LakeSource, read_lake
from tests.pipeline.conftest import Done, JobRunner
from tests.support.logs import append_to_log
from tests.support.postgres import USER, Postgres
from tests.support.records import RecordMaker
from tests.support.rest_catalog import RestCatalog
from tests.support.s3 import S3

BATCH = 50
DAYS = ("--since", "2026-01-01", "--until", "2026-01-02")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3("lake", tmp_path_factory.mktemp("s3") / "server.log") as server:
        yield server


@pytest.fixture
def archive_more(job: JobRunner, tmp_path: Path) -> Callable[..., Done]:
    """A function that archives a batch of new events; or without `is_once` replaces days."""
    maker, made = RecordMaker(2), iter(range(10 * BATCH))

    def run(*options: object, is_once: bool = True) -> Done:
        command = ("archive", "--source", f"log://{tmp_path}/log", *options)
        if not is_once:
            return job(*command)
        events = [maker.event(f"id-{next(made)}") for _ in range(BATCH)]
        append_to_log(tmp_path / "log", maker.lanes(events))
        return job(*command, "--once")

    return run


@pytest.mark.parametrize("lake_format", ["delta", "iceberg", "parquet"])
def test_archive_in_s3_is_exact_and_outlives_its_checkpoint(
    lake_format: str, s3: S3, archive_more: Callable[..., Done], job: JobRunner, spark: SparkSession
) -> None:
    """Its checkpoint lies beside it at first, and anywhere else then: a lost one."""
    archive = LakeSource(lake_format, f"s3a://lake/{lake_format}/events")
    options = ("--out", archive.path, "--format", lake_format)

    first = archive_more(*options)
    second = archive_more(*options, "--checkpoint", f"s3a://lake/{lake_format}/other")
    audited = job("audit", "--source", archive)

    assert [done.exit_code for done in (first, second, audited)] == [0, 0, 0], (first, second, audited)
    assert held(spark, archive) == Counter(f"id-{n}" for n in range(2 * BATCH))
    assert f"\n{2 * BATCH} records in 2 partitions" in audited.stdout
    stored = [key for key in s3.objects() if key.startswith(f"{lake_format}/events/")]
    assert sum(key.endswith(".parquet") for key in stored) >= 2


class Catalog(NamedTuple):
    """A catalog of a user: its settings for Spark, and a function that lists the tables of a namespace."""

    settings: dict[str, str]
    tables: Callable[[str], list[str]]


@contextmanager
def sql_catalog(folder: Path) -> Iterator[Catalog]:
    with Postgres() as postgres:

        def tables(namespace: str) -> list[str]:
            query = "SELECT table_name FROM iceberg_tables WHERE table_namespace = %s"
            with psycopg.connect(postgres.url) as connection:
                return [name for (name,) in connection.execute(query, [namespace])]

        settings = {
            "type": "jdbc",
            "uri": postgres.jdbc_url,
            "jdbc.user": USER,
            "jdbc.schema-version": "V1",
            "warehouse": str(folder / "warehouse"),
        }
        yield Catalog(settings, tables)


@contextmanager
def rest_catalog(folder: Path) -> Iterator[Catalog]:
    with Postgres() as postgres, RestCatalog(postgres, folder) as catalog:
        yield Catalog({"type": "rest", "uri": catalog.url}, catalog.tables)


@pytest.mark.parametrize("catalog_of", [sql_catalog, rest_catalog])
def test_table_of_a_catalog_is_archived_into_compacted_and_audited(
    catalog_of: Callable[[Path], AbstractContextManager[Catalog]],
    archive_more: Callable[..., Done],
    job: JobRunner,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Only the catalog connects its second start with the first."""
    name = catalog_of.__name__
    with catalog_of(tmp_path) as catalog:
        settings = {f"spark.sql.catalog.{name}": "org.apache.iceberg.spark.SparkCatalog"}
        settings |= {f"spark.sql.catalog.{name}.{key}": value for key, value in catalog.settings.items()}
        conf = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        table = LakeSource("iceberg", f"table:{name}.web.events")
        options = ("--out", table.path, "--format", "iceberg", *conf)
        parts = ("--partition-by", "days(timestamp)", "--partition-by", "bucket(4, user_id)")

        done = [archive_more(*options, *parts, "--checkpoint", tmp_path / "first")]
        done.append(archive_more(*options, "--checkpoint", tmp_path / "second"))
        done.append(archive_more(*options, *DAYS, "--checkpoint", tmp_path / "second", is_once=False))
        done.append(job("compact", "--source", table, "--before", "2026-01-02", *conf))
        done.append(job("audit", "--source", table, *conf))

        assert [d.exit_code for d in done] == [0] * 5, done
        assert held(spark, table) == Counter(f"id-{n}" for n in range(2 * BATCH))
        assert catalog.tables("web") == ["events"]
        there = layout_there(spark, IcebergTable(table.path))
        assert there.partition_by == ("days(timestamp)", "bucket(4, user_id)")


def test_named_delta_table_lies_in_s3_with_checkpoint_and_layout(
    s3: S3, archive_more: Callable[..., Done], job: JobRunner, spark: SparkSession
) -> None:
    spark.sql("CREATE SCHEMA stored LOCATION 's3a://lake/stored'")
    try:
        table = LakeSource("delta", "table:spark_catalog.stored.events")
        options = ("--out", table.path, "--checkpoint", "s3a://lake/checkpoints/named")
        done = [archive_more(*options, "--cluster-by", "user_id"), archive_more(*options)]
        done.append(archive_more(*options, *DAYS, is_once=False))
        done.append(job("compact", "--source", table, "--before", "2026-01-02"))
        done.append(job("audit", "--source", table))

        assert [d.exit_code for d in done] == [0] * 5, done
        assert held(spark, table) == Counter(f"id-{n}" for n in range(2 * BATCH))
        detail = spark.sql("DESCRIBE DETAIL stored.events").collect()[0]
        assert detail["location"] == "s3a://lake/stored/events"
        assert detail["clusteringColumns"] == ["user_id"]
        assert any(key.startswith("checkpoints/named/offsets/") for key in s3.objects())
    finally:
        spark.sql("DROP SCHEMA stored CASCADE")


def held(spark: SparkSession, archive: LakeSource) -> Counter[str]:
    """Return the ids in an archive, by how often they are there."""
    return Counter(row[0] for row in read_lake(spark, archive).select("message_id").collect())
