"""
MemoryIndex: the reference implementation of the index, on a disk that is a dictionary.

The store is the disk: what was applied outlives an index that is closed or abandoned, as long as
the test keeps the store. It can fail like a disk too, but only when told to, or by the rng it is given.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, TypeAlias, TypeVar

from dedupe.decide.sessions import (
    EVICTED,
    LIVE,
    NO_SESSIONS,
    OF_SOURCE,
    Listing,
    SessionCounts,
    SessionKey,
    SessionState,
)
from dedupe.decide.source_sizes import SourceSizes
from dedupe.decide.window import Step
from dedupe.model.errors import IndexCorruptError, IndexDisprovedError, IndexUnavailableError
from dedupe.model.types import Entry, EventKey, Offset
from dedupe.storage.index import EMPTY_STATE, IndexIdentity, IndexState, IndexUpdate, Opening, WalFiles
from dedupe.storage.snapshots.store import SnapshotStore
from tests.support.sim.faults import OnFault, SimDice, ignore_fault

UNSYNCED_MAX = 64
"""How many updates of the tail a crash can lose. Each keeps what it replaced until then."""

ENTRY_BYTES = 32
"""Key, offset and fingerprint: what an entry would take on a real disk, without any overhead."""

Place: TypeAlias = tuple[str, int, int]  # topic, partition, plan; see IndexIdentity
Value = TypeVar("Value")


class _Undo(NamedTuple):
    """What one update replaced."""

    entries: dict[EventKey, Entry | None]
    state: IndexState
    steps: tuple[Step, ...]
    sessions: dict[SessionKey, SessionState | None]
    session_counts: SessionCounts


_LINEAGES = (number.to_bytes(16) for number in count())


@dataclass(slots=True)
class _Disk:
    """What is stored for one lane."""

    identity: IndexIdentity
    entries: dict[EventKey, Entry] = field(default_factory=dict)
    state: IndexState = EMPTY_STATE
    steps: tuple[Step, ...] = ()
    sessions: dict[SessionKey, SessionState] = field(default_factory=dict)
    session_counts: SessionCounts = NO_SESSIONS
    complete_from: Offset = 0  # it began here, or dropped nothing at or above it
    unsynced: deque[_Undo] = field(default_factory=lambda: deque(maxlen=UNSYNCED_MAX))
    is_damaged: bool = False
    unproved: tuple[Offset, ...] = ()
    is_disproved: bool = False
    lineage: bytes = field(default_factory=lambda: next(_LINEAGES))

    def forget(self, start: Offset) -> None:
        """Become the disk of a new, empty index."""
        self.lineage = next(_LINEAGES)
        self.entries.clear()
        self.unsynced.clear()
        self.sessions.clear()
        self.session_counts = NO_SESSIONS
        self.unproved = ()
        self.state = EMPTY_STATE._replace(applied_offset=start)
        self.steps = ()
        self.complete_from = start

    def apply(self, update: IndexUpdate) -> None:
        """Take one update, and remember what it replaced."""
        entries = [*update.entries, *update.secondary_keys]
        changes = update.sessions.changes if update.sessions else ()
        self.unsynced.append(
            _Undo(
                {key: self.entries.get(key) for key, _ in entries},
                self.state,
                self.steps,
                {key: self.sessions.get(key) for key, _, _ in changes},
                self.session_counts,
            )
        )
        self.entries.update(entries)
        self.state = update.state
        dropped = set(update.dropped_steps)
        self.steps = tuple(step for step in (*self.steps, *update.new_steps) if step not in dropped)
        _put_all(self.sessions, {key: after for key, _, after in changes})
        if update.sessions:
            self.session_counts = update.sessions.counts

    def lose_last(self) -> None:
        """Take back the newest update."""
        entries, self.state, self.steps, sessions, self.session_counts = self.unsynced.pop()
        _put_all(self.entries, entries)
        _put_all(self.sessions, sessions)


def _put_all(stored: dict[bytes, Value], values: Mapping[bytes, Value | None]) -> None:
    """Store each value, and delete what is None."""
    for key, value in values.items():
        if value is None:
            stored.pop(key, None)
        else:
            stored[key] = value


class MemoryStore:
    """The indexes of one simulated machine; see IndexStore."""

    def __init__(self, rng: SimDice | None = None) -> None:
        self.has_room = True
        self.snapshots: SnapshotStore | None = None
        self.openings: dict[Place, Opening] = {}
        self.on_fault: OnFault = ignore_fault
        self._rng = rng or SimDice()
        self._disks: dict[Place, _Disk] = {}
        self._opened: dict[Place, MemoryIndex] = {}

    async def prepare(self, identity: IndexIdentity) -> None:
        """See IndexStore. There is nothing to wait for."""

    def opening(self, identity: IndexIdentity) -> Opening | None:
        """See IndexStore."""
        return self.openings.get(_place_of(identity))

    def open(self, identity: IndexIdentity) -> "MemoryIndex":
        """
        See IndexStore.

        Raises:
            IndexCorruptError: see IndexStore.
            IndexUnavailableError: it is still open, or the disk is full.
        """
        place = _place_of(identity)
        if place in self._opened:
            raise IndexUnavailableError(f"index of {place} is locked")
        self.check_room(place)
        disk = self._disks.setdefault(place, _Disk(identity))
        if disk.is_disproved:
            text = f"the log has disproved an entry of the index of {place}"
            raise IndexDisprovedError(text, lineage=disk.lineage)
        if disk.is_damaged:
            raise IndexCorruptError(f"index of {place} is damaged")
        if disk.identity != identity:
            raise IndexCorruptError(f"index of {place} was built from another log or for other settings")
        index = self._opened[place] = MemoryIndex(self, disk)
        return index

    def discard(self, identity: IndexIdentity) -> None:
        """See IndexStore. Refuses while the index is open."""
        place = _place_of(identity)
        if place in self._opened:
            raise IndexCorruptError(f"index of {place} is locked")
        self._disks.pop(place, None)

    def crash(self, *, lost_updates: int = 0) -> None:
        """
        Abandon every open index, as the end of the process does.

        Args:
            lost_updates: how many updates the tail of each index loses, as a power cut does; at
                most UNSYNCED_MAX, and never one before the last reset.
        """
        assert 0 <= lost_updates <= UNSYNCED_MAX
        for index in list(self._opened.values()):
            index.close()
        for disk in self._disks.values():
            for _ in range(min(lost_updates, len(disk.unsynced))):
                disk.lose_last()

    def damage(self, identity: IndexIdentity) -> None:
        """Make the index unreadable until it is discarded or reset."""
        self._disks[_place_of(identity)].is_damaged = True

    def lose_middle(self, identity: IndexIdentity, entries: int) -> None:
        """Lose a write-ahead file of so many entries, and keep those before and after it."""
        disk = self._disks[_place_of(identity)]
        offsets = sorted(entry.offset for entry in disk.entries.values())
        lost = set(offsets[-2 * entries : -entries])
        disk.entries = {key: entry for key, entry in disk.entries.items() if entry.offset not in lost}
        disk.unproved = (max(lost) + 1,)

    def replace_entry(self, identity: IndexIdentity, key: EventKey, entry: Entry) -> None:
        """Have an entry that no update has written."""
        self._disks[_place_of(identity)].entries[key] = entry

    def drop_before(self, identity: IndexIdentity, offset: Offset) -> None:
        """Forget the oldest entries, as FIFO compaction does; none where there is no index."""
        disk = self._disks.get(_place_of(identity)) or _Disk(identity)
        disk.entries = {key: entry for key, entry in disk.entries.items() if entry.offset >= offset}
        disk.unsynced.clear()
        disk.complete_from = max(disk.complete_from, offset)

    def check_room(self, place: Place) -> None:
        """Raise IndexUnavailableError if a test has filled the disk, or the rng say that it fails."""
        if not self.has_room:
            raise IndexUnavailableError("no room is left on the simulated disk")
        if self.strikes("disk_error", place):
            raise IndexUnavailableError("simulated: the disk could not be written")

    def strikes(self, fault: str, place: Place) -> bool:
        """Whether a fault happens now."""
        strikes = self._rng.says(getattr(self._rng.faults, fault))
        if strikes:
            self.on_fault(fault, *place[:2])
        return strikes

    def release(self, index: "MemoryIndex") -> None:
        """Take note that an index was closed."""
        self._opened = {place: opened for place, opened in self._opened.items() if opened is not index}


class MemoryIndex:
    """See DedupeIndex."""

    def __init__(self, store: MemoryStore, disk: _Disk) -> None:
        self._store = store
        self._disk = disk
        self._is_closed = False
        self._has_failed = False
        self.warmed = 0
        """How often it was asked to become fast."""

    @property
    def state(self) -> IndexState:
        return self._disk.state

    @property
    def steps(self) -> Sequence[Step]:
        return self._disk.steps

    @property
    def keys_estimate(self) -> int:
        return len(self._disk.entries)

    @property
    def size_bytes(self) -> int:
        return ENTRY_BYTES * len(self._disk.entries)

    @property
    def files(self) -> int:
        return 0

    @property
    def wal(self) -> WalFiles:
        return WalFiles(0, 0)

    @property
    def unproved(self) -> Sequence[Offset]:
        return self._disk.unproved

    def note_proved(self) -> None:
        self._disk.unproved = ()

    @property
    def lineage(self) -> bytes:
        return self._disk.lineage

    def note_disproved(self) -> None:
        self._disk.is_disproved = True

    def lookup(self, keys: Sequence[EventKey]) -> list[Entry | None]:
        entries = self._readable().entries
        return [entries.get(key) for key in keys]

    @property
    def session_counts(self) -> SessionCounts:
        return self._disk.session_counts

    def sessions(self, keys: Sequence[SessionKey]) -> list[SessionState | None]:
        sessions = self._readable().sessions
        return [sessions.get(key) for key in keys]

    @property
    def session_sizes(self) -> SourceSizes:
        """Counted anew, and not as the updates say."""
        rows = self._disk.sessions.values()
        return SourceSizes(Counter(row.source_hash for row in rows if not row.is_evicted).items())

    def oldest_sessions(self, count: int, listing: Listing) -> list[tuple[SessionKey, SessionState]]:
        listed = [row for row in self._readable().sessions.items() if _is_listed(row[1], listing)]
        return sorted(listed, key=lambda row: (row[1].listed_at, row[0]))[:count]

    def sessions_of(self, client_hash: bytes, count: int) -> list[tuple[SessionKey, SessionState]]:
        return sorted(row for row in self._readable().sessions.items() if row[0].startswith(client_hash))[
            :count
        ]

    def apply(self, update: IndexUpdate) -> None:
        disk = self._readable()
        self._has_failed = True  # like RocksDB, unusable after a failed write
        self._store.check_room(_place_of(disk.identity))
        disk.apply(update)
        self._has_failed = False

    def reset(self, start: Offset) -> None:
        assert not self._is_closed, "index is closed"
        self._disk.is_damaged = self._disk.is_disproved = self._has_failed = False
        self._disk.forget(start)

    def expect(self, keys: int) -> None:
        """See DedupeIndex."""

    def warm(self) -> bool:
        """See DedupeIndex: it is fast."""
        assert not self._is_closed, "index is closed"
        self.warmed += 1
        return False

    def covers(self, offset: Offset) -> bool:
        return offset >= self._readable().complete_from

    def close(self) -> None:
        self._is_closed = True
        self._store.release(self)

    def _readable(self) -> _Disk:
        assert not self._is_closed, "index is closed"
        if self._store.strikes("bit_flip", _place_of(self._disk.identity)):
            self._disk.is_damaged = True
        if self._disk.is_damaged:
            raise IndexCorruptError("index is damaged")
        if self._has_failed:
            raise IndexUnavailableError("index failed before")
        return self._disk


def _place_of(identity: IndexIdentity) -> Place:
    return identity.topic, identity.partition, identity.plan


def _is_listed(state: SessionState, listing: Listing) -> bool:
    if state.is_evicted:
        return listing == EVICTED
    return listing in (LIVE, OF_SOURCE + state.source_hash)
