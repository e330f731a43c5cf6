"""Claim: expired events of both topics are deleted, and none because a clock was wrong for a while."""

import asyncio

import pytest

from app.process import background_tasks
from app.process.background_tasks import trim_log
from dedupe.model.types import Topic
from tests.sim.world import CLEAN, QUARANTINE, World
from tests.support.settings import make_settings

DAY_MS = 86_400_000
SETTINGS = make_settings(mode="development")
TOPICS = {topic.name: topic for topic in (CLEAN, QUARANTINE)}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_tasks, "TRIM_INTERVAL_S", 0.001)


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
        self._looks += topic == CLEAN.name
        for number, records in enumerate(self._world.committed(TOPICS[topic])):
            kept = [record for record in records if record.timestamp_ms >= before_ms] or records[-1:]
            if kept:
                self._world.log.trim(topic, number, kept[0].offset)
        return 0


async def world_with_events() -> World:
    world = World()
    await boot(world)
    await deliver(world, 0)
    return world


async def boot(world: World) -> None:
    world.boot()
    await world.wait_until_active()


async def deliver(world: World, first: int) -> None:
    """Send 20 events, and a conflicting one for each of them."""
    for number in range(first, first + 20):
        await world.deliver([world.event(str(number))])
        await world.deliver([world.event(str(number), "other content")])


def kept(world: World, topic: Topic = CLEAN) -> int:
    return sum(map(len, world.committed(topic)))


@pytest.mark.regression("Expired events were deleted only by the next start.")
async def test_expired_events_are_deleted() -> None:
    world = await world_with_events()
    await world.crash()
    world.clock.ms += 9 * DAY_MS
    await boot(world)
    await deliver(world, 20)

    await Chore(world).finish()

    assert kept(world) == 20
    assert kept(world, QUARANTINE) == 20


async def test_log_without_new_events_keeps_what_it_has() -> None:
    world = await world_with_events()
    world.clock.ms += 90 * DAY_MS

    await Chore(world).finish()

    assert kept(world) == 20


async def test_events_of_a_clock_that_was_ahead_delete_no_others() -> None:
    world = await world_with_events()
    await world.crash()
    world.clock.ms += 30 * DAY_MS
    await boot(world)
    await world.deliver([world.event("from the future")])
    await world.crash()
    world.clock.ms -= 30 * DAY_MS
    await boot(world)
    await deliver(world, 20)

    await Chore(world).finish()

    assert kept(world) == 41


async def test_topics_of_which_nothing_is_promised_are_trimmed_too() -> None:
    world = await world_with_events()
    assert world.router is not None
    await asyncio.sleep(SETTINGS.index.retention)
    settings = make_settings(mode="development", observe=True, duplicate_samples=1)
    trimmed: list[str] = []

    async def trim(topic: str, _before_ms: int, _records_max: int) -> int:
        trimmed.append(topic)
        return 0

    work = asyncio.ensure_future(trim_log(world.router, settings, world.clock, trim))
    while len(trimmed) < 4:
        await asyncio.sleep(0.001)
    work.cancel()
    assert trimmed[:4] == ["events", "events.quarantine", "events.observed", "events.duplicates"]
