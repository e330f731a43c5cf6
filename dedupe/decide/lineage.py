"""
Lineage: the parts of logs from which the index of a partition follows that was given slots. Pure.

A cut by which a partition gives slots away, or gets some, ends a piece of its log. So each record lies in one
piece, or behind the last one of its partition, and a slot's history is the pieces in which it was at home. A
partition that is given slots reads all pieces that have any of its slots, one after the other, in the order
of plans and partitions; then its own log from behind its own last piece on.

Pieces of one plan were written at the same time. As the later ones are read, their records count as no older
than those that are read before: neither time nor the lane sequence runs back. The sequence of a level ends as
far before that of the lane's own log as the shortest history of its slots goes on: no id counts more records
behind it than its own partitions have had, so none is forgotten early.

Marks of a plan divide the pieces that it ends into parts, and all that lies below a mark is read before what
lies behind. What is read of the earlier parts, and as what it counts, does not depend on the cuts, so it can
be read before them: the lane's own numbers begin far above the first marks, and what lies behind these counts
as the number before them. Such ids are remembered longer by that, never shorter.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from dedupe.model.inherited import level_of, level_start
from dedupe.model.slots import Slot, slot_of
from dedupe.model.types import Offset

MARKED_ROOM = 1 << 32
"""Numbers between the first marks of a plan and the own ones of its lanes: more than a cut adds."""


class Mark(NamedTuple):
    """A place in a partition's log: behind a record that is committed, or where it was cut last."""

    partition: int
    offset: Offset
    lane_seq: int  # behind that of the newest record below it
    timestamp_ms: int  # of that record: no later one is older


Marks = Sequence[Sequence[Mark]]
"""Those of one plan, in the order in which they were written; one of each partition each time."""


class Piece(NamedTuple):
    """A part of a partition's log, and the slots that were at home in it."""

    plan: int  # whose cut ended it
    part: int  # how many marks of that plan lie before it
    partition: int
    start: Offset
    end: Offset
    first_seq: int  # the lane sequence of its first record
    next_seq: int  # behind that of its last one
    timestamp_ms: int  # no later record of these slots has an earlier time
    slots: frozenset[Slot]


class Level(NamedTuple):
    """What a lane reads of one piece."""

    partition: int
    start: Offset  # in its log
    end: Offset
    slots: frozenset[Slot]  # whose records are the lane's
    base: int  # partitions that the topic began with
    shift: int  # between the lane sequence of its records and that of the lane
    lane_seq_min: int  # no record counts as one before it
    timestamp_min_ms: int  # likewise

    def has(self, routing_key: bytes) -> bool:
        """Whether a key's records in it are the lane's."""
        return slot_of(routing_key, self.base) in self.slots


@dataclass(frozen=True, slots=True)
class Lineage:
    """What the lane of a partition reads. Offsets are those of dedupe.model.inherited, unless they are said
    to be a log's."""

    partition: int
    plan: int  # that gave it slots
    levels: tuple[Level, ...]  # n >= 0, in the order in which they are read
    own_from: Offset  # in its own log: what lies before is in a piece
    lane_seq: int  # of the first record of its own there
    timestamp_ms: int  # no record of its own is older
    read_from_ms: int = 0  # records of levels that are older need not be read
    digest: str = ""  # of what the first marks fix; without marks empty
    empty_until: Offset = 0  # in its own log: from `own_from` to here no record of it can have been

    @property
    def own_base(self) -> Offset:
        """Offset 0 of its own log."""
        return level_start(len(self.levels) + 1, self.partition)

    @property
    def own_start(self) -> Offset:
        """Where its own log begins, behind all levels."""
        return self.own_base + self.own_from

    @property
    def bases(self) -> list[Offset]:
        """Offset 0 of the log of each level."""
        return [level_start(number, level.partition) for number, level in enumerate(self.levels, 1)]

    @property
    def parts(self) -> list[tuple[Offset, Offset]]:
        """Where each level begins and ends."""
        pairs = zip(self.bases, self.levels, strict=True)
        return [(base + level.start, base + level.end) for base, level in pairs]

    def level_at(self, offset: Offset) -> Level | None:
        """Return the level that has an offset; None: it is of the own log."""
        number = level_of(offset)
        return self.levels[number - 1] if number <= len(self.levels) else None

    def ranges(self, start: Offset, end: Offset) -> Iterator[tuple[Offset, Offset]]:
        """Yield the part of [start, end) that each log has, in order, without empty ones."""
        for first, last in (*self.parts, (self.own_start, end)):
            low, high = max(first, start), min(last, end)
            if low < high:
                yield low, high


def lineage_of(
    partition: int,
    plan: int,
    slots: frozenset[Slot],
    pieces: Iterable[Piece],
    base: int,
    read_from_ms: int,
    marks: Marks = (),
) -> Lineage:
    """
    Return the lineage of a partition that a plan has given slots.

    Args:
        partition: which one.
        plan: the number of the plan.
        slots: all that it has then.
        pieces: of all partitions, those that this plan has ended included.
        base: partitions that the topic began with.
        read_from_ms: pieces that end before it are left out.
        marks: of the plan.
    """
    ordered = sorted(part for each in pieces for part in parts_of(each, marks if each.plan == plan else ()))
    line = _joined([p._replace(slots=p.slots & slots) for p in ordered if not p.slots.isdisjoint(slots)])
    own = [piece for piece in ordered if piece.partition == partition]
    lane_seq = _first_own_seq(line + own, is_marked=bool(marks))
    newest_ms = max((piece.timestamp_ms for piece in line + own), default=0)
    levels: list[Level] = []
    lane_seq_min = timestamp_min_ms = fixed = 0
    for piece, behind in zip(line, _records_behind(line), strict=True):
        end_seq = lane_seq - behind
        if piece.timestamp_ms >= read_from_ms:
            place, shift = (piece.partition, piece.start, piece.end), end_seq - piece.next_seq
            levels.append(Level(*place, piece.slots, base, shift, lane_seq_min, timestamp_min_ms))
            fixed += not piece.part
        lane_seq_min = max(lane_seq_min, end_seq - 1)
        timestamp_min_ms = max(timestamp_min_ms, piece.timestamp_ms)
    own_from = own[-1].end if own else 0
    digest = _digest(lane_seq, slots, levels[:fixed]) if marks else ""
    return Lineage(partition, plan, tuple(levels), own_from, lane_seq, newest_ms, read_from_ms, digest)


def parts_of(piece: Piece, marks: Marks) -> list[Piece]:
    """Return what marks divide a piece into. Those that do not lie in what is left of it do not count."""
    parts: list[Piece] = []
    for number, together in enumerate(marks):
        for partition, offset, lane_seq, timestamp_ms in together:
            if partition == piece.partition and piece.start < offset <= piece.end:
                part = piece._replace(part=number, end=offset, next_seq=lane_seq, timestamp_ms=timestamp_ms)
                parts.append(part)
                piece = piece._replace(start=offset, first_seq=lane_seq)
    return [*parts, piece._replace(part=len(marks))]


def _first_own_seq(pieces: Sequence[Piece], *, is_marked: bool) -> int:
    """
    Return the first number of a lane's own: behind all others; with marks one that no cut changes.

    Were a cut so far behind its mark that it did, the lane would have another digest, and whatever was
    prepared would be read again.
    """
    fixed = max((piece.next_seq for piece in pieces if not piece.part), default=0)
    return max([fixed + is_marked * MARKED_ROOM, *(piece.next_seq for piece in pieces)])


def _digest(lane_seq: int, slots: Iterable[Slot], levels: Iterable[Level]) -> str:
    facts = [lane_seq, sorted(slots), *((*level[:3], sorted(level.slots), *level[4:]) for level in levels)]
    return blake2b(repr(facts).encode(), digest_size=8).hexdigest()


def _joined(line: Iterable[Piece]) -> list[Piece]:
    """Return the pieces with those as one that follow each other in a log, with the same slots."""
    joined: list[Piece] = []
    for piece in line:
        last = joined[-1] if joined else None
        if last and (last.partition, last.end, last.next_seq, last.slots, 0) == (
            *(piece.partition, piece.start, piece.first_seq, piece.slots, piece.part),
        ):
            joined[-1] = piece._replace(start=last.start, first_seq=last.first_seq)
        else:
            joined.append(piece)
    return joined


def _records_behind(line: Sequence[Piece]) -> list[int]:
    """
    Return for each piece how many records one of its slots has had behind it, of those with the fewest.

    What lies behind marks does not count: how much it is depends on the cuts.
    """
    records_of: dict[Slot, int] = {}  # so far, from the last piece on
    behind: list[int] = []
    for piece in reversed(line):
        behind.append(min(records_of.get(slot, 0) for slot in piece.slots))
        for slot in piece.slots:
            records_of[slot] = records_of.get(slot, 0) + (not piece.part) * (piece.next_seq - piece.first_seq)
    return behind[::-1]


def distance(lineage: Lineage | None, start: Offset, end: Offset) -> int:
    """Return how many offsets of logs lie in [start, end)."""
    parts: Sequence[tuple[Offset, Offset]] = [(start, end)]
    if lineage is not None:
        parts = list(lineage.ranges(start, end))
    return sum(high - low for low, high in parts)
