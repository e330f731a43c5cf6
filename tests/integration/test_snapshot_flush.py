"""Claim: a snapshot holds up its lane only for the little that came in since a flush, or it is not made."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Literal

import pytest

from dedupe.decide.window import Step
from dedupe.model.clock import Clock, SystemClock
from dedupe.model.types import Entry
from dedupe.storage.index import IndexIdentity, IndexState, IndexUpdate
from dedupe.storage.rocksdb.copying import UNFLUSHED_MAX
from dedupe.storage.rocksdb.index import RocksIndex
from dedupe.storage.rocksdb.snapshots import IndexSnapshots
from dedupe.storage.rocksdb.store import LANE_BYTES_MIN, RocksStore
from dedupe.storage.snapshots.bucket import Bucket
from dedupe.storage.snapshots.manifest import SnapshotError
from tests.support.rocks import SMALLEST

IDENTITY = IndexIdentity("log", "events", 0, 1, b"checked!")
BURST = 2 * UNFLUSHED_MAX


class BusyLane:
    """A lane that stores a burst of events at each of the maker's first looks at the clock, if it may."""

    def __init__(self, index: RocksIndex, bursts: int, look_s: float) -> None:
        self.index, self.bursts, self.look_s = index, bursts, look_s
        self.looks = self.stored = 0
        self.quiet = Quiet(index)

    def store(self, count: int) -> None:
        keys = [os.urandom(16) for _ in range(count)]
        entries = [(key, Entry(self.stored + n, key[:8])) for n, key in enumerate(keys)]
        steps = [] if self.stored else [Step(1, 0, 0)]
        self.stored += count
        state = IndexState(self.stored, self.stored, self.stored, self.stored - 1, keys[-1])
        self.index.apply(IndexUpdate(entries, state, steps))

    def monotonic(self) -> float:
        self.looks += 1
        if self.looks <= self.bursts and not self.quiet.locked():
            self.store(BURST)
        return self.looks * self.look_s

    def now_ms(self) -> int:
        return 1_700_000_000_000


class Quiet(asyncio.Lock):
    """What holds the lane; it notes what is left to be flushed then."""

    def __init__(self, index: RocksIndex) -> None:
        super().__init__()
        self.index = index
        self.unflushed: list[int] = []

    async def acquire(self) -> Literal[True]:
        self.unflushed.append(self.index.unflushed_entries)
        return await super().acquire()


class Hasty(RocksIndex):
    """An index that takes a burst, and flushes it, when it is copied first."""

    lane: BusyLane

    @property
    def data_files(self) -> Sequence[str]:
        files = super().data_files
        if self.lane.stored == BURST:
            self.lane.store(BURST)
            self.begin_flush()
            while self.is_flushing or self.unflushed_entries:
                pass
        return files


class Merged(RocksIndex):
    """An index one of whose files is gone when it is copied first, since RocksDB has merged it."""

    copies = 0

    @property
    def data_files(self) -> Sequence[str]:
        self.copies += 1
        return [*super().data_files, *(["000001.sst"] if self.copies == 1 else [])]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    store = RocksStore(tmp_path / "index", lanes=1, memory_bytes=LANE_BYTES_MIN, keys_max=1_000_000)
    yield store
    store.close()


async def make(store: RocksStore, tmp_path: Path, index: RocksIndex, bursts: int, look_s: float) -> BusyLane:
    lane = BusyLane(index, bursts, look_s)
    lane.store(BURST)
    snapshots = snapshots_of(store, tmp_path, lane)
    try:
        made = await snapshots.make(IDENTITY, index, 0, lane.quiet)
        assert made.manifest.state.applied_offset == lane.stored
    finally:
        index.close()
    return lane


def snapshots_of(store: RocksStore, tmp_path: Path, clock: Clock) -> IndexSnapshots:
    bucket = Bucket(f"file://{tmp_path}/bucket")
    return IndexSnapshots(bucket, store, secret=b"a secret of the tests", worker="a", clock=clock)


async def restored(store: RocksStore, tmp_path: Path) -> int:
    """Return how many keys the newest snapshot has."""
    await store.prepare(IDENTITY)
    store.discard(IDENTITY)
    await store.prepare(IDENTITY)
    snapshots = snapshots_of(store, tmp_path, SystemClock())
    async with aclosing(snapshots.candidates(IDENTITY)) as candidates:
        await snapshots.restore(await anext(candidates))
    await store.prepare(IDENTITY)
    index = store.open(IDENTITY)
    try:
        return index.keys_estimate
    finally:
        index.close()


@pytest.mark.regression("A snapshot under load held up the event loop for all that came in during its flush.")
async def test_what_comes_in_during_a_flush_is_flushed_before_the_lane_is_held(
    store: RocksStore, tmp_path: Path
) -> None:
    await store.prepare(IDENTITY)
    lane = await make(store, tmp_path, store.open(IDENTITY), bursts=3, look_s=0.01)

    assert lane.stored == 4 * BURST
    (unflushed,) = lane.quiet.unflushed
    assert unflushed <= UNFLUSHED_MAX
    assert not lane.quiet.locked()
    assert await restored(store, tmp_path) == lane.stored


async def test_lane_that_is_never_flushed_makes_no_snapshot(store: RocksStore, tmp_path: Path) -> None:
    await store.prepare(IDENTITY)
    with pytest.raises(SnapshotError, match="RocksDB is not at rest within 30 s") as refused:
        await make(store, tmp_path, store.open(IDENTITY), bursts=1_000, look_s=1.0)

    assert refused.value.reason == "busy"
    assert not list((tmp_path / "bucket").rglob("manifests/*"))


async def test_files_that_are_merged_meanwhile_are_copied_again(store: RocksStore, tmp_path: Path) -> None:
    await store.prepare(IDENTITY)
    index = Merged(store.path_of(IDENTITY), IDENTITY, SMALLEST)
    lane = await make(store, tmp_path, index, bursts=0, look_s=0.01)

    assert index.copies == 2
    assert await restored(store, tmp_path) == lane.stored


async def test_events_that_come_in_while_the_links_are_made_are_not_lost(
    store: RocksStore, tmp_path: Path
) -> None:
    await store.prepare(IDENTITY)
    index = Hasty(store.path_of(IDENTITY), IDENTITY, SMALLEST)
    index.lane = lane = BusyLane(index, 0, 0.01)
    lane.store(BURST)
    made = await snapshots_of(store, tmp_path, lane).make(IDENTITY, index, 0, lane.quiet)
    index.close()

    assert made.manifest.state.applied_offset == lane.stored == 2 * BURST
    assert await restored(store, tmp_path) == lane.stored
