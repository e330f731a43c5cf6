"""Audit: proves of a topic or an archive that it holds every event once, and names what says otherwise."""

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import SparkSession

from pipeline.audit.conduct import Order, conduct
from pipeline.audit.deep import identity_secret
from pipeline.audit.reconciliation import load_stats
from pipeline.audit.report import check_folder, print_text, write_report
from pipeline.audit.scope import Scope
from pipeline.runtime import options
from pipeline.runtime.session import catalog_conf, create_session
from pipeline.runtime.stages import stage_teller
from pipeline.sinks.lake import stated_ledger
from pipeline.sources.records import LakeSource, Source, parse_source

StatsOption = Annotated[
    str | None,
    typer.Option("--stats", metavar="URL|FILE", help="the gateway's counters, e.g. http://127.0.0.1:9090"),
]
AdminTokenOption = Annotated[
    str | None,
    typer.Option(
        "--admin-token",
        metavar="TOKEN",
        envvar="GATEWAY_ADMIN_TOKEN",
        show_envvar=True,
        help="what the gateway's admin port wants to be shown; better set in the environment",
    ),
]
AgainstOption = Annotated[
    Source | None,
    typer.Option(
        "--against",
        parser=options.parsed(parse_source),
        metavar="URL",
        help="the topic an archive was taken from: is anything missing at its ends?",
    ),
]
ReportOption = Annotated[
    Path | None,
    typer.Option("--report", metavar="DIR", help="write audit.json, audit.html and audit.prom there"),
]
DeepOption = Annotated[bool, typer.Option("--deep", help="recompute every key with GATEWAY_IDENTITY_SECRET")]
PartitionsOption = Annotated[
    int | None,
    typer.Option("--partitions", min=1, help="of the topic; needed for an archive of some of them"),
]
WindowOption = Annotated[
    timedelta | None,
    options.duration_option("--window", "the gateway's GATEWAY_WINDOW; --stats tell it"),
]
IndexKeysMaxOption = Annotated[
    int | None,
    typer.Option("--index-keys-max", min=1, help="the gateway's GATEWAY_INDEX_KEYS_MAX; --stats tell it"),
]
RetentionOption = Annotated[
    timedelta | None,
    options.duration_option("--retention", "tell records older than this"),
]
SinceLastOption = Annotated[
    str | None,
    typer.Option(
        "--since-last",
        metavar="DIR",
        help="judge what is new since the last audit with this folder, and remember it there",
    ),
]


def audit(
    source: options.SourceOption,
    since: options.SinceOption = None,
    until: options.UntilOption = None,
    from_offsets: options.FromOffsetsOption = None,
    to_offsets: options.ToOffsetsOption = None,
    stats: StatsOption = None,
    admin_token: AdminTokenOption = None,
    against: AgainstOption = None,
    report: ReportOption = None,
    deep: DeepOption = False,
    partitions: PartitionsOption = None,
    window: WindowOption = None,
    index_keys_max: IndexKeysMaxOption = None,
    retention: RetentionOption = None,
    since_last: SinceLastOption = None,
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
    formats = source.formats | (against.formats if against else frozenset())
    result = conduct(
        lambda: create_session(
            "audit", remote=remote, conf=catalog_conf(source) | dict(conf or []), formats=formats
        ),
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
    known = ledger.records_end
    ranges = {p: (first, max(first, known.get(p, end))) for p, (first, end) in ledger.held.items()}
    return Scope("its ledger", None, ledger.origin, ledger.partitions, ranges, frozenset(known))
