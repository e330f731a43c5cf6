"""`gateway send`: made-up events for a running gateway, to see it work."""

from typing import Annotated

import typer

from app.cli.console import EXIT_ERROR, guarded, run_async
from app.cli.options import DEFAULT_INGEST_URL, DuplicateRatio, IngestUrl, Output, WriteKeys, print_document
from app.cli.progress import progress


def send(
    events: Annotated[int, typer.Argument(min=1, metavar="EVENTS", help="How many to send in all.")] = 1_000,
    rate: Annotated[
        float | None, typer.Option(min=0.1, help="Events a second; without it as fast as they are answered.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=2_500, help="Events of a request.")] = 20,
    duplicate_ratio: DuplicateRatio = 0.1,
    conflicts: Annotated[
        float, typer.Option(min=0, max=1, help="Share with the id of an earlier one and another content.")
    ] = 0.0,
    sources: Annotated[
        int,
        typer.Option(min=1, max=100, help="So many sources, where every write key is one: in development."),
    ] = 1,
    write_keys: WriteKeys = None,
    url: IngestUrl = DEFAULT_INGEST_URL,
    output: Output = None,
) -> None:
    """
    Send made-up events of a shop's app to a running gateway, and print what became of them.

    Requests that are refused or not answered are sent again, unchanged, as any client should. Stops by
    itself; Ctrl-C prints what there is. verdicts has what the gateway said: `accepted` (new), `duplicates`,
    and each reason of a rejection, such as `conflict`. Exit codes: 0 every event got its verdict, 1 some got
    none.

    Example: `gateway send`, or `gateway send 100000 --rate 500 --duplicates 0.2 --sources 3`
    """
    if duplicate_ratio + conflicts > 1:
        raise typer.BadParameter("--duplicates and --conflicts are shares of all events: at most 1 together")
    if write_keys and sources > 1:
        raise typer.BadParameter("--sources makes write keys up; give --write-key or --sources")
    keys = write_keys or [f"demo-{number + 1}" for number in range(sources)]

    async def run() -> None:
        import asyncio

        from app.cli.sender import Plan, Sender

        plan = Plan(events, keys, batch, rate, duplicate_ratio, conflicts)
        with progress() as advance:
            sender = Sender(url, plan, lambda done: advance(done, events))
            try:
                await sender.run()
            except asyncio.CancelledError:
                sender.outcome.verdicts["unanswered"] += events - sender.outcome.verdicts.total()
                raise
            except ExceptionGroup as group:
                raise group.exceptions[0] from None
            finally:
                print_document(sender.outcome.summary(), output)
        if sender.outcome.verdicts["unanswered"]:
            raise typer.Exit(EXIT_ERROR)

    guarded(lambda: run_async(run()))
