"""
Claim: an archive and tables are partitioned, clustered and set as the user asks when they are made; days are
replaced and files compacted in each layout, and a table that exists in another one is refused.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.runtime.session import IcebergTable
from pipeline.sinks.delta import DeltaTable
from pipeline.sinks.iceberg import layout_there
from pipeline.sinks.layout import StorageLayout
from pipeline.sinks.table_store import TableStore
from pipeline.sources.records import LakeSource, read_lake
from tests.pipeline.conftest import JobRunner
from tests.pipeline.test_delta_catalog import Log
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker

CLUSTERED = ("--cluster-by", "user_id", "--table-property", "delta.logRetentionDuration=interval 60 days")
ICEBERG_PROPERTY = ("--table-property", "write.parquet.compression-codec=gzip")
BY_DAYS = ("--partition-by", "days(timestamp)", "--partition-by", "bucket(4, user_id)", *ICEBERG_PROPERTY)
LAYOUTS: list[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = [
    ("delta", CLUSTERED, (), ("user_id",)),
    ("delta", ("--partition-by", "type", "--partition-by", "dt"), ("type", "dt"), ()),
    ("delta", ("--partition-by", "type"), ("type",), ()),
    ("iceberg", BY_DAYS, ("days(timestamp)", "bucket(4, user_id)"), ()),
    ("iceberg", ("--partition-by", "bucket(2, user_id)"), ("bucket(2, user_id)",), ()),
]


def layout_of_table(spark: SparkSession, lake: LakeSource) -> StorageLayout:
    if lake.format == "iceberg":
        return layout_there(spark, IcebergTable(lake.path))
    return DeltaTable(lake.path)._layout_there(spark)


@pytest.fixture
def log(tmp_path: Path, job: JobRunner) -> Log:
    made = Log(tmp_path, job)
    made.grow()
    return made


@pytest.mark.parametrize(("lake_format", "options", "parts", "clusters"), LAYOUTS)
def test_archive_of_each_layout_is_replaced_compacted_and_audited(
    lake_format: str,
    options: tuple[str, ...],
    parts: tuple[str, ...],
    clusters: tuple[str, ...],
    log: Log,
    job: JobRunner,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    lake = LakeSource(lake_format, str(tmp_path / "events"))
    out = ("--out", lake.path, "--format", lake_format)
    done = [log.job("archive", *out, *options, "--once")]
    log.grow()
    done.append(log.job("archive", *out, "--once"))  # goes on in its layout
    name = IcebergTable(lake.path).sql_name if lake_format == "iceberg" else f"delta.`{lake.path}`"
    spark.sql(f"DELETE FROM {name} WHERE dt = '2026-01-01' AND offset % 2 = 0")
    done.append(log.job("archive", *out, "--since", "2026-01-01", "--until", "2026-01-02"))
    log.grow()
    done.append(log.job("archive", *out, *options, "--once"))
    done.append(job("compact", "--source", lake, "--before", "9999-01-01"))
    done.append(job("audit", "--source", lake))

    assert [d.exit_code for d in done] == [0] * len(done), done
    rows = read_lake(spark, lake)
    assert Counter(r[0] for r in rows.select("message_id").collect()) == Counter(
        f"id-{n}" for n in range(log.made)
    )
    there = layout_of_table(spark, lake)
    assert (there.partition_by, there.cluster_by) == (parts, clusters)
    assert {tuple(options[n + 1].split("=")) for n, o in enumerate(options) if o == "--table-property"} <= {
        *there.properties
    }

    refused = log.job("archive", *out, "--partition-by", "dt", "--table-property", "note=1", "--once")
    assert refused.exit_code == 2
    assert f"{lake.path} exists, and its property note is not set" in refused.stderr
    assert "and --partition-by says dt" in refused.stderr


@pytest.mark.parametrize(
    ("lake_format", "options"),
    [
        ("delta", CLUSTERED),
        (
            "iceberg",
            (
                *("--partition-by", "days(received_at)", "--partition-by", "bucket(2, user_id)"),
                *ICEBERG_PROPERTY,
            ),
        ),
    ],
)
def test_tables_have_of_a_layout_what_their_columns_allow_and_keep_it_as_they_widen(
    lake_format: str, options: tuple[str, ...], job: JobRunner, spark: SparkSession, tmp_path: Path
) -> None:
    maker, out = RecordMaker(2), tmp_path / "tables"
    calls: list[list[dict[str, Any]]] = [
        [
            {"type": "track", "event": "Made", "userId": "u", "properties": {"total": 1}},
            {"type": "identify", "userId": "u", "traits": {"age": 7}},
            {"type": "custom"},
        ],
        [
            {"type": "track", "event": "Made", "userId": "u", "properties": {"total": 1.5}},
            {"type": "identify", "userId": "u", "traits": {"age": 7.5}},
        ],
    ]
    done = []
    for number, batch in enumerate(calls):
        events = [maker.event(f"id-{number}-{n}", more=call) for n, call in enumerate(batch)]
        append_to_log(tmp_path / "log", maker.lanes(events))
        command = ("tables", "--source", f"log://{tmp_path}/log", "--out", out, "--format", lake_format)
        done.append(job(*command, *options, "--once"))

    assert [d.exit_code for d in done] == [0, 0], done
    store = TableStore(LakeSource(lake_format, str(out)))
    there = {
        table: layout_of_table(spark, LakeSource(lake_format, store.path(table)))
        for table in ("made", "identifies", "others", "users", "loads")
    }
    found = {table: (layout.partition_by, layout.cluster_by) for table, layout in there.items()}
    by_user: tuple[Any, Any] = ((), ("user_id",))
    by_day: tuple[Any, Any] = (("dt",), ())
    others = by_day
    if lake_format == "iceberg":
        by_user, others = (("days(received_at)", "bucket(2, user_id)"), ()), (("days(received_at)",), ())
    assert found == {
        "made": by_user,
        "identifies": by_user,
        "others": others,
        "users": ((), ()),
        "loads": by_day,
    }
    pair = tuple(options[-1].split("="))
    assert all(pair in layout.properties for layout in there.values())
    totals = store.read(spark, "made").select("total").orderBy("total").collect()
    assert [row[0] for row in totals] == [1.0, 1.5]
