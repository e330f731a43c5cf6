"""
Claim: what a partition reads follows from the pieces of logs that its slots have had, each record once; the
partition that a key has is that of its slot's home; nobody forgets early because partitions become fewer.
"""

import random
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupe.decide.layout import Layout
from dedupe.decide.lineage import Level, Lineage, Mark, Marks, Piece, distance, parts_of
from dedupe.decide.resharding import (
    Decision,
    Marking,
    Plan,
    Routing,
    is_growth,
    moves_to,
    split_of,
    spread_over,
)
from dedupe.model.routing import partition_of

HOUR = 3_600_000


def planned(routing: Routing, wanted: int, *, read_from_ms: int = 0) -> Routing:
    """Return the routing with a plan for so many partitions, or one that divides partition ~n in two."""
    moves = spread_over(routing, wanted) if wanted >= 0 else split_of(routing, ~wanted)
    before = tuple(routing.decisions[each] for each in sorted(routing.decisions))
    count = max(routing.partitions, *(1 + move.target for move in moves))
    return routing.with_plan(Plan(routing.version.plan + 1, count, moves, before, read_from_ms))


def divided(base: int, counts: list[int], *, read_from_ms: int = 0) -> Routing:
    """Return the routing of a topic that was divided again and again, at offset 100, 200, ..."""
    routing = Routing.begun_with(base)
    for number, count in enumerate(counts, 1):
        routing = planned(routing, count, read_from_ms=read_from_ms)
        for partition in sorted(routing.undecided):
            cut = Decision(number, partition, 100 * number, number * HOUR, 10 * number)
            routing = routing.with_decision(cut)
    return routing


def lines_of(lineage: Lineage | None) -> list[tuple[int, int, int]]:
    """Return the partition, start and end of each level."""
    assert lineage is not None
    return [(level.partition, level.start, level.end) for level in lineage.levels]


@given(st.integers(1, 200), st.lists(st.integers(1, 4), max_size=3), st.binary(min_size=16, max_size=16))
@settings(deadline=None)
def test_number_of_a_partition_says_what_it_began_with(base: int, factors: list[int], key: bytes) -> None:
    routing = Routing.begun_with(base)
    for factor in factors:
        if spread_over(routing, factor * base):
            routing = divided_on(routing, factor * base)
    layout = Layout(base, routing)

    assert layout.map.of(key) % base == partition_of(key, base)  # the audit counts on it
    assert layout.partitions == 1 + max(routing.homes)


def divided_on(routing: Routing, wanted: int, rng: Random | None = None) -> Routing:
    """
    Return the routing behind one more plan.

    With dice logs grow unevenly, some partitions may keep, and plans that are no growth have marks.
    """
    if rng is not None:
        routing, decisions = opened_on(routing, wanted, rng)
        return replace(routing, takes_marks=False).with_all(decisions)
    routing = planned(routing, wanted)
    for partition in sorted(routing.undecided):
        start = routing.starts_of(partition)[-1]
        cut = (start.offset + 101, routing.version.plan * HOUR, start.lane_seq + 100)
        routing = routing.with_decision(Decision(routing.version.plan, partition, *cut))
    return routing


def opened_on(routing: Routing, wanted: int, rng: Random) -> tuple[Routing, list[Decision]]:
    """Return the routing with a plan and all its marks, and what its partitions will decide."""
    before, routing = routing, planned(routing, wanted)
    assert routing.plan is not None
    number, logs = routing.plan.number, dict[int, list[tuple[int, int, int]]]()
    for partition in sorted(routing.undecided):
        start = routing.starts_of(partition)[-1]
        counts = sorted(rng.randrange(200) for _ in range(5))
        logs[partition] = [
            (start.offset + more + 1, start.lane_seq + more, number * HOUR - 9 * (5 - i))
            for i, more in enumerate(counts)
        ]
    together = [
        tuple(
            Mark(partition, offset, lane_seq, timestamp_ms)
            for partition, places in logs.items()
            for offset, lane_seq, timestamp_ms in [places[i]]
            if lane_seq > routing.starts_of(partition)[-1].lane_seq and rng.random() < 0.9
        )
        for i in range(rng.randrange(1, 5))
    ]
    if not is_growth(routing.plan, before):
        routing = before.with_plan(routing.plan._replace(marks=together[0]))
        for marks in together[1:]:
            routing = routing.with_marking(Marking(number, marks, behind=len(routing.marks)))
    decisions = [
        Decision(number, partition, None if rng.random() < 0.2 else offset, timestamp_ms, lane_seq)
        for partition, places in logs.items()
        for offset, lane_seq, timestamp_ms in places[-1:]
    ]
    return routing, [each if each.is_cut else Decision(number, each.partition, None) for each in decisions]


def test_lineage_has_each_cut_of_its_line() -> None:
    layout = Layout(2, divided(2, [4, 8]))
    lineage = layout.lineage_of(6)

    assert lineage is not None
    assert lines_of(lineage) == [(0, 0, 100), (2, 0, 200)]
    assert (lineage.lane_seq, lineage.timestamp_ms, lineage.own_from) == (20, 2 * HOUR, 0)
    assert {level.shift for level in lineage.levels} == {0}
    assert layout.lineage_of(0) is None
    first = lineage.levels[0]
    assert {first.has(number.to_bytes(8, "big")) for number in range(4096)} == {True, False}
    bases = [*lineage.bases, lineage.own_base]
    assert list(lineage.ranges(0, bases[2] + 5)) == [
        (bases[0], bases[0] + 100),
        (bases[1], bases[1] + 200),
        (bases[2], bases[2] + 5),
    ]
    assert list(lineage.ranges(bases[0] + 100, bases[1] + 7)) == [(bases[1], bases[1] + 7)]
    assert distance(lineage, bases[0] + 40, bases[2] + 5) == 60 + 200 + 5
    assert distance(None, 3, 10) == 7


def test_partition_that_gets_its_slots_back_reads_its_own_log_among_others() -> None:
    layout = Layout(2, divided(2, [4, 2]))
    lineage = layout.lineage_of(0)

    assert layout.partitions == 2
    assert layout.partitions_of_log == 4
    assert lines_of(lineage) == [(0, 0, 100), (0, 100, 200), (2, 0, 200)]
    assert lineage is not None
    assert (lineage.plan, lineage.own_from, lineage.own_start - lineage.own_base) == (2, 200, 200)
    assert layout.slots_of(2) == 0
    own, heirs = lineage.levels[1].slots, lineage.levels[2].slots
    assert own.isdisjoint(heirs)
    assert own | heirs == lineage.levels[0].slots


def test_pieces_of_one_partition_that_follow_each_other_are_one() -> None:
    layout = Layout(2, divided(2, [4, 8]))

    assert lines_of(layout.lineage_of(4)) == [(0, 0, 200)]  # which no plan between them took from it


def test_pieces_that_end_before_all_is_forgotten_are_left_out() -> None:
    routing = divided(2, [4, 2, 4], read_from_ms=2 * HOUR)

    lineage = Layout(2, routing).lineage_of(2)
    assert lines_of(lineage) == [(2, 0, 200), (0, 200, 300)]
    assert lineage is not None
    assert lineage.own_from == 200
    none_left = Layout(2, divided(2, [4, 2, 4], read_from_ms=9 * HOUR)).lineage_of(2)
    assert lines_of(none_left) == []
    assert none_left is not None
    assert (none_left.lane_seq, none_left.timestamp_ms) == (lineage.lane_seq, 3 * HOUR)


def test_partition_that_is_split_leaves_all_others_as_they_are() -> None:
    before = divided(2, [4])
    routing = divided_on(before, ~1)

    assert routing.homes.count(1) == routing.homes.count(5) == before.homes.count(1) // 2
    assert {each for each, pieces in routing.pieces.items() if len(pieces) == 2} == {1}
    assert {each: routing.lineages[each] for each in (2, 3)} == before.lineages
    layout = Layout(2, routing)
    assert [layout.slots_of(each) > 0 for each in range(6)] == [True, True, True, True, False, True]
    assert layout.partitions_since(3 * HOUR) == 5


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_lane_reads_each_record_of_its_slots_once_and_forgets_none_early(seed: int) -> None:
    """Of any history of plans, by a count of the records that each partition had behind a record."""
    rng = Random(seed)
    routing = Routing.begun_with(2)
    marks_of: dict[int, Marks] = {}
    for _ in range(rng.randrange(1, 6)):
        wanted = rng.choice([2, 4, 6, 8, ~rng.choice(sorted(set(routing.homes)))])
        if wanted < 0 or spread_over(routing, wanted):
            routing = divided_on(routing, wanted, rng)
            marks_of[routing.version.plan] = routing.marks

    for target, lineage in routing.lineages.items():
        pieces = sorted(
            part
            for each in routing.pieces.values()
            for piece in each
            if piece.plan <= lineage.plan
            for part in parts_of(piece, marks_of[piece.plan] if piece.plan == lineage.plan else ())
        )
        lane_seq = time_ms = 0
        read: list[tuple[int, int, int]] = []
        for level in lineage.levels:
            of_level = [p for p in pieces if is_in(p, level)]
            first, last = of_level[0], of_level[-1]
            assert (first.start, last.end) == (level.start, level.end)
            assert level.timestamp_min_ms == time_ms
            time_ms = max(time_ms, last.timestamp_ms)
            for seq in range(first.first_seq, last.next_seq)[:: max(1, last.next_seq - first.first_seq - 1)]:
                counts = max(seq + level.shift, level.lane_seq_min)
                assert 0 <= lane_seq <= counts < max(1, lineage.lane_seq)
                lane_seq = counts
                for slot in level.slots:
                    later = [p for p in pieces if slot in p.slots and p[:2] > last[:2]]
                    behind = last.next_seq - seq + sum(p.next_seq - p.first_seq for p in later)
                    assert lineage.lane_seq - counts <= behind, "it counts more records behind it"
            read += [(slot, p.partition, p.start) for p in of_level for slot in level.slots]
        own_slots = {slot for level in lineage.levels for slot in level.slots}
        had = [(slot, p.partition, p.start) for p in pieces for slot in p.slots & own_slots]
        assert sorted(read) == sorted(had)
        own = [piece for piece in pieces if piece.partition == target]
        assert lineage.own_from == (own[-1].end if own else 0)
        assert all(piece.next_seq <= lineage.lane_seq for piece in own)


def is_in(piece: Piece, level: Level) -> bool:
    """Whether a level has a piece, which is empty if nothing came behind the last mark."""
    if level.start == level.end:
        return (piece.partition, piece.start, piece.end) == level[:3]
    return piece.partition == level.partition and level.start <= piece.start < piece.end <= level.end


def test_topic_that_was_never_divided_has_the_partitions_of_before() -> None:
    rng = random.Random(1)
    for layout in (Layout(8), Layout(8, Routing.begun_with(8))):
        assert layout.map.table is None
        assert (layout.partitions, layout.plan, layout.routing) == (8, 0, None)
        for _ in range(100):
            key = rng.randbytes(16)
            assert layout.map.of(key) == partition_of(key, 8)


def test_bounds_are_shared_by_as_few_partitions_as_the_window_knows() -> None:
    layout = Layout(2, divided(2, [4, 8]))

    assert [layout.partitions_since(at) for at in (0, HOUR, HOUR + 1, 2 * HOUR, 2 * HOUR + 1)] == [
        2,
        2,
        4,
        4,
        8,
    ]

    back = Layout(2, divided(2, [4, 8, 4]))
    assert [back.partitions_since(at) for at in (2 * HOUR, 3 * HOUR, 3 * HOUR + 1)] == [4, 4, 4]


@given(st.integers(1, 40), st.integers(2, 5))
def test_growth_of_a_topic_that_was_never_divided_is_the_even_spread(base: int, factor: int) -> None:
    routing = Routing.begun_with(base)

    assert spread_over(routing, factor * base) == moves_to(routing.homes, factor * base)


@pytest.mark.parametrize(
    ("counts", "wanted", "is_one"),
    [([], 4, True), ([4], 8, True), ([4], 6, False), ([4], 2, False), ([4, 2], 4, False), ([], ~1, False)],
)
def test_plan_that_older_gateways_follow_is_told_from_others(
    counts: list[int], wanted: int, *, is_one: bool
) -> None:
    routing = divided(2, counts)
    after = planned(routing, wanted)

    assert after.plan is not None
    assert is_growth(after.plan, routing) is is_one
