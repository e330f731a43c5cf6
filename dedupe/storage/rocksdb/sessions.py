"""
The client sessions of one lane, in column family `sessions`: a row for each, and the lists that have it.

    key                              value
    "s" session key (32)             watermark, acknowledged, epoch, newest timestamp and offset, evicted or
                                     not and by which offset, source hash, then the bits above the watermark
                                     without leading zeros
    "l" newest offset, session key   empty; live sessions, oldest first
    "o" source hash (8), newest      empty; live sessions of one source, oldest first
        offset, session key
    "e" offset, session key          empty; evicted sessions, those evicted first first
    "z" source hash                  the number of its live sessions

A row that cannot be decoded is an IndexCorruptError: the index is rebuilt from the log.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, cast

from rocksdict import WriteBatch

from dedupe.decide.sessions import (
    EVICTED,
    LIVE,
    NO_SESSIONS,
    OF_SOURCE,
    SEQUENCES_AHEAD_MAX,
    Listing,
    SessionCounts,
    SessionKey,
    SessionState,
    SessionUpdate,
)
from dedupe.decide.source_sizes import SourceSizes
from dedupe.model.errors import IndexCorruptError
from dedupe.storage.rocksdb.database import Database, translate

ROW_BYTES_MAX = 250
"""The rows of one session: 33, 41 and 49 bytes of keys, 57 to 121 of value."""

_ROW = struct.Struct(">QQQqQ?8sq")
_COUNTS = struct.Struct(">QQqQ")
_OFFSET = struct.Struct(">Q")
_KEY_BYTES = 32
_STATE, _SIZE = b"s", b"z"
_NUMBER = struct.Struct(">Q")

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
        self.sizes = SourceSizes()
        """The number of live sessions of each source, by its hash."""
        self._first: dict[Listing, bytes] = {}
        """The first place of lists, which grow at their ends: a seek from there skips deleted rows."""

    def load(self) -> None:
        """Read the counts. Raises IndexCorruptError, and RocksDB's errors."""
        stored = self._database.meta.get(COUNTS_KEY)
        if stored is not None:
            if len(stored) != _COUNTS.size:
                raise IndexCorruptError(f"the number of sessions has {len(stored)} bytes")
            self.counts = SessionCounts._make(_COUNTS.unpack(stored))
        for key, size in self._rows(_SIZE, _SIZE):
            if len(size) != _NUMBER.size:
                raise IndexCorruptError(f"the number of a source's sessions has {len(size)} bytes")
            self.sizes.put(key[len(_SIZE) :], *_NUMBER.unpack(size))

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

    def oldest(self, count: int, listing: Listing) -> list[tuple[SessionKey, SessionState]]:
        keys = self._oldest_keys(listing, count)
        states = [(key, state) for key, state in zip(keys, self.get(keys), strict=True) if state is not None]
        if len(states) != len(keys):
            raise IndexCorruptError(f"{self._database.path} lacks a session of its lists")
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
                for place in _places_of(key, before):
                    batch.delete(place, handle)
            if after is None:
                batch.delete(_STATE + key, handle)
            else:
                batch.put(_STATE + key, _encode(after), handle)
                for place in _places_of(key, after):
                    batch.put(place, b"", handle)
        for source_hash, size in update.sizes.items():
            if size:
                batch.put(_SIZE + source_hash, _NUMBER.pack(size), handle)
            else:
                batch.delete(_SIZE + source_hash, handle)
        batch.put(COUNTS_KEY, _COUNTS.pack(*update.counts), self._database.meta_handle)

    def written(self, update: SessionUpdate) -> None:
        """Update counts and cache after the batch of `put` was written."""
        self.counts = update.counts
        for source_hash, size in update.sizes.items():
            self.sizes.put(source_hash, size)
            if not size:
                self._first.pop(OF_SOURCE + source_hash, None)
        recent = self._recent
        for key, _, after in update.changes:
            recent.pop(key, None)
            recent[key] = after
        while len(recent) > RECENT_MAX:
            del recent[next(iter(recent))]

    def _oldest_keys(self, listing: Listing, count: int) -> list[SessionKey]:
        places = self._keys(listing, self._first.get(listing, listing), count)
        if places:
            self._first[listing] = places[0]
        return [place[-_KEY_BYTES:] for place in places]

    def _keys(self, prefix: bytes, start: bytes, count: int) -> list[bytes]:
        """Return at most `count` keys with a prefix, from `start` on."""
        return [key for key, _ in islice(self._rows(prefix, start), count)] if count > 0 else []

    def _rows(self, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield rows from `start` on. Iterators end silently at corruption, so the status is checked."""
        try:
            iterator = self._database.sessions.iter()
            try:
                iterator.seek(start)
                while iterator.valid() and (key := iterator.key()).startswith(prefix):
                    yield key, iterator.value()
                    iterator.next()
                iterator.status()
            finally:
                del iterator
        except Exception as err:
            translate(err, f"cannot read the sessions of {self._database.path}")


def _places_of(key: SessionKey, state: SessionState) -> list[bytes]:
    """Return the places of a session in the lists that have it."""
    place = _OFFSET.pack(state.listed_at) + key
    listings = (EVICTED,) if state.is_evicted else (LIVE, OF_SOURCE + state.source_hash)
    return [listing + place for listing in listings]


def _encode(state: SessionState) -> bytes:
    watermark, above, *others = state
    return _ROW.pack(watermark, *others) + above.to_bytes((above.bit_length() + 7) // 8, "big")


def _decode(row: bytes) -> SessionState:
    if not _ROW.size <= len(row) <= _ROW.size + SEQUENCES_AHEAD_MAX // 8:
        raise IndexCorruptError(f"a session has {len(row)} bytes")
    watermark, *others = _ROW.unpack_from(row)
    return SessionState(watermark, int.from_bytes(row[_ROW.size :], "big"), *others)
