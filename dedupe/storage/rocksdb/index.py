"""
The dedupe index of one lane, in a RocksDB of its own.

It repairs nothing: unreadable or inconsistent data raise IndexCorruptError, and the caller rebuilds the index
from the log.

Lane.submit -> admit -> PartitionLog.append -> **DedupeIndex.apply**
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rocksdict import Rdict, WriteBatch

from dedupe.decide.sessions import Listing, SessionCounts, SessionKey, SessionState
from dedupe.decide.source_sizes import SourceSizes
from dedupe.decide.window import Step
from dedupe.model.errors import GatewayError, IndexCorruptError
from dedupe.model.identity import KEY_BYTES
from dedupe.model.types import Entry, EventKey, Offset
from dedupe.storage.index import EMPTY_STATE, IndexIdentity, IndexState, IndexUpdate, WalFiles
from dedupe.storage.rocksdb.bloom import AddKeys, BloomFilterCache
from dedupe.storage.rocksdb.database import Database, Tuning, destroy, is_empty, translate
from dedupe.storage.rocksdb.format import (
    ENTRY,
    IDENTITY_KEY,
    LINEAGE_KEY,
    OFFSET,
    SENTINEL_KEY,
    STATE_KEY,
    check_identity,
    decode_entries,
    decode_state,
    encode_identity,
    put_meta,
    read_steps,
)
from dedupe.storage.rocksdb.marks import check_not_disproved, note_disproved, note_proved, unproved
from dedupe.storage.rocksdb.sessions import SessionTable
from dedupe.storage.rocksdb.wal import wal_files

LINEAGE_BYTES = 16


class RocksIndex:
    """See DedupeIndex. Not thread-safe."""

    def __init__(
        self,
        path: Path,
        identity: IndexIdentity,
        tuning: Tuning,
        *,
        close: Callable[[Database], None] = Database.close,
        native: AddKeys | None = None,
    ) -> None:
        """Open the index at `path`, or create an empty one. Raises as RocksStore.open does."""
        self.path = path
        self._close = close
        self._native = native
        self._identity = identity
        self._tuning = tuning
        self._database: Database | None = None
        self._bloom: BloomFilterCache
        self._sessions: SessionTable
        self._failure: GatewayError | None = None
        self.state: IndexState = EMPTY_STATE
        self._steps: list[Step] = []
        self._unproved: list[Offset] = []
        self.lineage = b""
        self.is_disproved = False
        """Whether the log has disproved an entry: no copy of it may be used, see IndexSnapshots."""
        try:
            check_not_disproved(path)
            if is_empty(path):
                self._begin(0)
            else:
                self._load(self._use(Database(path, tuning, is_new=False)))
        except Exception:
            self.close()
            raise

    @property
    def steps(self) -> Sequence[Step]:
        return tuple(self._steps)

    @property
    def keys_estimate(self) -> int:
        """See DedupeIndex. Does not count the sentinel."""
        return max(0, self._figure("rocksdb.estimate-num-keys") - 1)

    @property
    def size_bytes(self) -> int:
        return self._figure("rocksdb.live-sst-files-size") + self._figure("rocksdb.cur-size-all-mem-tables")

    @property
    def files(self) -> int:
        """See DedupeIndex. FIFO keeps all files in level 0."""
        return self._figure("rocksdb.num-files-at-level0")

    @property
    def wal(self) -> WalFiles:
        try:
            return wal_files(self.path)
        except OSError as err:
            translate(err, f"cannot measure {self.path}")

    @property
    def unproved(self) -> Sequence[Offset]:
        return self._unproved

    def note_proved(self) -> None:
        try:
            note_proved(self.path)
        except OSError as err:
            translate(err, f"cannot write {self.path}")
        self._unproved = []

    def note_disproved(self) -> None:
        self.is_disproved = True
        try:
            note_disproved(self.path, self.lineage)
        except OSError as err:
            translate(err, f"cannot write {self.path}")

    @property
    def session_counts(self) -> SessionCounts:
        return self._sessions.counts

    def sessions(self, keys: Sequence[SessionKey]) -> list[SessionState | None]:
        self._opened()
        return self._sessions.get(keys)

    @property
    def session_sizes(self) -> SourceSizes:
        return self._sessions.sizes

    def oldest_sessions(self, count: int, listing: Listing) -> list[tuple[SessionKey, SessionState]]:
        self._opened()
        return self._sessions.oldest(count, listing)

    def sessions_of(self, client_hash: bytes, count: int) -> list[tuple[SessionKey, SessionState]]:
        self._opened()
        return self._sessions.of_client(client_hash, count)

    def lookup(self, keys: Sequence[EventKey]) -> list[Entry | None]:
        """See DedupeIndex. One multi-get of the keys that pass the Bloom filter cache."""
        database = self._opened()
        requested = list(keys)
        places = self._bloom.possible(requested)
        if len(places) == len(requested):
            return self._get(database, requested)
        entries: list[Entry | None] = [None] * len(requested)
        if places:
            stored = self._get(database, [requested[place] for place in places])
            for place, entry in zip(places, stored, strict=True):
                entries[place] = entry
        return entries

    def expect(self, keys: int) -> None:
        """See DedupeIndex. Entries are written with the state, so without a record there is none."""
        if self.state.last_offset < 0:
            self._bloom.expect(keys)

    def warm(self) -> bool:
        """See DedupeIndex: 2 to 4 ms of the scan for the Bloom filter cache."""
        self._opened()
        return self._bloom.warm()

    def apply(self, update: IndexUpdate) -> None:
        """See DedupeIndex. One WriteBatch over all column families, in the WAL but not synced."""
        database = self._opened()
        batch = WriteBatch(raw_mode=True)
        entries = [*update.entries, *update.secondary_keys] if update.secondary_keys else update.entries
        for key, (offset, fingerprint) in entries:
            batch.put(key, ENTRY.pack(offset, fingerprint))
        put_meta(batch, update, database)
        if update.sessions is not None:
            self._sessions.put(batch, update.sessions)
        try:
            self._bloom.add([key for key, _ in entries])
            _write(database, batch, has_secondary_keys=bool(update.secondary_keys))
        except GatewayError as err:
            self._failure = err
            raise
        self.state = update.state
        if update.sessions is not None:
            self._sessions.written(update.sessions)
        if update.new_steps or update.dropped_steps:
            dropped = set(update.dropped_steps)
            self._steps = [step for step in (*self._steps, *update.new_steps) if step not in dropped]

    def reset(self, start: Offset) -> None:
        """
        See DedupeIndex. As fast as an opening if the index is empty.

        Otherwise it waits for a running flush, for up to a second: RocksStore.discard does not block.
        """
        if self._database is not None:
            self._database.abandon()
            self._database = None
        destroy(self.path)
        self._failure = None
        self._begin(start)

    @property
    def is_open(self) -> bool:
        """Whether it is not closed."""
        return self._database is not None

    def begin_flush(self) -> None:
        """Have RocksDB write its memtables to files, in its own threads. Raises IndexUnavailableError."""
        for family in self._families():
            try:
                family.flush(wait=False)
            except Exception as err:
                translate(err, f"cannot flush {self.path}")

    @property
    def is_flushing(self) -> bool:
        """Whether RocksDB is writing memtables to files, or about to. Raises IndexUnavailableError."""
        return self._sum_of("rocksdb.mem-table-flush-pending", "rocksdb.num-running-flushes") > 0

    @property
    def jobs(self) -> int:
        """How many flushes and compactions run, by families. Raises IndexUnavailableError."""
        return self._sum_of("rocksdb.num-running-compactions", "rocksdb.num-running-flushes")

    @property
    def unflushed_entries(self) -> int:
        """
        How many entries are in memory and in the write-ahead log only.

        Those of full memtables too, which wait until there are enough of them for one file.
        Raises IndexUnavailableError.
        """
        return self._sum_of("rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables")

    def _sum_of(self, *names: str) -> int:
        """Return the sum of properties over the column families. Raises IndexUnavailableError."""
        try:
            return sum(family.property_int_value(name) or 0 for family in self._families() for name in names)
        except Exception as err:
            translate(err, f"cannot measure {self.path}")

    @property
    def data_files(self) -> Sequence[str]:
        """The names of the files of all column families. Raises IndexUnavailableError."""
        try:
            return [str(file["name"]).lstrip("/") for file in self._opened().entries.live_files()]
        except Exception as err:
            translate(err, f"cannot list the files of {self.path}")

    def _families(self) -> tuple[Rdict, ...]:
        database = self._opened()
        return database.entries, database.meta, database.sessions

    def covers(self, offset: Offset) -> bool:
        """
        See DedupeIndex.

        Entries are flushed in log order, and files dropped oldest first: an entry at or below `offset` in any
        file proves that no later entry was dropped. A key that was rewritten makes its file look younger,
        never older.
        """
        database = self._opened()
        try:
            if (sentinel := database.entries.get(SENTINEL_KEY)) is not None:
                (start,) = OFFSET.unpack(sentinel)
                return bool(start <= offset)
            files = sorted(database.entries.live_files(), key=lambda file: str(file["name"]))
        except Exception as err:
            translate(err, f"cannot list the files of {self.path}")
        for file in files:
            # The list includes the files of `meta`, whose keys have other lengths.
            ends = [key for key in (file["start_key"], file["end_key"]) if len(key) == KEY_BYTES]
            entries = [entry for entry in self._get(database, ends) if entry is not None]
            if any(entry.offset <= offset for entry in entries):
                return True
        return False

    def close(self) -> None:
        """See DedupeIndex and Database.close."""
        if self._database is not None:
            self._close(self._database)
            self._database = None

    def _opened(self) -> Database:
        """Return the open database. Raises the error of a failed write again: the index may be incomplete."""
        if self._failure is not None:
            raise type(self._failure)(f"failed before: {self._failure}")
        assert self._database is not None, "index is closed"
        return self._database

    def _get(self, database: Database, keys: list[EventKey]) -> list[Entry | None]:
        try:
            values: list[bytes | None] = database.entries.get(keys) or []  # type: ignore[arg-type]
        except Exception as err:
            translate(err, f"cannot read {self.path}")
        if values.count(None) == len(values):
            return [None] * len(values)  # those of new events
        return decode_entries(values)

    def _figure(self, name: str) -> int:
        database = self._opened()
        try:
            return database.entries.property_int_value(name) or 0
        except Exception as err:
            translate(err, f"cannot measure {self.path}")

    def _begin(self, start: Offset) -> None:
        """Create an empty index; its first rows are written in one batch."""
        database = self._use(Database(self.path, self._tuning, is_new=True))
        self.state = EMPTY_STATE._replace(applied_offset=start)
        self._steps, self._unproved, self.lineage = [], [], os.urandom(LINEAGE_BYTES)
        batch = WriteBatch(raw_mode=True)
        batch.put(SENTINEL_KEY, OFFSET.pack(start))
        batch.put(IDENTITY_KEY, encode_identity(self._identity), database.meta_handle)
        batch.put(LINEAGE_KEY, self.lineage, database.meta_handle)
        put_meta(batch, IndexUpdate((), self.state), database)
        _write(database, batch)

    def _use(self, database: Database) -> Database:
        """Use an open database, with an empty Bloom filter."""
        self._database, self._bloom = database, BloomFilterCache(database, self._native)
        self._sessions = SessionTable(database)
        return database

    def _load(self, database: Database) -> None:
        """Read `meta`, and check that `default` is not behind it."""
        try:
            check_identity(database.meta.get(IDENTITY_KEY), self._identity)
            self.state = decode_state(database.meta.get(STATE_KEY))
            self._steps = read_steps(database)
            self.lineage = database.meta.get(LINEAGE_KEY) or b""
            self._sessions.load()
            self._unproved = unproved(self.path)
        except Exception as err:
            translate(err, f"cannot use {self.path}")
        if self.state.last_offset >= 0:
            # A lost file, or a truncated list of files, lacks the newest entries: checking the last suffices.
            last = self._get(database, [self.state.last_key])[0]
            if last is None or last.offset != self.state.last_offset:
                raise IndexCorruptError(f"{self.path} lacks the last entry of its own state")


def _write(database: Database, batch: WriteBatch, *, has_secondary_keys: bool = False) -> None:
    try:
        if has_secondary_keys:
            database.note_secondary_keys()  # before the write, else files would be dropped too early
        database.entries.write(batch)
    except Exception as err:
        translate(err, f"cannot write {database.path}")
