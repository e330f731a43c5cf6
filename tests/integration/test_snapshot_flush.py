"""Claim: a snapshot holds up its lane only for the little that came in since a flush, or it is not made."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupe.decide.window import Step
from dedupe.model.types import Entry
from dedupe.storage.index import IndexIdentity, IndexState, IndexUpdate
from dedupe.storage.rocksdb.index import RocksIndex
from dedupe.storage.rocksdb.snapshots import UNFLUSHED_MAX, IndexSnapshots
from dedupe.storage.rocksdb.store import LANE_BYTES_MIN, RocksStore
from dedupe.storage.snapshots.bucket import Bucket
from dedupe.storage.snapshots.manifest import SnapshotError

IDENTITY = IndexIdentity("log", "events", 0, 1, b"checked!")
BURST = 2 * UNFLUSHED_MAX


class BusyLane:
    """A lane that stores a burst of events at each of the maker's first looks at the clock."""

    def __init__(self, index: RocksIndex, bursts: int, look_s: float) -> None:
        self.index, self.bursts, self.look_s = index, bursts, look_s
        self.looks = self.stored = 0
        self.unflushed: list[int] = []

    def store(self, count: int) -> None:
        keys = [os.urandom(16) for _ in range(count)]
        entries = [(key, Entry(self.stored + n, key[:8])) for n, key in enumerate(keys)]
        steps = [] if self.stored else [Step(1, 0, 0)]
        self.stored += count
        state = IndexState(self.stored, self.stored, self.stored, self.stored - 1, keys[-1])
        self.index.apply(IndexUpdate(entries, state, steps))

    def monotonic(self) -> float:
        self.looks += 1
        if self.looks <= self.bursts:
            self.store(BURST)
        return self.looks * self.look_s

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def crashpoint(self, step: str) -> None:
        if step == "snapshot_flushed":
            self.unflushed.append(self.index.unflushed_entries)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    store = RocksStore(tmp_path / "index", lanes=1, memory_bytes=LANE_BYTES_MIN, keys_max=1_000_000)
    yield store
    store.close()


async def make(store: RocksStore, tmp_path: Path, bursts: int, look_s: float) -> BusyLane:
    await store.prepare(IDENTITY)
    index = store.open(IDENTITY)
    lane = BusyLane(index, bursts, look_s)
    lane.store(BURST)
    snapshots = IndexSnapshots(
        Bucket(f"file://{tmp_path}/bucket"),
        store,
        secret=b"a secret of the tests",
        worker="a",
        clock=lane,
        crashpoint=lane.crashpoint,
    )
    try:
        made = await snapshots.make(IDENTITY, index, 0)
        assert made.manifest.state.applied_offset == lane.stored
    finally:
        index.close()
    return lane


@pytest.mark.regression("A snapshot under load held up the event loop for all that came in during its flush.")
async def test_what_comes_in_during_a_flush_is_flushed_before_the_checkpoint(
    store: RocksStore, tmp_path: Path
) -> None:
    lane = await make(store, tmp_path, bursts=3, look_s=0.01)

    assert lane.stored == 4 * BURST
    (unflushed,) = lane.unflushed
    assert unflushed <= UNFLUSHED_MAX


async def test_lane_that_is_never_flushed_makes_no_snapshot(store: RocksStore, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="its memtables are not on disk after 5 s") as refused:
        await make(store, tmp_path, bursts=1_000, look_s=0.25)

    assert refused.value.reason == "busy"
    assert not list((tmp_path / "bucket").rglob("manifests/*"))
