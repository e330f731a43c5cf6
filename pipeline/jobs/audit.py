"""Audit: proves of a topic or an archive that it holds every event once, and names what says otherwise."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from pipeline.audit import (
    Audit,
    checks,
    identity_secret,
    judge,
    load_stats,
    print_text,
    write_report,
    wrong_keys,
)
from pipeline.runtime import create_session, options, stalled_partitions
from pipeline.sources import read_records


def audit(
    source: options.SourceOption,
    since: options.SinceOption = None,
    until: options.UntilOption = None,
    from_offsets: options.FromOffsetsOption = None,
    to_offsets: options.ToOffsetsOption = None,
    stats: Annotated[
        str | None,
        typer.Option(
            "--stats", metavar="URL|FILE", help="the gateway's counters, e.g. http://127.0.0.1:9090"
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="DIR", help="write audit.json and audit.html there")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="recompute every key with GATEWAY_IDENTITY_SECRET")
    ] = False,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", min=1, help="of the topic; needed for an archive of some of them"),
    ] = None,
    window: Annotated[
        timedelta,
        typer.Option(
            "--window",
            parser=options.parsed(options.duration),
            metavar="DURATION",
            show_default="7d",
            help="the gateway's GATEWAY_WINDOW",
        ),
    ] = timedelta(days=7),
    retention: Annotated[
        timedelta | None,
        typer.Option(
            "--retention",
            parser=options.parsed(options.duration),
            metavar="DURATION",
            help="tell records older than this",
        ),
    ] = None,
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
) -> None:
    """
    Prove that a topic or an archive holds every event once, in order, without gaps.

    Exit code 0: clean. 1: something is wrong; the first 100 of each kind are named.
    2: no verdict, for example because an open transaction holds records back.
    """
    span = options.span_of(since, until, from_offsets, to_offsets)
    secret = identity_secret() if deep else None
    counters = load_stats(stats) if stats else None
    began = time.monotonic()
    spark = create_session("audit", remote=remote, conf=dict(conf or []), formats=source.formats)
    stalled = stalled_partitions(source)
    records = read_records(spark, source, span)
    count = partitions or judge.partition_count(source, records)
    examined = checks.examined(records, count)
    summaries, minutes = judge.survey(examined, counters.counted_ranges if counters else {})
    found = judge.find(examined, summaries, window=window)
    if secret is not None:
        found |= judge.collected(wrong_keys(records, secret=secret, partitions=count))
    notices = judge.find_notices(examined, summaries, retention=retention)
    result = Audit(
        source=str(source),
        span=span,
        partitions=summaries,
        minutes=minutes,
        violations=found,
        notices=notices,
        reconciliation=judge.reconciled(counters, source, span, summaries),
        stalled=stalled,
        is_deep=deep,
        seconds=time.monotonic() - began,
    )
    print_text(result)
    if report is not None:
        write_report(result, report)
    raise typer.Exit(result.exit_code)
