"""The interface of what makes snapshots of indexes and restores them."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from dedupe.model.types import Offset
from dedupe.storage.index import DedupeIndex, IndexIdentity, Opening
from dedupe.storage.snapshots.manifest import Manifest

Quiet: TypeAlias = AbstractAsyncContextManager[None]
"""What a lane waits for before each batch."""


class Made(NamedTuple):
    """A new snapshot."""

    manifest: Manifest
    sent_bytes: int  # of what the bucket did not have


class SnapshotStore(Protocol):
    """The snapshots of the indexes of one process. Every method raises SnapshotError, and nothing else."""

    records_min: int
    """Fewer offsets are read from the log in the time that a bucket takes to answer."""

    async def make(
        self, identity: IndexIdentity, index: DedupeIndex, window_start: Offset, quiet: Quiet
    ) -> Made:
        """
        Make a snapshot of an open index, and delete what older ones no longer need.

        Args:
            identity: of the index.
            index: it takes updates meanwhile, and may be closed.
            window_start: the first offset whose id it remembers.
            quiet: while it is held, the lane commits no batch.
        """

    def candidates(self, identity: IndexIdentity) -> AsyncGenerator[Manifest, None]:
        """Yield the valid manifests of an index, the newest first; what is wrong with others is logged."""

    async def restore(self, manifest: Manifest) -> None:
        """
        Put a snapshot at the place of the index, which is closed and deleted.

        `DedupeIndex.unproved` of the index then has random offsets of the window. After an error there is
        nothing at the place. A cancellation ends what is under way.
        """

    def doubt(self, identity: IndexIdentity, lineage: bytes) -> None:
        """Note that the log has disproved an index, and so whatever is of its lineage; see `withdraw`."""

    async def withdraw(self, identity: IndexIdentity) -> None:
        """
        Tell other workers what is doubted of an index, and delete all its snapshots.

        After an error `withdraw_doubted` does it, or the next `make` of the index.
        """

    async def withdraw_doubted(self) -> None:
        """Withdraw the snapshots of all indexes that are doubted, whoever serves them now."""

    async def is_doubted(self, identity: IndexIdentity, lineage: bytes) -> bool:
        """Whether a worker has told that the log has disproved an index of this lineage."""

    async def verify(self, manifest: Manifest, scratch: Path) -> None:
        """Fetch all files of a snapshot into an empty folder, one after the other, and compare them."""

    async def note_drill(self, identity: IndexIdentity) -> None:
        """Note that a snapshot of the topic was restored and proved."""

    async def last_drill_ms(self, identity: IndexIdentity) -> int | None:
        """Return when a snapshot of the topic was last restored as a drill; None if never."""

    def opening(self, identity: IndexIdentity) -> Opening | None:
        """Return the progress of `restore`; None while there is none."""
