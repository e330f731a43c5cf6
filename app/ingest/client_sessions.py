"""
Client sessions of a request: their fields, and the keys of their events. Pure.

Headers, or fields at the body's top level, name the session; only the native path reads them, see
docs/http-api.md. app.ingest.identify rejects items without a valid sequence.
"""

import base64
import binascii
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from app.http.errors import SessionFieldsConflictError, SessionFieldsInvalidError
from app.ingest.message_ids import session_event_ids
from app.ingest.payload import Payload
from dedupe.decide.sessions import U64_MAX
from dedupe.model.identity import Identity, KeyOf
from dedupe.model.json_number import integer_of
from dedupe.model.record import SESSION_STRUCT
from dedupe.model.slots import PartitionMap
from dedupe.model.types import EventKey, Session, session_of

CLIENT, SESSION, EPOCH, ACKNOWLEDGED = (
    b"gateway-client",
    b"gateway-session",
    b"gateway-session-epoch",
    b"gateway-acknowledged-through",
)
"""Headers, in the order of FIELDS."""

SESSION_HEADERS = frozenset({CLIENT, SESSION, EPOCH, ACKNOWLEDGED})
"""A request with one of these headers has a client session."""

ENDED = b"gateway-session-ended"

STORED = b"gateway-sessions"
"""Requires the scope replay, like Gateway-Fingerprints: it names sessions of any client by their hashes."""

IS_ENDED = "ended"
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
    first_sequence: int | None  # of the first item; items need no sequence then
    own_fields: frozenset[str]
    """Fields of an item that name the session, and are not content."""
    client_hash: bytes
    session_hash: bytes
    is_ended: bool = False
    """Whether the client says that it has no more events for it. Anything but true is taken for no."""


class SessionKeys:
    """The keys of a request's events of client sessions."""

    def __init__(
        self,
        identity: Identity,
        partition_map: PartitionMap,
        source: str,
        *,
        session: ClientSession | None,
        stored: Sequence[Session | None] = (),
    ) -> None:
        """Prepare the request; `stored` are its items' sessions where stored records are sent again."""
        self._identity = identity
        self._partition_map = partition_map
        self._source = source
        self._session = session
        self._stored = stored
        self._id_of = session and session_event_ids(source, session.client, session.session)
        self._keys: _Keys | None = None  # of the request's session
        if session is not None and not stored:
            self._keys = self._prepare(session.client_hash, session.session_hash)
        self._prepared: dict[tuple[bytes, bytes], _Keys] = {}  # of stored records, by session

    def place_of(self, index: int, item: Mapping[str, Any]) -> Session | None:
        """Return an item's session with its sequence; None without a valid one."""
        if self._stored:
            return self._stored[index]
        session, sequence = self._session, item.get(SEQUENCE)
        if session is None:
            return None
        if sequence is None and session.first_sequence is not None:
            sequence = session.first_sequence + index
        else:
            sequence = integer_of(sequence)
            if sequence is None or not 0 < sequence <= U64_MAX:
                return None
        hashes = session.client_hash, session.session_hash
        return session_of((*hashes, sequence, session.epoch, session.acknowledged_through, None))

    def id_of(self, place: Session | None) -> str | None:
        """Return the assigned id of an event of the request's session; None for other events."""
        return None if place is None or self._id_of is None else self._id_of(place.sequence)

    def keys_of(self, place: Session, id_bytes: bytes | None) -> tuple[EventKey, int, EventKey | None]:
        """Return key, partition and secondary key of an event; `id_bytes` is None if its id was assigned."""
        key_of, secondary_key_of, partition = self._keys or self._stored_keys(place)
        secondary_key = None if id_bytes is None else secondary_key_of(id_bytes)
        return key_of(place.sequence.to_bytes(8, "big")), partition, secondary_key

    def _stored_keys(self, place: Session) -> "_Keys":
        hashes = place.client_hash, place.session_hash
        if hashes not in self._prepared:
            self._prepared[hashes] = self._prepare(*hashes)
        return self._prepared[hashes]

    def _prepare(self, client_hash: bytes, session_hash: bytes) -> "_Keys":
        return _Keys(
            self._identity.sequence_keys(client_hash, session_hash),
            self._identity.secondary_keys(self._source, client_hash),
            self._partition_map.of(client_hash),
        )


class _Keys(NamedTuple):
    """The key functions of one session's events, and their partition."""

    key_of: KeyOf
    secondary_key_of: KeyOf
    partition: int


def client_session_of(
    headers: Mapping[bytes, bytes], payload: Payload, identity: Identity, source: str
) -> ClientSession:
    """
    Return the client session of a request that has one.

    Raises:
        SessionFieldsInvalidError: a field is malformed, or client or session is missing.
        SessionFieldsConflictError: header and body differ.
    """
    top = payload.top or {}
    client = client_of(headers, top)
    session = _one_of(_ksuid(_text_in(headers, SESSION)), _ksuid(top.get("session")), "session")
    if client is None or session is None:
        raise SessionFieldsInvalidError(detail="client and session must both be given")
    epoch = _one_of(_number_in(headers, EPOCH), _u64(top, "epoch"), "epoch")
    if epoch == 0:
        raise SessionFieldsInvalidError(detail="epoch counts from 1")
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
        frozenset({SEQUENCE, IS_ENDED, *FIELDS}) if is_single else frozenset({SEQUENCE}),
        identity.client_hash(source, client),
        identity.session_hash(source, client, session),
        top.get(IS_ENDED) is True or headers.get(ENDED, b"").lower() == b"true",
    )


def stored_sessions(header: bytes, count: int) -> list[Session | None]:
    """
    Return the client sessions of stored records, from the header STORED.

    Raises SessionFieldsInvalidError.
    """
    try:
        sessions = [_stored_session(part.strip()) for part in header.split(b",")]
    except (binascii.Error, struct.error):
        sessions = []
    if len(sessions) != count:
        raise SessionFieldsInvalidError(
            detail="Gateway-Sessions must have bytes 34-89 of each event's gw header in base64, or nothing, "
            f"separated by commas; the request has {count} events"
        )
    return sessions


def _stored_session(part: bytes) -> Session | None:
    if not part:
        return None
    session = Session(*SESSION_STRUCT.unpack(base64.b64decode(part, validate=True)))
    if session.sequence == 0:
        raise SessionFieldsInvalidError(detail="a sequence counts from 1")
    return session


def client_of(headers: Mapping[bytes, bytes], top: Mapping[str, Any]) -> str | None:
    """Return the client of a request, None without one. Raises as `client_session_of`."""
    return _one_of(_client(_text_in(headers, CLIENT)), _client(top.get("client")), "client")


def names_session(top: Mapping[str, Any]) -> bool:
    """Whether fields of a body name a client session, and all of them are well-formed."""
    try:
        client, session = client_of({}, top), _ksuid(top.get("session"))
        numbers = _u64(top, "epoch"), _u64(top, "acknowledgedThrough")
    except SessionFieldsInvalidError:
        return False
    return client is not None and session is not None and numbers[0] != 0


def is_ksuid(text: str) -> bool:
    """Whether a text is a KSUID."""
    return _KSUID.fullmatch(text) is not None and text <= KSUID_MAX


def _client(value: object) -> str | None:
    if value is None or (isinstance(value, str) and _CLIENT.fullmatch(value)):
        return value
    raise SessionFieldsInvalidError(detail="client must have 1 to 100 visible ASCII characters")


def _ksuid(value: object) -> str | None:
    if value is None or (isinstance(value, str) and is_ksuid(value)):
        return value
    raise SessionFieldsInvalidError(detail="session must be a KSUID, 27 letters and digits")


def _first_sequence(shared: Mapping[str, Any], count: int) -> int | None:
    first = _u64(shared, FIRST_SEQUENCE)
    if first is not None and not 0 < first <= U64_MAX - count + 1:
        raise SessionFieldsInvalidError(
            detail="firstSequence counts from 1, and no sequence has more than 64 bits"
        )
    return first


def _u64(fields: Mapping[str, Any], name: str) -> int | None:
    given = fields.get(name)
    value = integer_of(given)
    if given is None or (value is not None and 0 <= value <= U64_MAX):
        return value
    raise SessionFieldsInvalidError(detail=f"{name} must be a whole number of 64 bits")


def _text_in(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")


def _number_in(headers: Mapping[bytes, bytes], name: bytes) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not _NUMBER.fullmatch(value) or int(value) > U64_MAX:
        raise SessionFieldsInvalidError(detail=f"{name.decode()} must be a whole number of 64 bits")
    return int(value)


def _one_of(in_head: Value | None, in_body: Value | None, name: str) -> Value | None:
    """Return the value of header or body. Raises SessionFieldsConflictError if they differ."""
    if in_head is not None and in_body is not None and in_head != in_body:
        raise SessionFieldsConflictError(detail=name)
    return in_body if in_head is None else in_head
