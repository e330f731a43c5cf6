"""`gateway keys`: creates write keys and their entries for the key file. It reads no settings."""

import hashlib
import secrets
import sys
from enum import StrEnum
from typing import Annotated

import typer
import yaml

KEY_BYTES = 16
"""The size of a UUID; in hex, which needs no quoting in URLs, headers and files."""


class Scope(StrEnum):
    """The scopes of a key, see app.auth.write_keys."""

    INGEST = "ingest"
    REPLAY = "replay"


keys = typer.Typer(name="keys", help="Create write keys for the key file.", no_args_is_help=True)


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
