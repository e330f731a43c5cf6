"""
Record format v1: the contract with every reader of the clean topic. Pure and frozen.

    Kafka key   messageId, UTF-8 (empty in quarantine when the event has no valid id)
    value       the event as JSON (in quarantine: dedupe.model.quarantine)
    timestamp   the gateway's arrival time, ms, never decreasing within a partition
    headers     source  (text)
                gw      (packed big-endian, below)
                gs      (with flag 1: what was stored of the session before, below)
                reason  (text, quarantine only)
                dialect (text, with flag 64: "cloudevents")
                origin, origin-time, and others (of a record that was read from a topic, below)

    gw bytes    field
    0           version = 1
    1           flags: 1 client session, 2 id assigned by the gateway, 4 not idempotent,
                8 a further piece of a quarantined event, 16 checksum, 32 evicted sessions,
                64 the event is a CloudEvent
    2-17        event key
    18-25       fingerprint
    26-33       lane_seq: 0, 1, 2, ... per partition, without gaps
    34-81       with flag 1: client hash (16), session hash (16), sequence u64, epoch u64
    82-89       with flag 1: acknowledged_through u64
    90-         with flags 1 and 32: client hash and session hash of each other session that is evicted with
                this record, EVICTED_MAX at most
    last 4      with flag 16: CRC-32 (zlib's) of source, Kafka key, the bytes of gw before it, and value

    gs bytes    field
    0-7         the session's watermark u64: every sequence up to it was stored, or acknowledged
    8-          which of the 512 sequences above it were stored: an integer without leading zeros,
                whose bit i is watermark + 1 + i

Of an event from a topic, `origin` is `<input>:<topic>/<partition>/<offset>`, `origin-time` its timestamp, in
ms, and other headers are those that the input is told to keep; none of them is part of its identity.

The value of a CloudEvent is the event in CloudEvents' JSON format, without messageId, sentAt and receivedAt;
its Kafka key is dedupe.model.cloudevent.cloudevent_id of its source and id.

Index, receipts and sessions can be rebuilt from the records alone. Earlier gateways ignore the checksum and
evicted sessions, and their records have none.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from isal.isal_zlib import crc32

from dedupe.model.errors import LogCorruptError
from dedupe.model.identity import Identity
from dedupe.model.routing import partition_of
from dedupe.model.types import Event, EventKey, Fingerprint, LogRecord, NewRecord, Progress, Session

VERSION = 1
FLAG_SESSION = 1
FLAG_ID_ASSIGNED = 2
FLAG_NOT_IDEMPOTENT = 4
FLAG_PIECE = 8
FLAG_CHECKSUM = 16
FLAG_EVICTED = 32
FLAG_CLOUDEVENT = 64

EVICTED_MAX = 2
"""As many rows as a record may add: that of its session, and that of its client."""

HEADER_SOURCE = "source"
HEADER_GATEWAY = "gw"
HEADER_PROGRESS = "gs"
HEADER_REASON = "reason"
HEADER_DIALECT = "dialect"
HEADER_ORIGIN = "origin"
HEADER_ORIGIN_TIME = "origin-time"
CLOUDEVENT_HEADERS = ((HEADER_DIALECT, b"cloudevents"),)
"""The headers that flag 64 adds, for readers that do not decode `gw`."""
FORMAT_HEADERS = frozenset(
    {
        HEADER_SOURCE,
        HEADER_GATEWAY,
        HEADER_PROGRESS,
        HEADER_REASON,
        HEADER_DIALECT,
        HEADER_ORIGIN,
        HEADER_ORIGIN_TIME,
    }
)
"""Names that mean something in a record; no header that an input keeps has one of them."""
HEADER_FENCE_TEST = "gateway-fence-test"  # of a record that is no event; readers skip it

_BASE = struct.Struct(">BB16s8sQ")
SESSION_STRUCT = struct.Struct(">16s16sQQQ")
"""Bytes 34-89: dedupe.model.types.Session without `before`."""
_WITH_SESSION = struct.Struct(_BASE.format + SESSION_STRUCT.format.lstrip(">"))
_EVICTED_BYTES = 32
CHECKSUM_BYTES = 4
_pack_base, _pack_with_session, _pack_checksum = _BASE.pack, _WITH_SESSION.pack, struct.Struct(">I").pack
_PLAIN_BYTES = _BASE.size + CHECKSUM_BYTES
_split_plain = struct.Struct(f">{_BASE.size}sI").unpack
_WATERMARK = struct.Struct(">Q")
ABOVE_BYTES_MAX = 64


class RecordIdentity(NamedTuple):
    """The identity of a committed record, decoded from its headers and its Kafka key."""

    key: EventKey
    fingerprint: Fingerprint
    lane_seq: int
    flags: int
    source: str
    message_id: str
    session: Session | None
    evicted: Sequence[bytes] = ()
    """The keys of other sessions that are evicted; see dedupe.decide.sessions.SessionKey."""


def build_record(
    event: Event,
    *,
    lane_seq: int,
    timestamp_ms: int,
    recorded: Session | None = None,
    evicted: Sequence[bytes] = (),
) -> NewRecord:
    """Return the event as record v1; `recorded` replaces its own session, `evicted` needs one."""
    key, _, fingerprint, source, message_id, value, flags, session, reason, *_ = event
    session = recorded or session
    before = None
    if session is None:
        gateway = _pack_base(VERSION, flags | FLAG_CHECKSUM, key, fingerprint, lane_seq)
    else:
        *place, before = session
        flags |= FLAG_SESSION | FLAG_CHECKSUM
        if evicted:
            flags |= FLAG_EVICTED
        gateway = _pack_with_session(VERSION, flags, key, fingerprint, lane_seq, *place) + b"".join(evicted)
    source_bytes, id_bytes = source.encode(), message_id.encode()
    # Two CRCs: to join the value with the rest would copy it.
    gateway += _pack_checksum(crc32(value, crc32(b"".join((source_bytes, id_bytes, gateway)))))
    headers = [(HEADER_SOURCE, source_bytes), (HEADER_GATEWAY, gateway)]
    if before is not None:
        headers.append((HEADER_PROGRESS, _packed(before)))
    if reason is not None:
        headers.append((HEADER_REASON, reason.encode()))
    if flags & FLAG_CLOUDEVENT:
        headers += CLOUDEVENT_HEADERS
    if type(event) is not Event:
        headers += event.headers
    return NewRecord(timestamp_ms, id_bytes, value, headers)


class EventRecords(Sequence[NewRecord]):
    """The records of new events of one partition, built when they are read."""

    def __init__(
        self,
        events: Sequence[Event],
        sessions: Sequence[Session | None],
        evicted: Sequence[Sequence[bytes]] = (),
        *,
        lane_seq: int,
        timestamp_ms: int,
    ) -> None:
        """
        Take the events.

        Args:
            events: in order.
            sessions: what is recorded of the session of each, with the state before it; empty without any.
            evicted: the keys of other sessions that the record of each evicts; empty if none does.
            lane_seq: of the first.
            timestamp_ms: of all.
        """
        self.events = events
        self.sessions = sessions
        self.evicted = evicted
        self.lane_seq = lane_seq
        self.timestamp_ms = timestamp_ms
        self._built: list[NewRecord] = []

    def __len__(self) -> int:
        return len(self.events)

    @overload
    def __getitem__(self, place: int) -> NewRecord: ...
    @overload
    def __getitem__(self, place: slice) -> list[NewRecord]: ...
    def __getitem__(self, place: int | slice) -> NewRecord | list[NewRecord]:
        """Return one record, or some."""
        return self._records()[place]

    def __iter__(self) -> Iterator[NewRecord]:
        """Return the records in order."""
        return iter(self._records())

    def _records(self) -> list[NewRecord]:
        if not self._built:
            first, timestamp_ms, sessions, evicted = (
                self.lane_seq,
                self.timestamp_ms,
                self.sessions,
                self.evicted,
            )
            self._built = [
                build_record(
                    event,
                    lane_seq=first + place,
                    timestamp_ms=timestamp_ms,
                    recorded=sessions[place] if sessions else None,
                    evicted=evicted[place] if evicted else (),
                )
                for place, event in enumerate(self.events)
            ]
        return self._built


def parse_identity(record: LogRecord) -> RecordIdentity:
    """
    Decode a committed record's headers and Kafka key.

    Raises:
        LogCorruptError: it is not a record of this format, or its content differs from its checksum.
    """
    headers = dict(record.headers)
    if len(headers) != len(record.headers):
        raise LogCorruptError(
            f"record at offset {record.offset} was not written by a gateway: it has a header twice"
        )
    try:
        gateway = headers[HEADER_GATEWAY]
        version, flags, key, fingerprint, lane_seq = _BASE.unpack_from(gateway)
        if version != VERSION:
            raise LogCorruptError(
                f"record at offset {record.offset} has version {version}, this gateway reads {VERSION}"
            )
        session, evicted = None, tuple[bytes, ...]()
        if flags & FLAG_SESSION:
            before = _progress_in(headers.get(HEADER_PROGRESS))
            session = Session._make((*SESSION_STRUCT.unpack_from(gateway, _BASE.size), before))
            if flags & FLAG_EVICTED and flags & FLAG_CHECKSUM:
                ends = range(
                    _WITH_SESSION.size + _EVICTED_BYTES, len(gateway) - CHECKSUM_BYTES + 1, _EVICTED_BYTES
                )
                evicted = tuple(gateway[end - _EVICTED_BYTES : end] for end in ends)
        if flags & FLAG_CHECKSUM:
            head, checksum = _split_plain(gateway) if len(gateway) == _PLAIN_BYTES else _split(gateway)
            if crc32(record.value, crc32(b"".join((headers[HEADER_SOURCE], record.key, head)))) != checksum:
                raise LogCorruptError(
                    f"record at offset {record.offset} differs from its checksum: it was changed after it "
                    "was written"
                )
            flags -= FLAG_CHECKSUM
        source = headers[HEADER_SOURCE].decode()
        message_id = record.key.decode()
    except (KeyError, struct.error, UnicodeDecodeError, TypeError, AttributeError) as err:
        # The last two: Kafka's headers may be null.
        raise LogCorruptError(
            f"record at offset {record.offset} was not written by a gateway: {err!r}"
        ) from err
    return RecordIdentity(
        key, fingerprint, lane_seq, flags & ~FLAG_EVICTED, source, message_id, session, evicted
    )


def is_identified_by(
    record: LogRecord, found: RecordIdentity, identity: Identity, *, partition: int, partitions: int
) -> bool:
    """Whether the record's key and partition match this secret and partition count."""
    if found.session is not None:
        session = found.session
        key = identity.sequence_key(session.client_hash, session.session_hash, session.sequence)
        routing_key = session.client_hash
    else:
        is_quarantine = HEADER_REASON in dict(record.headers)
        if is_quarantine:
            key = identity.quarantine_key(found.source, found.message_id, found.fingerprint)
        else:
            key = identity.message_key(found.source, found.message_id)
        routing_key = key
    return key == found.key and partition_of(routing_key, partitions) == partition


def routing_key_of(found: RecordIdentity) -> bytes:
    """Return what decides the partition of a record, see dedupe.model.routing."""
    return found.key if found.session is None else found.session.client_hash


def _split(gateway: bytes) -> tuple[bytes, int]:
    """Return `gw` without its checksum, and the checksum."""
    return gateway[:-CHECKSUM_BYTES], int.from_bytes(gateway[-CHECKSUM_BYTES:], "big")


def _packed(before: Progress) -> bytes:
    watermark, above = before
    return _WATERMARK.pack(watermark) + above.to_bytes((above.bit_length() + 7) // 8, "big")


def _progress_in(header: bytes | None) -> Progress | None:
    """Decode the header `gs`; None if it is missing. Raises struct.error."""
    if header is None or len(header) > _WATERMARK.size + ABOVE_BYTES_MAX:
        return None
    (watermark,) = _WATERMARK.unpack_from(header)
    return Progress(watermark, int.from_bytes(header[_WATERMARK.size :], "big"))
