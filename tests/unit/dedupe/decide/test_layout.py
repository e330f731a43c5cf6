"""
Claim: a partition that was divided off follows from one line of ancestors; the partition that a key has is
that of its slot's home; and plans that would need more than that are told apart.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.decide.layout import Ancestor, Layout, distance
from dedupe.decide.resharding import Decision, Plan, Routing, growth_to, moves_to, split_of, why_no_growth
from dedupe.model.routing import partition_of
from dedupe.model.slots import slot_of


def divided(base: int, counts: list[int], *, hour: int = 3_600_000) -> Routing:
    """Return the routing of a topic that was divided again and again, at offset 100, 200, ..."""
    routing = Routing.begun_with(base)
    for number, count in enumerate(counts, 1):
        before = tuple(routing.decisions[parent] for parent in sorted(routing.decisions))
        plan = Plan(number, count, growth_to(routing, count), before)
        assert why_no_growth(plan, routing) is None
        routing = routing.with_plan(plan)
        for parent in sorted(routing.undecided):
            cut = Decision(number, parent, 100 * number, number * hour, 10 * number)
            routing = routing.with_decision(cut)
    return routing


@given(st.integers(1, 200), st.lists(st.integers(2, 4), max_size=3), st.binary(min_size=16, max_size=16))
def test_first_ancestor_is_the_partition_of_before(base: int, factors: list[int], key: bytes) -> None:
    counts, count = [], base
    for factor in factors:
        count *= factor
        if count > min(1024, 4 * base):
            break
        counts.append(count)
    layout = Layout(base, divided(base, counts))

    assert layout.partitions == (counts or [base])[-1]
    assert layout.root_of(layout.map.of(key)) == partition_of(key, base)
    roots = [layout.root_of(partition) for partition in range(layout.partitions)]
    assert roots == [partition % base for partition in range(layout.partitions)]  # the audit counts on it


def test_lineage_has_each_cut_of_its_line() -> None:
    layout = Layout(2, divided(2, [4, 8]))
    lineage = layout.lineage_of(6)

    assert lineage is not None
    assert lineage.ancestors == (Ancestor(0, 100, 10, 3_600_000), Ancestor(2, 200, 20, 7_200_000))
    assert layout.lineage_of(0) is None
    assert {slot_of(number.to_bytes(8, "big"), 2) in lineage.slots for number in range(4096)} == {True, False}
    starts = lineage.starts
    assert list(lineage.ranges(0, starts[2] + 5)) == [
        (starts[0], starts[0] + 100),
        (starts[1], starts[1] + 200),
        (starts[2], starts[2] + 5),
    ]
    assert list(lineage.ranges(starts[0] + 100, starts[1] + 7)) == [(starts[1], starts[1] + 7)]
    assert distance(lineage, starts[0] + 40, starts[2] + 5) == 60 + 200 + 5
    assert distance(None, 3, 10) == 7


def test_topic_that_was_never_divided_has_the_partitions_of_before() -> None:
    rng = random.Random(1)
    for layout in (Layout(8), Layout(8, Routing.begun_with(8))):
        assert layout.map.table is None
        assert (layout.partitions, layout.plan, layout.routing) == (8, 0, None)
        for _ in range(100):
            key = rng.randbytes(16)
            assert layout.map.of(key) == partition_of(key, 8)


def test_bounds_are_shared_by_as_few_partitions_as_the_window_knows() -> None:
    hour = 3_600_000
    layout = Layout(2, divided(2, [4, 8]))

    assert [layout.partitions_since(at) for at in (0, hour, hour + 1, 2 * hour, 2 * hour + 1)] == [
        2,
        2,
        4,
        4,
        8,
    ]


@pytest.mark.parametrize(("count", "why"), [(3, "several parents"), (6, "several parents")])
def test_plan_with_several_parents_a_child_is_told(count: int, why: str) -> None:
    routing = Routing.begun_with(2) if count == 3 else divided(2, [4])

    moves = moves_to(routing.homes, count) if count == 3 else growth_to(routing, count)
    assert why in (why_no_growth(Plan(2, count, moves), routing) or "")


@given(st.integers(1, 40), st.integers(2, 5))
def test_growth_of_a_topic_that_was_never_divided_is_the_even_spread(base: int, factor: int) -> None:
    routing = Routing.begun_with(base)

    assert growth_to(routing, factor * base) == moves_to(routing.homes, factor * base)


def test_number_of_a_new_partition_says_what_it_began_with() -> None:
    routing = divided(2, [])
    moves = tuple(move._replace(target=5 - move.target) for move in moves_to(routing.homes, 4))

    assert growth_to(routing, 5) == ()
    assert "would not say" in (why_no_growth(Plan(1, 4, moves), routing) or "")


def test_plan_back_and_plan_of_one_partition_are_told() -> None:
    routing = divided(2, [4])

    assert why_no_growth(Plan(2, 2, moves_to(routing.homes, 2)), routing) is not None
    assert "nothing away" in (why_no_growth(Plan(2, 5, split_of(routing.homes, 1, 4)), routing) or "")
