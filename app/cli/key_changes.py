"""`gateway keys add|rotate|remove`: changes of the write key file, or the patch of its Secret."""

import secrets
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.console import guarded, note
from app.cli.key_edits import Entry, KeyText, patch_of, replace_file
from app.cli.keys import KEY_BYTES, PREFIX_DIGITS_MIN, Scope, digest_of
from dedupe.model.errors import ConfigurationError

GRACE = "GATEWAY_WRITE_KEYS_GRACE (1 day by default)"

File = Annotated[
    Path | None,
    typer.Option("--file", envvar="GATEWAY_WRITE_KEYS_FILE", help="The key file; JSON or YAML."),
]


@guarded
def add(
    source: Annotated[str, typer.Option(help="Id of the source; never change it.")],
    name: Annotated[str, typer.Option(help="Name of the source for people.")] = "",
    scopes: Annotated[
        list[Scope] | None, typer.Option("--scope", help="As of `gateway keys new`; may be given twice.")
    ] = None,
    file: File = None,
) -> None:
    """
    Add a new write key to the key file, and print it: it is not shown again.

    The file gets the key's SHA-256 alone; the gateway uses it within seconds. If the file is read-only, as a
    mounted Secret is, nothing is changed and the command that patches the Secret is printed.

    Example: `gateway keys add --source ios --name "Our app for iOS"`
    """
    text = _text_of(file)
    entry: dict[str, Any] = {"source": source}
    if name:
        entry["name"] = name
    if scopes:
        entry["scopes"] = [scope.value for scope in scopes]
    write_key, entry = _new_key(entry)
    _change(text, text.changed({}, [entry]))
    typer.echo(write_key)


@guarded
def rotate(
    source: Annotated[str, typer.Argument(help="The source whose keys are replaced by a new one.")],
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the old keys in the file, until you remove them.")
    ] = False,
    file: File = None,
) -> None:
    """
    Give a source a new write key instead of those that it has, and print it: it is not shown again.

    The new key has name, scopes and quotas of the newest old one. Old keys vanish from the file: they go on
    working, with an alert, for GATEWAY_WRITE_KEYS_GRACE, in which apps have to get the new one. Apps on
    phones take longer: use --keep, and `gateway keys remove` once `gateway keys` shows no more use.

    Example: `gateway keys rotate ios --keep`
    """
    text = _text_of(file)
    old = [
        number
        for number, listed in enumerate(text.entries)
        if listed.fields["source"] == source and listed.fields.get("enabled", True)
    ]
    if not old:
        raise ConfigurationError(f"no enabled key of source {source!r} is in the file")
    newest = text.entries[old[-1]].fields
    write_key, entry = _new_key({name: value for name, value in newest.items() if name not in _KEY_FIELDS})
    _change(text, text.changed({} if keep else dict.fromkeys(old), [entry]))
    if not keep:
        note(f"{len(old)} old keys work on for {GRACE}")
    typer.echo(write_key)


@guarded
def remove(
    name: Annotated[
        str, typer.Argument(help="A source, all of whose keys go, or the first digits of a key's SHA-256.")
    ],
    now: Annotated[
        bool, typer.Option("--now", help="End them at once: apps that still use them lose what they send.")
    ] = False,
    file: File = None,
) -> None:
    """
    Take keys out of the key file.

    They go on working, with an alert, for GATEWAY_WRITE_KEYS_GRACE, since SDKs drop what they send with an
    unknown key. With --now they stay in the file as `enabled: false`.

    Example: `gateway keys remove 3f2a91`
    """
    text = _text_of(file)
    named = [number for number, listed in enumerate(text.entries) if _is_named(listed.fields, name)]
    if not named:
        raise ConfigurationError(f"no key in the file is named by {name!r}")
    if not now and len(named) == len(text.entries):
        raise ConfigurationError("a gateway needs one key: add another one first, or end these with --now")
    places: dict[int, Entry | None] = dict.fromkeys(named)
    if now:
        places = {number: {**text.entries[number].fields, "enabled": False} for number in named}
    _change(text, text.changed(places))
    note(f"{len(named)} keys " + ("end at once" if now else f"work on for {GRACE}"))


def add_changes(keys: typer.Typer) -> None:
    """Add the commands to `gateway keys`."""
    for command in (add, rotate, remove):
        keys.command()(command)


_KEY_FIELDS = ("key", "key_sha256", "enabled")


def _new_key(fields: Entry) -> tuple[str, dict[str, Any]]:
    write_key = secrets.token_hex(KEY_BYTES)
    return write_key, {"key_sha256": digest_of(write_key), **fields}


def _is_named(entry: Entry, name: str) -> bool:
    digest = str(entry.get("key_sha256") or digest_of(str(entry.get("key"))))
    is_prefix = len(name) >= PREFIX_DIGITS_MIN and digest.lower().startswith(name.lower())
    return entry["source"] == name or is_prefix


def _text_of(file: Path | None) -> KeyText:
    if file is None:
        raise ConfigurationError("name the key file by --file or GATEWAY_WRITE_KEYS_FILE")
    return KeyText(file)


def _change(text: KeyText, changed: str) -> None:
    """Write the file; if it is read-only, print how to patch its Secret instead."""
    try:
        replace_file(text.path, changed)
    except OSError as err:
        note(
            f"{text.path} cannot be written ({err.strerror}): nothing is changed. If it is a mounted Secret:"
        )
        typer.echo(f"kubectl patch secret SECRET --type merge -p {shlex.quote(patch_of(text.path, changed))}")
