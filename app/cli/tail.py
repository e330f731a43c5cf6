"""`gateway tail`: follows events as they are decided."""

import sys
from typing import Annotated, Any

import typer

from app.cli.admin_client import AdminClient
from app.cli.console import guarded, note, write_lines
from app.cli.options import DEFAULT_URL, Format, Output, Token, Url, default_format, print_rows, printable
from dedupe.model.errors import RetriableError

SILENCE_S = 10.0
"""A gateway sends a line at least every second."""

COLOURS = {
    "accepted": "green",
    "duplicate": "cyan",
    "conflict": "yellow",
    "rejected": "red",
    "refused": "magenta",
    "unknown": "magenta",
}


@guarded
def tail(
    source: Annotated[str | None, typer.Option(help="Only events of this source.")] = None,
    id_: Annotated[str | None, typer.Option("--id", help="Only events with this messageId.")] = None,
    verdict: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these: accepted, duplicate, conflict, rejected, refused, unknown; a list or repeated."
        ),
    ] = None,
    value: Annotated[
        bool,
        typer.Option("--value", help="Print whole events, as JSON; requires the writing token."),
    ] = False,
    output: Output = None,
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
) -> None:
    """
    Follow the events of one worker's clients as they are decided, until Ctrl-C.

    It shows a sample of at most 100 events a second, and prints the number of others on stderr. A refused
    request whose events are unknown is one line. Contents of events are printed only with --value.

    Exit code 1: the gateway does not answer or has ended.

    Example: `gateway tail --source web --verdict conflict,rejected`, or `gateway tail --id 5b1c6a52 -o json`
    """
    form = output or default_format()
    if value and form is Format.TABLE:
        form = Format.JSON

    lines = AdminClient(url, admin_token).follow(
        "/admin/v1/tail/values" if value else "/admin/v1/tail",
        silence_s=SILENCE_S,
        source=source,
        id=id_,
        verdict=",".join(verdict or []) or None,
    )
    for line in lines:
        match line.pop("kind"):
            case "hello":
                note(f"following {url}")
            case "missed":
                note(f"{line['events']:,} more were not shown")
            case "event" if form is Format.TABLE:
                write_lines(_column_line(line).encode())
            case "event":
                print_rows([line], form)
    raise RetriableError("the gateway has ended the tail: it stops")


def _column_line(line: dict[str, Any]) -> str:
    """Return an event as columns: time, verdict, source, message id, type and event, place, code."""
    from datetime import UTC, datetime

    time = datetime.fromtimestamp(line["time_ms"] / 1000, UTC)
    verdict = f"{line['verdict']:9}"
    if sys.stdout.isatty():
        verdict = typer.style(verdict, fg=COLOURS.get(line["verdict"]))
    place = "" if line["offset"] is None else f"{line['partition']}:{line['offset']}"
    what = " ".join(filter(None, (line["type"], line["event"])))
    code = line["code"] or ""
    if differs := line.get("differs"):
        code += f" in {', '.join(differs)}"
    fields = [line["source"] or "-", line["message_id"] or "-", what, place, code]
    columns = "  ".join(printable(column) for column in fields if column)
    return f"{time:%H:%M:%S}.{time.microsecond // 1000:03d}  {verdict}  {columns}\n"
