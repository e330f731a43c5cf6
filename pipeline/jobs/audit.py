"""Audit: proves of a topic or an archive that it holds every event once, and names what says otherwise."""

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import SparkSession

from pipeline.audit import (
    Order,
    Scope,
    check_folder,
    conduct,
    identity_secret,
    load_stats,
    print_text,
    write_report,
)
from pipeline.runtime import IcebergTable, create_session, options, stage_teller
from pipeline.sinks import stated_ledger
from pipeline.sources import LakeSource, Source, parse_source


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
    admin_token: Annotated[
        str | None,
        typer.Option(
            "--admin-token",
            metavar="TOKEN",
            envvar="GATEWAY_ADMIN_TOKEN",
            show_envvar=True,
            help="what the gateway's admin port wants to be shown; better set in the environment",
        ),
    ] = None,
    against: Annotated[
        Source | None,
        typer.Option(
            "--against",
            parser=options.parsed(parse_source),
            metavar="URL",
            help="the topic an archive was taken from: is anything missing at its ends?",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="DIR", help="write audit.json, audit.html and audit.prom there"),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="recompute every key with GATEWAY_IDENTITY_SECRET")
    ] = False,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", min=1, help="of the topic; needed for an archive of some of them"),
    ] = None,
    window: Annotated[
        timedelta | None,
        typer.Option(
            "--window",
            parser=options.parsed(options.duration),
            metavar="DURATION",
            help="the gateway's GATEWAY_WINDOW; --stats tell it",
        ),
    ] = None,
    index_keys_max: Annotated[
        int | None,
        typer.Option("--index-keys-max", min=1, help="the gateway's GATEWAY_INDEX_KEYS_MAX; --stats tell it"),
    ] = None,
    retention: Annotated[
        timedelta | None,
        typer.Option(
            "--retention",
            parser=options.parsed(options.duration),
            metavar="DURATION",
            help="tell records older than this",
        ),
    ] = None,
    since_last: Annotated[
        str | None,
        typer.Option(
            "--since-last",
            metavar="DIR",
            help="judge what is new since the last audit with this folder, and remember it there",
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
    if report is not None:
        check_folder(report)
    order = Order(
        source=source,
        span=options.span_of(since, until, from_offsets, to_offsets),
        against=against,
        stats=load_stats(stats, admin_token) if stats else None,
        partitions=partitions,
        window=window,
        index_keys_max=index_keys_max,
        retention=retention,
        secret=identity_secret() if deep else None,
        since_last=since_last,
        ledger=partial(_ledger, source),
    )
    is_iceberg = isinstance(source, LakeSource) and source.format == "iceberg"
    settings = IcebergTable(str(source).removeprefix("iceberg://")).conf if is_iceberg else {}
    formats = source.formats | (against.formats if against else frozenset())
    result = conduct(
        lambda: create_session("audit", remote=remote, conf=settings | dict(conf or []), formats=formats),
        order,
        stage_teller("audit"),
    )
    print_text(result)
    if report is not None:
        write_report(result, report)
    raise typer.Exit(result.exit_code)


def _ledger(source: Source, spark: SparkSession) -> Scope | None:
    """Return what the archive's own ledger says that it holds; None if it has none."""
    ledger = stated_ledger(spark, source) if isinstance(source, LakeSource) else None
    if ledger is None or ledger.partitions == 0:  # a copy of an archive, whose ledger lists no offsets
        return None
    return Scope("its ledger", None, ledger.origin, ledger.partitions, dict(ledger.held))
