"""
The cost of one lane's index while it grows.

    python -m loadtests.bench.index_scale --keys 60 --memory 57

Random keys are looked up and applied in batches, as a lane does. After each million of --at it prints, in
microseconds of processor time for a key: lookups of absent keys, of present keys, and lookup and write of new
keys since the line before, RocksDB's threads included; and files, bytes of a key on disk, and memory. At the
end the index is closed and opened again.

A figure is the best of ROUNDS, since other load only makes it worse. The generation of keys is not counted.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dedupe.model.types import Entry, EventKey
from dedupe.storage.index import DedupeIndex, IndexIdentity, IndexState, IndexUpdate
from dedupe.storage.rocksdb.store import RocksStore

MIB = 1024 * 1024
MILLION = 1_000_000
BATCH = 100
ROUNDS = 7
ROUND_KEYS = 20_000
SAMPLED = 1_000
"""One of this number of keys is remembered, for lookups of present keys."""
IDENTITY = IndexIdentity("bench", "events", 0, 1, b"\x00" * 16)


def random_keys(count: int) -> list[EventKey]:
    """Return new keys."""
    octets = os.urandom(16 * count)
    return [octets[place : place + 16] for place in range(0, len(octets), 16)]


def grow(index: DedupeIndex, count: int, sample: list[EventKey]) -> float:
    """Get and put `count` new keys; return microseconds of this process a key."""
    took = 0.0
    first = index.state.applied_offset
    for offset in range(first, first + count, BATCH):
        keys = random_keys(BATCH)
        entries = [
            (key, Entry(offset + i, fingerprint[:8]))
            for i, (key, fingerprint) in enumerate(zip(keys, random_keys(BATCH), strict=True))
        ]
        end = offset + BATCH
        update = IndexUpdate(entries, IndexState(end, end, 1, end - 1, keys[-1]))
        if offset % SAMPLED == 0:
            sample.append(keys[0])
        began = time.process_time()
        index.lookup(keys)
        index.apply(update)
        took += time.process_time() - began
    return took / count * MILLION


def lookup_us(index: DedupeIndex, make_keys: Callable[[], Sequence[EventKey]]) -> float:
    """Return microseconds of this thread a key."""
    best = float("inf")
    for _ in range(ROUNDS):
        keys = make_keys()
        batches = [keys[place : place + BATCH] for place in range(0, len(keys), BATCH)]
        began = time.thread_time()
        for batch in batches:
            index.lookup(batch)
        best = min(best, (time.thread_time() - began) / len(keys))
    return best * MILLION


def resident_mib() -> float:
    """Return the memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def report(index: DedupeIndex, root: Path, grown_us: float, sample: Sequence[EventKey]) -> None:
    """Print one line."""
    keys = index.state.next_lane_seq
    step = max(1, len(sample) // (ROUND_KEYS // 10))
    print(
        f"{keys / MILLION:7.1f} M keys: absent {lookup_us(index, lambda: random_keys(ROUND_KEYS)):.2f}"
        f"  present {lookup_us(index, lambda: sample[::step]):.2f}  get + put {grown_us:.2f} us"
        f"  {sum(1 for _ in root.rglob('*.sst')):4} files  {index.size_bytes / keys:.1f} B a key on disk"
        f"  {resident_mib():.0f} MiB resident, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def main() -> None:
    """Grow, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=5, help="millions")
    parser.add_argument("--memory", type=int, default=57, help="of the lane, in MiB")
    parser.add_argument("--at", type=int, nargs="*", help="millions of keys to measure at")
    args = parser.parse_args()
    marks = [mark for mark in args.at or [1, 2, 5, 10, 20, 30, 40, 50] if mark < args.keys] + [args.keys]
    print(f"{resident_mib():.0f} MiB resident before", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        sizes = {"lanes": 1, "memory_bytes": args.memory * MIB, "keys_max": 62_500_000}
        store = RocksStore(root, **sizes)
        index = store.open(IDENTITY)
        sample: list[EventKey] = []
        for mark in marks:
            count = mark * MILLION - index.state.next_lane_seq
            report(index, root, grow(index, count, sample), sample)
        index.close()
        began = time.perf_counter()
        asyncio.run(store.prepare(IDENTITY))
        prepared = time.perf_counter()
        index = store.open(IDENTITY)
        opened = time.perf_counter()
        print(f"closed and prepared in {prepared - began:.2f} s, opened in {opened - prepared:.3f} s")
        print(f"absent until there is a front: {lookup_us(index, lambda: random_keys(ROUND_KEYS)):.2f} us")
        index.close()
        store.close()


if __name__ == "__main__":
    main()
