"""`gateway tail`: follows events as they are decided."""

import shutil
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from app.cli.admin_client import AdminClient
from app.cli.console import guarded, note, write_lines
from app.cli.options import (
    DEFAULT_URL,
    WIDTH,
    Format,
    Output,
    Token,
    Url,
    default_format,
    print_rows,
    printable,
)
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
    columns = Columns()
    for line in lines:
        match line.pop("kind"):
            case "hello":
                note(f"following {url}")
                if form is Format.TABLE:
                    write_lines(columns.head().encode())
            case "missed":
                note(f"{line['events']:,} more were not shown")
            case "event" if form is Format.TABLE:
                write_lines(columns.line(line).encode())
            case "event":
                print_rows([line], form)
    raise RetriableError("the gateway has ended the tail: it stops")


HEAD = ("TIME", "VERDICT", "SOURCE", "EVENT", "MESSAGE ID", "WHERE OR WHY")
WIDTHS = (12, 9, 10, 18, 12)
"""Of 80 columns; the message id gets what a terminal has more, up to ID_CHARS_MAX."""

ID_CHARS_MAX = 36


class Columns:
    """Prints events as a table, whose columns fit into a terminal."""

    def __init__(self) -> None:
        spare = shutil.get_terminal_size().columns - WIDTH
        self._widths = (*WIDTHS[:-1], min(ID_CHARS_MAX, WIDTHS[-1] + max(0, spare)))
        self._rest = max(WIDTH, WIDTH + spare) - sum(self._widths) - 2 * len(self._widths)
        self._is_coloured = sys.stdout.isatty()

    def head(self) -> str:
        """Return the line of names."""
        return self._line(HEAD)

    def line(self, event: dict[str, Any]) -> str:
        """Return an event."""
        from datetime import UTC, datetime

        time = datetime.fromtimestamp(event["time_ms"] / 1000, UTC)
        what = " ".join(filter(None, (event["type"], event["event"])))
        rest = "" if event["offset"] is None else f"{event['partition']}:{event['offset']}"
        if event["code"]:
            differs = event.get("differs")
            rest = f"{event['code']} in {', '.join(differs)}" if differs else event["code"]
        cells = (
            f"{time:%H:%M:%S}.{time.microsecond // 1000:03d}",
            event["verdict"],
            event["source"] or "-",
            what,
            event["message_id"] or "-",
            rest,
        )
        return self._line(tuple(map(printable, cells)), COLOURS.get(event["verdict"]))

    def _line(self, cells: Sequence[str], colour: str | None = None) -> str:
        *columns, rest = cells
        fitted = [_fitted(cell, width) for cell, width in zip(columns, self._widths, strict=True)]
        if colour and self._is_coloured:
            fitted[1] = typer.style(fitted[1], fg=colour)
        return "  ".join([*fitted, _cut(rest, self._rest)]).rstrip() + "\n"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _fitted(text: str, width: int) -> str:
    return _cut(text, width).ljust(width)
