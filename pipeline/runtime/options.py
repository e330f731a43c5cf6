"""The options that several jobs have, and the parsers of their values."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from pipeline.errors import UsageError
from pipeline.sources.kafka_options import client_option
from pipeline.sources.records import Offsets, Source, parse_source

T = TypeVar("T")

INTERVAL = timedelta(seconds=10)
BATCH_OFFSETS = 1_000_000  # a gigabyte of events, ten seconds of two cores

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parsed(parse: Callable[[str], T]) -> Callable[[str | T], T]:
    """Turn errors of a parser into typer's usage errors."""

    def parser(text: str | T) -> T:
        if not isinstance(text, str):
            return text  # a default
        try:
            return parse(text)
        except (UsageError, ValueError) as err:
            raise typer.BadParameter(str(err)) from err

    parser.__name__ = parse.__name__
    return parser


def duration(text: str) -> timedelta:
    """Parse 90s, 15m, 36h or 7d."""
    if match := re.fullmatch(r"(\d+)([smhd])", text):
        return timedelta(seconds=int(match[1]) * _UNITS_S[match[2]])
    raise UsageError(f"{text!r} is no duration: use 90s, 15m, 36h or 7d")


def duration_option(name: str, text: str, *, shown: str | None = None) -> Any:
    """Return an option that takes a duration; `shown` is its default as the help shows it."""
    return typer.Option(
        name, parser=parsed(duration), metavar="DURATION", show_default=shown or False, help=text
    )


def moment(text: str) -> datetime:
    """Return an ISO 8601 time; without an offset it is UTC."""
    try:
        parsed_time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no time: use 2026-01-31T12:00Z") from None
    return parsed_time if parsed_time.tzinfo else parsed_time.replace(tzinfo=UTC)


def offsets(text: str) -> Offsets:
    """Return 0:100,1:250 or {"0": 100, "1": 250} as offsets by partition."""
    try:
        if text.startswith("{"):
            return {int(partition): int(offset) for partition, offset in json.loads(text).items()}
        return {int(p): int(o) for p, o in (pair.split(":") for pair in text.split(","))}
    except ValueError:
        raise UsageError(f"{text!r} names no offsets: use 0:100,1:250") from None


def key_value(text: str) -> tuple[str, str]:
    """Return NAME=VALUE as a pair."""
    name, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"{text!r} is not NAME=VALUE")
    return name, value


SourceOption = Annotated[
    Source,
    typer.Option(
        "--source",
        parser=parsed(parse_source),
        metavar="URL",
        envvar="PIPELINE_SOURCE",
        help="kafka://host:port/topic, log://DATA_DIR, parquet://PATH, delta://PATH or iceberg://PATH",
    ),
]
SinceOption = Annotated[
    datetime | None,
    typer.Option(
        "--since",
        parser=parsed(moment),
        metavar="TIME",
        help="records from this log time on, e.g. 2026-01-31T12:00Z",
    ),
]
UntilOption = Annotated[
    datetime | None,
    typer.Option("--until", parser=parsed(moment), metavar="TIME", help="records before this log time"),
]
FirstDayOption = Annotated[
    datetime | None,
    typer.Option(
        "--since",
        parser=parsed(moment),
        metavar="DAY",
        help="replace the days of log time from this one on, in UTC, by what the source has of them",
    ),
]
EndDayOption = Annotated[
    datetime | None,
    typer.Option("--until", parser=parsed(moment), metavar="DAY", help="replace the days before this one"),
]
FromOffsetsOption = Annotated[
    dict | None,  # type: ignore[type-arg]  # typer takes no parameters of a type
    typer.Option(
        "--from-offsets",
        parser=parsed(offsets),
        metavar="P:O,...",
        help="first offset of partitions, e.g. 0:100,1:250",
    ),
]
ToOffsetsOption = Annotated[
    dict | None,  # type: ignore[type-arg]
    typer.Option(
        "--to-offsets", parser=parsed(offsets), metavar="P:O,...", help="offset of partitions to stop before"
    ),
]
RemoteOption = Annotated[
    str | None,
    typer.Option(
        "--remote", metavar="URL", envvar="PIPELINE_REMOTE", help="Spark Connect server, sc://host:port"
    ),
]
ConfOption = Annotated[
    list[tuple] | None,  # type: ignore[type-arg]
    typer.Option(
        "--conf", parser=parsed(key_value), metavar="NAME=VALUE", help="Spark setting; may be repeated"
    ),
]
KafkaOption = Annotated[
    list[tuple] | None,  # type: ignore[type-arg]
    typer.Option(
        "--kafka",
        parser=parsed(client_option),
        metavar="NAME=VALUE",
        help="option of Kafka's consumer in Spark, as client.rack; may be repeated",
    ),
]
PartitionByOption = Annotated[
    list[str] | None,
    typer.Option(
        "--partition-by",
        metavar="PART",
        help="a new table: column, or of Iceberg days(COLUMN), bucket(16, COLUMN); may be repeated",
    ),
]
ClusterByOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster-by", metavar="COLUMN", help="a new Delta table: cluster it by columns; may be repeated"
    ),
]
TablePropertyOption = Annotated[
    list[tuple] | None,  # type: ignore[type-arg]
    typer.Option(
        "--table-property",
        parser=parsed(key_value),
        metavar="NAME=VALUE",
        help="a new table: one of its properties; may be repeated",
    ),
]
CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="PATH",
        envvar="PIPELINE_CHECKPOINT",
        help="folder of Spark's checkpoint of this job. Default: beside the output",
    ),
]
RecoverOption = Annotated[
    bool,
    typer.Option(
        "--recover", help="Delete a checkpoint that does not match the output, and continue from the output."
    ),
]
AcceptLossOption = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Continue after records that retention deleted unread; the ledger lists their offsets.",
    ),
]
NextTopicOption = Annotated[
    bool,
    typer.Option(
        "--next-topic",
        help="Continue an output with a topic that was made again or moved to another cluster, whose offsets "
        "begin anew.",
    ),
]
OnceOption = Annotated[
    bool,
    typer.Option("--once", help="End after what the source holds now. Default: run until SIGTERM."),
]
IntervalOption = Annotated[
    timedelta, duration_option("--interval", "time from batch to batch without --once", shown="10s")
]
BatchOption = Annotated[
    int, typer.Option("--batch-offsets", min=1, help="largest number of offsets in one batch from Kafka")
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port", envvar="PIPELINE_METRICS_PORT", help="serve Prometheus metrics on this port"
    ),
]
MetricsFileOption = Annotated[
    Path | None,
    typer.Option(
        "--metrics-file",
        metavar="FILE",
        envvar="PIPELINE_METRICS_FILE",
        help="write Prometheus metrics there, for the textfile collector: of jobs with --once",
    ),
]

WriteKeyOption = Annotated[
    list[tuple] | None,  # type: ignore[type-arg]
    typer.Option(
        "--write-key",
        parser=parsed(key_value),
        metavar="SOURCE=KEY",
        help="write key of a source; may be repeated. The key of other sources is their name",
    ),
]
RateOption = Annotated[
    float | None,
    typer.Option("--rate", min=0.1, help="largest number of events a second, over all connections"),
]
ConnectionsOption = Annotated[
    int, typer.Option("--connections", min=1, help="number of concurrent connections")
]
