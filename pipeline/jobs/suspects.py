"""Suspects: shows events that may be one event under several ids, by library and version."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pipeline.audit.prepared import Engine
from pipeline.audit.suspects import Found, find, find_locally
from pipeline.errors import PipelineError
from pipeline.runtime import options
from pipeline.runtime.progress import progress_logger
from pipeline.runtime.session import start_session
from pipeline.sources.extent import ranges_of
from pipeline.sources.kafka_options import with_options
from pipeline.sources.local import open_locally
from pipeline.sources.records import Selection, Source, read_records
from pipeline.transforms.suspects import Suspects, summed_up

JOB = "suspects"
SHOWN_MAX = 50
NO_LOCAL_READER = "this source cannot be read without Spark: --engine spark"


def suspects(
    source: options.SourceOption,
    since: options.SinceOption = None,
    until: options.UntilOption = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="local: without Java, a log:// or an archive in a folder")
    ] = Engine.AUTO,
    report: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="write all rows there")
    ] = None,
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
    kafka: options.KafkaOption = None,
) -> None:
    """
    Show events of the same source, person, type, name and client time under different ids.

    Such events are most often one call that a client's bug sent under several ids. They are shown by library
    and version, and nothing is dropped: two equal calls may also be meant.
    """
    source = with_options(source, kafka)
    log_progress = progress_logger(JOB)
    selection = Selection(since, until)
    log_progress(f"reading {source}")
    found = None if engine is Engine.SPARK else _found_locally(source, selection, engine)
    if found is None and engine is Engine.LOCAL:
        raise PipelineError(NO_LOCAL_READER)
    if found is None:
        log_progress("starting Spark")
        spark = start_session(JOB, source, remote=remote, conf=conf)
        found = find(read_records(spark, source, selection))
    rows = summed_up(found.groups)
    print("\n".join(lines_of(rows, found.left_out)))
    if report is not None:
        report.write_text(json.dumps([row._asdict() for row in rows], indent=2) + "\n")


def lines_of(rows: list[Suspects], left_out: int) -> list[str]:
    """Return the report as text."""
    extra, groups = sum(row.extra for row in rows), sum(row.groups for row in rows)
    lines = [f"{extra:,} events may be another one under a new id, in {groups:,} groups"]
    if left_out:
        lines.append(f"{left_out:,} more groups were not looked at: narrow it by --since and --until")
    for row in rows[:SHOWN_MAX]:
        lines.append(
            f"{row.library} {row.version}, source {row.source}, {row.name}: {row.extra:,} events in "
            f"{row.groups:,} groups, {row.identical:,} of them with the same content"
        )
        lines += [f"    {first}  and  {last}" for first, last in row.samples]
    if len(rows) > SHOWN_MAX:
        lines.append(f"and {len(rows) - SHOWN_MAX:,} more: --json lists all")
    return lines


def _found_locally(source: Source, selection: Selection, engine: Engine) -> Found | None:
    """Look without Spark; None if the source needs it, or is large."""
    ranges = ranges_of(source, selection) or {}
    local = open_locally(source, ranges)
    if local is None or (engine is Engine.AUTO and not local.is_small):
        return None
    return find_locally(lambda: local.batches(ranges, selection, compares=False))
