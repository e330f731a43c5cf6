"""`gateway quarantine`: lists quarantined events, and replays them after a fix."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.admin_client import AdminClient, RequestRefusedError
from app.cli.console import EXIT_ERROR, guarded, note, note_no_log, run_quietly, write_lines
from app.cli.options import DEFAULT_URL, Format, Output, Since, Token, Url, print_rows, since_ms
from dedupe.model.errors import ConfigurationError, RetriableError

if TYPE_CHECKING:
    from app.ingest.replay import Changes
    from app.settings.log import LogSettings
    from dedupe.storage.log import LogStore
    from dedupe.storage.quarantine_reader import Kept, Place, Wanted

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
def list_records(
    reason: Reason = None,
    source: Source = None,
    since: Since = None,
    contains: Annotated[
        str | None,
        typer.Option(help="Only events with this text, such as a user's id; every byte of each is searched."),
    ] = None,
) -> None:
    """
    Print one JSON line for each quarantined event.

    A line has partition, offset, timestamp (log time in ms), reason, source, messageId (null without a valid
    one), truncated (an earlier version stored only the first 64 KiB), length (of the event in bytes),
    position (of its first byte in the body, if it is a part of one), and piece and pieces: an event that
    exceeds a record is stored in pieces, and each has a line. It needs only the settings of the log, may run
    while a gateway runs, and changes nothing.

    Example: `gateway quarantine list --reason conflict --since 2h`, or `... list --contains u-4711`
    """
    from dedupe.storage.quarantine_reader import Wanted

    wanted = Wanted(reason=reason, source=source, since_ms=since_ms(since))

    async def run() -> None:
        await _print(wanted, contains)

    run_quietly(run())


@quarantine.command()
@guarded
def stats(source: Source = None, since: Since = None, output: Output = None) -> None:
    """
    Print one line for each reason and source: events, bytes, and the log time of the first and last one.

    An event in pieces counts once. It needs what `list` needs.

    Example: `gateway quarantine stats --since 24h`
    """
    from dedupe.storage.quarantine_reader import Wanted

    counts: dict[tuple[str, str], dict[str, Any]] = {}

    async def run() -> None:
        async with _records(Wanted(source=source, since_ms=since_ms(since))) as records:
            async for kept in records:
                row = counts.setdefault(
                    (kept.reason, kept.source),
                    {"reason": kept.reason, "source": kept.source, "events": 0, "bytes": 0}
                    | {"first_ms": kept.timestamp_ms, "last_ms": kept.timestamp_ms},
                )
                row["events"] += kept.piece == 0
                row["bytes"] += len(kept.content)
                row["first_ms"] = min(row["first_ms"], kept.timestamp_ms)
                row["last_ms"] = max(row["last_ms"], kept.timestamp_ms)

    run_quietly(run())
    print_rows([counts[key] for key in sorted(counts)], output)


@quarantine.command()
@guarded
def show(
    place: Annotated[str, typer.Argument(help="PARTITION:OFFSET, as `list` names them.")],
    raw: Annotated[
        bool, typer.Option("--raw", help="Write the event's bytes as they arrived, and nothing else.")
    ] = False,
) -> None:
    """
    Print one record as JSON with its event, all pieces put together.

    The event is in the field event; what is no JSON is in bytes, as text with `\\xff` for a byte that is not
    UTF-8; what an earlier version truncated is in head. Of a conflict, conflict.differs names the top-level
    fields in which it differs from the stored event, with both values, shortened. Exit code 1: there is no
    record, or with --raw not every piece.

    Example: `gateway quarantine show 0:17`, or `gateway quarantine show 0:17 --raw`
    """
    (wanted,) = _places([place])
    run_quietly(_show(wanted, is_raw=raw))


async def _show(place: "Place", *, is_raw: bool) -> None:
    import orjson

    from app.admin.conflict import Comparison
    from dedupe.decide.rejection import RejectionCode
    from dedupe.storage.quarantine_reader import read_whole, shown

    async with _store() as (store, settings):
        whole = None if store is None else await read_whole(store, settings.quarantine_topic, place)
        if store is None or whole is None:
            note(f"there is no record at {place.partition}:{place.offset}")
            raise typer.Exit(EXIT_ERROR)
        if is_raw:
            if whole.problem is not None:
                note(whole.problem)
                raise typer.Exit(EXIT_ERROR)
            write_lines(whole.content)
            return
        kept = whole.kept
        document = kept.described() | {"sha256": kept.sha256}
        if kept.pieces > 1:
            document["problem"] = whole.problem
        if kept.reason == RejectionCode.CONFLICT and not kept.is_truncated:
            comparison = Comparison(store, settings.topic)
            document["conflict"] = await comparison.of(whole.content, kept.original, is_shown=True)
        document |= shown(kept, whole.content)
    write_lines(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))


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
    to_source: Annotated[
        str | None,
        typer.Option(help="Store events that came with an unknown write key of their own under this source."),
    ] = None,
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
    without --new-id. Events with an unknown write key go into the source of that key, once it is in the key
    file, or else of --to-source. Events that an earlier version truncated cannot be replayed. Pieces are put
    together. A part of a damaged body is sent as a body, and events has the number of events in it by result.

    Without places and filters all records are replayed, each with its own source. The records are read from
    the log, whose settings this needs, and replayed through the admin port with the writing token. A record
    that fails does not end the replay. Events that were too large or too deep are stored as sent, without the
    batch-level fields of their batch. The records remain in quarantine until retention deletes them. Exit
    code 1: not every event is stored.

    Example: `gateway quarantine replay --reason event_too_large --source web --dry-run`
    """
    from app.ingest.replay import Changes
    from dedupe.storage.quarantine_reader import Wanted

    wanted = Wanted(_places(places or []), reason, source, since_ms(since))
    admin = None if dry_run else AdminClient(url, admin_token)
    results: Counter[str] = Counter()
    run_quietly(_replay(wanted, admin, results, Changes(new_id, to_source)))
    note(", ".join(f"{count} {name}" for name, count in sorted(results.items())) or "no record matches")
    if not dry_run and set(results) - {"accepted", "duplicate"}:
        raise typer.Exit(EXIT_ERROR)


async def _replay(
    wanted: "Wanted", admin: AdminClient | None, results: Counter[str], changes: "Changes"
) -> None:
    """Replay the matching records one after another, those in pieces last; print and count the results."""
    if wanted.places:
        async with _records(wanted) as records:
            missing = wanted.places - {kept.place async for kept in records}
        if missing:
            place = min(missing)
            raise ConfigurationError(f"there is no such record at {place.partition}:{place.offset}")

    async def finish(kept: "Kept", problem: str | None = None) -> None:
        line = await _result(kept, problem, admin, changes)
        results[line["result"]] += 1
        print_rows([line], Format.JSON)

    in_pieces: dict[Any, tuple[Kept, set[int]]] = {}
    async with _records(wanted) as records:
        async for kept in records:
            if kept.pieces == 1:
                await finish(kept)
            else:
                _, numbers = in_pieces.setdefault(kept.whole_id, (kept._replace(content=b""), set()))
                numbers.add(kept.piece)
    for kept, numbers in in_pieces.values():
        await finish(kept, None if wanted.places else _problem_of(kept, numbers))


def _problem_of(kept: "Kept", numbers: set[int]) -> str | None:
    """Return why an event of which these pieces were found is not whole."""
    from dedupe.storage.quarantine_reader import told_missing

    missing = [number for number in range(kept.pieces) if number not in numbers]
    return told_missing(kept.pieces, missing) if missing else None


async def _result(
    kept: "Kept", problem: str | None, admin: AdminClient | None, changes: "Changes"
) -> dict[str, Any]:
    """Return the result of one record, ready if there is no gateway to send it to."""
    from app.ingest.replay import READY, judge

    verdict = judge(kept, changes, problem if admin is None else None)
    if verdict == READY and admin is not None:
        return await replayed(admin, kept, changes)
    return verdict.document(kept)


async def replayed(admin: AdminClient, kept: "Kept", changes: "Changes") -> dict[str, Any]:
    """
    Return the gateway's result for one record, `failed` if it refuses it or after the last try.

    Raises ConfigurationError: it refuses the token.
    """
    from app.ingest.replay import Result

    path = f"/admin/v1/quarantine/{kept.place.partition}/{kept.place.offset}/replay"
    why = ""
    for _ in range(TRIES_MAX):
        try:
            return admin.ask(path, method="POST", new_id=changes.may_renew_id, to_source=changes.to_source)
        except RequestRefusedError as err:
            return Result("failed", str(err)).document(kept)
        except RetriableError as err:
            why = str(err)
            await asyncio.sleep(RETRY_S)
    return Result("failed", why).document(kept)


async def _print(wanted: "Wanted", contains: str | None) -> None:
    """Print the matching records without their events."""
    from dedupe.storage.quarantine_reader import TextSearch

    search = TextSearch(contains or "")
    async with _records(wanted) as records:
        async for kept in records:
            print_rows([found.described() for found in search.take(kept)], Format.JSON)
    print_rows([found.described() for found in search.rest()], Format.JSON)


@asynccontextmanager
async def _store() -> "AsyncIterator[tuple[LogStore | None, LogSettings]]":
    """Yield the log, None if it does not exist yet, and its settings."""
    from app.settings.log import LogSettings
    from app.settings.section import load
    from app.stores import open_for_reading

    settings = load(LogSettings)
    async with open_for_reading(settings) as store:
        if store is None:
            note_no_log(settings.data_dir)
        yield store, settings


@asynccontextmanager
async def _records(wanted: "Wanted") -> "AsyncIterator[AsyncGenerator[Kept]]":
    """Yield the matching records; a log that does not exist yet has none."""
    from dedupe.storage.quarantine_reader import read_quarantine

    async with _store() as (store, settings):
        records = _none() if store is None else read_quarantine(store, settings.quarantine_topic, wanted)
        async with aclosing(records):
            yield records


async def _none() -> "AsyncGenerator[Kept]":
    return
    yield


def _places(texts: list[str]) -> "frozenset[Place]":
    from dedupe.storage.quarantine_reader import Place

    try:
        return frozenset(map(Place.parse, texts))
    except ValueError as err:
        raise typer.BadParameter(str(err)) from None
