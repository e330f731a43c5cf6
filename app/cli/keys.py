"""`gateway keys`: creates write keys, lists those in use, and ends those that have vanished from the file."""

import hashlib
import secrets
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml

from app.cli.admin_client import AdminClient
from app.cli.console import guarded, note
from app.cli.options import DEFAULT_URL, Format, Output, Token, Url, default_format, print_rows

PATH = "/admin/v1/write-keys"

KEY_BYTES = 16
"""The size of a UUID; in hex, which needs no quoting in URLs, headers and files."""

PREFIX_DIGITS_MIN = 6
"""Of a key's SHA-256, to name it."""


class Scope(StrEnum):
    """The scopes of a key, see app.auth.write_keys."""

    INGEST = "ingest"
    REPLAY = "replay"


keys = typer.Typer(
    name="keys",
    help="List write keys, add, rotate and remove them, or end one that has vanished.",
    invoke_without_command=True,
)


@keys.callback()
def keys_or_list(
    context: typer.Context, url: Url = DEFAULT_URL, admin_token: Token = None, output: Output = None
) -> None:
    """List, create and end write keys; without a command, `gateway keys list`."""
    if context.invoked_subcommand is None:
        list_keys(url, admin_token, output)


@keys.command(name="list")
@guarded
def list_keys(url: Url = DEFAULT_URL, admin_token: Token = None, output: Output = None) -> None:
    """
    Print one line for each write key of a running gateway or group, and of those that have vanished.

    A line has the first digits of the key's SHA-256, its source and name, and its state: `enabled`,
    `disabled`, or `removed`: it has vanished from the key file and still works, since when, and until when.
    Further its last use, its requests and how many of them were refused, since the workers' starts, or since
    it vanished.

    Example: `gateway keys`, or `gateway keys list -o json`
    """
    document = AdminClient(url, admin_token).ask(PATH)
    rows, chosen = document["keys"], output or default_format()
    if chosen is Format.TABLE:
        rows = [
            {
                "key": row["key_sha256"],
                "source": row["source"],
                "name": row["name"],
                "state": row["state"],
                "since": _time(row["since_ms"]),
                "until": _time(row["until_ms"]),
                "last used": _time(row["last_used_ms"]),
                "requests": row["requests"],
                "refused": row["refused"],
            }
            for row in rows
        ]
    print_rows(rows, chosen)
    if left_out := document.get("left_out"):  # older gateways do not say it
        note(f"{left_out:,} more keys are in use")
    _note_silent(document)


@keys.command()
@guarded
def forget(
    name: Annotated[
        str, typer.Argument(help="A source, or the first digits of a key's SHA-256 as `list` shows them.")
    ],
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
) -> None:
    """
    End keys that have vanished from the key file, at once: what is sent with them is refused by 401.

    Apps that still use such a key lose what they send. Name a source to end all its vanished keys. Keys in
    the file are not touched: `enabled: false` there ends them.

    Example: `gateway keys forget ios`
    """
    document = AdminClient(url, admin_token).ask(f"{PATH}/forget", method="POST", name=name)
    note(f"forgotten: {', '.join(document['sources'])}")
    _note_silent(document)


@keys.command()
def new(
    source: Annotated[str, typer.Option(help="Id of the source; never change it.")] = "web",
    name: Annotated[str, typer.Option(help="Name of the source for people.")] = "",
    scopes: Annotated[
        list[Scope] | None,
        typer.Option(
            "--scope",
            help="Scope: `ingest`, the default, for apps; `replay` to send stored events again, never for "
            "apps. May be given twice.",
        ),
    ] = None,
) -> None:
    """
    Print a new write key and its entry for the key file.

    The entry has only the key's SHA-256: the key itself is not shown again.

    Example: `gateway keys new --source ios --name "Our app for iOS"`
    """
    write_key = secrets.token_hex(KEY_BYTES)
    entry: dict[str, object] = {"key_sha256": digest_of(write_key), "source": source}
    if name:
        entry["name"] = name
    if scopes:
        entry["scopes"] = [scope.value for scope in scopes]
    print(f"# write key, for the app that sends: {write_key}")
    print("# entry, for the file in GATEWAY_WRITE_KEYS_FILE:")
    print(yaml.safe_dump([entry], sort_keys=False, allow_unicode=True), end="")


@keys.command(name="hash")
def hash_key(
    write_key: Annotated[str | None, typer.Argument(help="The key; without it, one line of stdin.")] = None,
) -> None:
    """
    Print the SHA-256 of a write key, for `key_sha256` in the key file.

    Example: `gateway keys hash < key.txt`
    """
    if write_key is None:
        write_key = sys.stdin.readline().rstrip("\r\n")
    if not write_key:
        raise typer.BadParameter("the key is empty")
    if ":" in write_key:
        raise typer.BadParameter("the key has a colon, where Basic authorization would cut it")
    print(digest_of(write_key))


def digest_of(write_key: str) -> str:
    """Return the SHA-256 of a key in hex."""
    return hashlib.sha256(write_key.encode()).hexdigest()


def _time(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def _note_silent(document: Mapping[str, Any]) -> None:
    for worker, why in document["silent"].items():
        note(f"worker {worker} does not answer: {why}")
