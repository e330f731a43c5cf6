"""Claim: indexes become fast in the background, one step in a turn of the loop, and none once closed."""

import asyncio
from typing import Any, cast

import pytest

from dedupe.model.errors import IndexCorruptError
from dedupe.partition.warming import Warming
from tests.support.waiting import PATIENCE_S


class Turns:
    """Counts the turns of the event loop, in each of which it looks once for what has arrived."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        selector = cast(Any, asyncio.get_running_loop())._selector
        select = selector.select

        def counted(timeout: float | None = None) -> Any:
            self.number += 1
            return select(timeout)

        monkeypatch.setattr(selector, "select", counted)


@pytest.fixture
async def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(monkeypatch)


class Index:
    """An index that needs some steps; notes the turn of each."""

    def __init__(self, turns: Turns, steps: int) -> None:
        self._turns = turns
        self.steps_left = steps
        self.turns: list[int] = []

    def warm(self) -> bool:
        self.turns.append(self._turns.number)
        self.steps_left -= 1
        if self.steps_left < 0:
            raise IndexCorruptError("damaged")
        return self.steps_left > 0


def begun(warming: Warming, index: Index) -> None:
    warming.begin(cast(Any, index))


async def taken(index: Index, steps: int) -> None:
    """Wait until an index has taken so many steps, and see that it takes no more for some turns."""
    async with asyncio.timeout(PATIENCE_S):
        while len(index.turns) < steps:
            await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(index.turns) == steps


async def test_two_indexes_take_steps_in_turns_of_their_own(turns: Turns) -> None:
    turn = asyncio.Lock()
    indexes = [Index(turns, 5), Index(turns, 5)]
    for index in indexes:
        begun(Warming(turn), index)
    async with asyncio.timeout(PATIENCE_S):
        while any(index.steps_left for index in indexes):
            await asyncio.sleep(0)
    taken = [number for index in indexes for number in index.turns]
    assert len(taken) == len(set(taken)) == 10


async def test_begun_again_it_goes_on_and_is_not_begun_twice(turns: Turns) -> None:
    warming, index = Warming(asyncio.Lock()), Index(turns, 3)
    for _ in range(5):
        begun(warming, index)
    await taken(index, 3)
    await asyncio.sleep(0)
    index.steps_left = 1
    begun(warming, index)
    await taken(index, 4)


async def test_no_step_follows_the_end(turns: Turns) -> None:
    turn = asyncio.Lock()
    warming, index = Warming(turn), Index(turns, 9)
    async with turn:
        begun(warming, index)
        await asyncio.sleep(0)
    warming.end()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not index.turns


async def test_damaged_index_is_left_to_its_next_look_up(turns: Turns) -> None:
    warming, index = Warming(asyncio.Lock()), Index(turns, 0)
    for steps in (1, 2):
        begun(warming, index)
        await taken(index, steps)
        await asyncio.sleep(0)
