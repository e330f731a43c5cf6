"""
Claim: whatever happens to a bucket, or to a snapshot's owner, while a snapshot is made or used, what is
restored is an index that was right, or nothing is, and the next older one is tried.
"""

import asyncio
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from dedupe.model.clock import SystemClock
from dedupe.storage.index import IndexIdentity, IndexState
from dedupe.storage.rocksdb.snapshots import IndexSnapshots
from dedupe.storage.rocksdb.store import RocksStore
from dedupe.storage.snapshots.bucket import Bucket
from dedupe.storage.snapshots.manifest import Manifest, SnapshotError
from tests.contract.index_contract import key_of, update_of
from tests.integration.test_rocks_recovery import IDENTITY, store_in
from tests.integration.test_snapshots import (
    EVENTS,
    Stored,
    files_in,
    flip,
    gateway_in,
    lose_index,
    manifests_in,
    send,
    snapshots_of,
)
from tests.support.gateway import Gateway
from tests.support.http import new_event
from tests.support.waiting import until

KEYS = 5_000
LIMIT_BYTES = 32 * 1024


class Worker:
    """One machine: its indexes, and its snapshots in the bucket of all."""

    def __init__(
        self, folder: Path, name: str, crashpoint: Callable[[str], None] = lambda _step: None
    ) -> None:
        self.store: RocksStore = store_in(folder / name)
        self.snapshots = IndexSnapshots(
            Bucket(f"file://{folder}/bucket"),
            self.store,
            secret=b"x" * 16,
            worker=name,
            clock=SystemClock(),
            crashpoint=crashpoint,
        )

    async def make(self, keys: int, identity: IndexIdentity = IDENTITY) -> Manifest:
        """Fill the index up to so many keys, and make a snapshot of it."""
        index = self.store.open(identity)
        try:
            first = index.state.applied_offset
            index.apply(update_of(first, keys - first))
            return (await self.snapshots.make(identity, index, 0, asyncio.Lock())).manifest
        finally:
            index.close()
            await self.store.prepare(identity)

    async def candidates(self, identity: IndexIdentity = IDENTITY) -> list[Manifest]:
        return [manifest async for manifest in self.snapshots.candidates(identity)]

    async def restored(self, manifest: Manifest) -> IndexState:
        """Restore a snapshot, look up its keys, and delete the index; return its state."""
        await self.snapshots.restore(manifest)
        await self.store.prepare(IDENTITY)
        index = self.store.open(IDENTITY)
        found = index.lookup([key_of(offset) for offset in range(manifest.state.applied_offset)])
        assert [entry and entry.offset for entry in found] == list(range(manifest.state.applied_offset))
        state = index.state
        index.close()
        self.store.discard(IDENTITY)
        await self.store.prepare(IDENTITY)
        return state

    def has_nothing(self) -> bool:
        """Whether neither an index is there nor a part of one."""
        place = self.store.path_of(IDENTITY)
        return not place.exists() and not place.with_suffix(".restoring").exists()


@pytest.fixture
def worker_of(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    workers = []

    def make(*args: Any) -> Worker:
        workers.append(Worker(tmp_path, *args))
        return workers[-1]

    yield make
    for worker in workers:
        worker.store.close()


def delete_files(folder: Path) -> None:
    """Delete every file of the bucket that is no manifest, as a clean-up that knows none of them."""
    for path in (folder / "bucket").glob("*/*/*/files/*"):
        path.unlink()


@contextmanager
def full_disk() -> Iterator[None]:
    """Let every write of a larger file fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_two_owners_at_once(worker_of: Callable[..., Worker]) -> None:
    owner, zombie, heir = (worker_of(name) for name in ("owner", "zombie", "heir"))
    made = await asyncio.gather(owner.make(2 * KEYS), zombie.make(KEYS))
    assert {each.name for each in await heir.candidates()} == {each.name for each in made}
    for each in made:
        assert await heir.restored(each) == each.state


@pytest.mark.parametrize("step", ["snapshot_files", "snapshot_manifest"])
async def test_files_that_are_cleaned_up_while_their_manifest_is_under_way(
    tmp_path: Path, worker_of: Callable[..., Worker], step: str
) -> None:
    owner = worker_of("owner", lambda reached: delete_files(tmp_path) if reached == step else None)
    made = await owner.make(KEYS)
    assert await worker_of("heir").restored(made) == made.state


async def test_files_that_are_deleted_during_a_restore(
    tmp_path: Path, worker_of: Callable[..., Worker]
) -> None:
    owner, heir = worker_of("owner"), worker_of("heir")
    older, newer = await owner.make(KEYS), await owner.make(2 * KEYS)
    gone, *_ = {file.digest for file in newer.files} - {file.digest for file in older.files}
    async for found in heir.snapshots.candidates(IDENTITY):
        if found == newer:
            next((tmp_path / "bucket").glob(f"*/*/*/files/{gone}")).unlink()
            with pytest.raises(SnapshotError) as refused:
                await heir.restored(found)
            assert refused.value.reason == "missing"
            assert heir.has_nothing()
        else:
            assert await heir.restored(found) == older.state


@pytest.mark.regression("a disk that was full during a restore was counted as a fault of the bucket")
async def test_disk_that_is_full_during_a_restore(worker_of: Callable[..., Worker]) -> None:
    owner, heir = worker_of("owner"), worker_of("heir")
    made = await owner.make(KEYS)
    with full_disk(), pytest.raises(SnapshotError) as refused:
        await heir.restored(made)
    assert refused.value.reason == "disk"
    assert heir.has_nothing()
    assert await heir.restored(made) == made.state


async def test_bucket_that_is_full(tmp_path: Path, worker_of: Callable[..., Worker]) -> None:
    owner = worker_of("owner")
    await owner.make(KEYS)
    shutil.rmtree(tmp_path / "bucket")
    with full_disk(), pytest.raises(SnapshotError) as refused:
        await owner.make(KEYS)
    assert refused.value.reason == "bucket"
    assert await owner.candidates() == []
    made = await owner.make(KEYS)
    assert await worker_of("heir").restored(made) == made.state


@pytest.mark.parametrize(
    "other",
    [
        IDENTITY._replace(log_id="another cluster"),
        IDENTITY._replace(topic="another"),
        IDENTITY._replace(partition=1, partitions=2),
        IDENTITY._replace(partitions=2),
        IDENTITY._replace(key_check=b"another!"),
    ],
)
async def test_snapshot_at_the_place_of_another_index(
    tmp_path: Path, worker_of: Callable[..., Worker], other: IndexIdentity
) -> None:
    worker = worker_of("worker")
    await worker.make(KEYS, other)
    (manifest,) = (tmp_path / "bucket").glob("*/*/*/manifests/*")
    place = tmp_path / "bucket" / IDENTITY.log_id / IDENTITY.topic / str(IDENTITY.partition)
    if manifest.parents[1] != place:
        shutil.copytree(manifest.parents[1], place)
    assert await worker.candidates() == []


def damage_newest(folder: Path, damage: Callable[..., None]) -> None:
    """Damage the files that only the newest manifest names."""
    *_, older, newest = (orjson.loads(path.read_bytes().splitlines()[0]) for path in manifests_in(folder))
    only = {digest for _, _, digest in newest["files"]} - {digest for _, _, digest in older["files"]}
    damage(*(path for path in files_in(folder) if path.name in only))


def newest_is_at(gateway: Gateway, offset: int) -> bool:
    return bool(snapshots_of(gateway)["newest_offset"] == offset)


def unlink(*paths: Path) -> None:
    for path in paths:
        path.unlink()


@pytest.mark.parametrize(
    ("reason", "damage"),
    [
        ("missing", lambda folder: damage_newest(folder, unlink)),
        ("damaged", lambda folder: damage_newest(folder, flip)),
        (None, lambda folder: flip(manifests_in(folder)[-1])),
        (None, lambda folder: manifests_in(folder)[-1].unlink()),
    ],
)
def test_older_snapshot_is_taken(tmp_path: Path, reason: str | None, damage: Callable[[Path], None]) -> None:
    gateway, events, half = gateway_in(tmp_path), [new_event() for _ in range(EVENTS)], EVENTS // 2
    with gateway:
        for stored in (half, EVENTS):
            send(gateway, events[stored - half : stored]).raise_for_status()
            until(partial(newest_is_at, gateway, stored))
        answer = send(gateway, events).content
        gateway.kill()
    while len(manifests_in(tmp_path)) > 2:  # a third one, of the same records
        manifests_in(tmp_path)[-1].unlink()
    damage(tmp_path)
    lose_index(gateway)
    with gateway:
        Stored(gateway, events, answer).answers_as_before()
        partition = gateway.stats()["partitions"][0]
    assert (partition["snapshots"]["restored"], partition["restored_records"]) == (1, half)
    assert partition["snapshots"]["failed"].keys() == ({reason} if reason else set())
