"""`gateway tail`: events as they are decided."""

import sys
from typing import Annotated, Any

import typer

from app.cli.console import guarded, run_async, tell, write_lines
from app.cli.options import DEFAULT_URL, Format, Output, Token, Url, default_format, print_rows

SILENCE_S = 10.0
"""A gateway says at least every second that it is there."""

COLOURS = {
    "accepted": "green",
    "duplicate": "cyan",
    "conflict": "yellow",
    "rejected": "red",
    "refused": "magenta",
    "unknown": "magenta",
}


def tail(
    source: Annotated[str | None, typer.Option(help="Only events of this source.")] = None,
    id_: Annotated[str | None, typer.Option("--id", help="Only events with this messageId.")] = None,
    verdict: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these: accepted, duplicate, conflict, rejected, refused, unknown; by commas or again."
        ),
    ] = None,
    value: Annotated[
        bool,
        typer.Option("--value", help="Print all of each event, as JSON; needs the token that may write."),
    ] = False,
    output: Output = None,
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
) -> None:
    """
    Follow the events of one worker's clients as they are decided, until Ctrl-C.

    A sample of at most 100 a second; what is left out is counted on stderr. Of refused requests whose events
    nobody knows, one line each. Nothing of an event's content is printed without --value.

    Exit code 1: the gateway does not answer or has ended.

    Example: `gateway tail --source web --verdict conflict,rejected`, or `gateway tail --id 5b1c6a52 -o json`
    """
    form = output or default_format()
    if value and form is Format.TABLE:
        form = Format.JSON

    async def run() -> None:
        from app.cli.admin_client import follow
        from dedupe.errors import RetriableError

        told = {"source": source, "id": id_, "verdict": ",".join(verdict or [])}
        query = {name: said for name, said in told.items() if said}
        path = "/admin/v1/tail/values" if value else "/admin/v1/tail"
        async for line in follow(url, path, query, token=admin_token, silence_s=SILENCE_S):
            match line.pop("kind"):
                case "hello":
                    tell(f"following {url}")
                case "missed":
                    tell(f"{line['events']:,} more were not shown")
                case "event" if form is Format.TABLE:
                    write_lines(_column_line(line).encode())
                case "event":
                    print_rows([line], form)
        raise RetriableError("the gateway has ended the tail: it stops")

    guarded(lambda: run_async(run()))


def _column_line(line: dict[str, Any]) -> str:
    """Return an event as columns: when, what became of it, whose, which, where."""
    from datetime import UTC, datetime

    time = datetime.fromtimestamp(line["time_ms"] / 1000, UTC)
    verdict = f"{line['verdict']:9}"
    if sys.stdout.isatty():
        verdict = typer.style(verdict, fg=COLOURS.get(line["verdict"]))
    place = "" if line["offset"] is None else f"{line['partition']}:{line['offset']}"
    what = " ".join(filter(None, (line["type"], line["event"])))
    said = [line["source"] or "-", line["message_id"] or "-", what, place, line["code"] or ""]
    columns = "  ".join(_printable(column) for column in said if column)
    return f"{time:%H:%M:%S}.{time.microsecond // 1000:03d}  {verdict}  {columns}\n"


def _printable(text: str) -> str:
    """Return a text without what could steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)
