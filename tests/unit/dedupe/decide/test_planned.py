"""Claim: what is prepared for a plan is what its partitions read once they are cut, wherever that is."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dedupe.decide.planned import as_if_cut, heirs_of
from dedupe.decide.resharding import Decision, Routing, split_of, spread_over
from dedupe.model.inherited import OFFSETS_MAX
from tests.unit.dedupe.decide.test_layout import HOUR, divided, divided_on, planned


@given(st.integers(0, 2**32))
@settings(deadline=None)
def test_planned_lineage_differs_from_the_later_one_in_its_end_alone(seed: int) -> None:
    rng = Random(seed)
    routing = Routing.begun_with(2)
    for _ in range(rng.randrange(4)):
        wanted = rng.choice([2, 4, 6, 8, ~rng.choice(sorted(set(routing.homes)))])
        if spread_over(routing, wanted) if wanted >= 0 else split_of(routing, ~wanted):
            routing = divided_on(routing, wanted, rng)
    wanted = rng.choice([4, 8, 16, ~rng.choice(sorted(set(routing.homes)))])
    if not (spread_over(routing, wanted) if wanted >= 0 else split_of(routing, ~wanted)):
        return
    routing = planned(routing, wanted)
    heirs = heirs_of(routing)

    number = routing.version.plan
    for partition in sorted(routing.undecided):
        start, more = routing.starts_of(partition)[-1], rng.randrange(200)
        cut = Decision(number, partition, start.offset + more, number * HOUR, start.lane_seq + more)
        keeps = rng.random() < 0.2
        routing = routing.with_decision(Decision(number, partition, None) if keeps else cut)

    for heir in heirs:
        later = routing.lineages.get(heir.partition)
        if later is None or later.plan != number:
            continue  # its source has kept all
        *before, last = later.levels
        assert before == list(heir.lineage.levels[:-1])
        assert last._replace(end=OFFSETS_MAX) == heir.lineage.levels[-1]
        assert last.partition == heir.source
        assert later.bases == heir.lineage.bases


def test_each_new_partition_of_a_growth_is_prepared() -> None:
    routing = planned(divided(2, [4]), 8)

    assert {heir.partition: heir.source for heir in heirs_of(routing)} == {4: 0, 5: 1, 6: 2, 7: 3}
    assert not as_if_cut(routing).undecided
    assert routing.undecided == {0, 1, 2, 3}


def test_partition_with_records_of_its_own_or_with_several_sources_is_not() -> None:
    assert heirs_of(planned(divided(2, [4]), 2)) == []
    assert heirs_of(planned(divided(2, [4, 2]), 4)) == []
    assert heirs_of(planned(divided(2, []), ~0))[0].source == 0
