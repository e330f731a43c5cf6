"""
Claim: an index some of whose files are of another time than the others never serves with a hole.

So a restored backup, a copy made while it was in use, or a file list that lost its end leaves it older and
whole, or is found.
"""

import io
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from dedupe.decide.sessions import LIVE, SessionKey, SessionState
from dedupe.storage.rocksdb import wal
from tests.integration.test_rocks_wal import (
    WORKLOADS,
    Workload,
    do,
    entries_of,
    killed,
    log_of,
    path_in,
    recovered,
    recovery_in,
)
from tests.support.sim.sim_log import SimStore

KINDS = {"write-ahead logs": ["*.log"], "tables": ["*.sst"], "lists": ["MANIFEST-*", "CURRENT", "OPTIONS-*"]}


class Judge:
    """Opens indexes, and requires that they know every event and session of a log."""

    def __init__(self, log: SimStore, sessions: Mapping[SessionKey, SessionState]) -> None:
        self.log, self.sessions = log, sessions
        self.known = entries_of(log)
        self.rebuilt = 0

    @classmethod
    async def of(cls, log: SimStore, folder: Path) -> Self:
        with recovery_in(folder, log) as recovery:
            return cls(log, dict((await recovered(recovery, log)).oldest_sessions(10**6, LIVE)))

    async def judge(self, root: Path, name: str) -> None:
        with recovery_in(root, self.log) as recovery:
            index = await recovered(recovery, self.log)
            assert index.lookup(list(self.known)) == list(self.known.values()), name
            assert dict(index.oldest_sessions(10**6, LIVE)) == self.sessions, name
            assert not index.unproved, name
            self.rebuilt += recovery._metrics.rebuilds


async def closed(image: Path, log: SimStore) -> Path:
    """Open a killed index and close it."""
    root = image.parent / "closed"
    shutil.copytree(image, root)
    with recovery_in(root, log) as recovery:
        await recovered(recovery, log)
    return root


def cut_lists(image: Path) -> Iterator[tuple[str, dict[Path, bytes | None]]]:
    """Yield a file list that ends after each of its records."""
    (manifest,) = path_in(image).glob("MANIFEST-*")
    whole = manifest.read_bytes()
    ends = [end for _, end in wal._records(io.BytesIO(whole))]
    for end in ends[:-1]:
        yield f"list of {end} of {len(whole)} bytes", {manifest: whole[:end]}


@WORKLOADS
async def test_file_list_that_ends_early_makes_the_index_older_or_is_found(
    workload: Workload, tmp_path: Path
) -> None:
    log = log_of(workload)
    judge = await Judge.of(log, tmp_path / "whole")
    image = killed(workload, tmp_path / "killed")
    for base in (image, await closed(image, log)):
        for name, damage in cut_lists(base):
            root = tmp_path / "damaged"
            shutil.copytree(base, root)
            do(damage, path_in(root))
            await judge.judge(root, f"{base.name}: {name}")
            shutil.rmtree(root)


@WORKLOADS
async def test_files_of_two_times_are_an_older_index_or_are_found(workload: Workload, tmp_path: Path) -> None:
    log = log_of(workload)
    judge = await Judge.of(log, tmp_path / "whole")
    image = killed(workload, tmp_path / "killed")
    now = {"killed": image, "closed": await closed(image, log)}
    for part in (4, 2):
        older = killed(workload._replace(records=workload.records // part), tmp_path / f"older-{part}")
        for (when, base), (kind, patterns) in ((x, y) for x in now.items() for y in KINDS.items()):
            for is_added in (True, False):
                root = tmp_path / "damaged"
                shutil.copytree(base, root)
                for pattern in patterns:
                    for file in () if is_added else path_in(root).glob(pattern):
                        file.unlink()
                    for file in path_in(older).glob(pattern):
                        shutil.copy(file, path_in(root) / file.name)
                await judge.judge(root, f"{when}, {kind} of {older.name}, {is_added=}")
                shutil.rmtree(root)
    assert judge.rebuilt, "what is found is told"
