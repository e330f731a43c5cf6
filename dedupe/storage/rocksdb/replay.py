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
from dataclasses import asdict
from pathlib import Path

from dedupe.model.errors import IndexCorruptError, IndexUnavailableError
from dedupe.storage.rocksdb.database import MIB, Database, Tuning
from dedupe.storage.rocksdb.wal import check_wal, wal_files

WAL_BYTES_MAX = MIB
"""A WAL up to this size, about 30,000 entries, is replayed when the database is opened, in 25 ms."""
REPLAY_S = 30.0
REPLAY_S_PER_MIB = 1.0
"""The time limit of a replay is the sum, 40 times its usual duration: a replay that is killed is wasted."""
LOADED_PART = 16
"""Opening reads filters and block indexes, the last 5 % of each file; 1/16 of a file includes them."""
NICENESS = 10
"""Replays must not take processors from lanes that serve."""

_CORRUPT = 3  # an exit status that Python itself does not use


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


async def replay(path: Path, tuning: Tuning, *, limit_s: float) -> None:
    """
    Check the WAL, then open and close the database in another process, which flushes it.

    The process is killed on cancellation, and after `limit_s` seconds. No data are lost then: RocksDB keeps
    the WAL until all of it is in data files.

    Raises:
        IndexCorruptError: the database cannot be read, or its WAL has a hole.
        IndexUnavailableError: it cannot be opened now, or the time limit is over.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __name__, str(path), json.dumps(asdict(tuning))),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(entry or os.curdir for entry in sys.path)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(limit_s):
            _, stderr = await process.communicate()
    except TimeoutError as err:
        raise IndexUnavailableError(f"{path} was not replayed in {limit_s:.0f} s") from err
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 0:
        return
    reason = stderr.decode(errors="replace").strip().rpartition("\n")[2]
    if process.returncode == _CORRUPT:
        raise IndexCorruptError(reason)
    raise IndexUnavailableError(f"{path} was not replayed: exit status {process.returncode}: {reason}")


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
