"""The indexes of one process, each in a folder and a RocksDB of its own."""

import asyncio
import os
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog

from dedupe.model.errors import ConfigurationError, IndexCorruptError, IndexUnavailableError
from dedupe.storage.index import IndexIdentity, Opening
from dedupe.storage.rocksdb.bloom import AddKeys, is_adding_proved
from dedupe.storage.rocksdb.database import MIB, Database, destroy, tuning_for
from dedupe.storage.rocksdb.index import RocksIndex
from dedupe.storage.rocksdb.marks import check_not_disproved
from dedupe.storage.rocksdb.replay import Preparation
from dedupe.storage.snapshots.store import SnapshotStore

LANE_BYTES_MIN = 4 * MIB
"""With less, a file would hold a few thousand keys, and each lookup would read hundreds of files."""

CLOSERS = 4


class RocksStore:
    """The indexes of one process, in root/<topic>/<name of the index>."""

    def __init__(
        self, root: Path, *, lanes: int, memory_bytes: int, keys_max: int, native: AddKeys | None = None
    ) -> None:
        """
        Divide the memory among the lanes of this process.

        Args:
            root: a folder, created with the first index.
            lanes: the number of indexes that are open at once, >= 1.
            memory_bytes: for memtables and block caches, at least LANE_BYTES_MIN a lane.
            keys_max: the number of newest keys that a lane remembers, see tuning_for.
            native: of the native module, if there is one, see KeyFilter.

        Raises:
            ConfigurationError: too little memory, or the native module fills filters differently.
        """
        self._root = root
        self._native = native
        lane_bytes = memory_bytes // lanes
        if lane_bytes < LANE_BYTES_MIN:
            raise ConfigurationError(
                f"index memory of {memory_bytes} bytes is too little for {lanes} lanes: "
                f"each needs at least {LANE_BYTES_MIN}"
            )
        if native is not None and not is_adding_proved(native):
            raise ConfigurationError("the native module fills filters differently: set GATEWAY_NATIVE=off")
        self.snapshots: SnapshotStore | None = None
        self._tuning = tuning_for(lane_bytes, keys_max)
        self.open_files_max = lanes * self._tuning.open_files_max
        self._preparation = Preparation()
        self._closers = ThreadPoolExecutor(CLOSERS, thread_name_prefix="index-close")
        self._closing: dict[Path, Future[Any]] = {}
        self._damage: dict[Path, IndexCorruptError] = {}  # found by a replay; `open` raises it

    async def prepare(self, identity: IndexIdentity) -> None:
        """See IndexStore. Waits until the lane's previous index is closed or deleted."""
        path = self.path_of(identity)
        if (closing := self._closing.get(path)) is not None:
            closed = asyncio.wrap_future(closing)
            await asyncio.wait([closed])  # a cancellation does not cancel `closed`, as `await closed` would
            closed.exception()  # marks it as retrieved; `open` raises it
        self._damage.pop(path, None)
        try:
            await self._preparation.run(path, self._tuning)
        except IndexCorruptError as err:
            self._damage[path] = err
        except OSError as err:
            raise IndexUnavailableError(f"cannot prepare {path}: {err}") from err

    def opening(self, identity: IndexIdentity) -> Opening | None:
        return self._preparation.progress_of(self.path_of(identity))

    def open(self, identity: IndexIdentity) -> RocksIndex:
        """
        See IndexStore. Takes milliseconds after `prepare` (loadtests/results/index_open.md).

        Raises:
            IndexCorruptError: see IndexStore.
            IndexUnavailableError: another process, or an index still open in this one, holds the lock, or a
                condition of the machine prevents access (see translate). Keep the index.
        """
        path = self.path_of(identity)
        self._wait_until_closed(path)
        if (damage := self._damage.pop(path, None)) is not None:
            check_not_disproved(path)  # which says more
            raise damage
        return RocksIndex(path, identity, self._tuning, close=self._close, native=self._native)

    def discard(self, identity: IndexIdentity) -> None:
        """
        See IndexStore. Deletes in a thread, after the index is closed; `prepare` waits for it.

        An index that is open is kept, and `open` raises IndexCorruptError.
        """
        path = self.path_of(identity)
        self._damage.pop(path, None)
        structlog.get_logger(__name__).warning("index is deleted", path=str(path))
        self._closing[path] = self._closers.submit(_destroy_after, self._closing.get(path), path)

    def keep_only(self, topic: str, names: Collection[str]) -> None:
        """Delete, in threads, the indexes of a topic that have none of some names; none of them is open."""
        folder = self._root / topic
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in names:
                structlog.get_logger(__name__).info("index of an earlier plan is deleted", path=str(path))
                self._closing[path] = self._closers.submit(_destroy_after, self._closing.get(path), path)

    def path_of(self, identity: IndexIdentity) -> Path:
        """Return the folder of a lane's index."""
        return self._root / identity.topic / identity.name

    async def install(self, identity: IndexIdentity, folder: Path) -> None:
        """
        Move a folder with the files of an index to the place of the lane's, of which nothing is left.

        Raises OSError: there is one, or it cannot be moved.
        """
        path = self.path_of(identity)
        moving = self._closers.submit(_move_after, self._closing.get(path), folder, path)
        self._closing[path] = moving  # whatever becomes of this call, nothing is opened before it ends
        moved = asyncio.wrap_future(moving)
        try:
            await asyncio.wait([moved])
        except asyncio.CancelledError:
            await asyncio.wait([moved])  # the caller then deletes what is left of `folder`
            raise
        if (err := moved.result()) is not None:
            raise err

    def close(self) -> None:
        """Wait until all closed indexes have released their files; then the store cannot be used again."""
        self._closers.shutdown()

    def _close(self, database: Database) -> None:
        """Close in a thread, since a flush would block the event loop."""
        self._closing[database.path] = self._closers.submit(database.close)

    def _wait_until_closed(self, path: Path) -> None:
        """Block until the previous index is closed or deleted. Raises IndexCorruptError, see `discard`."""
        if (closing := self._closing.pop(path, None)) is not None:
            closing.result()


def _move_after(closing: Future[Any] | None, folder: Path, path: Path) -> OSError | None:
    """Return why a folder cannot be moved to the place of an index, once that is closed and deleted."""
    if closing is not None:
        closing.exception()
    try:
        _move(folder, path)
    except OSError as err:
        return err
    return None


def _move(folder: Path, path: Path) -> None:
    """Move a folder durably to a place where there is none, or an empty one. Raises OSError."""
    _sync(folder)
    folder.rename(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _destroy_after(closing: Future[Any] | None, path: Path) -> None:
    if closing is not None:
        closing.exception()  # waits; what an earlier deletion could not do, this one tries again
    destroy(path)
