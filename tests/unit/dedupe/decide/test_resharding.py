"""
Claim: the map of before is one of slots; every plan leaves each slot with one home and even shares; and all
orders in which partitions are read lead to the same routing.
"""

import random
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.decide.lineage import Mark
from dedupe.decide.resharding import (
    Decision,
    Marking,
    Move,
    Plan,
    Routing,
    moves_to,
    split_of,
    why_invalid,
)
from dedupe.model.routing import partition_of
from dedupe.model.slots import slot_of, slots_of

COUNTS = st.integers(1, 1024)
KEYS = st.binary(min_size=8, max_size=8)


def planned(routing: Routing, partitions: int, number: int = 1) -> Plan:
    before = tuple(routing.decisions[parent] for parent in sorted(routing.decisions))
    return Plan(number, partitions, moves_to(routing.homes, partitions), before)


def all_cut(routing: Routing, offset: int = 100) -> Routing:
    assert routing.plan is not None
    for parent in sorted(routing.undecided):
        routing = routing.with_decision(Decision(routing.plan.number, parent, offset, timestamp_ms=offset))
    return routing


@given(COUNTS, KEYS)
def test_slots_of_the_beginning_are_the_partitions_of_before(partitions: int, key: bytes) -> None:
    routing = Routing.begun_with(partitions)
    number = int.from_bytes(key, "big")

    assert routing.homes[slot_of(key, partitions)] == partition_of(key, partitions)
    assert routing.table()[number % slots_of(partitions)] == partition_of(key, partitions)


@given(st.integers(1, 40), st.lists(st.integers(1, 40), max_size=4))
def test_each_plan_spreads_all_slots_evenly(partitions: int, counts: list[int]) -> None:
    routing = Routing.begun_with(partitions)
    for number, count in enumerate(counts, 1):
        if not moves_to(routing.homes, count):
            return
        routing = routing.with_plan(planned(routing, count, number))
        assert routing.plan is not None
        assert routing.plan.number == number
        routing = all_cut(routing)
        shares = Counter(routing.homes)
        assert sorted(shares) == list(range(count))
        assert max(shares.values()) - min(shares.values()) <= 1


@pytest.mark.parametrize("partitions", [1, 3, 8, 100])
def test_a_doubling_gives_each_child_one_parent(partitions: int) -> None:
    moves = moves_to(Routing.begun_with(partitions).homes, 2 * partitions)

    assert len(moves) == partitions
    assert {move.target: move.source for move in moves}.keys() == set(range(partitions, 2 * partitions))


def test_back_is_where_it_came_from() -> None:
    routing = all_cut(Routing.begun_with(4).with_plan(planned(Routing.begun_with(4), 8)))

    back = moves_to(routing.homes, 4)

    assert {move.source for move in back} == {4, 5, 6, 7}
    assert sum(move.last - move.first + 1 for move in back) == slots_of(4) // 2


def test_golden_slots() -> None:
    """Frozen: slots name keys in records."""
    keys = [number.to_bytes(8, "big") for number in (0, 7, 8, 4095, 4096, 2**64 - 1)]

    assert [slots_of(n) for n in (1, 3, 8, 1000, 1024)] == [4096, 4095, 4096, 4000, 4096]
    assert [slot_of(key, 8) for key in keys] == [0, 3584, 1, 4095, 0, 4095]
    assert moves_to(Routing.begun_with(2).homes, 3) == (Move(1366, 2047, 0, 2), Move(3413, 4095, 1, 2))
    assert split_of(Routing.begun_with(8), 3) == (Move(1792, 2047, 3, 11),)


@pytest.mark.parametrize(
    ("moves", "why"),
    [
        ((), "nothing moves"),
        ((Move(5, 4, 0, 2),), "do not exist"),
        ((Move(0, 9_999, 0, 2),), "do not exist"),
        ((Move(0, 1, 0, 0),), "from 0 to 0"),
        ((Move(0, 1, 0, 3),), "from 0 to 3"),
        ((Move(0, 1, 1, 2),), "not all at home"),
        ((Move(0, 1, 0, 2), Move(1, 2, 0, 2)), "twice"),
    ],
)
def test_plan_that_cannot_be_is_none(moves: tuple[Move, ...], why: str) -> None:
    routing = Routing.begun_with(2)
    plan = Plan(1, 3, moves)

    assert why in (why_invalid(plan, routing.homes) or "")
    assert routing.with_plan(plan) is routing


def test_only_a_partitions_first_decision_of_the_open_plan_counts() -> None:
    routing = Routing.begun_with(2).with_plan(planned(Routing.begun_with(2), 4))
    cut = Decision(1, 0, 10, 5)

    once = routing.with_decision(cut)

    assert once.version.cut == {0}
    assert once.undecided == {1}
    for other in (cut._replace(offset=20), Decision(1, 0, None), Decision(0, 1, 3), Decision(1, 2, 3)):
        assert once.with_decision(other) is once


def test_partition_that_keeps_its_slots_ends_the_plan_without_a_move() -> None:
    begun = Routing.begun_with(2)
    routing = begun.with_plan(planned(begun, 4))

    kept = routing.with_decision(Decision(1, 0, None)).with_decision(Decision(1, 1, None))

    assert kept.homes == begun.homes
    assert not kept.undecided


def test_nothing_moves_before_all_have_decided() -> None:
    begun = Routing.begun_with(2)
    routing = begun.with_plan(planned(begun, 4)).with_decision(Decision(1, 0, 10))

    assert (routing.homes, routing.pieces, routing.decided_plan) == (begun.homes, {}, 0)


@pytest.mark.parametrize("kept", range(4))
def test_slots_move_between_partitions_that_were_both_cut(kept: int) -> None:
    begun = Routing.begun_with(2)
    four = all_cut(begun.with_plan(planned(begun, 4)))
    back = four.with_plan(planned(four, 2, 2))  # 2 gives its slots to 0, and 3 to 1
    assert back.undecided == {0, 1, 2, 3}

    for partition in range(4):
        back = back.with_decision(Decision(2, partition, None if partition == kept else 200))

    pairs = {(0, 2), (1, 3)}
    (stays,) = [pair for pair in pairs if kept in pair]
    (merged,) = pairs - {stays}
    assert set(back.homes) == {*stays, merged[0]}
    assert all(len(back.pieces.get(each, ())) == (each < 2) for each in stays)
    assert all(len(back.pieces[each]) == 1 + (each < 2) for each in merged)


def test_next_plan_waits_for_all_partitions_unless_it_says_what_they_decided() -> None:
    begun = Routing.begun_with(2)
    routing = begun.with_plan(planned(begun, 4))
    done = all_cut(routing)
    second = planned(done, 2, 2)

    assert routing.with_plan(second._replace(before=())) is routing
    contradicted = routing.with_decision(Decision(1, 0, None))
    assert contradicted.with_plan(second) is contradicted
    assert routing.with_plan(second) == done.with_plan(second)


@pytest.mark.parametrize(
    "before",
    [(), (Decision(1, 0, None),), (Decision(1, 1, None),), (Decision(1, 0, 10), Decision(1, 1, None))],
    ids=["nothing", "one parent", "the other", "another decision"],
)
def test_plan_that_does_not_say_what_all_parents_have_decided_is_none(before: tuple[Decision, ...]) -> None:
    routing = Routing.begun_with(2).with_plan(planned(Routing.begun_with(2), 4))
    if len(before) == 2:
        routing = routing.with_decision(Decision(1, 0, None))
    plan = Plan(2, 4, (Move(0, 0, 0, 1),), before)  # it would be valid for these homes

    assert why_invalid(plan, routing.homes) is None
    assert routing.with_plan(plan) is routing


def test_decisions_of_different_parents_may_be_read_in_any_order() -> None:
    begun = Routing.begun_with(3)
    routing = begun.with_plan(planned(begun, 6))
    decisions = [Decision(1, 0, 10, 1), Decision(1, 1, None), Decision(1, 2, 30, 3)]

    results = []
    for order in permutations(decisions):
        after = routing
        for decision in order:
            after = after.with_decision(decision)
        results.append(after)

    assert all(after == results[0] for after in results)


def test_nobody_decides_of_a_plan_before_its_last_marks_are_written() -> None:
    four = all_cut(Routing.begun_with(2).with_plan(planned(Routing.begun_with(2), 4)))
    routing = four.with_plan(planned(four, 2, 2)._replace(marks=(Mark(0, 120, 12, 120),)))
    cuts = [Decision(2, each, 200) for each in range(4)]

    waiting = routing.with_all(cuts).with_marking(Marking(2, (Mark(0, 150, 15, 150),)))

    assert waiting.undecided == {0, 1, 2, 3}
    assert waiting.waiting == set(cuts)
    for other in (Marking(1, (), is_last=True), Marking(3, (), is_last=True)):
        assert waiting.with_marking(other) is waiting
    done = waiting.with_marking(Marking(2, (), is_last=True))
    assert not done.undecided
    assert not done.waiting
    assert len(done.marks) == 2
    assert done.with_marking(Marking(2, (Mark(0, 180, 18, 180),))) is done
    assert [level[:3] for level in done.lineages[0].levels[1:4]] == [
        (0, 100, 120),
        (0, 120, 150),
        (0, 150, 200),
    ]


def test_record_is_at_home_where_its_slot_was_when_it_was_written() -> None:
    rng = random.Random(38)
    begun = Routing.begun_with(2)
    key = next(k for k in iter(lambda: rng.randbytes(16), b"") if slot_of(k, 2) in range(1024, 2048))
    away = all_cut(begun.with_plan(planned(begun, 4)), 100)
    back = all_cut(away.with_plan(planned(away, 2, 2)), 200)
    (child,) = {move.target for move in moves_to(begun.homes, 4) if move.source == 0}

    assert [(piece.plan, piece.start, piece.end) for piece in away.pieces[0]] == [(1, 0, 100)]
    assert [away.is_home(key, 0, offset, 50) for offset in (99, 100)] == [True, False]
    assert away.is_home(key, child, 0, 100)
    assert not away.is_home(key, child, 0, 99)  # earlier than the cut
    assert not away.is_home(key, 1, 0, 100)
    assert [back.is_home(key, child, offset, 150) for offset in (199, 200)] == [True, False]
    places = ((99, 1), (150, 200), (199, 200), (200, 199), (200, 200))
    assert [back.is_home(key, 0, *place) for place in places] == [True, False, False, False, True]


@pytest.mark.regression("Two commands that marked a plan at once gave lanes more levels than offsets have.")
def test_of_marks_that_two_wrote_at_once_the_first_count() -> None:
    begun = Routing.begun_with(2)
    plan = planned(begun, 4, 1)._replace(marks=(Mark(0, 10, 5, 1),))
    first, second = (Marking(1, (Mark(0, offset, 8, 2),)) for offset in (20, 30))

    marked = begun.with_plan(plan).with_marking(first)
    assert marked.marks == (plan.marks, first.marks)
    assert marked.with_marking(second) == marked
    assert marked.with_marking(second._replace(behind=2)).marks == (plan.marks, first.marks, second.marks)
    ended = marked.with_marking(second._replace(is_last=True))
    assert (ended.marks, ended.takes_marks) == (marked.marks, False)


@given(st.randoms(use_true_random=False))
def test_partitions_of_the_routing_topic_may_be_read_in_any_order(rng: random.Random) -> None:
    """Each has its own order; of them all none is promised."""
    routing, streams = (
        Routing.begun_with(3),
        {partition: list[Plan | Marking | Decision]() for partition in range(-1, 6)},
    )
    for number, count in enumerate((6, 3, 4), 1):
        plan = planned(routing, count, number)
        if rng.random() < 0.7:
            plan = plan._replace(marks=(Mark(0, 10 * number - 9, 1, 1),))
        markings = [
            Marking(number, (Mark(0, 10 * number - each, 5, 2),), each == 3, behind)
            for behind, each in enumerate((5, 3, 2), 1)
        ]
        routing = routing.with_plan(plan)
        for marking in markings:
            routing = routing.with_marking(marking)
        assert routing.plan != plan or len(routing.marks) == 3 * bool(plan.marks)
        streams[-1] += [plan, *markings]
        for parent in sorted(routing.undecided):
            decision = Decision(number, parent, rng.choice((None, 10 * number)), number)
            routing = routing.with_decision(decision)
            streams[parent] += [decision, decision._replace(offset=99)]
    expected, read = routing, Routing.begun_with(3)
    while any(streams.values()):
        record = rng.choice([stream for stream in streams.values() if stream]).pop(0)
        match record:
            case Plan():
                read = read.with_plan(record)
            case Marking():
                read = read.with_marking(record)
            case Decision():
                read = read.with_decision(record)

    assert read == expected
