"""
Claim: an index whose write-ahead log lost a part, in whatever way, never serves with a hole.

Each case damages the files that a killed process left. Afterwards either all events are known again, because
the log of events was replayed from an older state or from the start, or the index said so and was rebuilt.
"""

import asyncio
import io
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from dedupe.decide.recovery import RecordCheck
from dedupe.decide.sessions import LIVE
from dedupe.model.errors import IndexCorruptError
from dedupe.model.types import Entry, EventKey, Session
from dedupe.partition.index_recovery import IndexRecovery
from dedupe.storage.index import DedupeIndex
from dedupe.storage.rocksdb import wal
from dedupe.storage.rocksdb.index import RocksIndex
from dedupe.storage.rocksdb.marks import UNPROVED
from dedupe.storage.rocksdb.store import LANE_BYTES_MIN, RocksStore
from dedupe.storage.rocksdb.wal import wal_files
from tests.contract.index_contract import KEYS_MAX
from tests.integration.test_rocks_recovery import IDENTITY, SECRET, recovery_of
from tests.support.forked import Forked
from tests.support.records import RecordMaker
from tests.support.rocks import until_flushed_and_dropped
from tests.support.sim.sim_log import SimStore
from tests.support.waiting import PATIENCE_S

BUFFER_BYTES = 64 * 1024
"""RocksDB's smallest memtable, so that the families are flushed at different times."""


class Workload(NamedTuple):
    """What a process does until it is killed."""

    records: int
    update_records: int
    with_sessions: int  # so many of the first records, a third of them
    restarted_at: int = 0
    name: str = "event"


UNSYNCED = Workload(3_600, 100, 0, restarted_at=600)
"""Nothing is flushed, so no write-ahead file is synced, and RocksDB notices the loss of none."""

FLUSHED = Workload(6_000, 6, 6_000)
"""Every family is flushed, at different times."""

RARE_SESSIONS = Workload(10_500, 60, 60)
"""Only the family of sessions needs the oldest write-ahead files."""

WORKLOADS = pytest.mark.parametrize(
    "workload", [UNSYNCED, FLUSHED, RARE_SESSIONS], ids=["unsynced", "flushed", "rare sessions"]
)

Damage = Mapping[Path, bytes | None]
"""The contents of write-ahead files; None: deleted."""


def log_of(workload: Workload) -> SimStore:
    """Return a log in which a third of the events are of client sessions, with ids of their own."""
    maker = RecordMaker(partitions=1, identity=SECRET)
    log = SimStore(log_id=IDENTITY.log_id)
    log.create_topic(IDENTITY.topic, 1)
    partition = log.partition(IDENTITY.topic, 0)
    for number in range(workload.records):
        session = None
        if number < workload.with_sessions and number % 3 == 0:
            client = number % 50
            session = Session(client.to_bytes(16, "big"), b"s" * 16, number // 50 + 1, 0, 0)
        partition.intrude(maker.record(maker.event(f"{workload.name}-{number}", session=session)))
    return log


def store_in(root: Path) -> RocksStore:
    store = RocksStore(root, lanes=1, memory_bytes=LANE_BYTES_MIN, keys_max=KEYS_MAX)
    store._tuning = replace(store._tuning, write_buffer_bytes=BUFFER_BYTES, meta_buffer_bytes=BUFFER_BYTES)
    return store


@contextmanager
def recovery_in(root: Path, log: SimStore) -> Iterator[IndexRecovery]:
    store = store_in(root)
    recovery = recovery_of(store, log)
    try:
        yield recovery
    finally:
        recovery.close()
        store.close()


def killed(workload: Workload, folder: Path) -> Path:
    """Return what a process leaves that is killed after its last update."""
    arguments = [str(folder), *map(str, workload)]
    entry = f"{__name__}:{serve_until_killed.__name__}"
    process = Forked(arguments, env=os.environ, stdout=1, stderr=2, entry=entry)
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    return folder


def serve_until_killed() -> None:
    """Do the work of `killed`, which is given by the arguments."""
    root, records, update_records, with_sessions, restarted_at, name = sys.argv[1:]
    numbers = (int(records), int(update_records), int(with_sessions), int(restarted_at))
    asyncio.run(_serve(Path(root), Workload(*numbers, name)))


async def _serve(root: Path, workload: Workload) -> None:
    log, check = log_of(workload), RecordCheck(SECRET, 0, 1)
    records = [check.checked(record) for record in log.partition(IDENTITY.topic, 0).records]
    for start, end in pairwise((0, workload.restarted_at, workload.records)):
        with recovery_in(root, log) as recovery:
            await recovery.check()
            assert recovery.opened is not None
            for first in range(start, end, workload.update_records):
                recovery.opened.replay(records[first : first + workload.update_records])
            if end == workload.records:
                index = recovery.opened.index
                assert isinstance(index, RocksIndex)
                until_flushed_and_dropped(index)  # then it has deleted the write-ahead files it does not need
                os.kill(os.getpid(), signal.SIGKILL)


async def recovered(recovery: IndexRecovery, log: SimStore) -> DedupeIndex:
    await recovery.check()
    end = log.partition(IDENTITY.topic, 0).end
    return (await recovery.replay(end, lambda _: None)).index


def path_in(root: Path) -> Path:
    return root / IDENTITY.topic / str(IDENTITY.partition)


def logs_in(root: Path) -> list[Path]:
    return sorted(path_in(root).glob("*.log"), key=lambda file: int(file.stem))


def damages_of(files: Sequence[Path]) -> dict[str, Damage]:
    """Return the contents of some files after every damage, by its name."""
    wholes = [file.read_bytes() for file in files]
    damages: dict[str, Damage] = {
        "all deleted": dict.fromkeys(files),
        "all emptied": dict.fromkeys(files, b""),
        "all but the last deleted": dict.fromkeys(files[:-1]),
        "all but the last emptied": dict.fromkeys(files[:-1], b""),
    }
    last = len(files) - 1
    for i in sorted({0, 1, last // 2, last - 1, last}):
        file, whole = files[i], wholes[i]
        ends = [end for _, end in wal._records(io.BytesIO(whole))]
        damages[f"{i} deleted"] = {file: None}
        damages[f"{i} emptied"] = {file: b""}
        damages[f"{i} cut after its first record"] = {file: whole[: ends[0]]}
        damages[f"{i} cut between records"] = {file: whole[: ends[len(ends) // 2]]}
        damages[f"{i} cut amid a record"] = {file: whole[: ends[len(ends) // 2] + 9]}
        if i:
            damages[f"{i - 1} and {i} swapped"] = {files[i - 1]: whole, file: wholes[i - 1]}
    return damages


def do(damage: Damage, folder: Path) -> None:
    for file, content in damage.items():
        if content is None:
            (folder / file.name).unlink()
        else:
            (folder / file.name).write_bytes(content)


def entries_of(log: SimStore) -> dict[EventKey, Entry]:
    """Return what an index must know of a log."""
    check = RecordCheck(SECRET, 0, 1)
    known = {}
    for record in log.partition(IDENTITY.topic, 0).records:
        checked = check.checked(record)
        entry = Entry(checked.offset, checked.identity.fingerprint)
        known[checked.identity.key] = entry
        if checked.secondary_key is not None:
            known[checked.secondary_key] = entry
    return known


@pytest.mark.regression(
    "An index with a hole in its write-ahead log stored 12,456 known ids twice and said nothing."
)
@WORKLOADS
async def test_index_whose_write_ahead_log_lost_a_part_never_serves_with_a_hole(
    workload: Workload, tmp_path: Path
) -> None:
    log = log_of(workload)
    known = entries_of(log)
    keys = list(known)
    with recovery_in(tmp_path / "whole", log) as recovery:
        sessions = dict((await recovered(recovery, log)).oldest_sessions(10**6, LIVE))
    image = killed(workload, tmp_path / "killed")
    files = [file for file in logs_in(image) if file.stat().st_size]
    rebuilt = set()
    for name, damage in damages_of(files).items():
        root = tmp_path / "damaged"
        shutil.copytree(image, root)
        do(damage, path_in(root))
        with recovery_in(root, log) as recovery:
            index = await recovered(recovery, log)

            assert index.lookup(keys) == list(known.values()), name
            assert dict(index.oldest_sessions(10**6, LIVE)) == sessions, name
            assert not index.unproved, name
            if recovery._metrics.rebuilds:
                rebuilt.add(name)
        shutil.rmtree(root)
    last = len(files) - 1
    assert {f"{last // 2} emptied", f"{last // 2} deleted"} <= rebuilt
    assert not {name for name in rebuilt if name.startswith(f"{last} cut")}  # replaying is enough


def test_hole_is_found_before_the_index_is_opened(tmp_path: Path) -> None:
    folder = path_in(killed(UNSYNCED, tmp_path))
    wal.check_wal(folder)
    _, middle, *_ = [file for file in logs_in(tmp_path) if file.stat().st_size]
    middle.unlink()
    with pytest.raises(IndexCorruptError, match="has a hole"):
        wal.check_wal(folder)


async def test_file_of_another_index_with_the_same_numbers_is_found(tmp_path: Path) -> None:
    log, other = log_of(UNSYNCED), UNSYNCED._replace(name="other")
    known = entries_of(log)
    image, foreign = killed(UNSYNCED, tmp_path / "killed"), killed(other, tmp_path / "foreign")
    files = [file for file in logs_in(image) if file.stat().st_size]
    assert len(files) > 2

    for file in files:
        root = tmp_path / "damaged"
        shutil.copytree(image, root)
        shutil.copy(path_in(foreign) / file.name, path_in(root) / file.name)
        with recovery_in(root, log) as recovery:
            index = await recovered(recovery, log)

            assert index.lookup(list(known)) == list(known.values()), file.name
            assert recovery._metrics.rebuilds == 1, file.name
        shutil.rmtree(root)


async def test_index_with_any_file_lost_or_exchanged_never_serves_with_a_hole(tmp_path: Path) -> None:
    log = log_of(UNSYNCED)
    known = entries_of(log)
    image = killed(UNSYNCED, tmp_path / "killed")
    older = killed(UNSYNCED._replace(records=1_800), tmp_path / "older")
    foreign = killed(UNSYNCED._replace(name="other"), tmp_path / "foreign")
    files = sorted(path_in(image).iterdir())
    assert {".log", ".sst", ".json", ""} <= {file.suffix for file in files}

    for file in files:
        whole = file.read_bytes()
        others = [path_in(root) / file.name for root in (older, foreign)]
        contents = {None, b"", whole[: len(whole) // 2], *(f.read_bytes() for f in others if f.exists())}
        for content in contents - {whole}:
            root = tmp_path / "damaged"
            shutil.copytree(image, root)
            do({file: content}, path_in(root))
            with recovery_in(root, log) as recovery:
                index = await recovered(recovery, log)

                assert index.lookup(list(known)) == list(known.values()), file.name
            shutil.rmtree(root)


@WORKLOADS
async def test_index_that_was_killed_is_proved_and_not_rebuilt(workload: Workload, tmp_path: Path) -> None:
    log = log_of(workload)
    image = killed(workload, tmp_path / "killed")
    for _ in range(2):
        with recovery_in(image, log) as recovery:
            await recovered(recovery, log)

            assert not recovery._metrics.rebuilds
            assert not (path_in(image) / UNPROVED).exists()
    assert wal_files(path_in(image)).size_bytes == 0


async def test_proof_that_a_kill_prevented_is_asked_for_by_the_next_process(tmp_path: Path) -> None:
    """The first opening replays what is left of the write-ahead log, and deletes it."""
    log = log_of(UNSYNCED)
    image = killed(UNSYNCED, tmp_path / "killed")
    logs_in(image)[0].write_bytes(b"")
    store = store_in(image)
    await store.prepare(IDENTITY)
    store.open(IDENTITY).close()  # and here the process ends
    store.close()

    with recovery_in(image, log) as recovery:
        await recovered(recovery, log)

        assert recovery._metrics.rebuilds == 1
