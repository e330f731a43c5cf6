"""
Claim: one pass over Arrow batches proves clean records, with Spark and without, and nothing else: whatever
the checks name is left to them. An audit without Spark reports what one with Spark does.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from dedupe.model.record import FLAG_SESSION
from dedupe.model.types import NewRecord
from pipeline.audit.checks import BEFORE_FIRST, PrecedingRecord
from pipeline.audit.plain import FULL_HEADER_BYTES, plain_records
from pipeline.audit.proof import Known, Proof, prove, prove_locally
from pipeline.jobs import audit as audit_job
from pipeline.schema import RECORD
from pipeline.sources.extent import ranges_of
from pipeline.sources.local import open_locally
from pipeline.sources.records import LakeSource, LogSource, Selection, parse_source, read_records
from pipeline.transforms.clean_topic import BASE_HEADER_BYTES
from tests.pipeline import test_checks as planted
from tests.pipeline.conftest import JobRunner
from tests.pipeline.test_checks import clean
from tests.pipeline.test_content import CHANGES, changed_archive
from tests.support.foreign import CHANGED, FOREIGN, GENUINE, ODD, without_checksum
from tests.support.logs import append_to_log
from tests.support.records import SECRET, RecordMaker

PARTITIONS = 2
KNOWN = Known(PARTITIONS, dict.fromkeys(range(PARTITIONS), BEFORE_FIRST), {0: (0, 10), 1: (5, 7)})


def headers_of(record: NewRecord, name: str) -> bytes | None:
    """Return a header as the sources do: null unless there is exactly one."""
    values = [value for header, value in record.headers if header == name]
    return values[0] if len(values) == 1 else None


def text(header: bytes | None) -> str | None:
    try:
        return header.decode() if header is not None else None
    except UnicodeDecodeError:
        return None


def as_batch(records: Sequence[NewRecord], partition: int = 0, first: int = 0) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {
        "topic": ["events"] * len(records),
        "partition": [partition] * len(records),
        "offset": list(range(first, first + len(records))),
        "timestamp": [record.timestamp_ms * 1000 for record in records],
        "key": [record.key for record in records],
        "value": [record.value for record in records],
        "source": [text(headers_of(record, "source")) for record in records],
        "gw": [headers_of(record, "gw") for record in records],
        "gs": [headers_of(record, "gs") for record in records],
    }
    schema = to_arrow_schema(RECORD)
    arrays = [
        pa.array(columns[field.name], pa.int64()).cast(field.type)
        if field.name == "timestamp"
        else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.record_batch(arrays, schema=schema)


def proof_of(lanes: Mapping[int, Sequence[NewRecord]], known: Known = KNOWN) -> Proof | None:
    """Prove lanes that come in batches of seven records."""
    batches = [
        as_batch(records[first : first + 7], partition, first)
        for partition, records in lanes.items()
        for first in range(0, len(records), 7)
    ]
    return prove_locally(batches, known)


def test_only_a_gateways_own_records_are_plain() -> None:
    for what, record in (FOREIGN | ODD | {f"changed: {w}": r for w, r in CHANGED.items()}).items():
        assert not plain_records(as_batch([record]), 1).is_plain.any(), what
    for what, record in GENUINE.items():
        gw = headers_of(record, "gw")
        assert gw is not None
        is_usual = len(gw) in (BASE_HEADER_BYTES, FULL_HEADER_BYTES) and not gw[1] & FLAG_SESSION
        assert plain_records(as_batch([record]), 1).is_plain.all() == is_usual, what


@pytest.mark.parametrize(
    "plant",
    [
        planted.plant_duplicate,
        planted.plant_copy,
        planted.plant_conflict,
        planted.plant_gap,
        planted.plant_disorder,
        planted.plant_foreign,
        planted.plant_head,
        planted.plant_value,
        planted.plant_change,
        planted.plant_version,
        planted.plant_wrong_partition,
        planted.plant_time_disorder,
    ],
)
def test_there_is_no_proof_of_what_the_checks_name(plant: Any) -> None:
    maker = RecordMaker()
    lanes = clean(maker)
    assert proof_of(lanes) is not None
    plant(maker, lanes)
    assert proof_of(lanes) is None


def test_proof_begins_after_the_record_that_is_known() -> None:
    lane = clean(RecordMaker())[0]
    batch = as_batch(lane[5:], first=5)
    before = PrecedingRecord(4, 4, None)
    assert prove_locally([batch], Known(PARTITIONS, {0: before}, {})) is not None
    assert prove_locally([batch], Known(PARTITIONS, {0: before._replace(lane_seq=3)}, {})) is None
    assert prove_locally([batch], Known(PARTITIONS, {}, {})) is not None


def test_keys_of_another_secret_are_not_proven_by_a_deep_audit() -> None:
    batches = [as_batch(clean(RecordMaker())[0])]
    assert prove_locally(batches, KNOWN, secret=SECRET) is not None
    assert prove_locally(batches, KNOWN, secret=b"another secret of 16 bytes") is None


@pytest.fixture
def log(tmp_path: Path) -> LogSource:
    maker = RecordMaker(PARTITIONS)
    lanes = clean(maker)
    lanes[1][3:5] = [without_checksum(record) for record in lanes[1][3:5]]
    append_to_log(tmp_path / "log", lanes)
    return LogSource(str(tmp_path / "log"), "events")


def test_spark_proves_what_is_proven_without_it(spark: SparkSession, log: LogSource) -> None:
    local = open_locally(log, ranges := ranges_of(log, Selection()) or {})
    assert local is not None
    proof = prove_locally(local.batches(ranges, Selection(), compares=True), KNOWN)

    assert proof is not None
    assert proof == prove(read_records(spark, log, Selection()), KNOWN)
    assert [(s.records, s.counted, s.unproved, s.first_unproved) for s in proof.summaries] == [
        (20, 10, 0, None),
        (20, 2, 2, 3),
    ]
    assert prove(read_records(spark, log, Selection(to_offsets={1: 0})), Known(3, {}, {})) is None
    twice = read_records(spark, log, Selection()).where("partition = 0")
    copies = twice.withColumn("offset", F.col("offset") + 20)
    assert prove(twice.unionByName(copies), KNOWN) is None


def no_session(*_args: object, **_options: object) -> None:
    raise AssertionError("this needs no Spark")


@pytest.mark.parametrize("lake", ["log", "parquet", "delta"])
def test_audit_without_spark_reports_the_same(
    lake: str, log: LogSource, job: JobRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(log)
    if lake != "log":
        source = f"{lake}://{tmp_path}/lake"
        done = job("archive", "--source", log, "--out", tmp_path / "lake", "--format", lake, "--once")
        assert done.exit_code == 0, done
    reports = []
    monkeypatch.setenv("GATEWAY_IDENTITY_SECRET", SECRET.decode())
    for engine in ("spark", "local", "auto"):
        if engine == "local":
            monkeypatch.setattr(audit_job, "start_session", no_session)
        done = job("audit", "--source", source, "--deep", "--engine", engine, "--report", tmp_path / engine)
        assert done.exit_code == 0, done
        report = json.loads((tmp_path / engine / "audit.json").read_text())
        reports.append({name: told for name, told in report.items() if name not in ("began", "seconds")})
    assert reports[0] == reports[1] == reports[2]
    assert reports[0]["notices"]["unproved"]["count"] == 2


def test_no_changed_column_is_proven_without_spark(
    spark: SparkSession, log: LogSource, tmp_path: Path
) -> None:
    records = read_records(spark, log, Selection()).where("partition = 0")
    for name, change in {"none": "1", **CHANGES}.items():
        changes = {"user_id": "user_id"} if name == "none" else {name: change}
        archive = changed_archive(records, changes, tmp_path / name)
        local = open_locally(parse_source(str(archive)), {})
        assert local is not None
        proof = prove_locally(local.batches({}, Selection(), compares=True), Known(PARTITIONS, {}, {}))
        assert (proof is not None) == (name == "none"), name


def test_what_is_wrong_is_named_by_spark_and_refused_without(job: JobRunner, tmp_path: Path) -> None:
    maker = RecordMaker()
    lanes = clean(maker)
    planted.plant_gap(maker, lanes)
    append_to_log(tmp_path, lanes)
    source = f"log://{tmp_path}"

    named = job("audit", "--source", source)
    refused = job("audit", "--source", source, "--engine", "local")

    assert (named.exit_code, refused.exit_code) == (1, 2), (named, refused)
    assert "1 x gap" in named.stdout
    assert "--engine spark finds out" in refused.stderr


def test_table_with_a_feature_that_is_not_known_is_left_to_spark(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}}
    (log / f"{0:020}.json").write_text(json.dumps(protocol))
    assert open_locally(LakeSource("delta", str(tmp_path)), {}) is None
