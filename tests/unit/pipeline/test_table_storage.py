"""Claim: what a table's layout cannot be is told before the job starts; so is what differs from one there."""

import pytest

from pipeline.errors import PipelineError, UsageError
from pipeline.schema import ARCHIVE
from pipeline.sinks.layout import StorageLayout, canonical, column_of, layout_of


def asked(
    *partition_by: str,
    by: str = "iceberg",
    cluster_by: tuple[str, ...] = (),
    properties: tuple[tuple[str, str], ...] = (),
) -> StorageLayout:
    return layout_of(partition_by, cluster_by, properties, lake_format=by, columns=ARCHIVE.names)


def test_partitions_are_written_as_spark_writes_them() -> None:
    parts = ("dt", "day(timestamp)", "days( timestamp )", "hours(event_time)", "bucket( 16,user_id )")
    assert [canonical(part) for part in parts] == [
        "dt",
        "days(timestamp)",
        "days(timestamp)",
        "hours(event_time)",
        "bucket(16, user_id)",
    ]
    assert [column_of(canonical(part)) for part in parts] == [
        "dt",
        "timestamp",
        "timestamp",
        "event_time",
        "user_id",
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"partition_by": ["dt; DROP TABLE x"]}, "is no partition"),
        ({"partition_by": ["weeks(timestamp)"]}, "is no partition"),
        ({"partition_by": ["plan"]}, "there is no column plan"),
        ({"partition_by": ["days(sent)"]}, "there is no column sent"),
        ({"partition_by": ["days(timestamp)"], "lake_format": "delta"}, "Delta partitions by columns"),
        ({"cluster_by": ["user_id"]}, "--cluster-by is Delta's"),
        ({"cluster_by": ["dt"], "partition_by": ["dt"], "lake_format": "delta"}, "either partitioned or"),
        ({"cluster_by": ["a", "b", "c", "d", "e"], "lake_format": "delta"}, "at most 4 columns"),
        ({"properties": [("a", "b")], "lake_format": "parquet"}, "a folder of Parquet files has no layout"),
    ],
)
def test_layout_that_cannot_be_is_refused(options: dict[str, object], sentence: str) -> None:
    given: dict[str, object] = {"partition_by": (), "cluster_by": (), "properties": ()}
    given |= {"lake_format": "iceberg", "columns": ARCHIVE.names} | options
    with pytest.raises(UsageError, match=sentence):
        layout_of(**given)  # type: ignore[arg-type]


def test_clauses_say_what_is_asked_and_else_what_the_job_does() -> None:
    folders = ("dt", "hr")
    assert asked().clauses(folders) == " PARTITIONED BY (dt, hr)"
    assert asked().clauses(()) == ""
    assert asked("days(timestamp)").clauses(folders) == " PARTITIONED BY (days(timestamp))"
    assert asked(by="delta", cluster_by=("user_id",)).clauses(folders) == " CLUSTER BY (user_id)"
    version, note = {"format-version": "3"}, ("note", "it's \\ one")
    assert asked(properties=(note,)).clauses((), version) == (
        " TBLPROPERTIES ('format-version' = '3', 'note' = 'it\\'s \\\\ one')"
    )


def test_table_has_of_a_layout_what_its_columns_allow() -> None:
    layout = StorageLayout(("dt", "bucket(16, user_id)"), ("user_id",), (("a", "b"),))
    assert layout.of_columns({"dt"}) == StorageLayout(("dt",), (), (("a", "b"),))
    assert layout.of_columns({"dt", "user_id"}) == layout


def test_what_differs_from_a_table_that_exists_is_named() -> None:
    there = StorageLayout(("dt", "hr"), (), (("a", "1"), ("b", "2")))
    for same in (StorageLayout(), StorageLayout(("dt", "hr")), StorageLayout(properties=(("b", "2"),))):
        same.check("lake/events", there)
    with pytest.raises(PipelineError) as refused:
        StorageLayout(("dt",), ("user_id",), (("a", "2"), ("c", "3"))).check("lake/events", there)
    for sentence in (
        "lake/events exists, and its property a is 1, and --table-property says 2",
        "its property c is not set",
        "it is partitioned by dt, hr, and --partition-by says dt",
        "it is clustered by nothing, and --cluster-by says user_id",
    ):
        assert sentence in str(refused.value)
