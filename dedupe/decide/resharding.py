"""
Where slots are at home, by the records of the routing topic: plans, and what parents decide of them. Pure.

A plan moves ranges of slots. Each partition that it takes some from decides once: it cuts, by which they have
moved, or it keeps them. A plan is valid once all parents of the one before it have decided; it repeats these
decisions, so that who has read it and not yet the other partitions knows them, too
(tests/sim/cut_model.py). Partitions may be read in any order. Invalid records change nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from dedupe.model.slots import Slot, first_homes, routing_table, slot_of
from dedupe.model.types import Offset


class Move(NamedTuple):
    """A range of slots that a plan moves."""

    first: Slot
    last: Slot  # inclusive
    source: int
    target: int


class Decision(NamedTuple):
    """What a parent has decided of a plan."""

    plan: int
    partition: int
    offset: Offset | None  # the end of the clean partition in a cut; None: it keeps its slots
    timestamp_ms: int = 0  # of a cut: no later record of these slots has an earlier time
    lane_seq: int = 0  # of a cut: the number of records that the partition and its ancestors have had
    last_offset: Offset = -1  # of a cut: the newest record below it; -1 if there is none
    last_key: bytes = b""  # its event key

    @property
    def is_cut(self) -> bool:
        """Whether the slots have moved."""
        return self.offset is not None


class Plan(NamedTuple):
    """Moves between partitions; `number` counts from 1."""

    number: int
    partitions: int
    moves: tuple[Move, ...]
    before: tuple[Decision, ...] = ()  # of the plan before it, by partition

    @property
    def parents(self) -> frozenset[int]:
        """The partitions that must decide."""
        return frozenset(move.source for move in self.moves)


class Stay(NamedTuple):
    """How long a slot was at home in a partition: below the offset of the cut that ended it."""

    partition: int
    plan: int
    end: Offset
    timestamp_ms: int
    lane_seq: int = 0  # the number of records that the partition and its ancestors had


class Version(NamedTuple):
    """How far routing has come: the plan, and the parents that have cut in it."""

    plan: int
    cut: frozenset[int]


@dataclass(frozen=True, slots=True)
class Routing:
    """The homes of all slots; `with_plan` and `with_decision` return the next state."""

    base: int  # partitions of the beginning
    partitions: int
    homes: tuple[int, ...]
    earlier: Mapping[Slot, tuple[Stay, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """The homes of before, newest first."""
    plan: Plan | None = None
    decisions: Mapping[int, Decision] = field(default_factory=lambda: MappingProxyType({}))
    """Of the plan, by parent."""
    waiting: frozenset[Decision] = frozenset()
    """Decisions of plans that are not read yet. An owner that has one of its own must not serve."""

    @classmethod
    def begun_with(cls, partitions: int) -> "Routing":
        """Return the routing of a topic without a plan."""
        return cls(partitions, partitions, tuple(first_homes(partitions)))

    @property
    def version(self) -> Version:
        """How far routing has come."""
        cut = frozenset(each.partition for each in self.decisions.values() if each.offset is not None)
        return Version(self.plan.number if self.plan else 0, cut)

    @property
    def undecided(self) -> frozenset[int]:
        """The parents of the plan that have not decided."""
        return self.plan.parents - self.decisions.keys() if self.plan else frozenset()

    def table(self) -> list[int]:
        """Return the partition of a key's number by its remainder modulo the number of slots."""
        return routing_table(self.homes, self.base)

    def is_home(self, routing_key: bytes, partition: int, offset: Offset, timestamp_ms: int) -> bool:
        """Whether a record lies where its slot was at home when it was written."""
        slot = slot_of(routing_key, self.base)
        stays = self.earlier.get(slot, ())
        if any(stay.partition == partition and offset < stay.end for stay in stays):
            return True
        is_late = not stays or timestamp_ms >= stays[0].timestamp_ms
        return self.homes[slot] == partition and is_late

    def with_plan(self, plan: Plan) -> "Routing":
        """Return the routing with a plan; the same one if the plan is not valid."""
        known = self.with_all(plan.before) if self._follows(plan) else self
        if known.undecided or why_invalid(plan, known.homes):
            return self
        if plan.number != (known.plan.number if known.plan else 0) + 1:
            return self
        partitions = max(known.partitions, plan.partitions)
        waiting = frozenset(each for each in known.waiting if each.plan > plan.number)
        routing = Routing(self.base, partitions, known.homes, known.earlier, plan, waiting=waiting)
        return routing.with_all(each for each in known.waiting if each.plan == plan.number)

    def with_decision(self, decision: Decision) -> "Routing":
        """Return the routing with a decision; the same one if it is no parent's first of the plan."""
        if decision.plan > (self.plan.number if self.plan else 0):
            return replace(self, waiting=self._with_waiting(decision))
        if self.plan is None or decision.plan != self.plan.number or decision.partition not in self.undecided:
            return self
        homes, earlier = list(self.homes), dict(self.earlier)
        for move in self.plan.moves if decision.offset is not None else ():
            if move.source != decision.partition:
                continue
            assert decision.offset is not None
            stay = Stay(
                decision.partition, decision.plan, decision.offset, decision.timestamp_ms, decision.lane_seq
            )
            for slot in range(move.first, move.last + 1):
                homes[slot] = move.target
                earlier[slot] = (stay, *earlier.get(slot, ()))
        decisions = {**self.decisions, decision.partition: decision}
        return Routing(
            self.base,
            self.partitions,
            tuple(homes),
            MappingProxyType(earlier),
            self.plan,
            MappingProxyType(decisions),
            self.waiting,
        )

    def _with_waiting(self, decision: Decision) -> frozenset[Decision]:
        """Return the waiting decisions with one more; a parent's first of a plan counts."""
        is_later = any(each[:2] == decision[:2] for each in self.waiting)
        return self.waiting if is_later else self.waiting | {decision}

    def _follows(self, plan: Plan) -> bool:
        """Whether a plan repeats what is known to be decided of the one before it."""
        repeated = {decision.partition: decision for decision in plan.before}
        return all(repeated.get(parent) == decision for parent, decision in self.decisions.items())

    def with_all(self, decisions: Iterable[Decision]) -> "Routing":
        """Return the routing with decisions, see with_decision."""
        routing = self
        for decision in decisions:
            routing = routing.with_decision(decision)
        return routing


def why_invalid(plan: Plan, homes: Sequence[int]) -> str | None:
    """Return which rule a plan breaks for these homes; None if none."""
    taken: set[Slot] = set()
    for first, last, source, target in plan.moves:
        slots = range(first, last + 1)
        if not slots or first < 0 or last >= len(homes):
            return f"slots {first} to {last} do not exist"
        if source == target or not 0 <= target < plan.partitions:
            return f"slots {first} to {last} move from {source} to {target}"
        if any(homes[slot] != source for slot in slots):
            return f"slots {first} to {last} are not all at home in partition {source}"
        if not taken.isdisjoint(slots):
            return f"slots {first} to {last} move twice"
        taken.update(slots)
    return None if taken else "nothing moves"


def why_no_growth(plan: Plan, routing: Routing) -> str | None:
    """
    Return why lanes cannot follow a plan; None if they can.

    Each new partition must have one parent, and each partition of before must give some slots away: so the
    index of a partition follows from the logs of its ancestors, one after the other, then from its own.
    Between its number and that of its first ancestor lies a multiple of the first partition count, by which
    an audit that knows no plan holds records against it.
    """
    if not {move.source for move in plan.moves} >= set(routing.homes):
        return "some partitions would give nothing away"
    parents = {(move.target, move.source) for move in plan.moves}
    used = {stay.partition for stays in routing.earlier.values() for stay in stays} | set(routing.homes)
    if not used.isdisjoint(target for target, _ in parents):
        return "partitions with events of their own would get others"
    if len({target for target, _ in parents}) < len(parents):
        return "some new partitions would have several parents"
    if any((target - source) % routing.base for target, source in parents):
        return "some numbers of new partitions would not say with which partition of the beginning they began"
    return None


def growth_to(routing: Routing, partitions: int) -> tuple[Move, ...]:
    """
    Return the moves after which what each partition of the beginning had is spread evenly over its share.

    Its share are the numbers that lie a multiple of the first count above its own: of 8, partition 1 shares
    with 9, 17, ... `partitions` must be a multiple of that count; otherwise there are no moves.
    """
    if partitions % routing.base:
        return ()
    each = len(routing.homes) // routing.base
    moves: list[Move] = []
    for root in range(routing.base):
        start = root * each
        homes = [home // routing.base for home in routing.homes[start : start + each]]
        moves += (
            Move(start + first, start + last, source * routing.base + root, target * routing.base + root)
            for first, last, source, target in moves_to(homes, partitions // routing.base)
        )
    return tuple(moves)


def moves_to(homes: Sequence[int], partitions: int) -> tuple[Move, ...]:
    """
    Return the moves after which slots are spread evenly over another number of partitions.

    Each partition that gets some takes the highest slots of the fullest one, then of the next: a doubling has
    one parent for each child. Partitions from `partitions` on give all of theirs away.
    """
    owned: dict[int, list[Slot]] = {partition: [] for partition in range(partitions)}
    for slot, home in enumerate(homes):
        owned.setdefault(home, []).append(slot)
    share, more = divmod(len(homes), partitions)
    moved: list[tuple[Slot, int, int]] = []
    for target in range(partitions):
        wanted = share + (target < more)
        while len(owned[target]) < wanted:
            source = max(owned, key=lambda each: _surplus(each, owned, share, more, partitions))
            count = min(wanted - len(owned[target]), _surplus(source, owned, share, more, partitions)[1])
            given, owned[source] = owned[source][-count:], owned[source][:-count]
            owned[target] += given
            moved += [(slot, source, target) for slot in given]
    return _as_ranges(moved)


def split_of(homes: Sequence[int], partition: int, target: int) -> tuple[Move, ...]:
    """Return the moves of the upper half of one partition's slots; none if it has a single one."""
    owned = [slot for slot, home in enumerate(homes) if home == partition]
    return _as_ranges([(slot, partition, target) for slot in owned[(len(owned) + 1) // 2 :]])


def _surplus(
    partition: int, owned: Mapping[int, Sequence[Slot]], share: int, more: int, partitions: int
) -> tuple[bool, int, int]:
    """Return what orders givers: who must give all, then what each has too much, then the lower number."""
    is_leaving = partition >= partitions
    keeps = 0 if is_leaving else share + (partition < more)
    return is_leaving and bool(owned[partition]), len(owned[partition]) - keeps, -partition


def _as_ranges(moved: Iterable[tuple[Slot, int, int]]) -> tuple[Move, ...]:
    moves: list[Move] = []
    for slot, source, target in sorted(moved):
        if moves and moves[-1][1:] == (slot - 1, source, target):
            moves[-1] = moves[-1]._replace(last=slot)
        else:
            moves.append(Move(slot, slot, source, target))
    return tuple(moves)
