"""Claim: a local Spark gets what costs least, and nothing that the user's own choice excludes."""

import pytest
from pyspark.sql import SparkSession

from pipeline.runtime.session import (
    COLLECTOR,
    COMMON,
    EXTENSIONS,
    JVM_VARIABLES,
    table_settings,
    with_collector,
)


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in JVM_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("options", ["", "-Xss2m", "-XX:-UseG1GC", "-XX:+UseDynamicNumberOfGCThreads"])
def test_jvm_gets_a_collector_where_none_is_chosen(options: str) -> None:
    assert with_collector(options) == f"{COLLECTOR} {options}".strip()


@pytest.mark.parametrize("options", ["-XX:+UseSerialGC", "-Xss2m -XX:+UseZGC -Xms1g"])
def test_collector_that_the_user_chose_stays_the_only_one(options: str) -> None:
    assert with_collector(options) == options


@pytest.mark.parametrize("name", JVM_VARIABLES)
def test_collector_that_the_environment_chose_stays_the_only_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "-Xss2m -XX:+UseShenandoahGC")

    assert with_collector("-Xms1g") == "-Xms1g"


def test_kafka_alone_is_taken_from_spark_s_list_of_older_readers(spark: SparkSession) -> None:
    assert spark._jvm is not None
    own = spark._jvm.org.apache.spark.sql.internal.SQLConf.USE_V1_SOURCE_LIST().defaultValueString()

    ours = COMMON["spark.sql.sources.useV1SourceList"].split(",")
    assert ours == [name for name in own.split(",") if name != "kafka"]


def test_session_of_two_table_formats_has_the_extensions_of_both() -> None:
    settings = table_settings(frozenset({"delta", "iceberg", "kafka"}))

    assert [name.rpartition(".")[2] for name in settings[EXTENSIONS].split(",")] == [
        "DeltaSparkSessionExtension",
        "IcebergSparkSessionExtensions",
    ]
    assert settings["spark.sql.catalog.spark_catalog"].endswith("DeltaCatalog")
    assert table_settings(frozenset({"kafka"})) == {}
