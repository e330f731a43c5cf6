"""
Copies an open index into a folder, of hard links, while its lane serves.

RocksDB has a call for this. It flushes and syncs, and holds Python's global lock meanwhile, so that nothing
else of the process runs: as long as a busy disk takes. Here RocksDB's own threads flush, a thread makes the
links, and the lane waits for the last flush between two batches.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from dedupe.model.clock import Clock
from dedupe.model.errors import GatewayError
from dedupe.storage.index import IndexState
from dedupe.storage.rocksdb.index import RocksIndex
from dedupe.storage.snapshots.manifest import SnapshotError
from dedupe.storage.snapshots.store import Quiet

COPY_S = 30.0
"""An index that cannot be copied by then is not copied this time."""
LOOK_S = 0.005
UNFLUSHED_MAX = 2_000
"""Entries that are left for the last flush, for which the lane waits."""
QUIET_S = 0.5
"""The longest wait of a lane; a request waits for ten times as long."""
WAITS_MAX = 4
"""So often a lane waits for one copy."""

_CURRENT = "CURRENT"
_BESIDE = ("OPTIONS-*", "rocksdict-config.json")


async def copy_index(index: RocksIndex, folder: Path, quiet: Quiet, clock: Clock) -> IndexState:
    """
    Copy an index into a new folder, and return its state there.

    Args:
        index: it takes updates meanwhile, and may be closed.
        folder: on the file system of the index; there is none yet. It is not synced.
        quiet: while it is held, the lane commits no batch.
        clock: ends it.

    Raises:
        SnapshotError: `busy` or `index`.
    """
    until = clock.monotonic() + COPY_S
    try:
        for _ in range(WAITS_MAX):
            await _flush(index, UNFLUSHED_MAX, clock, until)
            async with _held(quiet):
                if (state := await _copied(index, folder, clock)) is not None:
                    return state
            await asyncio.sleep(LOOK_S)  # the lane goes on
        raise _TooSlowError
    except _TooSlowError:
        raise SnapshotError("busy", f"RocksDB is not at rest within {COPY_S:g} s") from None
    except GatewayError as err:
        raise SnapshotError("index", f"the index cannot be copied: {err}") from err
    except OSError as err:
        raise SnapshotError("disk", f"the index cannot be copied: {err}") from err


class _TooSlowError(Exception):
    """It is not at rest in time."""


@asynccontextmanager
async def _held(quiet: Quiet) -> AsyncIterator[None]:
    """Hold a lane between two batches. Raises _TooSlowError: its log does not answer."""
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(COPY_S):
                await stack.enter_async_context(quiet)
        except TimeoutError:
            raise _TooSlowError from None
        yield


async def _copied(index: RocksIndex, folder: Path, clock: Clock) -> IndexState | None:
    """Return the state of a copy of a lane that is held; None if that would take long."""
    with suppress(_TooSlowError):
        await _flush(index, 0, clock, clock.monotonic() + QUIET_S)
        return await _linked(index, folder)
    return None


async def _flush(index: RocksIndex, unflushed_max: int, clock: Clock, until: float) -> None:
    """
    Return once all of an index but so many entries is in files, and RocksDB writes none.

    A flush under load leaves what arrived meanwhile, which the next, shorter one takes: RocksDB would
    keep even full memtables until there are eight.
    Raises SnapshotError, _TooSlowError, IndexUnavailableError.
    """
    while True:
        _check_open(index)
        if not index.is_flushing and index.jobs == 0:
            if index.unflushed_entries <= unflushed_max:
                return
            index.begin_flush()
        if clock.monotonic() > until:
            raise _TooSlowError
        await asyncio.sleep(LOOK_S)


def _check_open(index: RocksIndex) -> None:
    if not index.is_open:
        raise SnapshotError("index", "the lane has ended")


async def _linked(index: RocksIndex, folder: Path) -> IndexState | None:
    """
    Return the state of a copy; None if RocksDB has changed its files meanwhile.

    Each change is appended to RocksDB's manifest, or begins another one: what has the same length after the
    links were made was not changed. Raises SnapshotError, OSError, IndexUnavailableError.
    """
    state, before = index.state, _Versions.of(index.path)
    files = index.data_files
    is_linked = await asyncio.to_thread(_link, index.path, files, before, folder)
    _check_open(index)
    is_same = index.jobs == 0 and _Versions.of(index.path) == before and index.state == state
    if is_linked and is_same:
        return state
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return None


class _Versions(NamedTuple):
    """RocksDB's manifest: what it says of the files, change by change."""

    name: str
    size_bytes: int

    @classmethod
    def of(cls, path: Path) -> "_Versions":
        name = (path / _CURRENT).read_text().strip()
        return cls(name, (path / name).stat().st_size)


def _link(path: Path, files: Sequence[str], versions: _Versions, folder: Path) -> bool:
    """
    Make the links; False if a file is gone, or a write-ahead log is not empty yet. Raises OSError.

    Of the write-ahead log only its name is copied: all of it is flushed.
    """
    folder.mkdir()
    logs = list(path.glob("*.log"))
    try:
        if any(log.stat().st_size for log in logs):
            return False
        for name in files:
            (folder / name).hardlink_to(path / name)
    except FileNotFoundError:
        return False
    for log in logs:
        (folder / log.name).touch()
    for pattern in _BESIDE:
        for file in path.glob(pattern):
            shutil.copyfile(file, folder / file.name)
    with (path / versions.name).open("rb") as changes:
        (folder / versions.name).write_bytes(changes.read(versions.size_bytes))
    shutil.copyfile(path / _CURRENT, folder / _CURRENT)
    return True
