"""
What a request says of its client session: headers, or fields at the body's top level. Pure.

Only the native path looks for them; docs/http-api.md has the table.
"""

import base64
import binascii
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeGuard, TypeVar

from app.http import SessionFieldsConflictError, SessionFieldsInvalidError
from app.ingest.payload import Payload
from dedupe.identity import Identity
from dedupe.record import SESSION_STRUCT
from dedupe.sessions import U64_MAX
from dedupe.types import Session, session_of

CLIENT, SESSION, EPOCH, ACKNOWLEDGED = (
    b"gateway-client",
    b"gateway-session",
    b"gateway-session-epoch",
    b"gateway-acknowledged-through",
)
"""Headers, in the order of FIELDS."""

STORED = b"gateway-sessions"
"""Trusted like Gateway-Fingerprints: it names sessions by their hashes, anybody's."""

FIELDS = ("client", "session", "epoch", "acknowledgedThrough")
SEQUENCE, FIRST_SEQUENCE = "sequence", "firstSequence"

KSUID_MAX = "aWgEPTl1tmebfsQzFP4bxwgy80V"

Value = TypeVar("Value")

_CLIENT = re.compile(r"[\x21-\x7e]{1,100}")
_KSUID = re.compile(r"[0-9A-Za-z]{27}")
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,19}")


class ClientSession(NamedTuple):
    """The client session of one request."""

    client: str
    session: str
    epoch: int  # 0: none
    acknowledged_through: int
    first_sequence: int | None  # of the first item, if items need not say theirs
    own_fields: frozenset[str]
    """Of each item: what is no part of what it says, since it says where the item stands."""
    client_hash: bytes
    session_hash: bytes

    def at(self, index: int, item: Mapping[str, Any]) -> Session | None:
        """Return where the item at a place stands in the session, or None if nothing valid says so."""
        sequence = self.sequence_of(index, item)
        if sequence is None:
            return None
        return Session(self.client_hash, self.session_hash, sequence, self.epoch, self.acknowledged_through)

    def places(self, first: int, items: Sequence[Mapping[str, Any]]) -> list[Session] | None:
        """Return where each item stands, the first of them being at place `first`; None if one is nowhere."""
        begin = self.first_sequence
        if begin is not None and not any(SEQUENCE in item for item in items):
            begin += first
            sequences: Iterable[int | None] = range(begin, begin + len(items))
        else:
            sequences = [self.sequence_of(index, item) for index, item in enumerate(items, first)]
            if None in sequences:
                return None
        columns = repeat(self.client_hash), repeat(self.session_hash), sequences
        rest = repeat(self.epoch), repeat(self.acknowledged_through), repeat(None)
        return list(map(session_of, zip(*columns, *rest, strict=False)))

    def sequence_of(self, index: int, item: Mapping[str, Any]) -> int | None:
        """Return the sequence of the item at a place, u64 from 1, or None if it has no valid one."""
        sequence = item.get(SEQUENCE)
        if sequence is None and self.first_sequence is not None:
            return self.first_sequence + index
        return sequence if _is_u64(sequence) and sequence > 0 else None


def client_session_of(
    headers: Mapping[bytes, bytes], payload: Payload, identity: Identity, source: str
) -> ClientSession | None:
    """
    Return the request's client session, None if it has none.

    Raises:
        SessionFieldsInvalidError: a field is malformed, or client or session is missing.
        SessionFieldsConflictError: header and body differ.
    """
    top = payload.top or {}
    in_head = any(name in headers for name in (CLIENT, SESSION, EPOCH, ACKNOWLEDGED))
    in_body = top.get("client") is not None or top.get("session") is not None
    if not in_head and not in_body:
        return None
    client = client_of(headers, top)
    session = _one_of(_ksuid(_text_in(headers, SESSION)), _ksuid(top.get("session")), "session")
    if client is None or session is None:
        raise SessionFieldsInvalidError(told="client and session must both be given")
    epoch = _one_of(_number_in(headers, EPOCH), _u64(top, "epoch"), "epoch")
    if epoch == 0:
        raise SessionFieldsInvalidError(told="epoch counts from 1")
    acknowledged = _one_of(
        _number_in(headers, ACKNOWLEDGED), _u64(top, "acknowledgedThrough"), "acknowledgedThrough"
    )
    is_single = payload.top is not None and not payload.shared
    return ClientSession(
        client,
        session,
        epoch or 0,
        acknowledged or 0,
        _first_sequence(payload.shared, len(payload.items)),
        frozenset({SEQUENCE, *FIELDS}) if is_single else frozenset({SEQUENCE}),
        identity.client_hash(source, client),
        identity.session_hash(source, client, session),
    )


def stored_sessions(headers: Mapping[bytes, bytes], count: int) -> list[Session | None]:
    """
    Return the client sessions that stored records belong to; empty without the header.

    Raises SessionFieldsInvalidError.
    """
    header = headers.get(STORED)
    if header is None:
        return []
    try:
        sessions = [_stored_session(part.strip()) for part in header.split(b",")]
    except (binascii.Error, struct.error):
        sessions = []
    if len(sessions) != count:
        raise SessionFieldsInvalidError(
            told="Gateway-Sessions must have bytes 34-89 of each event's gw header in base64, or nothing, "
            f"separated by commas; the request has {count} events"
        )
    return sessions


def _stored_session(part: bytes) -> Session | None:
    if not part:
        return None
    session = Session(*SESSION_STRUCT.unpack(base64.b64decode(part, validate=True)))
    if session.sequence == 0:
        raise SessionFieldsInvalidError(told="a sequence counts from 1")
    return session


def client_of(headers: Mapping[bytes, bytes], top: Mapping[str, Any]) -> str | None:
    """Return who the client is, None if nothing says so. Raises as `client_session_of`."""
    return _one_of(_client(_text_in(headers, CLIENT)), _client(top.get("client")), "client")


def is_ksuid(text: str) -> bool:
    """Whether it is the text form of a KSUID."""
    return _KSUID.fullmatch(text) is not None and text <= KSUID_MAX


def _client(value: object) -> str | None:
    if value is None or (isinstance(value, str) and _CLIENT.fullmatch(value)):
        return value
    raise SessionFieldsInvalidError(told="client must have 1 to 100 visible ASCII characters")


def _ksuid(value: object) -> str | None:
    if value is None or (isinstance(value, str) and is_ksuid(value)):
        return value
    raise SessionFieldsInvalidError(told="session must be a KSUID, 27 letters and digits")


def _first_sequence(shared: Mapping[str, Any], count: int) -> int | None:
    first = _u64(shared, FIRST_SEQUENCE)
    if first is not None and not 0 < first <= U64_MAX - count + 1:
        raise SessionFieldsInvalidError(
            told="firstSequence counts from 1, and no sequence has more than 64 bits"
        )
    return first


def _u64(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or _is_u64(value):
        return value
    raise SessionFieldsInvalidError(told=f"{name} must be a whole number of 64 bits")


def _is_u64(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= U64_MAX


def _text_in(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")


def _number_in(headers: Mapping[bytes, bytes], name: bytes) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not _NUMBER.fullmatch(value) or int(value) > U64_MAX:
        raise SessionFieldsInvalidError(told=f"{name.decode()} must be a whole number of 64 bits")
    return int(value)


def _one_of(in_head: Value | None, in_body: Value | None, name: str) -> Value | None:
    """Return what was given, in one of both places or alike in both. Raises SessionFieldsConflictError."""
    if in_head is not None and in_body is not None and in_head != in_body:
        raise SessionFieldsConflictError(told=name)
    return in_body if in_head is None else in_head
