"""
The slow part of opening a lane's RocksDB, outside of the event loop.

rocksdict holds Python's global lock while it opens a database, which stops the event loop. A long WAL, left
by a killed process, is replayed by a process of its own: this module as a program.

That process is not ended with the gateway. It ends when the WAL is replayed, and holds RocksDB's lock until
then: opening raises IndexUnavailableError.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import structlog

from dedupe.model.errors import IndexCorruptError, IndexUnavailableError
from dedupe.storage.index import Opening
from dedupe.storage.rocksdb.database import MIB, Database, Tuning
from dedupe.storage.rocksdb.wal import check_wal, wal_files, wal_in_order

WAL_BYTES_MAX = MIB
"""A WAL up to this size, about 30,000 entries, is replayed when the database is opened, in 25 ms."""
REPLAY_S = 30.0
REPLAY_S_PER_MIB = 1.0
"""The time limit of a replay is the sum, 40 times its usual duration: a replay that is killed is wasted."""
LOADED_PART = 16
"""Opening reads filters and block indexes, the last 5 % of each file; 1/16 of a file includes them."""
NICENESS = 10
"""Replays must not take processors from lanes that serve."""
REPLAYS_MAX = max(1, min(4, (os.cpu_count() or 1) - 1))
"""Concurrent replays. Each uses one processor; one is left for the lanes that serve."""
PROGRESS_S = 2.0
"""How often the progress of a replay is noted and logged; most take less."""

_LOCK = "/LOCK"
"""RocksDB opens it first, so a WAL that is read without it is being checked, in a tenth of the time."""
_CORRUPT = 3  # an exit status that Python itself does not use


class Preparation:
    """The slow parts of opening the indexes of one process, and how far they are."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(REPLAYS_MAX)
        self._progress: dict[Path, Opening] = {}

    def progress_of(self, path: Path) -> Opening | None:
        """Return the progress with an index that was not closed; None for others."""
        return self._progress.get(path)

    async def run(self, path: Path, tuning: Tuning) -> None:
        """
        Check the WAL of an index that was not closed, replay a long one, and load what an opening reads.

        Raises:
            IndexCorruptError, IndexUnavailableError: see `replay`.
            OSError: the files cannot be read now.
        """
        files = wal_files(path)
        if files.size_bytes:
            structlog.get_logger(__name__).info(
                "index was not closed, its write-ahead log is checked and replayed",
                path=str(path),
                files=files.number,
                size_bytes=files.size_bytes,
            )
            self._progress[path] = Opening(0, files.size_bytes)
        try:
            async with self._slots:
                if files.size_bytes > WAL_BYTES_MAX:
                    limit_s, note = time_limit_s(path), partial(self._note, path)
                    await replay(path, tuning, limit_s=limit_s, on_read=note)
                elif files.size_bytes:
                    await asyncio.to_thread(check_wal, path)
                with suppress(OSError):  # the opening raises it
                    await asyncio.to_thread(load, path)
        finally:
            self._progress.pop(path, None)

    def _note(self, path: Path, read_bytes: int) -> None:
        before = self._progress[path]
        done_bytes = max(before.done_bytes, min(read_bytes, before.size_bytes))  # it may have grown
        opening = self._progress[path] = before._replace(done_bytes=done_bytes)
        structlog.get_logger(__name__).info(
            "write-ahead log is checked and replayed", path=str(path), progress=round(opening.ratio, 2)
        )


def load(path: Path) -> None:
    """Read the end of every data file into the page cache, for the opening. Raises OSError."""
    for file in path.glob("*.sst"):
        with file.open("rb") as opened:
            opened.seek(-(file.stat().st_size // LOADED_PART), os.SEEK_END)
            while opened.read(MIB):
                pass


def time_limit_s(path: Path) -> float:
    """Return the time limit of a replay. Raises OSError."""
    return REPLAY_S + REPLAY_S_PER_MIB * wal_files(path).size_bytes / MIB


async def replay(
    path: Path, tuning: Tuning, *, limit_s: float, on_read: Callable[[int], None] = lambda _bytes: None
) -> None:
    """
    Check the WAL, then open and close the database in another process, which flushes it.

    `on_read` is told every PROGRESS_S how many bytes RocksDB has read, where the system says so.

    The process is killed on cancellation, and after `limit_s` seconds. No data are lost then: RocksDB keeps
    the WAL until all of it is in data files.

    Raises:
        IndexCorruptError: the database cannot be read, or its WAL has a hole.
        IndexUnavailableError: it cannot be opened now, or the time limit is over.
        OSError: its files cannot be read now.
    """
    sizes = {str(file.resolve()): file.stat().st_size for file in wal_in_order(path)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __name__, str(path), json.dumps(asdict(tuning))),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(entry or os.curdir for entry in sys.path)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    watching = asyncio.ensure_future(_watch(process.pid, sizes, on_read))
    try:
        async with asyncio.timeout(limit_s):
            _, stderr = await process.communicate()
    except TimeoutError as err:
        raise IndexUnavailableError(f"{path} was not replayed in {limit_s:.0f} s") from err
    finally:
        watching.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 0:
        return
    reason = stderr.decode(errors="replace").strip().rpartition("\n")[2]
    if process.returncode == _CORRUPT:
        raise IndexCorruptError(reason)
    raise IndexUnavailableError(f"{path} was not replayed: exit status {process.returncode}: {reason}")


async def _watch(pid: int, sizes: dict[str, int], on_read: Callable[[int], None]) -> None:
    """Tell how many bytes of some files, by name, RocksDB has read in a process."""
    while True:
        await asyncio.sleep(PROGRESS_S)
        with suppress(OSError):
            if (read_bytes := _read_by(pid, sizes)) is not None:
                on_read(read_bytes)


def _read_by(pid: int, sizes: dict[str, int]) -> int | None:
    """Return how many bytes RocksDB has read, None if it reads none now. Raises OSError: not known."""
    folder = Path(f"/proc/{pid}/fd")
    open_files = {str(descriptor.readlink()): descriptor.name for descriptor in folder.iterdir()}
    if not any(name.endswith(_LOCK) for name in open_files):
        return None
    for name in sizes.keys() & open_files.keys():
        place = int(Path(f"/proc/{pid}/fdinfo/{open_files[name]}").read_text().split()[1])
        return place + sum(size for file, size in sizes.items() if file < name)
    return None


def main() -> None:
    """Check and replay; write an error to stderr as one line."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.nice(NICENESS)
    path, tuning = sys.argv[1:]
    try:
        check_wal(Path(path))
        Database(Path(path), Tuning(**json.loads(tuning)), is_new=False).close()
    except (IndexCorruptError, IndexUnavailableError, OSError) as err:
        print(err, file=sys.stderr)
        sys.exit(_CORRUPT if isinstance(err, IndexCorruptError) else 1)


if __name__ == "__main__":
    main()
