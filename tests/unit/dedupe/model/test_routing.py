"""Routing: the first eight bytes decide, evenly, and nothing else does."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupe.model.identity import Identity
from dedupe.model.routing import partition_of

EXAMPLES = settings(max_examples=200)


@pytest.mark.parametrize(
    ("routing_key", "partitions", "partition"),
    [
        (b"\x00" * 16, 8, 0),
        (b"\x00" * 7 + b"\x09" + b"\xff" * 8, 8, 1),
        (b"\x01" + b"\x00" * 15, 7, 4),  # 2**56 = 2**2 modulo 7, as 2**3 = 1
        (b"\xff" * 16, 10, 5),  # 2**64 - 1 ends in 5
        (b"\xff" * 16, 1, 0),
    ],
)
def test_first_eight_bytes_big_endian_modulo_partitions(
    routing_key: bytes, partitions: int, partition: int
) -> None:
    assert partition_of(routing_key, partitions) == partition


@EXAMPLES
@given(st.binary(min_size=8, max_size=8), st.binary(), st.integers(1, 1_000))
def test_later_bytes_do_not_count(first: bytes, rest: bytes, partitions: int) -> None:
    partition = partition_of(first + rest, partitions)

    assert partition == partition_of(first, partitions)
    assert 0 <= partition < partitions


def test_keys_are_spread_evenly() -> None:
    identity = Identity(b"x" * 16)
    counts = Counter(partition_of(identity.message_key("web", f"id-{i}"), 8) for i in range(8_000))

    assert sorted(counts) == list(range(8))
    assert min(counts.values()) > 850
    assert max(counts.values()) < 1_150
