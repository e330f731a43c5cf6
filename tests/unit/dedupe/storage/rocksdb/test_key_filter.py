"""A key filter never denies a key that was added, and lets few others pass."""

import hashlib
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from dedupe.storage.rocksdb.bloom import KeyFilter

KEYS = st.binary(min_size=16, max_size=16)


def hashes(first: int, count: int) -> list[bytes]:
    return [
        hashlib.blake2b(n.to_bytes(8, "big"), digest_size=16).digest() for n in range(first, first + count)
    ]


@given(st.lists(st.lists(KEYS, max_size=300), max_size=4), st.integers(min_value=1, max_value=2_000))
def test_every_added_key_is_possible_in_a_filter_of_any_size(batches: list[list[bytes]], size: int) -> None:
    keys_filter = KeyFilter(size)
    for batch in batches:
        keys_filter.add(batch)

    for batch in batches:
        assert keys_filter.possible(batch) == list(range(len(batch)))


@given(st.lists(KEYS, max_size=300), st.lists(KEYS, max_size=300))
def test_places_are_those_of_the_keys(added: list[bytes], others: list[bytes]) -> None:
    keys_filter = KeyFilter(1_000)
    keys_filter.add(added)
    mixed = [key for pair in zip(others, added, strict=False) for key in pair]

    found = keys_filter.possible(mixed)

    assert found == [place for place, key in enumerate(mixed) if keys_filter.possible([key])]
    assert {place for place, key in enumerate(mixed) if key in added} <= set(found)


def test_a_filter_that_was_filled_lets_few_absent_keys_pass() -> None:
    keys_filter = KeyFilter(20_000)
    keys_filter.add(hashes(0, 20_000))
    absent = hashes(100_000, 20_000)

    assert not keys_filter.is_full
    assert len(keys_filter.possible(absent)) < 0.009 * len(absent)

    keys_filter.add(hashes(20_000, 20_000))

    assert keys_filter.is_full
    assert len(keys_filter.possible(absent)) < 0.035 * len(absent)


def test_an_empty_filter_lets_nothing_pass_however_keys_are_batched() -> None:
    keys_filter = KeyFilter(1)

    for size in accumulate([1, 126, 1, 1, 127, 1]):  # around one and two chunks
        assert keys_filter.possible(hashes(0, size)) == []
    assert keys_filter.possible([]) == []
