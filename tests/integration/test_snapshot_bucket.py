"""Claim: what a bucket gives is on disk before it is used, and a bucket that is not there keeps nobody up."""

import asyncio
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dedupe.model.clock import SystemClock
from dedupe.model.errors import ConfigurationError
from dedupe.storage.index import IndexIdentity
from dedupe.storage.rocksdb.index import RocksIndex
from dedupe.storage.rocksdb.snapshots import IndexSnapshots
from dedupe.storage.rocksdb.store import RocksStore
from dedupe.storage.snapshots.bucket import CHUNK_BYTES, Bucket
from dedupe.storage.snapshots.earlier_plans import delete_earlier_plans
from dedupe.storage.snapshots.manifest import Manifest, SnapshotError, folder_of
from tests.contract.index_contract import update_of
from tests.integration.test_rocks_recovery import BATCH, IDENTITY, store_in

NEWER = ".".join(str(int(part) + 1) for part in version("rocksdict").split("."))


@pytest.mark.regression("the last bytes of a restored file were written after it was synced")
@pytest.mark.parametrize("size", [1, 100, CHUNK_BYTES + 1])
async def test_whole_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    bucket = Bucket(f"file://{tmp_path}/bucket")
    await bucket.create("object", b"x" * size)
    synced: list[int] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    await bucket.download("object", tmp_path / "file", size_bytes=size)
    assert synced == [size]


@pytest.mark.regression("a gateway did not start without its share for snapshots")
async def test_folder_that_cannot_be_made_is_an_error_of_each_request(tmp_path: Path) -> None:
    (tmp_path / "share").write_bytes(b"not a folder")
    bucket = Bucket(f"file://{tmp_path}/share/bucket")
    with pytest.raises(SnapshotError) as refused:
        await bucket.names("")
    assert refused.value.reason == "bucket"
    (tmp_path / "share").unlink()
    await bucket.create("object", b"x")
    assert [each.name for each in await bucket.names("")] == ["object"]


def test_folder_has_an_absolute_path() -> None:
    with pytest.raises(ConfigurationError, match="file:///folder"):
        Bucket("file://folder/below")


class JumpingClock(SystemClock):
    """A clock that may be wrong."""

    wrong_by_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.wrong_by_ms


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    store = store_in(tmp_path / "index")
    yield store
    store.close()


def snapshots_in(tmp_path: Path, store: RocksStore, clock: SystemClock) -> IndexSnapshots:
    return IndexSnapshots(
        Bucket(f"file://{tmp_path}/bucket"), store, secret=b"x" * 16, worker="worker", clock=clock
    )


async def newest(snapshots: IndexSnapshots) -> Manifest | None:
    async for manifest in snapshots.candidates(IDENTITY):
        return manifest
    return None


@pytest.mark.regression("a snapshot of a clock that ran ahead was the newest for years")
async def test_snapshot_from_the_future_is_not_the_newest_for_ever(tmp_path: Path, store: RocksStore) -> None:
    clock = JumpingClock()
    snapshots, index = snapshots_in(tmp_path, store, clock), store.open(IDENTITY)
    index.apply(update_of(0, BATCH))
    clock.wrong_by_ms = 10**11
    await snapshots.make(IDENTITY, index, 0, asyncio.Lock())
    clock.wrong_by_ms = 0
    index.apply(update_of(BATCH, 2 * BATCH))
    made = await snapshots.make(IDENTITY, index, 0, asyncio.Lock())
    assert await newest(snapshots) == made.manifest
    index.close()


@pytest.mark.regression("an index that began anew had the digests of its earlier files")
async def test_snapshot_of_an_index_that_began_anew(tmp_path: Path, store: RocksStore) -> None:
    snapshots, index = snapshots_in(tmp_path, store, SystemClock()), store.open(IDENTITY)
    index.apply(update_of(0, BATCH))
    await snapshots.make(IDENTITY, index, 0, asyncio.Lock())
    index.reset(2 * BATCH)
    index.apply(update_of(2 * BATCH, BATCH))
    made = await snapshots.make(IDENTITY, index, 0, asyncio.Lock())
    state = index.state
    index.close()
    store.discard(IDENTITY)
    await snapshots.restore(made.manifest)
    await store.prepare(IDENTITY)
    restored = store.open(IDENTITY)
    assert restored.state == state
    restored.close()


async def test_snapshot_of_a_newer_rocksdb_is_passed_over_and_told(
    tmp_path: Path, store: RocksStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots, index = snapshots_in(tmp_path, store, SystemClock()), store.open(IDENTITY)
    index.apply(update_of(0, BATCH))
    made = await snapshots.make(IDENTITY, index, 0, asyncio.Lock())
    index.apply(update_of(BATCH, BATCH))
    with monkeypatch.context() as newer:
        newer.setattr("dedupe.storage.rocksdb.snapshots.version", lambda _package: NEWER)
        later = await snapshots.make(IDENTITY, index, 0, asyncio.Lock())
        assert await newest(snapshots) == later.manifest
    index.close()

    with capture_logs() as said:
        assert await newest(snapshots) == made.manifest
    assert [(line["event"], line["reason"], line["error"]) for line in said] == [
        ("a snapshot is not used", "version", f"a newer RocksDB has made it (rocksdict {NEWER})")
    ]


@pytest.mark.regression("an index that was disproved while it was copied had a snapshot")
@pytest.mark.parametrize("step", ["snapshot_copied", "snapshot_files", "snapshot_manifest"])
async def test_index_that_is_disproved_meanwhile_has_no_snapshot(
    tmp_path: Path, store: RocksStore, step: str
) -> None:
    index = store.open(IDENTITY)
    assert isinstance(index, RocksIndex)
    index.apply(update_of(0, BATCH))

    def disprove(reached: str) -> None:
        if reached == step:
            index.note_disproved()

    snapshots = IndexSnapshots(
        Bucket(f"file://{tmp_path}/bucket"),
        store,
        secret=b"x" * 16,
        worker="worker",
        clock=SystemClock(),
        crashpoint=disprove,
    )
    with pytest.raises(SnapshotError, match="disproved"):
        await snapshots.make(IDENTITY, index, 0, asyncio.Lock())
    assert await newest(snapshots) is None
    index.close()


class Machines:
    """Two workers with one bucket; the second has a copy of the index of the first."""

    def __init__(self, tmp_path: Path, secret: bytes = b"x" * 16) -> None:
        self.stores = [store_in(tmp_path / name) for name in ("first", "second")]
        self.snapshots = [
            IndexSnapshots(
                Bucket(f"file://{tmp_path}/bucket"), each, secret=secret, worker="w", clock=SystemClock()
            )
            for each in self.stores
        ]

    async def copy(self) -> tuple[RocksIndex, RocksIndex]:
        first = self.stores[0].open(IDENTITY)
        first.apply(update_of(0, BATCH))
        made = await self.snapshots[0].make(IDENTITY, first, 0, asyncio.Lock())
        await self.snapshots[1].restore(made.manifest)
        await self.stores[1].prepare(IDENTITY)
        return first, self.stores[1].open(IDENTITY)

    def close(self) -> None:
        for store in self.stores:
            store.close()


@pytest.mark.regression("a lane that moved before its snapshots were withdrawn kept what was wrong in them")
async def test_copy_of_a_disproved_index_is_known_where_its_lane_has_moved(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    here, there = machines.snapshots
    first, second = await machines.copy()
    assert first.lineage == second.lineage
    assert not await there.is_doubted(IDENTITY, second.lineage)

    here.doubt(IDENTITY, first.lineage)
    first.close()  # the lane is gone
    await here.withdraw_doubted()

    assert await newest(there) is None
    assert await there.is_doubted(IDENTITY, second.lineage)
    with pytest.raises(SnapshotError, match="disproved"):
        await there.make(IDENTITY, second, 0, asyncio.Lock())
    assert await newest(there) is None
    second.reset(0)
    assert not await there.is_doubted(IDENTITY, second.lineage)
    second.apply(update_of(0, BATCH))
    made = await there.make(IDENTITY, second, 0, asyncio.Lock())
    await here.withdraw_doubted()  # once is enough
    assert await newest(here) == made.manifest
    second.close()
    machines.close()


async def test_doubt_waits_for_its_bucket(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    here, there = machines.snapshots
    first, second = await machines.copy()
    here.doubt(IDENTITY, first.lineage)
    place = tmp_path / "bucket"
    place.rename(tmp_path / "away")
    place.write_bytes(b"no folder")
    with pytest.raises(SnapshotError):
        await here.withdraw_doubted()
    place.unlink()
    (tmp_path / "away").rename(place)

    await here.withdraw_doubted()
    assert await there.is_doubted(IDENTITY, second.lineage)
    for index in (first, second):
        index.close()
    machines.close()


async def test_who_has_another_secret_makes_nobody_doubt(tmp_path: Path) -> None:
    machines, forger = Machines(tmp_path), Machines(tmp_path / "forger", secret=b"y" * 16)
    first, second = await machines.copy()
    forged = forger.snapshots[0]
    forged._bucket = machines.snapshots[0]._bucket
    forged.doubt(IDENTITY, first.lineage)
    await forged.withdraw_doubted()

    assert not await machines.snapshots[1].is_doubted(IDENTITY, second.lineage)
    for index in (first, second):
        index.close()
    machines.close()
    forger.close()


def objects_of(tmp_path: Path, identity: IndexIdentity) -> set[str]:
    """Return the kinds of objects that the bucket has of an index."""
    folder = tmp_path / "bucket" / folder_of(identity)
    return {path.parent.name for path in folder.rglob("*") if path.is_file()}


@pytest.mark.regression("Snapshots of indexes of earlier plans stayed in the bucket for ever.")
async def test_snapshots_of_earlier_plans_of_a_partition_are_deleted_after_a_day(
    tmp_path: Path, store: RocksStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = IDENTITY._replace(partition=10 * IDENTITY.partition + 1)
    before, served, later = (IDENTITY._replace(plan=plan) for plan in (2, 12, 13))
    snapshots = snapshots_in(tmp_path, store, SystemClock())
    for identity in (IDENTITY, other, before, later, served):
        index = store.open(identity)
        index.apply(update_of(0, BATCH))
        await snapshots.make(identity, index, 0, asyncio.Lock())
        index.close()
    kinds = {"manifests", "files"}
    assert objects_of(tmp_path, IDENTITY) == objects_of(tmp_path, before) == kinds, "within a day"

    monkeypatch.setattr("dedupe.storage.snapshots.earlier_plans.KEPT_S", 0.0)
    await delete_earlier_plans(Bucket(f"file://{tmp_path}/bucket"), served)

    assert objects_of(tmp_path, IDENTITY) == objects_of(tmp_path, before) == set()
    assert objects_of(tmp_path, served) == objects_of(tmp_path, later) == objects_of(tmp_path, other) == kinds
