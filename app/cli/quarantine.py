"""`gateway quarantine`: look at the events that were kept apart, and send them again after a fix."""

from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from app.cli.console import EXIT_ERROR, guarded, run_async, tell, tell_no_log, write_lines
from app.cli.options import DEFAULT_INGEST_URL, IngestUrl, Since, since_ms

if TYPE_CHECKING:
    from app.config import LogSettings
    from dedupe.log import LogStore
    from dedupe.quarantine_reader import Wanted

Read: TypeAlias = "Callable[[LogStore, LogSettings], Coroutine[Any, Any, Any]]"
"""Does a command's work on the open log."""

quarantine = typer.Typer(
    name="quarantine",
    help="Look at events that were rejected or that conflict, and send them again after a fix.",
    no_args_is_help=True,
)

Reason = Annotated[
    str | None, typer.Option(help="Only events kept apart for this reason, such as `conflict`.")
]
Source = Annotated[str | None, typer.Option(help="Only events of this source.")]


@quarantine.command(name="list")
def list_records(reason: Reason = None, source: Source = None, since: Since = None) -> None:
    """
    Print one JSON line for each event that was kept apart.

    A line has partition, offset, timestamp (log time in ms), reason, source, messageId (null without
    a valid one), truncated (only the first 64 KiB were kept) and length (of the event in bytes).
    Needs only the settings of the log, runs beside a gateway, and changes nothing.

    Example: `gateway quarantine list --reason conflict --since 2h`
    """
    from dedupe.quarantine_reader import Wanted

    wanted = Wanted(reason=reason, source=source, since_ms=since_ms(since))
    _on_log(lambda store, settings: _print(store, settings, wanted, has_content=False))


@quarantine.command()
def show(
    place: Annotated[str, typer.Argument(help="PARTITION:OFFSET, as `list` names them.")],
) -> None:
    """
    Print one record with its event as JSON; of a truncated event its head.

    Example: `gateway quarantine show 0:17`
    """
    from dedupe.quarantine_reader import Wanted

    wanted = Wanted(places=_places([place]))
    printed = 0

    async def run(store: "LogStore", settings: "LogSettings") -> None:
        nonlocal printed
        printed = await _print(store, settings, wanted, has_content=True)

    _on_log(run)
    if not printed:
        tell(f"there is no record at {place}")
        raise typer.Exit(EXIT_ERROR)


@quarantine.command()
def replay(
    places: Annotated[
        list[str] | None, typer.Argument(help="PARTITION:OFFSET of single records, as `list` names them.")
    ] = None,
    reason: Reason = None,
    source: Source = None,
    since: Since = None,
    new_id: Annotated[
        bool, typer.Option("--new-id", help="Give conflicting events and those with a bad id a new one.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Send nothing; say what would be sent.")] = False,
    url: IngestUrl = DEFAULT_INGEST_URL,
    write_key: Annotated[
        str | None, typer.Option(envvar="GATEWAY_WRITE_KEY", help="Write key of the events' source.")
    ] = None,
) -> None:
    """
    Send events once more to a running gateway, and print what became of each as a JSON line.

    Fix what made them bad first: raise a limit, or update the gateway. result is `accepted`,
    `duplicate` (stored before: replaying twice is harmless), `rejected` (still bad), `failed` (no
    verdict; try again) or `skipped`, and why says more. Events keep their ids. A conflicting event
    cannot: its id belongs to the event that came first, so it is skipped unless --new-id says that
    both are wanted. Events of which only the beginning was kept cannot be sent.

    Without places and filters all records are meant. They must be of one source; any write key of
    that source will do. Events that were refused as too large or too deep are kept as they were
    sent, without the batch-level fields of their batch. The records stay in quarantine until
    retention deletes them. Exit code 1: not every event is stored.

    Example: `gateway quarantine replay --reason event_too_large --source web --dry-run`
    """
    if write_key is None and not dry_run:
        raise typer.BadParameter("--write-key (or GATEWAY_WRITE_KEY) is needed to send; or try --dry-run")

    from app.cli.replay import Replayer
    from app.cli.replay import replay as replay_records
    from dedupe.quarantine_reader import Wanted

    wanted = Wanted(_places(places or []), reason, source, since_ms(since))
    results: dict[str, int] = {}

    async def run(store: "LogStore", settings: "LogSettings") -> None:
        async with aclosing(Replayer(url, write_key or "")) as replayer:
            results.update(
                await replay_records(
                    store,
                    settings,
                    wanted,
                    replayer=None if dry_run else replayer,
                    may_renew_id=new_id,
                    write=write_lines,
                )
            )

    _on_log(run)
    summary = ", ".join(f"{count} {name}" for name, count in sorted(results.items()))
    tell(summary or "no record matches")
    if not dry_run and set(results) - {"accepted", "duplicate"}:
        raise typer.Exit(EXIT_ERROR)


def _on_log(read: Read) -> None:
    """Run a command's work on the log of the settings; one that does not exist yet is empty, and told."""

    async def run() -> None:
        from app.config import LogSettings, load
        from app.stores import open_for_reading

        settings = load(LogSettings)
        async with open_for_reading(settings) as store:
            if store is None:
                tell_no_log(settings.data_dir)
            else:
                await read(store, settings)

    def configured() -> None:
        from app.process import configure_logging

        configure_logging(level="warning", is_json=False)
        run_async(run())

    guarded(configured)


async def _print(store: "LogStore", settings: "LogSettings", wanted: "Wanted", *, has_content: bool) -> int:
    """Print the wanted records and return how many they are."""
    from dedupe.quarantine_reader import read_quarantine

    count = 0
    async with aclosing(read_quarantine(store, settings.quarantine_topic, wanted)) as records:
        async for kept in records:
            write_lines(kept.line(has_content=has_content))
            count += 1
    return count


def _places(texts: list[str]) -> "frozenset[Any]":
    from dedupe.quarantine_reader import Place

    try:
        return frozenset(map(Place.parse, texts))
    except ValueError as err:
        raise typer.BadParameter(str(err)) from None
