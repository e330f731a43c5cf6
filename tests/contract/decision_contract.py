"""
What a log owes the owners that decide beside their partitions, whatever it is made of.

A subclass's module has a fixture `world`: see tests.contract.log_contract.
"""

import time
from contextlib import suppress
from typing import Any

import pytest

from dedupe.model.errors import FencedError, NotAppendedError, RetriableError
from dedupe.model.types import NewRecord
from dedupe.storage.log import DecidingLog
from tests.contract.log_contract import LogWorld, read_all, records_of


def decision(text: str) -> NewRecord:
    return NewRecord(time.time_ns() // 1_000_000, b"cut", text.encode(), [])


async def deciding(world: LogWorld, partition: int = 0) -> DecidingLog:
    """Return a partition on a connection of its own, not fenced."""
    return (await world.open()).deciding_log(world.topic, partition)


async def keeping(world: LogWorld) -> Any:
    """Return a connection whose logs leave their fences to each other."""
    store: Any = await world.open()
    store.fences.keep()
    return store


async def decided(log: DecidingLog) -> list[str]:
    """Fence, again where that fails, and return what was decided before."""
    for _ in range(100):
        with suppress(RetriableError):
            await log.fence()
            return [record.value.decode() for record in log.decisions]
    raise AssertionError("no fence came to its end")


class DecisionContract:
    """Tests that every log with decisions passes."""

    async def test_nothing_is_decided_without_a_fence(self, world: LogWorld) -> None:
        log = await deciding(world)

        with pytest.raises(NotAppendedError):
            await log.decide(decision("a"))

        assert await decided(log) == []
        await log.close()

    async def test_what_was_decided_is_found_by_the_next_owner(self, world: LogWorld) -> None:
        first, second = await deciding(world), await deciding(world)
        await decided(first)
        await first.decide(decision("a"))
        await first.decide(decision("b"))

        assert await decided(second) == ["a", "b"]
        for log in (first, second):
            await log.close()

    async def test_owner_that_has_decided_appends_on(self, world: LogWorld) -> None:
        log = await deciding(world)
        await decided(log)
        await log.append(records_of(0, 2))
        await log.decide(decision("a"))
        await log.append(records_of(2, 2))

        end = await log.fence()
        assert [record[1:] for record in await read_all(log, 0, end)] == records_of(0, 4)
        await log.close()

    async def test_owner_of_before_decides_nothing_any_more(self, world: LogWorld) -> None:
        first, second = await deciding(world), await deciding(world)
        await decided(first)
        await decided(second)

        with pytest.raises(FencedError):
            await first.decide(decision("late"))
        with pytest.raises(NotAppendedError):
            await first.append(records_of(0, 1))

        await second.decide(decision("a"))
        assert await decided(first) == ["a"]
        for log in (first, second):
            await log.close()

    async def test_partitions_decide_for_themselves(self, world: LogWorld) -> None:
        logs = [await deciding(world, partition) for partition in range(2)]
        for number, log in enumerate(logs):
            await decided(log)
            await log.decide(decision(str(number)))

        assert [await decided(log) for log in logs] == [["0"], ["1"]]
        for log in logs:
            await log.close()

    async def test_log_goes_on_behind_the_fence_that_the_one_before_has_left(self, world: LogWorld) -> None:
        store = await keeping(world)
        first, second = (store.deciding_log(world.topic, 0) for _ in range(2))
        third = await deciding(world)
        await decided(first)
        await first.decide(decision("a"))
        base = await first.append(records_of(0, 2))
        await first.close()

        assert await second.fence() == base + 2  # and no marker of another fence is there
        assert [record.value for record in second.decisions] == [b"a"]
        await second.decide(decision("b"))
        assert await second.append(records_of(2, 2)) == base + 2

        assert await decided(third) == ["a", "b"]
        with pytest.raises(FencedError):
            await second.append(records_of(4, 1))
        for log in (second, third):
            await log.close()

    async def test_fence_that_somebody_has_ended_is_worth_nothing(self, world: LogWorld) -> None:
        store = await keeping(world)
        first, rival = store.deciding_log(world.topic, 0), await deciding(world)
        await decided(first)
        await first.close()
        assert await decided(rival) == []

        second = store.deciding_log(world.topic, 0)
        await second.fence()
        with pytest.raises(FencedError):
            await second.decide(decision("late"))
        with pytest.raises(NotAppendedError):
            await second.append(records_of(0, 1))

        await rival.decide(decision("a"))
        assert await decided(second) == ["a"]
        for log in (second, rival):
            await log.close()

    @pytest.mark.regression(
        "A lane served after a plan under an epoch that another worker had ended, until its first append."
    )
    async def test_fence_that_is_seen_to_be_over_is_taken_anew(self, world: LogWorld) -> None:
        store = await keeping(world)
        first, rival = store.deciding_log(world.topic, 0), await deciding(world)
        await decided(first)
        await first.append(records_of(0, 1))
        await first.close()
        await decided(rival)
        await rival.append(records_of(1, 1))

        second = store.deciding_log(world.topic, 0)
        await second.bounds()  # as a lane does before it fences
        end = await second.fence()

        assert [record[1:] for record in await read_all(second, 0, end)] == records_of(0, 2)
        assert await second.append(records_of(2, 1)) >= end
        for log in (second, rival):
            await log.close()

    async def test_fence_is_gone_on_with_by_who_sees_the_end_that_it_has_left(self, world: LogWorld) -> None:
        store = await keeping(world)
        first, second = (store.deciding_log(world.topic, 0) for _ in range(2))
        await decided(first)
        base = await first.append(records_of(0, 1))
        await first.close()

        assert (await second.bounds())[1] == base + 1
        assert await second.fence() == base + 1  # and no marker of another fence is there
        await second.close()

    async def test_fence_that_is_released_is_taken_anew(self, world: LogWorld) -> None:
        store = await keeping(world)
        for release in (lambda: store.release_fence(world.topic, 0), store.fences.end):
            first, second = (store.deciding_log(world.topic, 0) for _ in range(2))
            await decided(first)
            await first.close()
            release()

            await second.fence()

            with pytest.raises(NotAppendedError):
                await first.append(records_of(0, 1))
            assert await second.append(records_of(0, 1)) > 0  # behind the marker of its own fence
            await second.close()

    async def test_log_that_is_closed_in_a_round_leaves_no_fence(self, world: LogWorld) -> None:
        store = await keeping(world)
        first, second = (store.deciding_log(world.topic, 0) for _ in range(2))
        await decided(first)
        base = await first.append(records_of(0, 1))
        store.fences.hand_out()
        await first.close()

        assert await second.fence() > base + 1  # behind the marker of its own fence
        await second.close()

    async def test_doubt_leaves_no_fence(self, world: LogWorld) -> None:
        store = await keeping(world)
        first, rival = store.deciding_log(world.topic, 0), await deciding(world)
        await decided(first)
        await decided(rival)
        with pytest.raises(FencedError):
            await first.append(records_of(0, 1))
        await first.close()

        second = store.deciding_log(world.topic, 0)
        await decided(second)
        await second.append(records_of(0, 1))
        for log in (second, rival):
            await log.close()
