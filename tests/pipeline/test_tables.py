"""Claim: a table's ledger is found after any other commits, and a second writer is detected."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pipeline.errors import PipelineError
from pipeline.runtime.session import IcebergTable
from pipeline.schema import ARCHIVE, RECORD
from pipeline.sinks.delta import DeltaTable
from pipeline.sinks.iceberg import IcebergLake
from pipeline.sinks.lake import FOLDERS, lake_sink
from pipeline.sinks.ledger import Ledger
from pipeline.sources.records import LakeSource, Selection, read_records
from pipeline.transforms.clean_topic import archived


def ledger_of(commit: int) -> Ledger:
    return Ledger("archive", commit, "log:1/events", 1, {0: (0, commit)}, {0: (commit - 1, commit)})


@pytest.fixture
def row(spark: SparkSession) -> DataFrame:
    """Return a batch of one record."""
    record = [("events", 0, 0, None, b"id", b"{}", "web", None, None)]
    return spark.createDataFrame(record, RECORD).transform(archived)


@pytest.fixture
def delta(tmp_path: Path) -> DeltaTable:
    return DeltaTable(str(tmp_path / "delta-1.x"), FOLDERS)


@pytest.fixture(params=["my-events", "events.v1", "événements"])
def iceberg(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> IcebergLake:
    table = IcebergTable(str(tmp_path / request.param))
    for name, value in table.conf.items():
        spark.conf.set(name, value)
    return IcebergLake(table, ARCHIVE, FOLDERS)


def test_second_writer_of_a_delta_table_is_refused(
    spark: SparkSession, delta: DeltaTable, row: DataFrame
) -> None:
    for commit in (1, 2):
        delta.store(row, ledger_of(commit))

    for commit in (1, 2):
        with pytest.raises(PipelineError, match="another job writes"):
            DeltaTable(delta.path, FOLDERS).store(row, replace(ledger_of(commit), partitions=9))

    assert delta.ledger(spark) == ledger_of(2)
    assert spark.read.format("delta").load(delta.path).count() == 2


def test_ledger_of_a_delta_table_outlives_what_others_commit(
    spark: SparkSession, delta: DeltaTable, row: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.sinks.delta.HISTORY_READ", 2)
    delta.store(row, ledger_of(1))
    for number in range(2):
        spark.sql(f"ALTER TABLE {delta.name} SET TBLPROPERTIES ('note' = '{number}')")
    assert delta.ledger(spark) == ledger_of(1)

    delta.compact(spark, before="9999-01-01", keep=timedelta(0))
    assert delta.ledger(spark) == ledger_of(1)


def test_delta_table_of_others_is_refused(spark: SparkSession, delta: DeltaTable, row: DataFrame) -> None:
    row.write.format("delta").save(delta.path)
    with pytest.raises(PipelineError, match="has no ledger of this job"):
        delta.ledger(spark)


def test_iceberg_table_keeps_its_ledger_under_any_name(
    spark: SparkSession, iceberg: IcebergLake, row: DataFrame
) -> None:
    assert iceberg.ledger(spark) is None
    for commit in range(1, 4):
        iceberg.store(row, ledger_of(commit))
    iceberg.compact(spark, before="9999-01-01", keep=timedelta(0))
    iceberg.store(row, ledger_of(4))

    assert iceberg.ledger(spark) == ledger_of(4)
    assert spark.table(iceberg.table.sql_name).count() == 4
    with pytest.raises(PipelineError, match="another job writes"):
        IcebergLake(iceberg.table, ARCHIVE, FOLDERS).store(row, ledger_of(4))


@pytest.mark.parametrize("lake_format", ["delta", "iceberg", "parquet"])
def test_archive_that_was_begun_without_a_column_gets_it(
    lake_format: str, spark: SparkSession, tmp_path: Path
) -> None:
    records = spark.createDataFrame(
        [("events", 0, n, None, b"id", b"{}", "web", None, b"%d" % n) for n in (1, 2)], RECORD
    )
    path = str(tmp_path / "events")
    source, old, new = LakeSource(lake_format, path), records.where("offset = 1"), records.where("offset = 2")
    before = T.StructType([column for column in ARCHIVE if column.name != "gs"])
    begun = lake_sink(source)
    if isinstance(begun, IcebergLake):
        for name, value in begun.table.conf.items():
            spark.conf.set(name, value)
        begun = replace(begun, schema=before)
    begun.ledger(spark)
    begun.store(old.transform(archived).select(*before.names), ledger_of(1))
    assert [row["gs"] for row in read_records(spark, source, Selection()).collect()] == [None]

    continued = lake_sink(source)
    assert continued.ledger(spark) == ledger_of(1)
    continued.store(new.transform(archived), ledger_of(2))

    found = read_records(spark, source, Selection()).orderBy("offset").collect()
    assert [(row["offset"], row["gs"]) for row in found] == [(1, None), (2, b"2")]
