"""
The interface of a lane's dedupe index, which maps an event key to the offset of its original.

The index is a function of the log: when it is lost, it is rebuilt by replaying the log through `apply`. It
is correct up to `IndexState.applied_offset`.

Lane.submit -> admit -> PartitionLog.append -> **DedupeIndex.apply**
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dedupe.decide.sessions import SessionRows, SessionUpdate
from dedupe.decide.window import Step
from dedupe.model.types import Entry, EventKey, Offset

if TYPE_CHECKING:
    from dedupe.storage.snapshots.store import SnapshotStore


class IndexIdentity(NamedTuple):
    """The log and the rules that an index was built from. After any change it is rebuilt."""

    log_id: str  # Kafka's cluster id, or the SQLite log's own id
    topic: str
    partition: int
    partitions: int
    key_check: bytes  # dedupe.model.identity.Identity.check_value
    format_version: int = 4
    plan: int = 0  # that gave the partition slots, see dedupe.decide.lineage; 0: none did
    lineage: str = ""  # Lineage.digest: an index that was prepared for other cuts is of another one

    @property
    def name(self) -> str:
        """The name of the index among those of its topic."""
        return f"{self.partition}-{self.plan}" if self.plan else f"{self.partition}"

    @property
    def fields(self) -> dict[str, object]:
        """What is stored of it: a plan, and what its marks say, if there is one."""
        fields = self._asdict() | {"key_check": self.key_check.hex()}
        unsaid = [name for name in ("plan", "lineage") if not fields[name]]
        return {name: value for name, value in fields.items() if name not in unsaid}


class IndexState(NamedTuple):
    """The index's position in the log; written in the same batch as the entries."""

    applied_offset: Offset  # exclusive: every committed record below it is in the index
    next_lane_seq: int
    newest_timestamp_ms: int  # of all records applied; 0 if none
    last_offset: Offset  # of the newest record applied, -1 if none; recovery compares it with the log
    last_key: EventKey  # of the same record; b"" if none


EMPTY_STATE = IndexState(0, 0, 0, -1, b"")


class IndexUpdate(NamedTuple):
    """One atomic update."""

    entries: Sequence[tuple[EventKey, Entry]]
    state: IndexState
    new_steps: Sequence[Step] = ()
    dropped_steps: Sequence[Step] = ()
    secondary_keys: Sequence[tuple[EventKey, Entry]] = ()
    """Second keys of some of the same records: message ids of session events."""
    sessions: SessionUpdate | None = None


class WalFiles(NamedTuple):
    """The number and the size in bytes of an index's write-ahead files."""

    number: int
    size_bytes: int


class Opening(NamedTuple):
    """The progress with an index that was not closed: its write-ahead log is checked, then replayed."""

    done_bytes: int
    size_bytes: int  # > 0

    @property
    def ratio(self) -> float:
        """The part that is done, 0 to 1."""
        return self.done_bytes / self.size_bytes


class DedupeIndex(SessionRows, Protocol):
    """
    The index of one lane.

    Methods that raise IndexCorruptError may also raise IndexUnavailableError: then close the index, and
    open it again.
    """

    @property
    def state(self) -> IndexState:
        """The state written by the last `apply` or `reset`."""

    @property
    def steps(self) -> Sequence[Step]:
        """The window's step table, oldest first."""

    @property
    def keys_estimate(self) -> int:
        """The approximate number of stored keys, those before the window included. Cheap."""

    @property
    def size_bytes(self) -> int:
        """The size of the entries, on disk and in memtables. Cheap."""

    @property
    def files(self) -> int:
        """The number of files; the cost of looking up an absent key grows with it. Cheap."""

    @property
    def wal(self) -> WalFiles:
        """The write-ahead files, closed ones included. Cheap. Raises IndexUnavailableError."""

    @property
    def unproved(self) -> Sequence[Offset]:
        """
        Offsets before which records may be missing, since the index was not closed; usually empty.

        The newest record before each of them must be looked up, then call `note_proved`.
        """

    def note_proved(self) -> None:
        """Forget `unproved`, for later openings as well. Raises IndexUnavailableError."""

    @property
    def lineage(self) -> bytes:
        """
        What this index has in common with its copies and theirs: it was drawn when the first one was empty.

        What the log disproves of one may be wrong in all. Empty in indexes of earlier versions.
        """

    def note_disproved(self) -> None:
        """
        Have every later opening raise IndexDisprovedError, until the index is discarded or reset.

        Raises IndexUnavailableError.
        """

    def lookup(self, keys: Sequence[EventKey]) -> list[Entry | None]:
        """
        Return each key's entry or None; same order and length as `keys`.

        Raises:
            IndexCorruptError: an entry could not be read; whether a key is stored is unknown.
        """

    def apply(self, update: IndexUpdate) -> None:
        """
        Write one update atomically. A later entry of a key replaces an earlier one.

        Raises:
            IndexCorruptError: the write failed; the index must be rebuilt.
        """

    def reset(self, start: Offset) -> None:
        """Delete all entries, and begin at log offset `start`. Raises IndexCorruptError."""

    def expect(self, keys: int) -> None:
        """Prepare for so many keys at most; an index that is empty is then fast when it has them."""

    def warm(self) -> bool:
        """
        Work for some milliseconds on what makes look-ups of absent keys fast; False if that is done.

        Raises IndexCorruptError.
        """

    def covers(self, offset: Offset) -> bool:
        """Whether the index began at or below `offset`, and has dropped no entry from `offset` on."""

    def close(self) -> None:
        """Begin to release files and locks; `IndexStore.prepare` waits for it. Idempotent, never raises."""


class IndexStore(Protocol):
    """Opens the indexes of one process."""

    snapshots: "SnapshotStore | None"
    """Where a lost index comes from; None: from the log alone."""

    async def prepare(self, identity: IndexIdentity) -> None:
        """
        Do the slow parts of opening outside of the event loop, so that `open` is fast.

        Raises IndexUnavailableError: `open` would block the event loop; call this again.
        """

    def opening(self, identity: IndexIdentity) -> Opening | None:
        """Return the progress of `prepare`; None while it has nothing long to do."""

    def open(self, identity: IndexIdentity) -> DedupeIndex:
        """
        Open the lane's index; create an empty one if there is none.

        Raises:
            IndexCorruptError: it is damaged or has another identity: `discard` it.
            IndexDisprovedError: likewise, and its snapshots are not to be used.
            IndexUnavailableError: it cannot be opened now; keep it.
        """

    def discard(self, identity: IndexIdentity) -> None:
        """Delete the lane's index. If that fails, this or `open` raises IndexCorruptError."""
