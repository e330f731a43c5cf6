"""Claim: expired events are deleted, but none because of a clock that was wrong when the process began."""

import asyncio

from app.chores import trim_log
from app.settings import Settings
from tests.sim.world import CLEAN, World

DAY_MS = 86_400_000
SETTINGS = Settings(mode="development", trim_interval=0.001)


class Chore:
    """trim_log at work on a world's log."""

    def __init__(self, world: World) -> None:
        assert world.router is not None
        self._world = world
        self._looks = 0
        self._work = asyncio.ensure_future(trim_log(world.router, SETTINGS, world.clock, self._trim))

    async def finish(self) -> None:
        """Let it look at the log a few times, and end it."""
        enough = self._looks + 3
        while self._looks < enough:
            await asyncio.sleep(0.001)
        self._work.cancel()

    async def _trim(self, topic: str, before_ms: int, _records_max: int) -> int:
        if topic == CLEAN.topic:
            self._looks += 1
            for number, records in enumerate(self._world.committed()):
                kept = [record for record in records if record.timestamp_ms >= before_ms]
                self._world.log.trim(topic, number, kept[0].offset)
        return 0


async def world_with_events() -> World:
    world = World()
    world.boot()
    await world.wait_until_active()
    for number in range(20):
        await world.deliver([world.event(str(number))])
    return world


def kept(world: World) -> int:
    return sum(map(len, world.committed()))


async def test_expired_events_are_deleted() -> None:
    world = await world_with_events()
    await world.crash()
    world.boot()
    await world.wait_until_active()
    chore = Chore(world)
    await asyncio.sleep(0)
    world.clock.ms += 9 * DAY_MS
    for number in range(20, 40):
        await world.deliver([world.event(str(number))])

    await chore.finish()

    assert kept(world) == 20


async def test_log_that_began_with_the_process_is_trimmed_too() -> None:
    world = await world_with_events()
    world.clock.ms += 9 * DAY_MS
    for number in range(20, 40):
        await world.deliver([world.event(str(number))])

    await Chore(world).finish()

    assert kept(world) == 20


async def test_clock_that_is_far_ahead_at_start_deletes_nothing() -> None:
    world = await world_with_events()
    await world.crash()
    world.clock.ms += 30 * DAY_MS
    world.boot()
    await world.wait_until_active()
    for number in range(20, 40):
        await world.deliver([world.event(str(number))])

    await Chore(world).finish()

    assert kept(world) == 40
