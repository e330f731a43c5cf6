"""Claim: what is prepared for a plan is what its partitions read once they are cut, wherever that is."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupe.decide.lineage import Mark
from dedupe.decide.planned import as_if_cut, heirs_of, hosts_of
from dedupe.decide.resharding import Decision, Routing, split_of, spread_over
from dedupe.model.inherited import OFFSETS_MAX
from tests.unit.dedupe.decide.test_layout import HOUR, divided, divided_on, opened_on, planned


def random_routing(rng: Random) -> Routing:
    routing = Routing.begun_with(2)
    for _ in range(rng.randrange(4)):
        wanted = rng.choice([2, 4, 6, 8, ~rng.choice(sorted(set(routing.homes)))])
        if spread_over(routing, wanted) if wanted >= 0 else split_of(routing, ~wanted):
            routing = divided_on(routing, wanted, rng)
    return routing


@given(st.integers(0, 2**32))
@settings(deadline=None)
def test_planned_lineage_is_the_later_one_as_far_as_it_is_read(seed: int) -> None:
    """Whatever is cut where, and however many marks there are in the end."""
    rng = Random(seed)
    routing = random_routing(rng)
    wanted = rng.choice([2, 4, 8, 16, ~rng.choice(sorted(set(routing.homes)))])
    if not (spread_over(routing, wanted) if wanted >= 0 else split_of(routing, ~wanted)):
        return
    opened, decisions = opened_on(routing, wanted, rng)
    closed = replace(opened, takes_marks=False).with_all(decisions)

    for count in range(bool(opened.marks), len(opened.marks) + 1):
        for heir in heirs_of(replace(opened, marks=opened.marks[:count])):
            later = closed.lineages.get(heir.partition)
            if later is None or later.plan != opened.version.plan:
                continue  # its sources have kept all
            if later.digest != heir.lineage.digest:
                assert {each.is_cut for each in decisions} == {True, False}
                continue  # one of them has, and its index is another one
            if heir.end is None:
                *before, last = later.levels
                assert before == list(heir.lineage.levels[:-1])
                assert last._replace(end=OFFSETS_MAX) == heir.lineage.levels[-1]
                assert heir.host in (heir.partition, last.partition)
            else:
                read = [level for level in heir.lineage.levels if level.end < OFFSETS_MAX]
                assert list(later.levels[: len(read)]) == read
                assert heir.end == later.parts[len(read) - 1][1]
                assert heir.lineage.bases[: len(read)] == later.bases[: len(read)]
                assert later.lane_seq == heir.lineage.lane_seq


def test_each_new_partition_of_a_growth_is_prepared() -> None:
    routing = planned(divided(2, [4]), 8)

    assert {heir.partition: heir.host for heir in heirs_of(routing)} == {4: 0, 5: 1, 6: 2, 7: 3}
    assert not as_if_cut(routing).undecided
    assert routing.undecided == hosts_of(routing) == {0, 1, 2, 3}


def test_partition_with_records_of_its_own_or_with_several_sources_is_not_without_marks() -> None:
    assert heirs_of(planned(divided(2, [4]), 2)) == []
    assert heirs_of(planned(divided(2, [4, 2]), 4)) == []
    assert heirs_of(planned(divided(2, []), ~0))[0].host == 0


MARKS = tuple(Mark(partition, 150 + partition, 15 + partition, HOUR + partition) for partition in range(4))


def test_with_marks_each_is_prepared_below_them_by_its_owner_or_by_that_of_a_source() -> None:
    fewer = heirs_of(marked(divided(2, [4]), 2))
    more = heirs_of(marked(divided(2, [4, 2]), 4))

    assert {heir.partition: heir.host for heir in fewer} == {0: 0, 1: 1}
    assert {heir.partition: heir.host for heir in more} == {2: 0, 3: 1}
    levels = fewer[0].lineage.levels
    assert [level[:3] for level in levels] == [
        *((0, 0, 100), (0, 100, 150), (2, 0, 152)),
        *((0, 150, OFFSETS_MAX), (2, 152, OFFSETS_MAX)),
    ]
    assert fewer[0].end == fewer[0].lineage.parts[2][1]
    assert fewer[0].lineage.lane_seq == 17 + (1 << 32)


@pytest.mark.parametrize("is_kept", [False, True])
def test_index_that_was_prepared_for_slots_that_did_not_come_is_of_another_lineage(*, is_kept: bool) -> None:
    routing = marked(divided(2, [4, 6]), 2)
    (before, _) = heirs_of(routing)
    assert {level.partition for level in before.lineage.levels} == {0, 2, 4}
    cuts = [Decision(3, each, 300, 3 * HOUR, 30) for each in sorted(routing.undecided)]

    after = replace(routing, takes_marks=False).with_all(
        Decision(3, cut.partition, None) if is_kept and cut.partition == 4 else cut for cut in cuts
    )

    assert (after.lineages[0].digest == before.lineage.digest) is not is_kept


def test_cut_that_is_too_far_behind_its_mark_or_below_it_makes_the_prepared_index_another_one() -> None:
    routing = marked(divided(2, [4]), 2)
    before = heirs_of(routing)[0].lineage
    for offset, lane_seq, is_same in ((300, 30, True), (300, 1 << 33, False), (149, 12, False)):
        cuts = [Decision(2, each, offset, 2 * HOUR, lane_seq) for each in range(4)]
        after = replace(routing, takes_marks=False).with_all(cuts).lineages[0]

        assert (after.digest == before.digest) is is_same
        assert after.lane_seq >= lane_seq


def marked(routing: Routing, wanted: int) -> Routing:
    plan = planned(routing, wanted).plan
    assert plan is not None
    homes = set(routing.homes)
    return routing.with_plan(plan._replace(marks=tuple(mark for mark in MARKS if mark.partition in homes)))
