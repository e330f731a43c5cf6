"""
Write keys: which one counts for a request, and whose it is.

A write key says who sends; it stands in apps that anybody can take apart, so it identifies and
does not authenticate. Keys are held and looked up by their SHA-256: how long a look-up takes tells
nothing about a key, since nobody can choose digests that resemble one, so no slower comparison is
needed; and keys that the operator stored as a digest only are never known to the process.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, Self
from urllib.parse import parse_qsl

import yaml
from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError, model_validator

from app.errors import DisabledWriteKeyError, InvalidWriteKeyError, WriteKeyMissingError
from dedupe.errors import ConfigurationError

WRITE_KEY_BYTES_MAX = 255
"""An open key is its source, which stands in every record and every identity."""


class Source(NamedTuple):
    """Who sends; ids of two sources never meet."""

    id: str
    name: str
    enabled: bool = True


class WriteKeys(Protocol):
    """Knows whose a write key is."""

    def source_of(self, write_key: str) -> Source:
        """Return the enabled source of a key. Raises InvalidWriteKeyError, DisabledWriteKeyError."""


class OpenKeys:
    """Development without a key file: every key is its own source."""

    def source_of(self, write_key: str) -> Source:
        """See WriteKeys."""
        if len(write_key.encode()) > WRITE_KEY_BYTES_MAX:
            raise InvalidWriteKeyError
        return Source(write_key, write_key)


class FileKeys:
    """The keys of a key file."""

    def __init__(self, sources: Mapping[bytes, Source]) -> None:
        """Take the sources by the SHA-256 of their keys; several keys may share a source."""
        self._sources = dict(sources)

    def __len__(self) -> int:
        return len(self._sources)

    def source_of(self, write_key: str) -> Source:
        """See WriteKeys."""
        source = self._sources.get(hashlib.sha256(write_key.encode()).digest())
        if source is None:
            raise InvalidWriteKeyError
        if not source.enabled:
            raise DisabledWriteKeyError
        return source


def read_key_file(path: Path) -> FileKeys:
    """
    Read a YAML or JSON file: a list of entries, or an object with the list as `keys`.

    An entry has `key` or `key_sha256` (64 hex digits), `source` (the id that identities are made
    of: never change it), and may have `name` and `enabled`.

    Raises:
        ConfigurationError: one sentence that says what is wrong and where, never a key.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as err:
        raise ConfigurationError(f"write keys file {path} cannot be read: {err.strerror}") from err
    except (ValueError, yaml.YAMLError) as err:
        raise ConfigurationError(f"write keys file {path} is not valid YAML or JSON{_place(err)}") from None
    entries = document.get("keys") if isinstance(document, dict) else document
    try:
        return FileKeys(_sources(_ENTRIES.validate_python(entries)))
    except ValidationError as err:
        problem = err.errors(include_input=False, include_url=False)[0]
        place = "".join(
            f", entry {part + 1}" if isinstance(part, int) else f", {part}" for part in problem["loc"]
        )
        message = problem["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"write keys file {path}{place}: {message}") from None
    except ValueError as err:
        raise ConfigurationError(f"write keys file {path}: {err}") from None


def find_write_key(
    headers: Mapping[bytes, bytes], query: bytes, body: Mapping[str, Any] | None, first_event: object
) -> str:
    """
    Return the write key that decides for the whole request: the first of the places in order.

    Args:
        headers: by lower-case name.
        query: the raw query string.
        body: the body's top level, if it is an object.
        first_event: the first event of the batch, if there is one.

    Raises:
        WriteKeyMissingError: it is in none of them. A place with anything but a non-empty text
            counts as one without a key.
    """
    write_key = (
        _basic_user(headers.get(b"authorization", b""))
        or _text(headers.get(b"x-write-key", b"")).partition(":")[0]
        or _query_key(query)
        or _own_key(body)
        or _own_key(first_event)
    )
    if not write_key:
        raise WriteKeyMissingError
    return write_key


def _basic_user(authorization: bytes) -> str:
    scheme, _, credentials = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        return ""
    try:
        return _text(base64.b64decode(credentials)).partition(":")[0]
    except binascii.Error:
        return ""


def _query_key(query: bytes) -> str:
    if b"writeKey" not in query:
        return ""
    pairs = parse_qsl(query.decode("ascii", "replace"), errors="replace")
    return next((value for name, value in pairs if name == "writeKey"), "")


def _own_key(thing: object) -> str:
    write_key = thing.get("writeKey") if isinstance(thing, dict) else None
    return write_key if isinstance(write_key, str) else ""


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


class _Entry(BaseModel):
    """One entry of a key file."""

    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

    key: Annotated[str, StringConstraints(min_length=1)] | None = None
    key_sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    source: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    name: str | None = None
    enabled: bool = True

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if (self.key is None) == (self.key_sha256 is None):
            raise ValueError("needs either key or key_sha256")
        return self

    @property
    def digest(self) -> bytes:
        """SHA-256 of the key."""
        if self.key_sha256 is not None:
            return bytes.fromhex(self.key_sha256)
        assert self.key is not None
        return hashlib.sha256(self.key.encode()).digest()


_ENTRIES = TypeAdapter(list[_Entry], config=ConfigDict(hide_input_in_errors=True))


def _sources(entries: list[_Entry]) -> dict[bytes, Source]:
    sources: dict[bytes, Source] = {}
    for number, entry in enumerate(entries, start=1):
        if entry.digest in sources:
            raise ValueError(f"entry {number} repeats the key of an earlier one")
        sources[entry.digest] = Source(entry.source, entry.name or entry.source, entry.enabled)
    return sources


def _place(err: Exception) -> str:
    """Where a parser stopped; its own message could quote a key."""
    mark = getattr(err, "problem_mark", None)
    line = getattr(err, "lineno", None) or (mark.line + 1 if mark is not None else None)
    return f", line {line}" if line else ""
