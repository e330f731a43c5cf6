"""
Where slots are at home, by the records of the routing topic: plans, and what partitions decide of them. Pure.

A plan moves ranges of slots. Each partition that has slots then decides once: its log is cut, or it keeps
what it has. Once all have decided, each move is carried out of which both partitions were cut; one that had
no slots need not be. So nobody serves a slot before it is certain where it is at home. A plan is valid once
the one before it is decided; it repeats these decisions, so that who has read it and not yet the other
partitions knows them, too (tests/sim/cut_model.py). Partitions may be read in any order. Invalid records
change nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from dedupe.decide.lineage import Lineage, Mark, Piece, lineage_of
from dedupe.model.slots import Slot, first_homes, routing_table, slot_of, slots_by_home
from dedupe.model.types import Offset


class Move(NamedTuple):
    """A range of slots that a plan moves."""

    first: Slot
    last: Slot  # inclusive
    source: int
    target: int


class Decision(NamedTuple):
    """What a partition has decided of a plan."""

    plan: int
    partition: int
    offset: Offset | None  # the end of the clean partition in a cut; None: it keeps its slots, and gets none
    timestamp_ms: int = 0  # of a cut: no later record of these slots has an earlier time
    lane_seq: int = 0  # of a cut: behind that of its newest record, or of what it inherits
    last_offset: Offset = -1  # of a cut: the newest record below it; -1 if there is none
    last_key: bytes = b""  # its event key

    @property
    def is_cut(self) -> bool:
        """Whether the log was cut."""
        return self.offset is not None


class Plan(NamedTuple):
    """Moves between partitions; `number` counts from 1."""

    number: int
    partitions: int  # of Kafka, at least
    moves: tuple[Move, ...]
    before: tuple[Decision, ...] = ()  # of the plan before it, by partition
    read_from_ms: int = 0  # what is older is forgotten: those that get slots need not read it
    marks: tuple[Mark, ...] = ()  # of partitions that decide of it; those of growth need none
    empty_until: tuple[tuple[int, Offset], ...] = ()  # of those that had none: their logs' ends


class Marking(NamedTuple):
    """
    More marks of a plan, behind those that it has itself. None count behind the last ones, nor those of a
    writer that did not know all before them: it cannot know how many levels there would be.
    """

    plan: int
    marks: tuple[Mark, ...]
    is_last: bool = False
    behind: int = 1  # how many marks of the plan its writer knew


class Version(NamedTuple):
    """How far routing has come: the plan, and the partitions that were cut in it."""

    plan: int
    cut: frozenset[int]


class Start(NamedTuple):
    """Where a part of a partition's log begins."""

    offset: Offset
    lane_seq: int  # of its first record
    ended_seq: int  # behind that of the last record of the part before it


class Count(NamedTuple):
    """A number of partitions that had slots until a plan."""

    until_ms: int
    partitions: int


@dataclass(frozen=True, slots=True)
class Routing:
    """The homes of all slots; `with_plan` and `with_decision` return the next state."""

    base: int  # partitions of the beginning
    partitions: int  # that Kafka has, at least
    homes: tuple[int, ...]
    pieces: Mapping[int, tuple[Piece, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By partition, oldest first."""
    lineages: Mapping[int, Lineage] = field(default_factory=lambda: MappingProxyType({}))
    """Of the partitions that were given slots."""
    counts: tuple[Count, ...] = ()  # of before
    plan: Plan | None = None
    undecided: frozenset[int] = frozenset()
    """The partitions that have not decided of the plan. Until they have, all else is as before it."""
    decisions: Mapping[int, Decision] = field(default_factory=lambda: MappingProxyType({}))
    """Of the plan, by partition."""
    marks: tuple[tuple[Mark, ...], ...] = ()  # of the plan
    takes_marks: bool = False
    """Whether the plan may still get marks. Nobody decides of it before the last ones are written."""
    waiting: frozenset[Decision] = frozenset()
    """Decisions of plans that are not read yet, or not their last marks. Who has one must not serve."""

    @classmethod
    def begun_with(cls, partitions: int) -> "Routing":
        """Return the routing of a topic without a plan."""
        return cls(partitions, partitions, tuple(first_homes(partitions)))

    @property
    def version(self) -> Version:
        """How far routing has come."""
        cut = frozenset(each.partition for each in self.decisions.values() if each.is_cut)
        return Version(self.plan.number if self.plan else 0, cut)

    @property
    def decided_plan(self) -> int:
        """The number of the last plan of which all have decided; 0 without any."""
        return self.version.plan - bool(self.undecided)

    @property
    def decidable_plan(self) -> int:
        """The number of the last plan of which decisions count."""
        return self.version.plan - self.takes_marks

    def table(self) -> list[int]:
        """Return the partition of a key's number by its remainder modulo the number of slots."""
        return routing_table(self.homes, self.base)

    def starts_of(self, partition: int) -> list[Start]:
        """Return where each piece of a partition's log begins, then where it goes on behind them."""
        pieces, lineage = self.pieces.get(partition, ()), self.lineages.get(partition)
        starts, end, ended_seq = list[Start](), 0, 0
        for piece in pieces:
            starts.append(Start(piece.start, piece.first_seq, ended_seq))
            end, ended_seq = piece.end, piece.next_seq
        lane_seq = ended_seq if lineage is None else max(ended_seq, lineage.lane_seq)
        return [*starts, Start(end, lane_seq, ended_seq)]

    def is_home(self, routing_key: bytes, partition: int, offset: Offset, timestamp_ms: int) -> bool:
        """Whether a record lies where its slot was at home when it was written."""
        slot = slot_of(routing_key, self.base)
        for piece in self.pieces.get(partition, ()):
            if offset < piece.end:
                return slot in piece.slots
        lineage = self.lineages.get(partition)
        is_late = lineage is None or timestamp_ms >= lineage.timestamp_ms
        return self.homes[slot] == partition and is_late

    def with_plan(self, plan: Plan) -> "Routing":
        """Return the routing with a plan; the same one if the plan is not valid."""
        known = self.with_all(plan.before) if self._follows(plan) else self
        if known.undecided or why_invalid(plan, known.homes):
            return self
        if plan.number != known.version.plan + 1:
            return self
        planned = replace(
            known,
            partitions=max(known.partitions, plan.partitions),
            plan=plan,
            undecided=frozenset(known.homes),
            decisions=MappingProxyType({}),
            marks=(plan.marks,) if plan.marks else (),
            takes_marks=bool(plan.marks),
        )
        return planned._with_those_that_waited()

    def with_marking(self, marking: Marking) -> "Routing":
        """Return the routing with more marks; the same one if they do not count."""
        if marking.plan != self.version.plan or not self.takes_marks:
            return self
        do_count = bool(marking.marks) and marking.behind == len(self.marks)
        marks = (*self.marks, marking.marks) if do_count else self.marks
        return replace(self, marks=marks, takes_marks=not marking.is_last)._with_those_that_waited()

    def with_decision(self, decision: Decision) -> "Routing":
        """Return the routing with a decision; the same one if it is no partition's first of the plan."""
        if decision.plan > self.decidable_plan:
            return replace(self, waiting=self._with_waiting(decision))
        if decision.plan < self.version.plan or decision.partition not in self.undecided:
            return self
        decided = replace(
            self,
            undecided=self.undecided - {decision.partition},
            decisions=MappingProxyType({**self.decisions, decision.partition: decision}),
        )
        return decided if decided.undecided else decided._carried_out()

    def _carried_out(self) -> "Routing":
        """Return the routing behind a plan of which all have decided."""
        assert self.plan is not None
        had_slots, cut = set(self.homes), self.version.cut
        moves = [
            move
            for move in self.plan.moves
            if move.source in cut and (move.target in cut or move.target not in had_slots)
        ]
        if not moves:
            return self
        targets = {move.target for move in moves}
        pieces, homes, slots_before = dict(self.pieces), list(self.homes), slots_by_home(self.homes)
        for partition in cut & (targets | {move.source for move in moves}):
            piece = self._piece_of(self.decisions[partition], slots_before[partition])
            pieces[partition] = (*pieces.get(partition, ()), piece)
        for first, last, _, target in moves:
            homes[first : last + 1] = [target] * (last + 1 - first)
        all_pieces = [piece for each in pieces.values() for piece in each]
        lineages, slots = dict(self.lineages), slots_by_home(homes)
        for target in targets:
            lineage = lineage_of(
                *(target, self.plan.number, slots[target], all_pieces, self.base, self.plan.read_from_ms),
                marks=self.marks,
            )
            lineages[target] = replace(lineage, empty_until=dict(self.plan.empty_until).get(target, 0))
        until_ms = max(decision.timestamp_ms for decision in self.decisions.values())
        return replace(
            self,
            homes=tuple(homes),
            pieces=MappingProxyType(pieces),
            lineages=MappingProxyType(lineages),
            counts=(*self.counts, Count(until_ms, len(had_slots))),
        )

    def _piece_of(self, cut: Decision, slots: frozenset[Slot]) -> Piece:
        """Return the piece of a partition's log that a cut ends, in which it had these slots."""
        assert cut.offset is not None
        start = self.starts_of(cut.partition)[-1]
        return Piece(
            *(cut.plan, 0, cut.partition, start.offset, cut.offset, start.lane_seq, cut.lane_seq),
            *(cut.timestamp_ms, slots),
        )

    def _with_waiting(self, decision: Decision) -> frozenset[Decision]:
        """Return the waiting decisions with one more; a partition's first of a plan counts."""
        is_later = any(each[:2] == decision[:2] for each in self.waiting)
        return self.waiting if is_later else self.waiting | {decision}

    def _with_those_that_waited(self) -> "Routing":
        """Return the routing with waiting decisions of its plan, if they count now."""
        waiting = frozenset(each for each in self.waiting if each.plan > self.decidable_plan)
        return replace(self, waiting=waiting).with_all(self.waiting - waiting)

    def _follows(self, plan: Plan) -> bool:
        """Whether a plan repeats what is known to be decided of the one before it."""
        repeated = {decision.partition: decision for decision in plan.before}
        return all(repeated.get(partition) == decision for partition, decision in self.decisions.items())

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


def is_growth(plan: Plan, routing: Routing) -> bool:
    """
    Whether gateways that know of no pieces can follow a plan, too.

    They need partitions that all give slots away, and new ones of which each gets some of one partition.
    """
    parents = {(move.target, move.source) for move in plan.moves}
    targets = {target for target, _ in parents}
    return (
        {source for _, source in parents} == set(routing.homes)
        and targets.isdisjoint({*routing.homes, *routing.pieces})
        and len(targets) == len(parents)
    )


def spread_over(routing: Routing, partitions: int) -> tuple[Move, ...]:
    """
    Return the moves after which what each partition of the beginning had is spread evenly over its share.

    Its share are the numbers that lie a multiple of the first count above its own: of 8, partition 1 shares
    with 9, 17, ... So an audit that knows no plan can hold records against partitions. `partitions` is a
    multiple of that count.
    """
    assert partitions % routing.base == 0, partitions
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


def split_of(routing: Routing, partition: int) -> tuple[Move, ...]:
    """
    Return the moves of the upper half of one partition's slots; none if it has less than two.

    They go to the lowest number without slots that lies a multiple of the first count above or below.
    """
    owned = [slot for slot, home in enumerate(routing.homes) if home == partition]
    free = set(range(partition % routing.base, len(routing.homes), routing.base)) - set(routing.homes)
    target = min(free, default=partition)
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
