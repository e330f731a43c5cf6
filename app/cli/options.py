"""
Common options of commands, and the output of results.

Its imports are fast, so that `--help` is.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.console import write_lines

DEFAULT_URL = "http://127.0.0.1:9090"
"""The admin port of `gateway serve` by default."""

Url = Annotated[
    str,
    typer.Option(
        envvar="GATEWAY_ADMIN_URL", help="Admin URL of a running gateway, or of any worker of a group."
    ),
]


def _or_that_of_the_file(token: str | None) -> str | None:
    """Return the token, or that of the file which a gateway beside the command reads."""
    path = os.environ.get("GATEWAY_ADMIN_TOKEN_FILE")
    if token is not None or not path:
        return token
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as err:
        raise typer.BadParameter(f"GATEWAY_ADMIN_TOKEN_FILE is {path}, which cannot be read: {err}") from None


Token = Annotated[
    str | None,
    typer.Option(
        envvar="GATEWAY_ADMIN_TOKEN",
        callback=_or_that_of_the_file,
        help="Token of the admin port, if it requires one; without it, that of GATEWAY_ADMIN_TOKEN_FILE.",
    ),
]

Since = Annotated[
    str | None,
    typer.Option(help="Only events that arrived after a time: `2h`, `7d`, or 2026-01-31T12:00:00Z."),
]


class Format(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[
    Format | None,
    typer.Option(
        "--output",
        "-o",
        help="`table` for people, `json` (one line each) or `yaml` for programs. The default is a table on a "
        "terminal, and JSON elsewhere.",
    ),
]

Screen = Annotated[
    Format | None,
    typer.Option(
        "--output",
        "-o",
        help="`table` for people, the default, of 80 columns; `json` (one line each) or `yaml` for programs.",
    ),
]
"""The option of commands that people ask, also where they have no terminal, as within a pod."""

WIDTH = 80
"""Of a screen."""

Row = Mapping[str, Any]


def print_rows(rows: Sequence[Row], output: Format | None) -> None:
    """
    Print a list: a table with a line each, a JSON line each, or one YAML list.

    A table shows the columns of all rows, in the order in which they first come up; null is empty, and
    lists are joined by commas.
    """
    match output or default_format():
        case Format.TABLE:
            write_lines(table_of(rows).encode())
        case Format.JSON:
            import orjson

            write_lines(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
        case Format.YAML:
            import yaml

            write_lines(yaml.safe_dump(list(rows), sort_keys=False, allow_unicode=True).encode())


def print_document(document: Row, output: Format | None) -> None:
    """Print one document: a table of its fields, those of a part by dotted names, one JSON line, or YAML."""
    match output or default_format():
        case Format.TABLE:
            fields = [{"field": name, "value": value} for name, value in _flat(document)]
            write_lines(table_of(fields, has_head=False).encode())
        case Format.JSON:
            print_rows([document], Format.JSON)
        case Format.YAML:
            import yaml

            write_lines(yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True).encode())


def since_ms(text: str | None) -> int:
    """Return a point of time in ms: an ISO 8601 one, or a duration before now; 0 for none."""
    from app.settings.units import parse_duration

    if text is None:
        return 0
    try:
        return round((time.time() - parse_duration(text)) * 1000)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter("--since must be a duration such as 2h or an ISO 8601 time") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def default_format() -> Format:
    """Return a table for a terminal, and JSON elsewhere."""
    return Format.TABLE if sys.stdout.isatty() else Format.JSON


def table_of(rows: Sequence[Row], *, has_head: bool = True) -> str:
    """Return rows as aligned columns, numbers to the right; each line ends with a line feed."""
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [[_cell(row.get(name)) for name in names] for row in rows]
    if has_head:
        lines.insert(0, [name.upper().replace("_", " ") for name in names])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    is_right = [has_head and any(isinstance(row.get(name), int | float) for row in rows) for name in names]
    return "".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_right, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )


def _flat(document: Row, prefix: str = "") -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = []
    for name, value in document.items():
        if isinstance(value, Mapping):
            fields += _flat(value, f"{prefix}{name}.")
        else:
            fields.append((prefix + name, value))
    return fields


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}" if abs(value) < 1e6 else f"{value:,.0f}"
        case Mapping():
            return ",".join(f"{name}={_cell(each)}" for name, each in value.items())
        case list() | tuple():
            return ",".join(map(_cell, value))
        case _:
            return printable(str(value))


def printable(text: str) -> str:
    """Return a text without control characters, which could steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)
