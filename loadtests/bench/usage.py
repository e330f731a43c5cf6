"""CPU and memory of processes and their children, from Linux's /proc."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children, user and system."""
    return sum(_own_cpu_seconds(member) + _ended_cpu_seconds(member) for member in _tree(pid))


def scheduled_seconds(pid: int) -> tuple[float, float]:
    """Return how long a process's main thread ran, and how long it waited for a core while it could have."""
    ran_ns, waited_ns, _ = map(int, Path(f"/proc/{pid}/schedstat").read_text().split())
    return ran_ns / 1e9, waited_ns / 1e9


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process and its children."""
    return sum(_rss_kib(member) for member in _tree(pid)) / 1024


def open_files(pid: int) -> int:
    """Return the number of file descriptors a process has open, sockets included."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def disk_bytes(folder: Path) -> int:
    """Return what the files under a folder occupy on the disk."""
    return sum(file_bytes(path) for path in folder.rglob("*") if path.is_file())


def file_bytes(path: Path) -> int:
    """Return what a file occupies on the disk; 0 if it has just been deleted."""
    with suppress(FileNotFoundError):
        return path.stat().st_blocks * 512  # by definition
    return 0


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))


def _own_cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process, to the nanosecond."""
    return time.clock_gettime(
        ~pid << 3 | 2
    )  # the clock of another process, as clock_getcpuclockid(3) makes it


def _ended_cpu_seconds(pid: int) -> float:
    """Return the CPU time of children that ended, in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / TICKS_PER_SECOND


def _rss_kib(pid: int) -> int:
    """Return the memory of a process; one that has ended and was not waited for has none."""
    with suppress(FileNotFoundError, ProcessLookupError):
        _, _, told = Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")
        return int(told.split()[0]) if told else 0
    return 0
