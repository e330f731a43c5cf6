"""SimSnapshots: copies of simulated indexes in a bucket that fails at random; see SnapshotStore."""

import copy
from collections.abc import AsyncGenerator
from pathlib import Path
from random import Random

from dedupe.model.types import Offset
from dedupe.storage.index import DedupeIndex, IndexIdentity, Opening
from dedupe.storage.snapshots.manifest import Manifest, SnapshotError
from dedupe.storage.snapshots.store import Made, Quiet
from tests.support.sim.memory_index import MemoryStore, _Disk, _place_of

FAILS = 0.15
"""How often a call fails, and how often candidates come in another order than by age."""
PROVED_OFFSETS = 4


class Reliable(Random):
    """Dice of a bucket that always answers."""

    def random(self) -> float:
        return 1.0

    def getrandbits(self, k: int, /) -> int:
        return super().getrandbits(k)  # or whole numbers would be drawn by `random`, without end


class SimBucket:
    """What all machines have put into it, the newest last."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.copies: list[tuple[Manifest, _Disk]] = []
        self.disproved: set[tuple[IndexIdentity, bytes]] = set()


class SimSnapshots:
    """The snapshots of one simulated machine."""

    records_min = 0

    def __init__(self, bucket: SimBucket, disk: MemoryStore) -> None:
        self._bucket, self._disk = bucket, disk
        self.restored = 0
        self._doubted: set[tuple[IndexIdentity, bytes]] = set()

    def take(self, identity: IndexIdentity) -> None:
        """Copy an index as it is now, open or not; nothing if there is none, or it cannot be read."""
        disk = self._disk._disks.get(_place_of(identity))
        if disk is None or disk.is_damaged or disk.is_disproved or disk.unproved:
            return
        kept = copy.deepcopy(disk)
        kept.unsynced.clear()
        number = len(self._bucket.copies)
        manifest = Manifest(disk.identity, disk.state, disk.complete_from, (), number, "sim", "0")
        self._bucket.copies.append((manifest, kept))

    async def make(
        self, identity: IndexIdentity, index: DedupeIndex, window_start: Offset, quiet: Quiet
    ) -> Made:
        """See SnapshotStore."""
        self._fail_at_random()
        self.take(identity)
        return Made(self._bucket.copies[-1][0], 0)

    async def candidates(self, identity: IndexIdentity) -> AsyncGenerator[Manifest, None]:
        """See SnapshotStore: also old ones first, and none after a failure."""
        found = [manifest for manifest, _ in reversed(self._bucket.copies) if manifest.identity == identity]
        if self._bucket.rng.random() < FAILS:
            self._bucket.rng.shuffle(found)
        for manifest in found:
            self._fail_at_random()
            yield manifest

    async def restore(self, manifest: Manifest) -> None:
        """See SnapshotStore."""
        self._fail_at_random()
        copied = next((disk for found, disk in self._bucket.copies if found is manifest), None)
        if copied is None:
            raise SnapshotError("missing", "simulated: it is withdrawn")
        kept = copy.deepcopy(copied)
        last = manifest.state.last_offset
        rng = self._bucket.rng
        kept.unproved = tuple(
            rng.randint(min(kept.complete_from, last), last + 1) for _ in range(PROVED_OFFSETS)
        )
        place = _place_of(manifest.identity)
        assert place not in self._disk._disks, "the index is deleted before"
        self._disk._disks[place] = kept
        self.restored += 1

    def doubt(self, identity: IndexIdentity, lineage: bytes) -> None:
        """See SnapshotStore."""
        self._doubted.add((identity, lineage))

    async def withdraw(self, identity: IndexIdentity) -> None:
        """See SnapshotStore."""
        self._fail_at_random()
        self._bucket.disproved |= {each for each in self._doubted if each[0] == identity}
        self._bucket.copies = [each for each in self._bucket.copies if each[0].identity != identity]

    async def withdraw_doubted(self) -> None:
        """See SnapshotStore."""
        for identity in {identity for identity, _ in self._doubted}:
            await self.withdraw(identity)

    async def is_doubted(self, identity: IndexIdentity, lineage: bytes) -> bool:
        """See SnapshotStore."""
        self._fail_at_random()
        return (identity, lineage) in self._bucket.disproved

    async def verify(self, manifest: Manifest, scratch: Path) -> None:
        """See SnapshotStore."""

    async def note_drill(self, identity: IndexIdentity) -> None:
        """See SnapshotStore."""

    async def last_drill_ms(self, identity: IndexIdentity) -> int | None:
        """See SnapshotStore."""
        return None

    def opening(self, identity: IndexIdentity) -> Opening | None:
        """See SnapshotStore."""
        return None

    def _fail_at_random(self) -> None:
        if self._bucket.rng.random() < FAILS:
            raise SnapshotError("bucket", "simulated: the bucket does not answer")
