"""
Claim: whatever is changed in an archive after it was written, a value's byte or any column, is named; who
computes the checksum anew is found by the topic; what is unproved or erased is counted, and no fault.
"""

import json
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dedupe.model.record import CHECKSUM_BYTES
from pipeline.audit.checks import ALTERED, BEFORE_FIRST, FOREIGN, check_order, check_records, faulty
from pipeline.audit.columns import differing, read_with_changes
from pipeline.schema import ARCHIVE
from pipeline.sources.records import LakeSource, LogSource, Selection, read_records
from pipeline.transforms.clean_topic import archived
from tests.pipeline.conftest import JobRunner
from tests.support.foreign import without_checksum
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker

EVENTS = 40


CHANGES: dict[str, str] = {
    "message_id": "'another'",
    "source": "'another'",
    "type": "'page'",
    "event": "'Forged'",
    "user_id": "'nobody'",
    "anonymous_id": "'nobody'",
    "previous_id": "'nobody'",
    "group_id": "'none'",
    "name": "'Forged'",
    "category": "'Forged'",
    "event_time": "timestamp '2020-01-01 00:00:00'",
    "day": "date '2020-01-01'",
    "sent_at": "timestamp '2020-01-01 00:00:00'",
    "properties": "'{\"forged\":1}'",
    "traits": "'{\"forged\":1}'",
    "context": '\'{"ip":"203.0.113.7"}\'',
    "value": "concat(value, ' ')",
    "gw": "concat(substr(gw, 1, length(gw) - 1), X'00')",
    "message_id_bytes": "cast('another' as binary)",
    "value_bytes": "cast('{}' as binary)",
    "dt": "'2020-01-01'",
    "hr": "'25'",
}
"""A change in SQL of each column that the record's own content proves."""

UNPROVED_CHANGES: dict[str, str] = {
    "timestamp": "timestamp + interval 1 millisecond",
    "gs": "unhex('0000000000000007')",
}
"""Changes that only the topic shows."""

PLACES = {"topic", "partition", "offset", "log_epoch"}


@pytest.fixture
def log(tmp_path: Path) -> LogSource:
    maker = RecordMaker(1)
    append_to_log(tmp_path / "log", maker.lanes([maker.event(f"id-{n}") for n in range(EVENTS)]))
    return LogSource(str(tmp_path / "log"), "events")


def changed_archive(records: DataFrame, changes: dict[str, str], out: Path) -> LakeSource:
    """Write the archive of some records with a change of each row: that of offset n is the nth change."""
    rows = archived(records)
    for offset, (name, change) in enumerate(changes.items()):
        rows = rows.withColumn(name, F.when(F.col("offset") == offset, F.expr(change)).otherwise(F.col(name)))
    rows.select(*ARCHIVE.names).write.parquet(str(out))
    return LakeSource("parquet", str(out))


def named(records: DataFrame) -> dict[int, tuple[str, str]]:
    rows = faulty(check_order(check_records(records, 1), {0: BEFORE_FIRST})).collect()
    assert len({row["offset"] for row in rows}) == len(rows)
    return {row["offset"]: (row["kind"], row["detail"]) for row in rows}


def test_each_changed_column_is_named(spark: SparkSession, log: LogSource, tmp_path: Path) -> None:
    assert {*CHANGES, *UNPROVED_CHANGES, *PLACES} == set(ARCHIVE.names)
    records = read_records(spark, log, Selection())
    archive = changed_archive(records, CHANGES, tmp_path / "out")

    found = named(read_with_changes(spark, archive, Selection()))

    assert {offset: kind for offset, (kind, _) in found.items()} == dict.fromkeys(
        range(len(CHANGES)), ALTERED
    )
    for offset, name in enumerate(CHANGES):
        detail = found[offset][1]
        assert detail == "its content differs from its checksum" or name in detail


def test_what_no_record_proves_is_found_by_the_topic(
    spark: SparkSession, log: LogSource, tmp_path: Path
) -> None:
    records = read_records(spark, log, Selection())
    archive = changed_archive(records, UNPROVED_CHANGES, tmp_path / "out")

    held = read_with_changes(spark, archive, Selection())
    rows = differing(held, records.where("offset != 30")).collect()

    assert named(held) == {}
    assert {(row["offset"], row["kind"]) for row in rows} == {(0, ALTERED), (1, ALTERED), (30, FOREIGN)}


@pytest.fixture
def archive(log: LogSource, job: JobRunner, tmp_path: Path) -> LakeSource:
    done = job("archive", "--source", log, "--out", tmp_path / "lake", "--format", "parquet", "--once")
    assert done.exit_code == 0, done
    return LakeSource("parquet", str(tmp_path / "lake"))


def rewritten(archive: LakeSource, change: Callable[[dict[str, object]], None]) -> None:
    """Have another engine than Spark write the archive's files anew, without their checksum files."""
    for path in Path(archive.path).rglob("*.parquet"):
        table = pq.read_table(path, partitioning=None)
        rows = table.to_pylist()
        for row in rows:
            change(row)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        pq.write_table(table.from_pylist(rows, schema=table.schema), path)


def test_files_that_another_engine_wrote_anew_are_clean_until_a_byte_differs(
    archive: LakeSource, job: JobRunner, tmp_path: Path
) -> None:
    rewritten(archive, lambda row: None)
    done = job("audit", "--source", archive)
    assert done.exit_code == 0, done.stdout[-400:]

    def change(row: dict[str, object]) -> None:
        row["properties"] = None if row["offset"] == 5 else row["properties"]

    rewritten(archive, change)
    done = job("audit", "--source", archive, "--report", tmp_path)
    report = json.loads((tmp_path / "audit.json").read_text())

    assert done.exit_code == 1
    assert report["checks"]["values"] == "failed"
    (first,) = report["violations"][ALTERED]["first"]
    assert (first["offset"], first["detail"]) == (5, "these columns do not follow from its value: properties")
    assert job("audit", "--source", archive, "--shallow").exit_code == 0


def test_checksum_computed_anew_is_found_against_the_topic(
    archive: LakeSource, log: LogSource, job: JobRunner, tmp_path: Path
) -> None:
    def forge(row: dict[str, object]) -> None:
        if row["offset"] == 7:
            value, gw = f"{row['value']} ", row["gw"]
            assert isinstance(gw, bytes)
            head = gw[:-CHECKSUM_BYTES]
            content = b"".join(
                (str(row["source"]).encode(), str(row["message_id"]).encode(), head, value.encode())
            )
            row |= {"value": value, "gw": head + crc32(content).to_bytes(CHECKSUM_BYTES, "big")}

    rewritten(archive, forge)
    assert job("audit", "--source", archive).exit_code == 0
    assert job("audit", "--source", archive, "--against", log, "--shallow").exit_code == 0
    done = job("audit", "--source", archive, "--against", log, "--report", tmp_path)
    report = json.loads((tmp_path / "audit.json").read_text())
    assert done.exit_code == 1
    (first,) = report["violations"][ALTERED]["first"]
    assert (first["offset"], first["detail"]) == (7, "its content is not that of the topic")


def test_records_of_before_are_counted_as_unproved_and_erased_ones_as_erased(
    job: JobRunner, tmp_path: Path
) -> None:
    maker = RecordMaker(1)
    lanes = maker.lanes([maker.event(f"id-{n}") for n in range(10)])
    lanes[0][2:6] = [without_checksum(record) for record in lanes[0][2:6]]
    erased = b'{"messageId":"id-4","type":"track","erased":true}'
    lanes[0][4] = lanes[0][4]._replace(value=erased)
    append_to_log(tmp_path / "log", lanes)

    done = job("audit", "--source", f"log://{tmp_path}/log", "--report", tmp_path)
    notices = json.loads((tmp_path / "audit.json").read_text())["notices"]

    assert done.exit_code == 0, done
    assert {kind: notice["count"] for kind, notice in notices.items()} == {"unproved": 3, "erased": 1}
    assert [notices[kind]["first"][0]["offset"] for kind in ("unproved", "erased")] == [2, 4]
