"""RocksIndex keeps the contract; its process is killed for real."""

import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dedupe.storage.index import IndexUpdate
from dedupe.storage.rocksdb.store import LANE_BYTES_MIN, RocksStore
from tests.contract.index_contract import IDENTITY, KEYS_MAX, IndexContract
from tests.support.waiting import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]

KILLED_PROCESS = """
import os, pickle, signal, sys
from dedupe.storage.rocksdb.store import LANE_BYTES_MIN, RocksStore
root, identity, updates = pickle.load(sys.stdin.buffer)
index = RocksStore(root, lanes=1, memory_bytes=LANE_BYTES_MIN, keys_max=1_000_000).open(identity)
for update in updates:
    index.apply(update)
os.kill(os.getpid(), signal.SIGKILL)
"""


class TestRocksIndex(IndexContract):
    """The contract, on a real disk."""

    def make_store(self, root: Path) -> RocksStore:
        """See IndexContract."""
        return RocksStore(root / "index", lanes=1, memory_bytes=LANE_BYTES_MIN, keys_max=KEYS_MAX)

    def apply_and_die(self, root: Path, updates: Sequence[IndexUpdate]) -> None:
        """See IndexContract."""
        work = pickle.dumps((root / "index", IDENTITY, updates))
        killed = subprocess.run(
            [sys.executable, "-c", KILLED_PROCESS],
            input=work,
            cwd=REPOSITORY,
            timeout=PATIENCE_S,
            check=False,
        )
        assert killed.returncode == -9
