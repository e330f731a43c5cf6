"""
Layout: how a topic is divided into partitions, for the whole life of a process. Pure.

A partition that was divided off another one has a lineage: the logs from which its index follows.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dedupe.decide.resharding import Routing
from dedupe.model.inherited import level_start
from dedupe.model.slots import PartitionMap, Slot, slot_of, slots_of
from dedupe.model.types import Offset


class Ancestor(NamedTuple):
    """A partition that once was the home of slots which another one has now."""

    partition: int
    end: Offset  # where its log was cut: what lies behind is of its other slots
    lane_seq: int  # of the first record of the next in line
    timestamp_ms: int  # no record of the next in line is older


@dataclass(frozen=True, slots=True)
class Lineage:
    """The ancestors of a partition. Offsets are those of dedupe.model.inherited."""

    partition: int
    ancestors: tuple[Ancestor, ...]  # n >= 1, oldest first
    slots: frozenset[Slot]  # with which it began
    base: int  # partitions that the topic began with

    @property
    def starts(self) -> list[Offset]:
        """Offset 0 of each log, oldest first, its own last."""
        line = [ancestor.partition for ancestor in self.ancestors]
        return [level_start(level, each) for level, each in enumerate((*line, self.partition), 1)]

    @property
    def own_start(self) -> Offset:
        """Offset 0 of its own log."""
        return level_start(len(self.ancestors) + 1, self.partition)

    @property
    def root(self) -> int:
        """The partition of the beginning that had the slots first."""
        return self.ancestors[0].partition

    @property
    def parent(self) -> Ancestor:
        """Whose slots it was given."""
        return self.ancestors[-1]

    def ranges(self, start: Offset, end: Offset) -> Iterator[tuple[Offset, Offset]]:
        """Yield the part of [start, end) that each log has, oldest first, without empty ones."""
        ends = [at + each.end for at, each in zip(self.starts, self.ancestors, strict=False)]
        for first, last in zip(self.starts, [*ends, end], strict=True):
            low, high = max(first, start), min(last, end)
            if low < high:
                yield low, high

    def has(self, routing_key: bytes) -> bool:
        """Whether a key's records of an ancestor are inherited."""
        return slot_of(routing_key, self.base) in self.slots


class Layout:
    """The partitions of one topic."""

    def __init__(self, partitions: int, routing: Routing | None = None) -> None:
        """
        Take what is known of a topic.

        Args:
            partitions: those that it began with.
            routing: how it was divided since, all of it decided; None: never.
        """
        assert routing is None or (routing.base == partitions and not routing.undecided), routing
        is_divided = routing is not None and bool(routing.earlier)
        self.base = partitions
        self.routing = routing if is_divided else None
        """None if the partitions are those of the beginning."""
        self.plan = 0 if routing is None else routing.version.plan
        """The number of the last plan; 0 without any."""
        self.partitions = partitions if routing is None else 1 + max(routing.homes)
        self.map = PartitionMap(partitions)
        self._slots = Counter(routing.homes) if is_divided and routing else None
        self._lineages: dict[int, Lineage] = {}
        if self.routing is not None:
            self.map = PartitionMap.of_homes(self.routing.homes, partitions)
            self._lineages = _lineages_of(self.routing)

    def lineage_of(self, partition: int) -> Lineage | None:
        """Return the lineage of a partition; None if the topic began with it."""
        return self._lineages.get(partition)

    @property
    def slots(self) -> int:
        """Of all partitions together."""
        return slots_of(self.base)

    def slots_of(self, partition: int) -> int:
        """Return how many slots a partition has."""
        return self.slots // self.base if self._slots is None else self._slots[partition]

    def root_of(self, partition: int) -> int:
        """Return the partition of the beginning that had all slots of a partition."""
        lineage = self._lineages.get(partition)
        return partition if lineage is None else lineage.root

    def partitions_since(self, timestamp_ms: int) -> int:
        """Return the smallest number of partitions that had slots at a time or later."""
        if self.routing is None:
            return self.partitions
        stays = self.routing.earlier
        homes = set()
        for slot, home in enumerate(self.routing.homes):
            homes.add(
                next(
                    (s.partition for s in reversed(stays.get(slot, ())) if s.timestamp_ms >= timestamp_ms),
                    home,
                )
            )
        return len(homes)


def _lineages_of(routing: Routing) -> dict[int, Lineage]:
    slots: dict[int, set[Slot]] = {}
    ancestors: dict[int, tuple[Ancestor, ...]] = {}
    for slot, home in enumerate(routing.homes):
        stays = routing.earlier.get(slot, ())[::-1]
        line = tuple(Ancestor(s.partition, s.end, s.lane_seq, s.timestamp_ms) for s in stays)
        for level, partition in enumerate([*(each.partition for each in line), home]):
            if level:
                slots.setdefault(partition, set()).add(slot)
                known = ancestors.setdefault(partition, line[:level])
                assert known == line[:level], f"partition {partition} has several lines of ancestors"
    return {
        partition: Lineage(partition, line, frozenset(slots[partition]), routing.base)
        for partition, line in ancestors.items()
    }


def distance(lineage: Lineage | None, start: Offset, end: Offset) -> int:
    """Return how many offsets of logs lie in [start, end)."""
    parts: Sequence[tuple[Offset, Offset]] = [(start, end)]
    if lineage is not None:
        parts = list(lineage.ranges(start, end))
    return sum(high - low for low, high in parts)
