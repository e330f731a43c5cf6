"""
The client sessions of one lane, in column family `sessions`: a row for each, and their order of use.

    key                              value
    "s" session key (32)             watermark, acknowledged, epoch, newest timestamp and offset, evicted
                                     or not, then the bits above the watermark without leading zeros
    "l" newest offset, session key   empty; live sessions, oldest first
    "e" newest offset, session key   empty; evicted sessions, oldest first

A row that cannot be decoded is an IndexCorruptError: the index is rebuilt from the log.
"""

import struct
from collections.abc import Sequence
from typing import Any, cast

from rocksdict import WriteBatch

from dedupe.decide.sessions import (
    NO_SESSIONS,
    SEQUENCES_AHEAD_MAX,
    SessionCounts,
    SessionKey,
    SessionState,
    SessionUpdate,
)
from dedupe.model.errors import IndexCorruptError
from dedupe.storage.rocksdb.database import Database, translate

ROW_BYTES_MAX = 200
"""The rows of one session: 33 and 41 bytes of keys, 41 to 105 of value."""

_ROW = struct.Struct(">QQQqQ?")
_COUNTS = struct.Struct(">QQqQ")
_OFFSET = struct.Struct(">Q")
_KEY_BYTES = 32
_STATE, _LIVE, _EVICTED = b"s", b"l", b"e"

RECENT_MAX = 1_024
"""Sessions cached in memory, about 0.5 KB each: a request of a client reads its row twice."""

COUNTS_KEY = b"sessions"
"""A key in `meta`."""


class SessionTable:
    """See SessionRows. Lives as long as its database is open."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.counts = NO_SESSIONS
        self._recent: dict[SessionKey, SessionState | None] = {}
        """A cache of written rows, the latest last."""
        self._first = {_LIVE: _LIVE, _EVICTED: _EVICTED}
        """The first key of each order: a seek from there skips the tombstones of deleted rows."""

    def load(self) -> None:
        """Read the counts. Raises IndexCorruptError, and RocksDB's errors."""
        stored = self._database.meta.get(COUNTS_KEY)
        if stored is not None:
            if len(stored) != _COUNTS.size:
                raise IndexCorruptError(f"the number of sessions has {len(stored)} bytes")
            self.counts = SessionCounts._make(_COUNTS.unpack(stored))

    def get(self, keys: Sequence[SessionKey]) -> list[SessionState | None]:
        recent = self._recent
        if all(key in recent for key in keys):
            return [recent[key] for key in keys]
        rows = [_STATE + key for key in keys]
        try:
            values: list[bytes | None] = self._database.sessions.get(cast(list[Any], rows)) or []
        except Exception as err:
            translate(err, f"cannot read the sessions of {self._database.path}")
        return [None if value is None else _decode(value) for value in values]

    def oldest(self, count: int, *, evicted: bool) -> list[tuple[SessionKey, SessionState]]:
        keys = self._oldest_keys(_EVICTED if evicted else _LIVE, count)
        states = [(key, state) for key, state in zip(keys, self.get(keys), strict=True) if state is not None]
        if len(states) != len(keys):
            raise IndexCorruptError(f"{self._database.path} lacks a session of its order of use")
        return states

    def of_client(self, client_hash: bytes, count: int) -> list[tuple[SessionKey, SessionState]]:
        prefix = _STATE + client_hash
        keys = [key[len(_STATE) :] for key in self._keys(prefix, prefix, count)]
        return [(key, state) for key, state in zip(keys, self.get(keys), strict=True) if state is not None]

    def put(self, batch: WriteBatch, update: SessionUpdate) -> None:
        """Add an update to a batch; call `written` once the batch is written."""
        handle = self._database.sessions_handle
        for key, before, after in update.changes:
            if before is not None:
                batch.delete(_place_of(key, before), handle)
            if after is None:
                batch.delete(_STATE + key, handle)
            else:
                place = _place_of(key, after)
                self._first[place[:1]] = min(self._first[place[:1]], place)
                batch.put(_STATE + key, _encode(after), handle)
                batch.put(place, b"", handle)
        batch.put(COUNTS_KEY, _COUNTS.pack(*update.counts), self._database.meta_handle)

    def written(self, update: SessionUpdate) -> None:
        """Update counts and cache after the batch of `put` was written."""
        self.counts = update.counts
        recent = self._recent
        for key, _, after in update.changes:
            recent.pop(key, None)
            recent[key] = after
        while len(recent) > RECENT_MAX:
            del recent[next(iter(recent))]

    def _oldest_keys(self, prefix: bytes, count: int) -> list[SessionKey]:
        """Return session keys in order of use."""
        places = self._keys(prefix, self._first[prefix], count)
        if places:
            self._first[prefix] = places[0]
        return [place[-_KEY_BYTES:] for place in places]

    def _keys(self, prefix: bytes, start: bytes, count: int) -> list[bytes]:
        """Return keys from `start` on. Iterators end silently at corruption, so the status is checked."""
        keys: list[bytes] = []
        if count <= 0:
            return keys
        try:
            iterator = self._database.sessions.iter()
            try:
                iterator.seek(start)
                while len(keys) < count and iterator.valid() and (key := iterator.key()).startswith(prefix):
                    keys.append(key)
                    iterator.next()
                iterator.status()
            finally:
                del iterator
        except Exception as err:
            translate(err, f"cannot read the sessions of {self._database.path}")
        return keys


def _place_of(key: SessionKey, state: SessionState) -> bytes:
    """Return the key of a session in the order of use."""
    return (_EVICTED if state.is_evicted else _LIVE) + _OFFSET.pack(state.last_offset) + key


def _encode(state: SessionState) -> bytes:
    watermark, above, acknowledged_through, epoch, last_used_ms, last_offset, is_evicted = state
    row = _ROW.pack(watermark, acknowledged_through, epoch, last_used_ms, last_offset, is_evicted)
    return row + above.to_bytes((above.bit_length() + 7) // 8, "big")


def _decode(row: bytes) -> SessionState:
    if not _ROW.size <= len(row) <= _ROW.size + SEQUENCES_AHEAD_MAX // 8:
        raise IndexCorruptError(f"a session has {len(row)} bytes")
    watermark, acknowledged_through, epoch, last_used_ms, last_offset, is_evicted = _ROW.unpack_from(row)
    above = int.from_bytes(row[_ROW.size :], "big")
    return SessionState(watermark, above, acknowledged_through, epoch, last_used_ms, last_offset, is_evicted)
