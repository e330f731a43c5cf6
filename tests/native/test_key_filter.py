"""Claim: the native module fills an index's filter as Python does, and leaves to it what is no key."""

from array import array

import gateway_native
from hypothesis import given
from hypothesis import strategies as st

from dedupe.model.identity import KEY_BYTES
from dedupe.storage.rocksdb.bloom import KeyFilter, is_adding_proved

KEYS = st.lists(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES), max_size=300)


@given(keys=KEYS, size=st.integers(min_value=1, max_value=5_000))
def test_filters_are_equal(keys: list[bytes], size: int) -> None:
    filters = KeyFilter(size), KeyFilter(size, gateway_native.add_keys)
    for each in filters:
        each.add(keys)
    assert filters[0].words == filters[1].words
    assert filters[1].possible(keys) == [*range(len(keys))]


def test_what_is_no_key_is_left_to_python() -> None:
    words, masks = memoryview(bytearray(64)).cast("I"), array("I", [1] * 4_096)
    for odd in (b"", b"x" * 15, b"x" * 17):
        assert gateway_native.add_keys(words, masks, [odd]) is None
    assert not any(words)


def test_another_filling_is_noticed() -> None:
    assert is_adding_proved(gateway_native.add_keys)
    assert is_adding_proved(lambda _words, _masks, _keys: None)
    assert not is_adding_proved(lambda _words, _masks, _keys: True)
