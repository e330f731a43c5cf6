"""
Claim: an offset of a lane says in which partition its record is, and lane offsets are ordered as the records.
"""

from hypothesis import given
from hypothesis import strategies as st

from dedupe.model.inherited import (
    INHERITED_FROM,
    LEVELS_MAX,
    OFFSETS_MAX,
    PARTITION_BITS,
    level_start,
    place_of,
)

PARTITIONS = st.integers(0, (1 << PARTITION_BITS) - 1)
OFFSETS = st.integers(0, OFFSETS_MAX - 1)
LEVELS = st.integers(1, LEVELS_MAX)


@given(LEVELS, PARTITIONS, OFFSETS, PARTITIONS)
def test_place_is_in_the_number(level: int, partition: int, offset: int, lane: int) -> None:
    number = level_start(level, partition) + offset

    assert place_of(lane, number) == (partition, offset)
    assert INHERITED_FROM <= number < 1 << 63


@given(PARTITIONS, OFFSETS)
def test_offsets_of_a_partition_of_the_beginning_are_those_of_its_log(partition: int, offset: int) -> None:
    assert place_of(partition, offset) == (partition, offset)


@given(st.tuples(LEVELS, LEVELS), PARTITIONS, PARTITIONS, OFFSETS, OFFSETS)
def test_older_logs_come_first(
    levels: tuple[int, int], one: int, other: int, first: int, second: int
) -> None:
    low, high = sorted(levels)
    if low < high:
        assert level_start(low, one) + first < level_start(high, other) + second


def test_golden_numbers() -> None:
    """Frozen: they are in indexes, and in messages between workers."""
    assert level_start(1, 3) == 0x0400_3000_0000_0000
    assert level_start(2, 11) + 17 == 0x0800_B000_0000_0011
