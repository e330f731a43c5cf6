"""
The seam to the dedupe index of one lane: event key -> where its original is.

The index is a pure function of the log: it may be lost at any time and is rebuilt by replaying
the log through `apply`. All its answers must be true up to `IndexState.applied_offset`.

Lane.submit -> admit -> PartitionLog.append -> **DedupeIndex.apply**
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dedupe.decide.sessions import SessionRows, SessionUpdate
from dedupe.decide.window import Step
from dedupe.model.types import Entry, EventKey, Offset


class IndexIdentity(NamedTuple):
    """Which log, and which rules, an index was built from. Any difference means: rebuild."""

    log_id: str  # Kafka's cluster id, or the SQLite log's own id
    topic: str
    partition: int
    partitions: int
    key_check: bytes  # dedupe.model.identity.Identity.check_value
    format_version: int = 3


class IndexState(NamedTuple):
    """The index's position in the log. Written in the same batch as the entries."""

    applied_offset: Offset  # exclusive: every committed record below it is in the index
    next_lane_seq: int
    newest_timestamp_ms: int  # of all records applied; 0 if none
    last_offset: Offset  # of the newest record applied, -1 if none: recovery proves it against the log
    last_key: EventKey  # of the same record; b"" if none


EMPTY_STATE = IndexState(0, 0, 0, -1, b"")


class IndexUpdate(NamedTuple):
    """One atomic step: all of it becomes visible and durable, or nothing."""

    entries: Sequence[tuple[EventKey, Entry]]
    state: IndexState
    new_steps: Sequence[Step] = ()
    dropped_steps: Sequence[Step] = ()
    secondary_keys: Sequence[tuple[EventKey, Entry]] = ()
    """Further keys under which some of the same records are known: message ids of session events."""
    sessions: SessionUpdate | None = None


class DedupeIndex(SessionRows, Protocol):
    """
    The index of one lane, used by that lane alone.

    Methods that raise IndexCorruptError may raise IndexUnavailableError, too: then close it, and open
    it again.
    """

    @property
    def state(self) -> IndexState:
        """The state written by the last `apply` or `reset`."""

    @property
    def steps(self) -> Sequence[Step]:
        """The window's step table, oldest first."""

    @property
    def keys_estimate(self) -> int:
        """About how many keys are stored, those before the window included. Cheap."""

    @property
    def size_bytes(self) -> int:
        """What the entries take on disk, or in memory on their way there. Cheap."""

    @property
    def files(self) -> int:
        """In how many files they are: what looking up an unknown key costs grows with it. Cheap."""

    def lookup(self, keys: Sequence[EventKey]) -> list[Entry | None]:
        """
        Return each key's entry or None; same order and length as `keys`.

        Raises:
            IndexCorruptError: something could not be read; nothing may be concluded from it.
        """

    def apply(self, update: IndexUpdate) -> None:
        """
        Write one update atomically. A later entry of a key replaces an earlier one.

        Raises:
            IndexCorruptError: the write failed; the index must be rebuilt.
        """

    def reset(self, start: Offset) -> None:
        """Forget everything and begin anew at log offset `start`. Raises IndexCorruptError."""

    def covers(self, offset: Offset) -> bool:
        """Whether it began at or below `offset`, and can have dropped no entry at or above it since."""

    def close(self) -> None:
        """Release files and locks, or begin to: `IndexStore.prepare` waits. Idempotent, never raises."""


class IndexStore(Protocol):
    """Opens the indexes of one process."""

    async def prepare(self, identity: IndexIdentity) -> None:
        """
        Do what of opening may take long, elsewhere than in the event loop; then `open` is quick.

        Raises IndexUnavailableError: `open` would hold the loop, and this has to be tried again.
        """

    def open(self, identity: IndexIdentity) -> DedupeIndex:
        """
        Open the lane's index, new and empty if there is none.

        Raises:
            IndexCorruptError: there is one, but it is damaged or of another identity: `discard` it.
            IndexUnavailableError: it cannot be opened now, and must be kept.
        """

    def discard(self, identity: IndexIdentity) -> None:
        """Delete the files of this lane's index. If that fails, this or `open` raises IndexCorruptError."""
