"""
Claim: with resharding by fenced cuts (ADR 0041) no key is stored twice, no record lies where its key is not
at home, and no partition decides a plan twice, whatever crashes, is late, or reads a leader of before.
"""

from random import Random

import pytest

from tests.sim.cut_model import MUTATIONS, Bounds, search, walk

WIDE = Bounds(epochs=(4, 4), records=7, messages=3)
"""Two plans, there and back, with takeovers between."""


def test_every_order_of_steps_within_small_bounds() -> None:
    found = search(Bounds(epochs=(1, 1), records=3, messages=1, plans=1))

    assert found.wrong is None
    assert found.states > 10_000
    assert found.goals > 0  # heirs have stored both keys


@pytest.mark.slow
@pytest.mark.parametrize(("epochs", "plans"), [((2, 1), 1), ((1, 1), 2)], ids=["a takeover", "two plans"])
def test_every_order_of_steps_with_more_of_them(epochs: tuple[int, int], plans: int) -> None:
    found = search(Bounds(epochs=epochs, records=3, messages=1, plans=plans))

    assert found.wrong is None
    assert found.goals > 0


def test_keys_that_move_away_and_back_while_owners_die_and_sleep() -> None:
    found = walk(WIDE, None, Random(38), walks=1_500, steps=70)

    assert found.wrong is None
    assert found.goals > 50  # moved twice, and stored


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_part_of_the_protocol_is_needed(mutation: str) -> None:
    found = walk(WIDE, mutation, Random(38), walks=6_000, steps=70)

    assert found.wrong is not None
