"""Clean: stores the originals of a topic that other producers filled, and reports the other records."""

import json
from pathlib import Path
from typing import Annotated

import typer
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.audit.evaluation import collect_findings
from pipeline.audit.report import finding_lines
from pipeline.errors import UsageError
from pipeline.runtime import options
from pipeline.runtime.erasures import leave_out_erased
from pipeline.runtime.progress import progress_logger
from pipeline.runtime.session import start_session
from pipeline.sinks.publisher import GatewayTarget, publish
from pipeline.sources.kafka_options import with_options
from pipeline.sources.records import Selection, read_records
from pipeline.transforms.dirty_topic import CONFLICT, ORIGINAL, REJECTED, classify, not_originals

PARQUET, GATEWAY = "parquet://", ("http://", "https://")
STORED = (ORIGINAL, CONFLICT, REJECTED)


def clean(
    source: options.SourceOption,
    to: Annotated[
        str, typer.Option("--to", metavar="URL", help="parquet://PATH, or http://host:port of a gateway")
    ],
    default_source: Annotated[
        str, typer.Option("--default-source", help="source of records without a `source` header")
    ] = "",
    report: Annotated[
        Path | None, typer.Option("--report", metavar="DIR", help="write clean.json there")
    ] = None,
    write_key: options.WriteKeyOption = None,
    rate: options.RateOption = None,
    connections: options.ConnectionsOption = 4,
    since: options.SinceOption = None,
    until: options.UntilOption = None,
    from_offsets: options.FromOffsetsOption = None,
    to_offsets: options.ToOffsetsOption = None,
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
    kafka: options.KafkaOption = None,
) -> None:
    """
    Clean a dirty topic: store the first copy of each event, and drop its duplicates.

    Records with the id of an earlier one and other content are conflicts; records that are no events are
    rejected. In Parquet each verdict has a folder. A gateway gets originals and conflicts, and
    quarantines the conflicts.
    """
    if not to.startswith((PARQUET, *GATEWAY)):
        raise UsageError(f"--to {to!r} is neither parquet:// nor http://")
    source = with_options(source, kafka)
    log_progress = progress_logger("clean")
    log_progress("starting Spark")
    spark = start_session("clean", source, remote=remote, conf=conf)
    log_progress(f"reading {source}")
    read = read_records(spark, source, Selection(since, until, from_offsets, to_offsets))
    records = leave_out_erased(read)
    # Read once, so that report and result agree.
    classified = records.transform(classify, default_source).persist(StorageLevel.DISK_ONLY)
    findings = collect_findings(not_originals(classified))
    originals = classified.where(F.col("verdict") == ORIGINAL).count()
    log_progress(f"storing {originals:,} events")
    if to.startswith(PARQUET):
        _store(classified, to.removeprefix(PARQUET))
    else:
        posted = classified.where(F.col("verdict").isin(ORIGINAL, CONFLICT))
        counts = publish(posted, GatewayTarget(to, dict(write_key or []), rate, connections))
        print(f"the gateway answered: {counts}")
    print(f"{originals:,} events")
    for kind, finding in findings.items():
        print("\n".join(finding_lines(kind, finding)))
    if report is not None:
        report.mkdir(parents=True, exist_ok=True)
        document = {"source": str(source), "originals": originals} | {
            kind: {"count": finding.count, "first": [n._asdict() for n in finding.first]}
            for kind, finding in findings.items()
        }
        (report / "clean.json").write_text(json.dumps(document, indent=2) + "\n")


def _store(classified: DataFrame, path: str) -> None:
    records = classified.withColumn("value", F.col("value").cast("string"))
    for verdict in STORED:
        rows = records.where(F.col("verdict") == verdict).drop("verdict")
        rows.write.mode("overwrite").parquet(f"{path}/{verdict}")
