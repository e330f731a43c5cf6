"""
The slow part of opening a lane's RocksDB, done outside of the event loop.

rocksdict holds the interpreter's lock while it opens a database: no thread of this process could
run meanwhile, the event loop's least of all. So a long write-ahead log, as a killed process leaves
it behind, is replayed by a process of its own, which is this module run as a program.

Nothing ends that process with the gateway. It ends by itself when the log is replayed, which the
next gateway then need not do again, and until then it holds RocksDB's lock: IndexUnavailableError.
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

WAL_BYTES_MAX = MIB
"""Opening replays up to this here: 25 ms measured, about 30,000 entries. All else takes 5 ms."""
REPLAY_S = 30.0
REPLAY_S_PER_MIB = 1.0
"""A replay may take this, and REPLAY_S: 40 times what was measured. Stopped, it has achieved nothing."""
LOADED_PART = 16
"""Filters and indexes of blocks are the last 5 % of a file; opening reads them of every file."""
NICENESS = 10
"""Several replays at once must not keep a processor from a gateway whose other lanes already serve."""

_CORRUPT = 3  # exit status, unlike those of a Python that could not even begin


def wal_bytes(path: Path) -> int:
    """Return how much an opening would have to replay. Raises OSError."""
    return sum(file.stat().st_size for file in path.glob("*.log"))


def load(path: Path) -> None:
    """Read what an opening reads of every data file: then it need not wait for the disk. Raises OSError."""
    for file in path.glob("*.sst"):
        with file.open("rb") as opened:
            opened.seek(-(file.stat().st_size // LOADED_PART), os.SEEK_END)
            while opened.read(MIB):
                pass


def time_limit_s(path: Path) -> float:
    """Return how long a replay may take. Raises OSError."""
    return REPLAY_S + REPLAY_S_PER_MIB * wal_bytes(path) / MIB


async def replay(path: Path, tuning: Tuning, *, limit_s: float) -> None:
    """
    Open and close the database in another process, which leaves its write-ahead log empty.

    It takes 62 MiB of memory with the largest memtables. Cancelled, or not ready within `limit_s`
    seconds, it is killed, which harms nothing: the log is kept until all of it is in data files.

    Raises:
        IndexCorruptError: the database cannot be read.
        IndexUnavailableError: it cannot be opened now, or not in time.
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
    """Replay, and write an error to stderr in one line."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.nice(NICENESS)
    path, tuning = sys.argv[1:]
    try:
        Database(Path(path), Tuning(**json.loads(tuning)), is_new=False).close()
    except (IndexCorruptError, IndexUnavailableError) as err:
        print(err, file=sys.stderr)
        sys.exit(_CORRUPT if isinstance(err, IndexCorruptError) else 1)


if __name__ == "__main__":
    main()
