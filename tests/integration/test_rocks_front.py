"""
The front of an index never denies a key that is stored, whatever happened to the index before.

The sizes are so small that files are flushed, merged and dropped, and filters begun, scanned for and
replaced, in a few thousand keys.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupe.model.errors import IndexCorruptError
from dedupe.storage.rocksdb.database import Tuning
from dedupe.storage.rocksdb.index import RocksIndex
from tests.contract.index_contract import IDENTITY, entry_of, key_of, update_of
from tests.support.rocks import SMALLEST, copy_as_killed, until_flushed_and_dropped

TINY = replace(
    SMALLEST,
    front_files_min=1,
    front_keys_min=64,
    front_keys_scanned=128,
)
DROPPING = replace(TINY, files_bytes_max=256 * 1024)
ABSENT = [key_of(number) for number in range(10**9, 10**9 + 1_000)]


def flush(index: RocksIndex) -> None:
    index._opened().entries.flush()


def has_filter(index: RocksIndex) -> bool:
    """Whether a filter is in use: then few of a thousand absent keys reach RocksDB."""
    return len(index._bloom.possible(ABSENT)) < len(ABSENT) // 2


def apply_until_filtered(index: RocksIndex, *, batch: int = 100) -> int:
    """Apply new keys and warm the index until there is a filter; return where the index ends then."""
    end = index.state.applied_offset
    for _ in range(1_000):
        if has_filter(index):
            return end
        index.apply(update_of(end, batch))
        index.warm()
        end += batch
    raise AssertionError("no filter was ever complete")


def apply_until_next_filter(index: RocksIndex) -> None:
    """Apply new keys and warm the index until another filter is in use."""
    before = index._bloom._filter
    for _ in range(1_000):
        index.apply(update_of(index.state.applied_offset, 100))
        while index.warm():
            pass
        if index._bloom._filter is not before:
            return
    raise AssertionError("the filter was never replaced")


def stored_by(index: RocksIndex) -> list[int]:
    """Return the offsets whose keys RocksDB itself has."""
    numbers = range(index.state.applied_offset)
    found = index._get(index._opened(), [key_of(number) for number in numbers])
    return [number for number, entry in zip(numbers, found, strict=True) if entry is not None]


def assert_nothing_denied(index: RocksIndex) -> None:
    stored = stored_by(index)
    assert index.lookup([key_of(number) for number in stored]) == [entry_of(number) for number in stored]


def filtered(path: Path, tuning: Tuning = TINY) -> RocksIndex:
    """Return an index with a filter in use."""
    index = RocksIndex(path, IDENTITY, tuning)
    index.apply(update_of(0, 1_000))
    flush(index)
    apply_until_filtered(index)
    return index


STEPS = st.one_of(
    st.tuples(st.just("apply"), st.integers(min_value=1, max_value=400)),
    st.tuples(st.sampled_from(["flush", "reopen", "kill", "reset", "warm"]), st.just(0)),
    st.tuples(st.just("expect"), st.integers(min_value=1, max_value=2_000)),
)


@settings(max_examples=15, deadline=None)
@given(steps=st.lists(STEPS, min_size=5, max_size=40), tuning=st.sampled_from([TINY, DROPPING]))
def test_no_history_makes_a_stored_key_absent(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[tuple[str, int]], tuning: Tuning
) -> None:
    folder = tmp_path_factory.mktemp("history")
    paths = (folder / str(number) for number in count())
    path = next(paths)
    index = RocksIndex(path, IDENTITY, tuning)
    for step, size in [*steps, ("apply", 400), ("apply", 400)]:
        if step == "apply":
            index.apply(update_of(index.state.applied_offset, size))
            assert_nothing_denied(index)
        elif step == "flush":
            flush(index)
        elif step == "expect":
            index.expect(size)
            assert_nothing_denied(index)
        elif step == "warm":
            index.warm()
            assert_nothing_denied(index)
        elif step == "reset":
            index.reset(index.state.applied_offset)
        else:
            killed, path = path, next(paths)
            if step == "kill":
                copy_as_killed(index, path)
            else:
                index.close()
                killed.rename(path)
            index = RocksIndex(path, IDENTITY, tuning)
            assert_nothing_denied(index)
    index.close()
    shutil.rmtree(folder)


def test_keys_written_while_a_filter_is_built_are_in_it(tmp_path: Path) -> None:
    index = RocksIndex(tmp_path / "index", IDENTITY, TINY)
    index.apply(update_of(0, 1_000))
    flush(index)

    end = apply_until_filtered(index, batch=7)

    assert end > 1_000 + 7
    assert_nothing_denied(index)
    index.close()


def test_keys_written_while_the_next_filter_is_built_are_in_the_one_in_use(tmp_path: Path) -> None:
    index = filtered(tmp_path / "index")
    while not index.warm():
        index.apply(update_of(index.state.applied_offset, 50))
    first = index.state.applied_offset

    while index._bloom._next is not None:
        new = index.state.applied_offset
        index.apply(update_of(new, 1))
        assert index.lookup([key_of(new)]) == [entry_of(new)]
        index.warm()

    assert index.state.applied_offset > first + 1  # or it was built at once, and this has shown nothing
    index.close()


def test_filter_grows_with_the_index_and_denies_nothing(tmp_path: Path) -> None:
    index = filtered(tmp_path / "index")
    for first in range(index.state.applied_offset, 20_000, 200):
        index.apply(update_of(first, 200))
        while index.warm():
            pass
        if first % 2_000 < 200:
            assert_nothing_denied(index)

    assert len(index._bloom.possible(ABSENT)) < 80
    index.close()


def test_dropped_files_leave_the_next_filter(tmp_path: Path) -> None:
    index = filtered(tmp_path / "index", DROPPING)
    for first in range(index.state.applied_offset, 30_000, 200):
        index.apply(update_of(first, 200))
        index.warm()
    flush(index)
    until_flushed_and_dropped(index)
    assert not index.covers(0)
    gone = sorted(set(range(index.state.applied_offset)) - set(stored_by(index)))
    assert len(gone) > 1_000

    for _ in range(2):  # the next one may have been begun before the keys were gone
        apply_until_next_filter(index)

    assert len(index._bloom.possible([key_of(number) for number in gone])) < len(gone) // 5
    assert_nothing_denied(index)
    index.close()


def test_reset_index_has_no_filter_of_the_old_keys(tmp_path: Path) -> None:
    index = filtered(tmp_path / "index")
    assert has_filter(index)

    index.reset(0)

    assert not has_filter(index)
    assert index.lookup([key_of(0)]) == [None]
    index.apply(update_of(0, 10))
    assert_nothing_denied(index)
    index.close()


def test_few_files_need_no_filter(tmp_path: Path) -> None:
    index = RocksIndex(tmp_path / "index", IDENTITY, replace(TINY, front_files_min=3))
    for first in range(0, 1_000, 100):
        index.apply(update_of(first, 100))
    flush(index)
    for first in range(1_000, 3_000, 100):
        index.apply(update_of(first, 100))
        index.warm()

    assert not has_filter(index)
    index.close()


def test_damage_that_the_scan_meets_is_said_and_no_filter_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = RocksIndex(path, IDENTITY, TINY)
    index.apply(update_of(0, 3_000))
    flush(index)
    index.close()
    table = max(path.glob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    index = RocksIndex(path, IDENTITY, TINY)

    with pytest.raises(IndexCorruptError):
        apply_until_filtered(index)

    assert not has_filter(index)
    index.close()


def test_index_becomes_fast_without_new_keys(tmp_path: Path) -> None:
    filtered(tmp_path).close()
    index = RocksIndex(tmp_path, IDENTITY, TINY)
    assert not has_filter(index)
    steps = 0
    while index.warm():
        steps += 1
        assert_nothing_denied(index)
    assert steps > 1
    assert has_filter(index)
    assert_nothing_denied(index)
    assert not index.warm()
    index.close()


def test_empty_index_that_expects_keys_is_fast_when_it_has_them(tmp_path: Path) -> None:
    index = RocksIndex(tmp_path, IDENTITY, TINY)
    index.expect(3_000)
    for first in range(0, 3_000, 100):
        index.apply(update_of(first, 100))
        assert_nothing_denied(index)
    assert has_filter(index)
    assert not index.warm()
    index.close()


def test_index_with_keys_expects_more_without_denying_any(tmp_path: Path) -> None:
    index = RocksIndex(tmp_path, IDENTITY, TINY)
    index.apply(update_of(0, 1_000))
    index.expect(3_000)
    assert_nothing_denied(index)
    index.close()
    index = RocksIndex(tmp_path, IDENTITY, TINY)
    index.expect(3_000)
    assert_nothing_denied(index)
    index.reset(1_000)
    index.expect(3_000)
    index.apply(update_of(1_000, 500))
    assert index.lookup([key_of(1_200), key_of(10)]) == [entry_of(1_200), None]
    index.close()


def test_few_expected_keys_need_no_filter(tmp_path: Path) -> None:
    index = RocksIndex(tmp_path, IDENTITY, TINY)
    index.expect(TINY.front_keys_min - 1)
    assert not has_filter(index)
    index.close()
