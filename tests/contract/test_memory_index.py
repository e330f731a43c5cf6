"""MemoryIndex keeps the contract, and fails like a disk when it is told to."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from dedupe.decide.window import Step
from dedupe.model.errors import IndexCorruptError
from dedupe.storage.index import EMPTY_STATE, IndexUpdate
from tests.contract.index_contract import IDENTITY, IndexContract, entry_of, key_of, update_of
from tests.support.sim.memory_index import UNSYNCED_MAX, MemoryStore


class TestMemoryIndex(IndexContract):
    """The contract; the disk is as old as the test."""

    def setup_method(self) -> None:
        self._store = MemoryStore()

    def make_store(self, root: Path) -> MemoryStore:
        """See IndexContract."""
        return self._store

    def apply_and_die(self, root: Path, updates: Sequence[IndexUpdate]) -> None:
        """See IndexContract."""
        index = self._store.open(IDENTITY)
        for update in updates:
            index.apply(update)
        self._store.crash()


def test_crash_takes_back_the_lost_updates_alone() -> None:
    store = MemoryStore()
    index = store.open(IDENTITY)
    first, second = Step(10, 0, 0), Step(20, 3, 3)
    index.apply(update_of(0, 3, new_steps=[first]))
    kept = update_of(3, 3)._replace(new_steps=[second], dropped_steps=[first])
    index.apply(kept)
    index.apply(IndexUpdate([(key_of(1), entry_of(6))], update_of(6, 1).state))
    index.apply(update_of(7, 2))

    store.crash(lost_updates=2)
    index = store.open(IDENTITY)

    assert index.state == kept.state
    assert list(index.steps) == [second]
    assert index.lookup([key_of(1), key_of(5), key_of(7)]) == [entry_of(1), entry_of(5), None]


def test_crash_never_loses_the_reset() -> None:
    store = MemoryStore()
    index = store.open(IDENTITY)
    index.apply(update_of(0, 3))
    index.reset(7)
    index.apply(update_of(7, 3))

    store.crash(lost_updates=UNSYNCED_MAX)

    assert store.open(IDENTITY).state == EMPTY_STATE._replace(applied_offset=7)


def test_abandoned_index_refuses_use() -> None:
    store = MemoryStore()
    index = store.open(IDENTITY)
    store.crash()

    with pytest.raises(AssertionError):
        index.lookup([key_of(0)])


def test_close_of_an_abandoned_index_leaves_its_successor_locked() -> None:
    store = MemoryStore()
    abandoned = store.open(IDENTITY)
    store.crash()
    store.open(IDENTITY)

    abandoned.close()

    with pytest.raises(IndexCorruptError):
        store.discard(IDENTITY)


def test_damaged_index_is_unreadable_until_discarded() -> None:
    store = MemoryStore()
    index = store.open(IDENTITY)
    index.apply(update_of(0, 1))
    store.damage(IDENTITY)

    for use in (
        lambda: index.lookup([key_of(0)]),
        lambda: index.apply(update_of(1, 1)),
        lambda: index.covers(0),
    ):
        with pytest.raises(IndexCorruptError):
            use()
    index.close()
    with pytest.raises(IndexCorruptError):
        store.open(IDENTITY)
    store.discard(IDENTITY)

    assert store.open(IDENTITY).lookup([key_of(0)]) == [None]


def test_damaged_index_is_whole_again_after_reset() -> None:
    store = MemoryStore()
    index = store.open(IDENTITY)
    store.damage(IDENTITY)

    index.reset(5)

    assert index.lookup([key_of(0)]) == [None]


def test_dropped_entries_are_not_covered() -> None:
    store = MemoryStore()
    index = store.open(IDENTITY)
    index.apply(update_of(0, 10))

    store.drop_before(IDENTITY, 4)

    assert index.lookup([key_of(3), key_of(4)]) == [None, entry_of(4)]
    assert not index.covers(3)
    assert index.covers(4)
    index.reset(0)
    assert index.covers(0)
