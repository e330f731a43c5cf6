"""Audit: proves that a topic or an archive holds every event once, and lists the records that break it."""

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import SparkSession

from pipeline.audit.deep import identity_secret
from pipeline.audit.division import Division, read_division
from pipeline.audit.inputs import comparison_of, with_input
from pipeline.audit.prepared import AuditRequest, Engine
from pipeline.audit.reconciliation import load_stats
from pipeline.audit.report import check_folder, print_text, write_report
from pipeline.audit.run_audit import run_audit
from pipeline.audit.scope import Scope
from pipeline.errors import UsageError
from pipeline.runtime import options
from pipeline.runtime.erasures import ErasureList
from pipeline.runtime.progress import progress_logger
from pipeline.runtime.session import start_session
from pipeline.schema import ARCHIVE_VERSION
from pipeline.sinks.lake import local_ledger, published_ledger
from pipeline.sinks.ledger import EarlierLog, Ledger
from pipeline.sources.kafka_options import with_options
from pipeline.sources.local import LocalRecords
from pipeline.sources.records import LakeSource, Offsets, Selection, Source, parse_source

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
        help="token of the gateway's admin port; better set in the environment",
    ),
]
AgainstOption = Annotated[
    Source | None,
    typer.Option(
        "--against",
        parser=options.parsed(parse_source),
        metavar="URL",
        help="topic of an archive: compare the ends and the content of both",
    ),
]
ReportOption = Annotated[
    Path | None,
    typer.Option("--report", metavar="DIR", help="folder for audit.json, audit.html and audit.prom"),
]
DeepOption = Annotated[bool, typer.Option("--deep", help="recompute every key with GATEWAY_IDENTITY_SECRET")]
ShallowOption = Annotated[
    bool,
    typer.Option(
        "--shallow", help="leave out the columns that an archive computes, and the content of its topic"
    ),
]
PartitionsOption = Annotated[
    int | None,
    typer.Option("--partitions", min=1, help="of the topic; needed for an archive without a ledger"),
]
BegunWithOption = Annotated[
    int | None,
    typer.Option(
        "--begun-with",
        min=1,
        help="partitions that the topic began with, if `gateway reshard` has divided it since",
    ),
]
ReshardOption = Annotated[
    Path | None,
    typer.Option(
        "--reshard",
        metavar="FILE",
        help="output of `gateway reshard status --output json`: with which numbers the records of partitions "
        "begin and go on that were given slots; instead of --begun-with",
    ),
]
WindowOption = Annotated[
    timedelta | None,
    options.duration_option("--window", "the gateway's GATEWAY_WINDOW; default: of --stats"),
]
IndexKeysMaxOption = Annotated[
    int | None,
    typer.Option("--index-keys-max", min=1, help="the gateway's GATEWAY_INDEX_KEYS_MAX; default: of --stats"),
]
RetentionOption = Annotated[
    timedelta | None,
    options.duration_option("--retention", "list records older than this"),
]
EngineOption = Annotated[
    Engine,
    typer.Option(
        "--engine",
        help="local: without Java, a topic or an archive in a folder, only if it is clean; auto: local for "
        "up to 5 million records, of kafka:// 1 million, and Spark for others and to name what is wrong",
    ),
]
InputOption = Annotated[
    str | None,
    typer.Option(
        "--input",
        metavar="NAME",
        help="an input of the gateway: also prove that each event it has read of that topic is stored",
    ),
]
InputsFileOption = Annotated[
    Path | None,
    typer.Option(
        "--inputs-file",
        metavar="FILE",
        envvar="GATEWAY_INPUTS_FILE",
        show_envvar=True,
        help="the gateway's file of inputs",
    ),
]
InputFromOption = Annotated[
    Offsets | None,
    typer.Option(
        "--input-from",
        parser=options.parsed(options.offsets),
        metavar="OFFSETS",
        help="where the gateway began to read, e.g. 0:100,1:250; default: the first offsets",
    ),
]
SinceLastOption = Annotated[
    str | None,
    typer.Option(
        "--since-last",
        metavar="DIR",
        help="audit the records since the last audit with this state folder",
    ),
]

EpochOption = Annotated[
    int | None,
    typer.Option(
        "--epoch",
        min=0,
        help="log of an archive that went on with --next-topic; default: the newest",
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
    shallow: ShallowOption = False,
    partitions: PartitionsOption = None,
    begun_with: BegunWithOption = None,
    reshard: ReshardOption = None,
    window: WindowOption = None,
    index_keys_max: IndexKeysMaxOption = None,
    retention: RetentionOption = None,
    since_last: SinceLastOption = None,
    epoch: EpochOption = None,
    engine: EngineOption = Engine.AUTO,
    input_name: InputOption = None,
    inputs_file: InputsFileOption = None,
    input_from: InputFromOption = None,
    remote: options.RemoteOption = None,
    conf: options.ConfOption = None,
    kafka: options.KafkaOption = None,
) -> None:
    """
    Prove that a topic or an archive holds every event once, in order, without gaps.

    Exit code 0: clean. 1: violated; the first 100 records of each kind are listed.
    2: no verdict, for example because an open transaction holds records back.
    """
    if report is not None:
        check_folder(report)
    source, against = _with_options(source, against, kafka)
    if reshard is not None and begun_with is not None:
        raise UsageError("--reshard and --begun-with exclude each other")
    division = None if begun_with is None else Division.only(begun_with)
    if reshard is not None:
        division = read_division(reshard)
    request = AuditRequest(
        source=source,
        selection=Selection(since, until, from_offsets, to_offsets),
        against=against,
        stats=load_stats(stats, admin_token) if stats else None,
        partitions=partitions,
        division=division,
        window=window,
        index_keys_max=index_keys_max,
        retention=retention,
        secret=identity_secret() if deep else None,
        is_shallow=shallow,
        since_last=since_last,
        read_ledger=partial(_ledger, source),
        read_local_ledger=_local_ledger,
        engine=engine,
        erasures=ErasureList.of_environment(),
        log_epoch=epoch,
    )
    is_whole = since_last is None and request.selection.is_everything
    compared = comparison_of(source, input_name, inputs_file, input_from, is_whole=is_whole)
    topic = None if compared is None else compared.input.topic
    start = partial(start_session, "audit", source, against, topic, remote=remote, conf=conf)
    log_progress = progress_logger("audit")
    result = run_audit(start, request, log_progress)
    if compared is not None:
        result = with_input(start(), result, compared, log_progress)
    print_text(result)
    if report is not None:
        write_report(result, report)
    raise typer.Exit(result.exit_code)


def _with_options(
    source: Source, against: Source | None, kafka: list[tuple[str, str]] | None
) -> tuple[Source, Source | None]:
    """Return both, of which the topic that lists the records has options of Kafka's consumer."""
    if against is None:
        return with_options(source, kafka), None
    return source, with_options(against, kafka)


def _ledger(source: Source, spark: SparkSession) -> list[Scope]:
    return _scopes(published_ledger(spark, source)) if isinstance(source, LakeSource) else []


def _local_ledger(records: LocalRecords) -> list[Scope]:
    return _scopes(local_ledger(records))


def _scopes(ledger: Ledger | None) -> list[Scope]:
    """Return the scope of each log of an archive's ledger; none of one that tells nothing, as some copy's."""
    if ledger is None:
        return []
    if ledger.partitions == 0:
        later_from = ledger.columns_from.get(ARCHIVE_VERSION)
        return [] if later_from is None else [Scope(later_from=later_from)]
    scopes = list[Scope]()
    logs: list[EarlierLog | Ledger] = [*ledger.earlier, ledger]
    for number, log in enumerate(logs):
        ends = log.records_end
        scopes.append(
            Scope(
                listed_by="its ledger",
                origin=log.origin,
                partitions=log.partitions,
                ranges={p: (first, max(first, ends.get(p, end))) for p, (first, end) in log.held.items()},
                known_ends=frozenset(ends),
                log_epoch=number if ledger.earlier else None,
                is_newest=log is ledger,
                later_from=log.columns_from.get(ARCHIVE_VERSION),
            )
        )
    return scopes
