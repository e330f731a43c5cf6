"""
Claim: whatever befalls log, disk, clock and processes, nothing acknowledged is lost, nothing is committed
twice, nothing refused untaken is found later, every retry gets the same receipt, and in time.

A failing history prints the line that repeats it; tests/sim/seeds.py says how others are drawn. That the
histories see what they should is planned in tests/sim/plan.py.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TypeAlias

import pytest

from dedupe.decide.window import WindowPolicy
from dedupe.model.types import Event
from tests.sim.plan import missing_cells
from tests.sim.seeds import ARE_AS_PLANNED, DEFAULT_HISTORIES, each_seed
from tests.sim.world import CLEAN, FOREVER_S, LIMITS, Seen, World
from tests.support.sim.faults import NO_FAULTS, SimFaults
from tests.support.sim.snapshots import SimSnapshots

ROUNDS = 6
IDS = 60
LAST_REQUESTS = 30  # in the process that is judged in the end, so that its counters see faults too

DAY_MS = 86_400_000
POLICIES = [
    WindowPolicy(window_ms=7 * DAY_MS, keys_max=1_000_000, time_step_ms=30_000),
    WindowPolicy(window_ms=6 * DAY_MS, keys_max=1_100_000, time_step_ms=30_000),
    WindowPolicy(window_ms=8 * DAY_MS, keys_max=900_000, time_step_ms=30_000),
]
"""All remember everything that happens within a history, in which many of their steps begin."""

NARROW = replace(LIMITS, queue_events_max=30)
FAULTS = (
    "unavailable",
    "hang",
    "log_full",
    "refuse",
    "lose_reply",
    "delay_append",
    "delay_sight",
    "leak_cancel",
    "rival",
    "slow",
    "disk_error",
    "bit_flip",
)
OF_ANY_CALL = ("unavailable", "hang", "leak_cancel")
"""A recovery is a dozen calls, all of which must succeed: at 0.15 each of these it would take hours."""


def faults_of(seed: int) -> SimFaults:
    """Draw which faults a history has, and how many: some have only one kind."""
    rng = Random(seed)
    chosen = {
        name: rng.choice((0.02, 0.05, 0.1 if name in OF_ANY_CALL else 0.15))
        for name in FAULTS
        if rng.random() < 0.35
    }
    return SimFaults(seed=seed, **chosen)


@pytest.fixture(scope="module")
def seen() -> Seen:
    """What all histories of this run have seen."""
    return Counter()


@each_seed()
async def test_history_keeps_every_promise(seed: int, seen: Seen) -> None:
    rng = Random(seed)
    world = World(faults=faults_of(seed), policy=POLICIES[0], limits=rng.choice((LIMITS, NARROW)), seen=seen)
    if seed % 2:
        world.use_snapshots(Random(seed))
    for _ in range(ROUNDS):
        world.boot()
        if rng.random() < 0.8:
            await world.wait_until_active()
        sending = [asyncio.ensure_future(_send(world, rng)) for _ in range(rng.randint(1, 12))]
        await _take_steps(world, rng)
        await befall(world, rng)
        await _stop(world, rng)
        for task in sending:
            task.cancel()
        for end in await asyncio.gather(*sending, return_exceptions=True):
            if isinstance(end, Exception):
                raise end
        await world.crash(lost_updates=rng.choice((0, 0, 1, 4)))
        _befall_stopped(world, rng)

    world.boot()
    await world.wait_until_active()
    for _ in range(LAST_REQUESTS):
        await world.send(request_of(world, rng))
    world.log.rng.faults = NO_FAULTS
    await world.wait_until_active()
    for number in range(IDS):
        await world.deliver([world.event(str(number))])
    world.judge()
    assert world.router is not None
    for lane in world.router.lanes:
        world.judge_index(lane)
    seen["histories", "run"] += 1


if ARE_AS_PLANNED:

    def test_histories_see_everything_that_is_planned(seen: Seen) -> None:
        assert seen["histories", "run"] >= DEFAULT_HISTORIES, "it needs the histories of the whole file"
        assert not missing_cells(seen)


async def _send(world: World, rng: Random) -> None:
    """Send one request, which may have rejected events too, and a client that does not wait for ever."""
    rejected = [world.rejected(str(rng.randrange(IDS))) for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 3, 20)))]
    deadline_s = rng.choice((FOREVER_S, FOREVER_S, 0.002, 0.02))
    await world.send(request_of(world, rng), rejected, deadline_s)


def request_of(world: World, rng: Random) -> list[Event]:
    """
    Some events of a small set of ids: copies within and across requests, and a few conflicts.

    A few requests take several batches, and a few have an event that is never sent again.
    """
    size = rng.randint(1, 10) if rng.random() < 0.9 else rng.randint(20, 60)
    events = [
        world.event(str(rng.randrange(IDS)), content="" if rng.random() < 0.95 else "other")
        for _ in range(size)
    ]
    if rng.random() < 0.3:
        events.insert(rng.randint(0, 3), world.event(f"once-{rng.random()}"))
    return events


async def _take_steps(world: World, rng: Random) -> None:
    """Let a process run for some steps."""
    for _ in range(rng.randint(1, 60)):
        await asyncio.sleep(0)
        world.check_queues()


async def befall(world: World, rng: Random) -> None:
    """Let something happen to a running process, now and then."""
    world.clock.ms += rng.choice((0, 1_000, 40_000))
    assert world.router is not None
    if rng.random() < 0.1:
        world.note("disk_full")
        world.disk.has_room = False
        await _take_steps(world, rng)
        world.disk.has_room = True
    if rng.random() < 0.1:
        world.note("low_disk")  # seen by the chore that watches the free space
        world.router.has_disk_room = False
        await world.send(request_of(world, rng))
        world.router.has_disk_room = True
    partition = rng.randrange(CLEAN.partitions)
    _take_snapshot(world, rng, partition)
    if rng.random() < 0.1:
        world.note("foreign_record")
        world.intrude(partition)
    if rng.random() < 0.1:
        world.note("trim")
        _trim(world, rng, partition)


async def _stop(world: World, rng: Random) -> None:
    """Ask the process to stop, or end one of its lanes, now and then; or let it run on for a while."""
    assert world.router is not None
    if rng.random() < 0.4:
        world.note("drain")
        world.router.drain()
        await _take_steps(world, rng)
    if rng.random() < 0.1:
        world.note("cancel")
        world.end_lane(rng.randrange(len(world.router.all_lanes)))
        await _take_steps(world, rng)
    await asyncio.sleep(rng.choice((0, 0, 0, 0.002, 0.2)))  # the last is longer than a call hangs


def _befall_stopped(world: World, rng: Random) -> None:
    """Let something happen while no process runs, now and then."""
    for fault, (chance, befall_world) in BEFALLS_STOPPED.items():
        if rng.random() < chance:
            world.note(fault)
            befall_world(world, rng, rng.randrange(CLEAN.partitions))
    world.note_skips()


def _move_clock(step_ms: int) -> "BefallStopped":
    def move(world: World, _rng: Random, _partition: int) -> None:
        world.clock.ms += step_ms

    return move


def _change_window(world: World, rng: Random, _partition: int) -> None:
    world.policy = rng.choice(POLICIES)


def _take_snapshot(world: World, _rng: Random, partition: int) -> None:
    if isinstance(world.disk.snapshots, SimSnapshots):
        world.disk.snapshots.take(world.index_identity(partition))


def _lose_index(world: World, _rng: Random, partition: int) -> None:
    world.disk.discard(world.index_identity(partition))


def _drop_entries(world: World, rng: Random, partition: int) -> None:
    end = world.log.partition(CLEAN.name, partition).end
    world.disk.drop_before(world.index_identity(partition), rng.randrange(end + 1))


def _trim(world: World, rng: Random, partition: int) -> None:
    world.trim(partition, rng.randrange(world.log.partition(CLEAN.name, partition).end + 1))


def _lose_tail(world: World, rng: Random, partition: int) -> None:
    records = len(world.log.partition(CLEAN.name, partition).records)
    world.lose_tail(partition, min(records, rng.randint(1, 8)))


def _swap_disks(world: World, _rng: Random, _partition: int) -> None:
    world.disk, world.spare_disk = world.spare_disk, world.disk


BefallStopped: TypeAlias = Callable[[World, Random, int], None]

BEFALLS_STOPPED: dict[str, tuple[float, BefallStopped]] = {
    "clock_behind": (0.2, _move_clock(-3_600_000)),
    "clock_ahead": (0.2, _move_clock(3_600_000)),
    "other_window": (0.3, _change_window),
    "snapshot_made": (0.4, _take_snapshot),
    "index_lost": (0.2, _lose_index),
    "entries_dropped": (0.1, _drop_entries),
    "trim": (0.1, _trim),
    "tail_lost": (0.1, _lose_tail),
    "other_disk": (0.3, _swap_disks),  # of a machine that has followed the log for a while, but not now
}
"""How often what happens between two processes."""
