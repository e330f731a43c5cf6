"""
The write key of a request, and its source. app.auth.key_file has the keys.

A write key identifies a source, but does not authenticate it, since apps that contain it can be decompiled.
Keys are stored and looked up by their SHA-256, so the time of a look-up reveals nothing about a key.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote_plus

from starlette.types import Scope

from app.auth.quotas import Allowance, QuotaPolicy
from app.http.client_address import address_group
from app.http.errors import (
    DisabledWriteKeyError,
    InvalidWriteKeyError,
    ScopeMissingError,
    WriteKeyMissingError,
)
from app.http.request_context import CONTEXT, RequestContext
from app.http.sdk_library import library_of

WRITE_KEY_BYTES_MAX = 255
"""The limit of an open key, which is its own source, and so part of every record."""

OPEN_KEYS_MAX = 10_000
"""The limit of cached allowances of open keys."""


_QUERY_KEY = re.compile(rb"writeKey=(?<![^&]writeKey=)([^&]{1,1024})")
"""The rest of a query is not decoded before the source is known."""

INGEST: Final = "ingest"
REPLAY: Final = "replay"
"""Scopes of a write key: send events; send stored ones again, with their fingerprints and sessions."""


class Source(NamedTuple):
    """The sender of events; two sources share no ids."""

    id: str
    name: str
    enabled: bool = True
    allowance: Allowance | None = None  # None without a limit
    scopes: frozenset[str] = frozenset({INGEST})

    def check(self, scope: str) -> None:
        """Raise ScopeMissingError if the key lacks the scope."""
        if scope not in self.scopes:
            raise ScopeMissingError


class WriteKeys(Protocol):
    """The sources by write key."""

    def source_of(self, write_key: str) -> Source:
        """Return the enabled source of a key. Raises InvalidWriteKeyError, DisabledWriteKeyError."""

    def source_of_digest(self, digest: bytes) -> Source | None:
        """Return the source of the key with this SHA-256, None if it is not good for new events now."""

    def allowance_of(self, source: str) -> Allowance | None:
        """Return what is left of the quota of a source's first good key; None without one, or a quota."""

    def note_unknown(self, write_key: str, address: str, library: str) -> None:
        """Count a request with an unknown key, from an address group and a library."""

    def note_refused(self, write_key: str) -> None:
        """Count a request that was refused, for its key if that is known."""


class OpenKeys:
    """The keys of development without a key file: every key is its own source, without the scope replay."""

    def __init__(self, policy: QuotaPolicy) -> None:
        """The default of `policy` is the quota of every key."""
        self._policy = policy
        self._source = lru_cache(OPEN_KEYS_MAX)(self._new_source)

    def source_of(self, write_key: str) -> Source:
        return self._source(write_key)

    def source_of_digest(self, digest: bytes) -> Source | None:
        """Return None: a digest does not tell the key, which is the source."""
        return None

    def allowance_of(self, source: str) -> Allowance | None:
        return self._source(source).allowance

    def note_unknown(self, write_key: str, address: str, library: str) -> None:
        """Count nothing: only a key that is too long is unknown."""

    def note_refused(self, write_key: str) -> None:
        """Count nothing: there is no list of keys."""

    def _new_source(self, write_key: str) -> Source:
        if len(write_key.encode()) > WRITE_KEY_BYTES_MAX:
            raise InvalidWriteKeyError
        return Source(write_key, write_key, allowance=self._policy.allowance(self._policy.default, write_key))


def log_in(write_keys: WriteKeys, write_key: str, scope: Scope) -> Source:
    """
    Return the source of a request's key; note who sends an unknown one.

    Raises:
        InvalidWriteKeyError, DisabledWriteKeyError: the key has no enabled source.
    """
    context: RequestContext = scope[CONTEXT]
    if context.write_key == write_key and isinstance(context.account, Source):
        return context.account
    context.write_key, context.account = write_key, None
    try:
        source = write_keys.source_of(write_key)
    except DisabledWriteKeyError:
        raise
    except InvalidWriteKeyError:
        client = scope["client"]
        address = address_group(client[0]) if client else "unknown"
        write_keys.note_unknown(write_key, address, library_of(context.headers))
        raise
    context.account, context.source = source, source.id
    return source


def key_in_head(headers: Mapping[bytes, bytes], query: bytes) -> str:
    """Return the first write key outside of the body, as find_write_key does; "" if there is none."""
    return (
        _basic_user(headers.get(b"authorization", b""))
        or _text(headers.get(b"x-write-key", b"")).partition(":")[0]
        or _query_key(query)
    )


def find_write_key(headers: Mapping[bytes, bytes], query: bytes, body: Mapping[str, Any] | None) -> str:
    """
    Return the write key of a request: the first one in the order of places.

    Args:
        headers: by lower-case name.
        query: the raw query string.
        body: the body's top level, if it is an object.

    Raises:
        WriteKeyMissingError: no place has a non-empty key.
    """
    write_key = key_in_head(headers, query) or own_key(body)
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
    match = _QUERY_KEY.search(query)
    return unquote_plus(match[1].decode("ascii", "replace")) if match else ""


def own_key(thing: object) -> str:
    """Return the write key in an object of the body; "" if there is none."""
    write_key = thing.get("writeKey") if isinstance(thing, dict) else None
    return write_key if isinstance(write_key, str) else ""


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
