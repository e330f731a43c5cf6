"""`gateway keys`: makes write keys and their entries for the key file. It reads no settings."""

import hashlib
import secrets
import sys
from enum import StrEnum
from typing import Annotated

import typer
import yaml

KEY_BYTES = 16
"""As random as a UUID; hex, so that it needs no quoting in URLs, headers and files."""


class Scope(StrEnum):
    """What a key may do; app.auth.write_keys defines each."""

    INGEST = "ingest"
    REPLAY = "replay"


keys = typer.Typer(name="keys", help="Make write keys for the key file.", no_args_is_help=True)


@keys.command()
def new(
    source: Annotated[
        str, typer.Option(help="Id of the source that sends with it; never change it.")
    ] = "web",
    name: Annotated[str, typer.Option(help="What people call that source.")] = "",
    scopes: Annotated[
        list[Scope] | None,
        typer.Option(
            "--scope",
            help="What it may do: `ingest`, the default, is for apps; `replay`, to send stored events again, "
            "never stands in an app. May be given twice.",
        ),
    ] = None,
) -> None:
    """
    Print a new write key and its entry for the key file.

    The entry holds the key's SHA-256 only: the key itself is shown this once.

    Example: `gateway keys new --source ios --name "Our app for iOS"`
    """
    write_key = secrets.token_hex(KEY_BYTES)
    entry: dict[str, object] = {"key_sha256": digest_of(write_key), "source": source}
    if name:
        entry["name"] = name
    if scopes:
        entry["scopes"] = [scope.value for scope in scopes]
    print(f"# write key, for the app that sends: {write_key}")
    print("# entry, for the file that GATEWAY_WRITE_KEYS_FILE names:")
    print(yaml.safe_dump([entry], sort_keys=False, allow_unicode=True), end="")


@keys.command(name="hash")
def hash_key(
    write_key: Annotated[str | None, typer.Argument(help="The key; without it, one line of stdin.")] = None,
) -> None:
    """
    Print the SHA-256 of a write key, as `key_sha256` in the key file wants it.

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
    """Return what the key file may hold instead of a key."""
    return hashlib.sha256(write_key.encode()).hexdigest()
