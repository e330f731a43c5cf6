"""SqliteLog keeps the contract, on a real disk."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dedupe.model.types import LogRecord
from dedupe.storage.log import Crashpoint
from dedupe.storage.sqlite.log import SqliteStore
from tests.contract.log_contract import PARTITIONS, LogContract, LogWorld


class SqliteWorld(LogWorld):
    """A log in a file."""

    def __init__(self, path: Path, store: SqliteStore) -> None:
        """Take the connection that made the file."""
        super().__init__()
        self.topic = "events"
        self._path = path
        self._store = store

    async def connect(self, crashpoint: Crashpoint) -> SqliteStore:
        """See LogWorld."""
        return await SqliteStore.open(self._path, crashpoint=crashpoint)

    async def trim(self, partition: int, first_kept: LogRecord) -> None:
        """See LogWorld."""
        await self._store.trim(self.topic, first_kept.timestamp_ms, 100_000)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SqliteWorld]:
    path = tmp_path / "log.sqlite"
    store = await SqliteStore.open(path)
    await store.create_topic("events", PARTITIONS)
    world = SqliteWorld(path, store)
    yield world
    await world.close()
    await store.close()


class TestSqliteLog(LogContract):
    """The contract."""

    # Its schema promises timestamps that do not decrease: lanes see to it, and `offset_at` goes by it.
    test_offset_at_counts_timestamps_that_run_back = None
