"""The commands of the command line; app.cli.console has their exit codes."""

import asyncio
import gc
import sys
from datetime import datetime
from typing import Annotated

import typer

from app.cli.bench import bench
from app.cli.check import check
from app.cli.config import config
from app.cli.console import guarded, run_quietly, write_lines
from app.cli.group import drain, group
from app.cli.index import index
from app.cli.inputs import inputs
from app.cli.key_changes import add_changes
from app.cli.keys import keys
from app.cli.lookup import lookup, sessions
from app.cli.options import Since, since_ms
from app.cli.partitions import partitions
from app.cli.quarantine import quarantine
from app.cli.reshard import reshard
from app.cli.size import size
from app.cli.snapshots import snapshots
from app.cli.sources import sources
from app.cli.stats import list_partitions, stats
from app.cli.tail import tail
from app.cli.topics import topics
from app.cli.verify import verify

app = typer.Typer(
    name="gateway",
    help="An HTTP event gateway in front of Kafka: every event is stored once, however often it is sent.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # paragraphs are wrapped again
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(index)
app.add_typer(inputs)
add_changes(keys)
app.add_typer(keys)
partitions.command(name="list")(list_partitions)
app.add_typer(partitions)
app.add_typer(quarantine)
app.add_typer(reshard)
app.add_typer(sessions)
app.add_typer(snapshots)
app.add_typer(topics)
app.command()(check)
app.command()(config)
app.command()(size)
app.command()(group)
app.command()(drain)
app.command()(lookup)
app.command()(sources)
app.command()(stats)
app.command()(verify)
app.command()(bench)
app.command()(tail)


def main() -> None:
    """Run the command line; the entry point of the package."""
    app()


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from app.settings.version import VERSION

        print(VERSION)
        raise typer.Exit


@app.callback()
def gateway(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Parse the options before a command."""


@app.command()
@guarded
def serve(
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers",
            metavar="N|auto",
            help="Run N workers on this machine, or one for each processor; needs the Kafka log. They share "
            "the ports and the partitions, and a worker that ends is restarted.",
        ),
    ] = None,
    accept_clock: Annotated[
        datetime | None,
        typer.Option(
            metavar="DATE",
            formats=["%Y-%m-%d"],
            help="Today's date in UTC, to accept a clock that is far ahead of the embedded log. It is valid "
            "on that date, the day before and the day after.",
        ),
    ] = None,
    share_ports: Annotated[bool, typer.Option("--share-ports", hidden=True)] = False,
) -> None:
    """
    Run the gateway until SIGTERM or Ctrl-C.

    All settings are environment variables, GATEWAY_*; docs/settings.md lists them. In production
    (GATEWAY_MODE, the default) GATEWAY_IDENTITY_SECRET and GATEWAY_WRITE_KEYS_FILE must be set;
    GATEWAY_MODE=development needs nothing.

    After the first signal, commits in progress are finished; a second signal stops at once. Neither loses
    events.

    Exit codes: 0 stopped in order, 1 the log was not reachable, 2 refused settings, topics, brokers, clock or
    data folder, 3 the log was written under another identity secret or partition count.

    Example: `gateway serve`, or `gateway serve --workers auto`
    """

    gc.disable()  # imports create many objects, and no garbage
    import uvloop

    from app.main import serve as serve_gateway
    from app.process.workers import run_workers, workers_of
    from app.settings.environment import refuse_unknown_variables
    from app.settings.model import Settings
    from app.settings.section import load
    from app.telemetry.logging_setup import configure_logging
    from app.telemetry.stderr import protect_stderr

    gc.enable()
    protect_stderr()
    refuse_unknown_variables()
    settings = load(Settings)
    configure_logging(
        level=settings.advanced.logging_level,
        is_json=settings.advanced.logging_format == "json",
        worker=None if settings.group.peer_listen is None else settings.group.worker_id,
    )
    if workers is None:
        day = None if accept_clock is None else accept_clock.date()
        gateway = serve_gateway(settings, accepted_day=day, is_sharing_ports=share_ports)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(gateway)
    else:
        command = [sys.executable, "-c", "from app.cli import main; main()", "serve", "--share-ports"]
        asyncio.run(run_workers(command, settings, workers_of(workers)))


@app.command()
@guarded
def events(
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the oldest event.")] = False,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at the current end of the log.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Continue with new events; begins at the end without --from-start."),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Print this number of events, and stop.")] = None,
    source: Annotated[str | None, typer.Option(help="Only events of this source.")] = None,
    since: Since = None,
) -> None:
    """
    Print the stored events as JSON lines.

    Each line has messageId, source, partition, offset, timestamp (log time in ms) and value (the event).
    Without options, all events up to the end are printed, in order within a partition. It needs only the
    settings of the log, may run while a gateway runs, and changes nothing. `gateway lookup` finds a single
    event by its id.

    Example: `gateway events --source web --since 2h --limit 10`, or `gateway events --follow`
    """
    if follow and until_end:
        raise typer.BadParameter("--follow and --until-end exclude each other")
    begins_ms = since_ms(since)

    from app.cli.event_reader import Span, print_events
    from app.settings.log import LogSettings
    from app.settings.section import load

    span = Span(
        is_from_start=from_start or not follow or since is not None,
        is_followed=follow,
        since_ms=begins_ms,
        source=source,
        limit=limit,
    )
    run_quietly(print_events(load(LogSettings), span, write_lines))
