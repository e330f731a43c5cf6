"""
Slots: what of a key decides its partition, once partitions may become more or fewer. Pure and frozen.

Keys fall into a fixed number of slots, a multiple of the first partition count, so that the partition of
before is a function of the slot. Slots that had one partition at first lie side by side.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Slot: TypeAlias = int

SLOTS_MIN_EACH, SLOTS_WANTED = 4, 4096

_number_of = struct.Struct(">Q").unpack_from


def slots_of(partitions: int) -> int:
    """Return the number of slots of a topic that began with n >= 1 partitions."""
    return partitions * max(SLOTS_MIN_EACH, SLOTS_WANTED // partitions)


def slot_of(routing_key: bytes, partitions: int) -> Slot:
    """
    Return the slot of a key, in [0, slots_of(partitions)).

    Args:
        routing_key: see dedupe.model.routing; the first 8 bytes count.
        partitions: those that the topic began with.
    """
    number: int = _number_of(routing_key)[0]
    return slot_of_remainder(number % slots_of(partitions), partitions)


def slot_of_remainder(remainder: int, partitions: int) -> Slot:
    """Return the slot of a number by its remainder modulo the number of slots."""
    return remainder % partitions * (slots_of(partitions) // partitions) + remainder // partitions


def first_homes(partitions: int) -> list[int]:
    """Return the partition of each slot at the beginning: that of dedupe.model.routing.partition_of."""
    each = slots_of(partitions) // partitions
    return [partition for partition in range(partitions) for _ in range(each)]


def routing_table(homes: Sequence[int], partitions: int) -> list[int]:
    """Return the partition of a number by its remainder modulo the number of slots; `homes` is by slot."""
    return [homes[slot_of_remainder(remainder, partitions)] for remainder in range(len(homes))]


def slots_by_home(homes: Sequence[int]) -> dict[int, frozenset[Slot]]:
    """Return the slots of each partition that has some; `homes` is by slot."""
    slots: dict[int, list[Slot]] = {}
    for slot, home in enumerate(homes):
        slots.setdefault(home, []).append(slot)
    return {home: frozenset(each) for home, each in slots.items()}


@dataclass(frozen=True, slots=True)
class PartitionMap:
    """Which partition a key has now."""

    modulus: int
    """Partitions that were never divided, else the number of slots."""
    table: tuple[int, ...] | None = None
    """The partition of a key's number by its remainder; None: the remainder itself."""

    @classmethod
    def of_homes(cls, homes: Sequence[int], partitions: int) -> "PartitionMap":
        """Return the map of slots, by their homes; `partitions` are those of the beginning."""
        return cls(len(homes), tuple(routing_table(homes, partitions)))

    def of(self, routing_key: bytes) -> int:
        """Return the partition of a key, see dedupe.model.routing."""
        number: int = _number_of(routing_key)[0]
        if self.table is None:
            return number % self.modulus
        return self.table[number % self.modulus]
