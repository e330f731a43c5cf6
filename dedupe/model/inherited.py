"""
Offsets of lanes that have inherited records: where a record is, and its order among them, in one number.
Frozen.

A partition that was given slots has an index that follows from pieces of several logs, one after the other,
then from its own log. In such a lane an offset has a level (1 for the first piece, one more for each next),
the partition of that log, and the offset there. So offsets of one lane are ordered as its records are, and
each says by itself where the record is. Partitions that were never given slots inherit nothing: their offsets
are those of the log, level 0.
"""

from dedupe.model.types import Offset

OFFSET_BITS, PARTITION_BITS, LEVEL_BITS = 44, 14, 5
"""63 bits together: RocksDB's rows and messages between workers have a sign."""

LEVELS_MAX = (1 << LEVEL_BITS) - 1
OFFSETS_MAX = 1 << OFFSET_BITS
"""A partition of which more offsets are used cannot be divided."""

_LEVEL_SHIFT = OFFSET_BITS + PARTITION_BITS
INHERITED_FROM = 1 << _LEVEL_SHIFT
"""Offsets below it are those of the lane's own partition, which inherits nothing."""


def level_start(level: int, partition: int) -> Offset:
    """Return the number of offset 0 of a log at a level, in [1, LEVELS_MAX]."""
    assert 0 < level <= LEVELS_MAX, level
    assert 0 <= partition < 1 << PARTITION_BITS, partition
    return level << _LEVEL_SHIFT | partition << OFFSET_BITS


def level_of(offset: Offset) -> int:
    """Return the level of an offset of a lane; 0 if the lane inherits nothing."""
    return offset >> _LEVEL_SHIFT


def place_of(partition: int, offset: Offset) -> tuple[int, Offset]:
    """Return the partition and the offset there of a record of a partition's lane."""
    if offset < INHERITED_FROM:
        return partition, offset
    return offset >> OFFSET_BITS & (1 << PARTITION_BITS) - 1, offset & OFFSETS_MAX - 1


def offset_in_log(offset: Offset | None) -> Offset | None:
    """Return an offset of a lane as that of the log in which it is, which may be an ancestor's."""
    return None if offset is None else place_of(0, offset)[1]
