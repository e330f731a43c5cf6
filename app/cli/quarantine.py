"""`gateway quarantine`: lists quarantined events, and replays them after a fix."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.admin_client import AdminClient
from app.cli.console import EXIT_ERROR, guarded, note, note_no_log, run_quietly, write_lines
from app.cli.options import DEFAULT_URL, Format, Since, Token, Url, print_rows, since_ms
from dedupe.model.errors import ConfigurationError, RetriableError

if TYPE_CHECKING:
    from dedupe.storage.quarantine_reader import Kept, Wanted

TRIES_MAX, RETRY_S = 10, 1.0
"""The tries of an event while its partition or the gateway does not answer."""

quarantine = typer.Typer(
    name="quarantine",
    help="List rejected and conflicting events, and replay them after a fix.",
    no_args_is_help=True,
)

Reason = Annotated[
    str | None, typer.Option(help="Only events quarantined for this reason, such as `conflict`.")
]
Source = Annotated[str | None, typer.Option(help="Only events of this source.")]


@quarantine.command(name="list")
@guarded
def list_records(reason: Reason = None, source: Source = None, since: Since = None) -> None:
    """
    Print one JSON line for each quarantined event.

    A line has partition, offset, timestamp (log time in ms), reason, source, messageId (null without a valid
    one), truncated (only the first 64 KiB are stored) and length (of the event in bytes). It needs only the
    settings of the log, may run while a gateway runs, and changes nothing.

    Example: `gateway quarantine list --reason conflict --since 2h`
    """
    from dedupe.storage.quarantine_reader import Wanted

    wanted = Wanted(reason=reason, source=source, since_ms=since_ms(since))

    async def run() -> None:
        await _print(wanted, has_content=False)

    run_quietly(run())


@quarantine.command()
@guarded
def show(place: Annotated[str, typer.Argument(help="PARTITION:OFFSET, as `list` names them.")]) -> None:
    """
    Print one record with its event as JSON; of a truncated event the first bytes.

    Example: `gateway quarantine show 0:17`
    """
    from dedupe.storage.quarantine_reader import Wanted

    async def run() -> None:
        if not await _print(wanted, has_content=True):
            note(f"there is no record at {place}")
            raise typer.Exit(EXIT_ERROR)

    wanted = Wanted(places=_places([place]))
    run_quietly(run())


@quarantine.command()
@guarded
def replay(
    places: Annotated[
        list[str] | None, typer.Argument(help="PARTITION:OFFSET of single records, as `list` names them.")
    ] = None,
    reason: Reason = None,
    source: Source = None,
    since: Since = None,
    new_id: Annotated[
        bool,
        typer.Option("--new-id", help="Assign new ids to conflicting events and those with an invalid id."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Replay nothing; print what would be replayed.")
    ] = False,
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
) -> None:
    """
    Submit quarantined events to a running gateway again, and print a JSON line with the result of each.

    Remove the cause first: raise a limit, or update the gateway. result is `accepted`, `duplicate` (stored
    already), `rejected` (again), `failed` (no verdict; try again) or `skipped`, and why has the reason.
    Events keep their ids, except conflicting ones, whose id belongs to another event: they are skipped
    without --new-id. Truncated events cannot be replayed.

    Without places and filters all records are replayed, each with its own source. The records are read from
    the log, whose settings this needs, and replayed through the admin port with the writing token. Events
    that were too large or too deep are stored as sent, without the batch-level fields of their batch. The
    records remain in quarantine until retention deletes them. Exit code 1: not every event is stored.

    Example: `gateway quarantine replay --reason event_too_large --source web --dry-run`
    """
    from dedupe.storage.quarantine_reader import Wanted

    wanted = Wanted(_places(places or []), reason, source, since_ms(since))
    admin = None if dry_run else AdminClient(url, admin_token)
    results: Counter[str] = Counter()
    run_quietly(_replay(wanted, admin, results, may_renew_id=new_id))
    note(", ".join(f"{count} {name}" for name, count in sorted(results.items())) or "no record matches")
    if not dry_run and set(results) - {"accepted", "duplicate"}:
        raise typer.Exit(EXIT_ERROR)


async def _replay(
    wanted: "Wanted", admin: AdminClient | None, results: Counter[str], *, may_renew_id: bool
) -> None:
    """Replay the matching records one after another; print and count the results."""
    from app.ingest.replay import judge

    if wanted.places:
        async with _records(wanted) as records:
            missing = wanted.places - {kept.place async for kept in records}
        if missing:
            place = min(missing)
            raise ConfigurationError(f"there is no such record at {place.partition}:{place.offset}")
    async with _records(wanted) as records:
        async for kept in records:
            line = judge(kept, may_renew_id=may_renew_id).document(kept)
            if line["result"] == "ready" and admin is not None:
                line = await replayed(admin, kept, may_renew_id=may_renew_id)
            results[line["result"]] += 1
            print_rows([line], Format.JSON)


async def replayed(admin: AdminClient, kept: "Kept", *, may_renew_id: bool) -> dict[str, Any]:
    """Return the gateway's result for one record, `failed` after the last try. Raises ConfigurationError."""
    from app.ingest.replay import Result

    path = f"/admin/v1/quarantine/{kept.place.partition}/{kept.place.offset}/replay"
    why = ""
    for _ in range(TRIES_MAX):
        try:
            return admin.ask(path, method="POST", new_id=may_renew_id)
        except RetriableError as err:
            why = str(err)
            await asyncio.sleep(RETRY_S)
    return Result("failed", why).document(kept)


async def _print(wanted: "Wanted", *, has_content: bool) -> int:
    """Print the matching records, and return their number."""
    count = 0
    async with _records(wanted) as records:
        async for kept in records:
            write_lines(kept.line(has_content=has_content))
            count += 1
    return count


@asynccontextmanager
async def _records(wanted: "Wanted") -> "AsyncIterator[AsyncGenerator[Kept]]":
    """Yield the matching records; a log that does not exist yet has none."""
    from app.settings.log import LogSettings
    from app.settings.section import load
    from app.stores import open_for_reading
    from dedupe.storage.quarantine_reader import read_quarantine

    settings = load(LogSettings)
    async with open_for_reading(settings) as store:
        if store is None:
            note_no_log(settings.data_dir)
        records = _none() if store is None else read_quarantine(store, settings.quarantine_topic, wanted)
        async with aclosing(records):
            yield records


async def _none() -> "AsyncGenerator[Kept]":
    return
    yield


def _places(texts: list[str]) -> "frozenset[Any]":
    from dedupe.storage.quarantine_reader import Place

    try:
        return frozenset(map(Place.parse, texts))
    except ValueError as err:
        raise typer.BadParameter(str(err)) from None
