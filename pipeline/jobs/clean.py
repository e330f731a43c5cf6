"""Clean: a topic that other producers filled, without its duplicates, and a report of what they were."""

import json
from pathlib import Path
from typing import Annotated

import typer
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.audit.judge import collected
from pipeline.audit.report import finding_lines
from pipeline.errors import UsageError
from pipeline.runtime import options
from pipeline.runtime.session import create_session
from pipeline.runtime.stages import stage_teller
from pipeline.sinks.publisher import Target, publish
from pipeline.sources.records import read_records
from pipeline.transforms.dirty_topic import CONFLICT, ORIGINAL, REJECTED, named, sorted_out

PARQUET, GATEWAY = "parquet://", ("http://", "https://")
KEPT = (ORIGINAL, CONFLICT, REJECTED)


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
) -> None:
    """
    Sort out a dirty topic: the first copy of each event goes on, natural copies are dropped.

    Records with a known id and other content are conflicts, and kept apart; so are records that are
    no events. As Parquet there is a folder for each; a gateway gets originals and conflicts, and
    stores the latter in its quarantine.
    """
    if not to.startswith((PARQUET, *GATEWAY)):
        raise UsageError(f"--to {to!r} is neither parquet:// nor http://")
    tell = stage_teller("clean")
    tell("starting Spark")
    spark = create_session("clean", remote=remote, conf=dict(conf or []), formats=source.formats)
    tell(f"reading {source}")
    span = options.span_of(since, until, from_offsets, to_offsets)
    judged = read_records(spark, source, span).transform(sorted_out, default_source)
    judged = judged.persist(StorageLevel.DISK_ONLY)  # one reading, so that report and result agree
    found = collected(named(judged))
    originals = judged.where(F.col("verdict") == ORIGINAL).count()
    tell(f"storing {originals:,} events")
    if to.startswith(PARQUET):
        _store(judged, to.removeprefix(PARQUET))
    else:
        posted = judged.where(F.col("verdict").isin(ORIGINAL, CONFLICT))
        print(f"the gateway said: {publish(posted, Target(to, dict(write_key or []), rate, connections))}")
    print(f"{originals:,} events")
    for kind, finding in found.items():
        print("\n".join(finding_lines(kind, finding)))
    if report is not None:
        report.mkdir(parents=True, exist_ok=True)
        document = {"source": str(source), "originals": originals} | {
            kind: {"count": finding.count, "first": [n._asdict() for n in finding.first]}
            for kind, finding in found.items()
        }
        (report / "clean.json").write_text(json.dumps(document, indent=2) + "\n")


def _store(judged: DataFrame, path: str) -> None:
    for verdict in KEPT:
        kept = judged.where(F.col("verdict") == verdict).withColumn("value", F.col("value").cast("string"))
        kept.drop("verdict").write.mode("overwrite").parquet(f"{path}/{verdict}")
