"""
What client sessions cost a lane: disk, memory, look-ups, updates, evictions, and their restore from the log.

    python -m loadtests.bench.session_state --sessions 1

Writes a SQLite log of as many records as sessions, one a session, and as many plain ones in another
topic; restores both as a lane does; then uses the restored sessions at random, as busy clients do.
Beside it, in the same run, the same number of records without sessions. Processor times, since others may
have the processors meanwhile.
"""

import argparse
import asyncio
import hashlib
import logging
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import structlog
import uvloop

from dedupe.decide.session_update import session_update
from dedupe.decide.sessions import LIVE, SessionPolicy, SessionRecord, keys_of
from dedupe.decide.window import WindowPolicy
from dedupe.model.clock import SystemClock
from dedupe.model.identity import Identity
from dedupe.model.record import build_record
from dedupe.model.types import Entry, Event, NewRecord, Progress, Session
from dedupe.partition.context import LaneContext
from dedupe.partition.index_recovery import IndexRecovery
from dedupe.partition.metrics import LaneMetrics
from dedupe.storage.index import IndexState, IndexUpdate
from dedupe.storage.pinning import SessionNotes
from dedupe.storage.rocksdb.index import RocksIndex
from dedupe.storage.rocksdb.store import RocksStore
from dedupe.storage.sqlite.log import SqliteStore
from tests.support.settings import QUEUE_LIMITS

MIB = 1024 * 1024
MILLION = 1_000_000
BATCH = 1_000
ROUNDS = 200
PLAIN, SESSIONS = "records without sessions", "sessions"
TOPICS = {PLAIN: "plain", SESSIONS: "sessions"}
DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
IDENTITY = Identity(b"\x00" * 16)
VALUE = b'{"messageId":"%d","type":"track","event":"benchmark"}'


def session_of(number: int, sequence: int = 1) -> Session:
    """Return the session of a client of its own."""
    client, session = (hashlib.blake2b(b"%d" % number, digest_size=16, salt=kind) for kind in (b"c", b"s"))
    return Session(client.digest(), session.digest(), sequence, before=Progress(sequence - 1, 0))


def record_of(number: int, kind: str) -> NewRecord:
    """Return one record, a session's first or one without."""
    name, session = str(number), None
    key = IDENTITY.message_key("web", name)
    if kind == SESSIONS:
        session = session_of(number)
        key = IDENTITY.sequence_key(session.client_hash, session.session_hash, 1)
    event = Event(key, 0, key[:8], "web", name, VALUE % number, session=session)
    return build_record(event, lane_seq=number, timestamp_ms=NOW_MS + number)


async def fill(store: SqliteStore, kind: str, count: int) -> None:
    """Append the records of one topic."""
    await store.create_topic(TOPICS[kind], 1)
    log = store.partition_log(TOPICS[kind], 0)
    await log.fence()
    for first in range(0, count, BATCH):
        await log.append([record_of(number, kind) for number in range(first, first + BATCH)])
    await log.close()


def recovery_of(
    log: SqliteStore, store: RocksStore, kind: str, policy: SessionPolicy
) -> tuple[IndexRecovery, LaneMetrics]:
    """Return what restores one lane of a log that is pinned."""
    metrics = LaneMetrics()
    context = LaneContext(
        topic=TOPICS[kind],
        partitions=1,
        log_id=log.log_id,
        identity=IDENTITY,
        clock=SystemClock(),
        store=store,
        window_policy=WindowPolicy(window_ms=7 * DAY_MS, keys_max=100 * MILLION),
        session_policy=policy,
        session_notes=SessionNotes(log, TOPICS[kind]),
        restore_slots=asyncio.Semaphore(1),
        open_turn=asyncio.Lock(),
        limits=QUEUE_LIMITS,
    )
    return IndexRecovery(0, log.partition_log(TOPICS[kind], 0), context, metrics), metrics


async def restore(recovery: IndexRecovery, log: SqliteStore, kind: str) -> tuple[float, float]:
    """Rebuild a lane's index; return processor seconds and seconds."""
    end = await log.partition_log(TOPICS[kind], 0).fence()
    cpu, wall = time.process_time(), time.perf_counter()
    await recovery.check()
    await recovery.replay(end, lambda _entries: None)
    return time.process_time() - cpu, time.perf_counter() - wall


def resident_mib() -> float:
    """Return how much memory this process has."""
    (line,) = [
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")
    ]
    return int(line.split()[1]) / 1024


def cpu_us(work: Callable[[], object], events: int) -> float:
    """Return the processor time of one event, in microseconds."""
    began = time.process_time()
    work()
    return (time.process_time() - began) / events * 1e6


class Lane:
    """What a lane does with its index for each commit, and nothing else."""

    def __init__(self, index: RocksIndex, policy: SessionPolicy) -> None:
        self._index = index
        self._policy = policy

    def look_up(self, sessions: Sequence[Session]) -> None:
        """Look sessions up, as admission does."""
        self._index.sessions(keys_of(sessions))

    def commit(self, count: int, sessions: Sequence[Session] = ()) -> None:
        """Apply one batch of new events."""
        base = self._index.state.applied_offset
        records = [SessionRecord(base + i, NOW_MS + DAY_MS, session) for i, session in enumerate(sessions)]
        keys = [random.randbytes(16) for _ in range(count)]
        entries = [(key, Entry(base + i, b"\x00" * 8)) for i, key in enumerate(keys)]
        state = IndexState(base + count, base + count, NOW_MS + DAY_MS, base + count - 1, keys[-1])
        update = session_update(self._index, records, self._policy)
        self._index.apply(IndexUpdate(entries, state, sessions=update))


def use(lane: Lane, count: int, size: int) -> Iterator[tuple[float, float, float]]:
    """Yield what a session event costs to look up and to apply, and to apply without a session, by turns."""
    for sequence in range(2, 2 + ROUNDS):
        used = [session_of(random.randrange(count), sequence) for _ in range(size)]
        yield (
            cpu_us(lambda used=used: lane.look_up(used), size),  # type: ignore[misc]
            cpu_us(lambda used=used: lane.commit(size, used), size),  # type: ignore[misc]
            cpu_us(lambda: lane.commit(size), size),
        )


def measure_use(index: RocksIndex, policy: SessionPolicy, count: int) -> None:
    """Use existing sessions at random, then begin new ones, each of which evicts another."""
    lane = Lane(index, policy)
    for size in (1, 100, 1_000):
        looked_up, applied, plain = (median(column) for column in zip(*use(lane, count, size), strict=True))
        print(
            f"batches of {size}: look-up {looked_up:.1f} us a session, update {applied:.1f} us an event "
            f"(without sessions {plain:.1f} us)"
        )
    fresh = iter(range(count, 10 * count))
    evicting = [
        cpu_us(lambda: lane.commit(100, [session_of(next(fresh)) for _ in range(100)]), 100)
        for _ in range(ROUNDS)
    ]
    print(f"new session that evicts another: {median(evicting):.1f} us, worst batch {max(evicting):.1f} us")
    began = time.perf_counter()
    index.oldest_sessions(1_000, LIVE)
    print(f"look at the 1,000 oldest: {(time.perf_counter() - began) * 1000:.1f} ms; {index.session_counts}")


async def measure(folder: Path, count: int, memory_bytes: int) -> None:
    """Build, measure and print."""
    log = await SqliteStore.open(folder / "log.sqlite")
    policy = SessionPolicy(lease_ms=30 * DAY_MS, sessions_max=count)
    store = RocksStore(folder / "index", lanes=2, memory_bytes=memory_bytes, keys_max=100 * MILLION)
    recoveries = {}
    for kind in TOPICS:
        await fill(log, kind, count)
        before = resident_mib()
        recovery, metrics = recovery_of(log, store, kind, policy)
        recoveries[kind] = recovery
        cpu, wall = await restore(recovery, log, kind)
        assert metrics.restored_records == count
        print(
            f"restore of {count:,} {kind}: {cpu:.1f} s of processor time, {wall:.1f} s, "
            f"{resident_mib() - before:+.0f} MiB of memory",
            flush=True,
        )
    opened = recoveries[SESSIONS].opened
    assert opened is not None
    index = opened.index
    assert isinstance(index, RocksIndex)
    assert index.session_counts.live == count
    sessions = index._opened().sessions
    sessions.flush()
    sessions.compact_range(None, None)
    size_bytes = sessions.property_int_value("rocksdb.live-sst-files-size") or 0
    print(f"disk: {size_bytes / count:.0f} bytes a session, {size_bytes / MIB:.0f} MiB in all")
    measure_use(index, policy, count)
    for recovery in recoveries.values():
        recovery.close()
    store.close()
    await log.close()


def main() -> None:
    """Measure in a folder of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=float, default=1.0, help="millions in one lane")
    parser.add_argument("--memory", type=int, default=128, help="of index memory for each lane, MiB")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measure(Path(folder), round(args.sessions * MILLION), 2 * args.memory * MIB))


if __name__ == "__main__":
    main()
