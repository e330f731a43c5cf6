"""
Compares an input's topic with the clean one: each event that was read must be stored, or in quarantine.

That it is stored once is what the audit of the clean topic itself says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.audit.checks import LOST, LOST_OR_EXPIRED, NOT_READ, affected
from pipeline.audit.evaluation import collect_findings
from pipeline.audit.rules import QUARANTINE_SUFFIX
from pipeline.audit.verdict import AffectedRecord, AuditResult, Finding
from pipeline.errors import UsageError
from pipeline.runtime.progress import Progress
from pipeline.sources.extent import OffsetRanges, positions_of
from pipeline.sources.input_events import read_input_events
from pipeline.sources.input_file import Input, read_input
from pipeline.sources.kafka import committed_offsets, identify_topic
from pipeline.sources.records import (
    KafkaSource,
    LogSource,
    Offsets,
    Selection,
    Source,
    header,
    kafka_options,
    read_records,
)

_SHA256 = r'^\{[^\n]{0,400}?"sha256":"([0-9a-f]{64})"'
"""In the head of a quarantined record's value, dedupe/model/quarantine.py."""


@dataclass(frozen=True)
class _Reading:
    """Which offsets of an input a gateway has read."""

    ranges: OffsetRanges
    """[start, committed) by partition."""
    left: Mapping[int, tuple[int, int]]
    """Offsets [committed, end) that are not read yet, of partitions that have some."""
    unknown: list[int]
    """Partitions with records of which nothing is committed."""


@dataclass(frozen=True)
class Comparison:
    """An input, and the clean topic that its events are stored in."""

    clean: KafkaSource | LogSource
    input: Input
    first: Offsets
    """Where the gateway began, by partition; one that is left out began with its first offset."""


def comparison_of(
    clean: Source, name: str | None, file: Path | None, first: Offsets | None, *, is_whole: bool
) -> Comparison | None:
    """
    Return what an audit is to compare, None if no input is named.

    Args:
        clean: the source of the audit.
        name: of the input.
        file: the gateway's file of inputs.
        first: where the gateway began to read.
        is_whole: whether the audit is of all records of its source.

    Raises:
        UsageError: the file has no such input, or the audit is not of a whole clean topic.
    """
    if name is None:
        return None
    if not isinstance(clean, KafkaSource | LogSource) or clean.topic.endswith(QUARANTINE_SUFFIX):
        raise UsageError(f"--input is compared with a clean topic, kafka:// or log://, and {clean} is none")
    if not is_whole:
        raise UsageError("--input is compared with a whole topic: leave out times, offsets and --since-last")
    if file is None:
        raise UsageError("--input needs --inputs-file, or GATEWAY_INPUTS_FILE")
    return Comparison(clean, read_input(file, name, clean), first or {})


def with_input(
    spark: SparkSession, result: AuditResult, comparison: Comparison, log_progress: Progress
) -> AuditResult:
    """
    Return the audit of a clean topic with what it lacks of an input.

    Raises:
        PipelineError: the input's topic, the clean one or its quarantine does not answer.
    """
    clean, of = comparison.clean, comparison.input
    log_progress(f"asking {of.topic}")
    reading = _reading_of(comparison)
    count = sum(end - start for start, end in reading.ranges.values())
    log_progress(f"comparing {count:,} offsets of {of.topic}")
    topic = identify_topic(of.topic.brokers, of.topic.topic, login=of.topic.login)
    topic_id = f"{topic.cluster_id}:{topic.topic_id.replace('-', '')}"
    events = read_input_events(spark, of, topic_id, reading.ranges)
    expired = any(each.start_offset for each in (positions_of(clean) or {}).values())
    missing = _missing(spark, clean, of, events)
    lost = affected(
        missing,
        F.lit(LOST_OR_EXPIRED if expired else LOST),
        F.concat(F.lit(f"of input {of.name}, SHA-256 "), F.col("sha256")),
    )
    findings = {**result.findings, **collect_findings(lost), **_not_read(reading)}
    unknown = [
        f"nothing is committed for partition {partition} of input {of.name}: nobody knows what was read"
        for partition in reading.unknown
    ]
    return replace(
        result,
        scope=f"{result.scope}, and {count:,} offsets of input {of.name}",
        findings=findings,
        undecided_reasons=[*result.undecided_reasons, *unknown],
    )


def _reading_of(comparison: Comparison) -> _Reading:
    clean, of = comparison.clean, comparison.input
    group = f"gateway-{clean.topic}-input-{of.name}"
    committed = committed_offsets(of.topic.brokers, of.topic.topic, group, login=of.topic.login)
    ranges: OffsetRanges = {}
    left: OffsetRanges = {}
    unknown: list[int] = []
    for partition, position in (positions_of(of.topic) or {}).items():
        start = max(position.start_offset, comparison.first.get(partition, 0))
        end = committed.get(partition, start)
        if partition not in committed and start < position.last_stable_offset:
            unknown.append(partition)
        ranges[partition] = (min(start, end), end)
        if partition in committed and end < position.last_stable_offset:
            left[partition] = (end, position.last_stable_offset)
    return _Reading(ranges, left, unknown)


def _missing(spark: SparkSession, clean: Source, of: Input, events: DataFrame) -> DataFrame:
    """Return the events that are neither stored nor in quarantine, by id, content or place."""
    stored = read_records(spark, clean, Selection()).select(
        "source", F.col("key").cast("string").alias("message_id")
    )
    kept = _quarantined(spark, clean)
    ids = stored.unionByName(kept.select("source", "message_id")).distinct()
    missing = events.join(ids, ["source", "message_id"], "left_anti")
    missing = missing.join(kept.select("sha256").distinct(), "sha256", "left_anti")
    origin = F.concat(F.lit(f"{of.name}:{of.topic.topic}/"), "partition", F.lit("/"), "offset")
    places = kept.select("origin").where(F.col("origin").isNotNull()).distinct()
    return missing.withColumn("origin", origin).join(places, "origin", "left_anti")


def _quarantined(spark: SparkSession, clean: Source) -> DataFrame:
    """Return source, message_id, sha256 and origin of what is in quarantine."""
    sha256 = F.regexp_extract(F.substring("value", 1, 600).cast("string"), _SHA256, 1).alias("sha256")
    message_id = F.col("key").cast("string").alias("message_id")
    match clean:
        case KafkaSource(brokers, topic):
            options = kafka_options(KafkaSource(brokers, topic + QUARANTINE_SUFFIX), "audit")
            records = spark.read.format("kafka").options(**options).load()
            named = [header(name).cast("string").alias(name) for name in ("source", "origin")]
            return records.select(message_id, sha256, *named)
        case LogSource(data_dir, topic):
            records = read_records(spark, LogSource(data_dir, topic + QUARANTINE_SUFFIX), Selection())
            return records.select(message_id, sha256, "source", F.lit(None).cast("string").alias("origin"))
        case _:
            raise UsageError(f"{clean} has no quarantine")


def _not_read(reading: _Reading) -> dict[str, Finding]:
    places = [
        AffectedRecord(partition, start, None, None, f"{end - start} offsets of the input from this one on")
        for partition, (start, end) in reading.left.items()
    ]
    count = sum(end - start for start, end in reading.left.values())
    return {NOT_READ: Finding(count, places)} if places else {}
