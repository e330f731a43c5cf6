"""
Claim: what lanes remember survives a division, however it is kept: in snapshots of before, in logs alone, and
at the limit of client sessions, where the oldest ones are evicted.
"""

from collections.abc import Iterator
from random import Random

import pytest

from dedupe.decide.admission import Admission
from dedupe.decide.sessions import SessionPolicy
from dedupe.model.types import Event
from tests.sim.reshard_world import ReshardWorld, begun, deliver
from tests.sim.session_world import DAY_MS
from tests.sim.world import CLEAN
from tests.support.sim.memory_index import MemoryStore
from tests.support.sim.snapshots import Reliable, SimBucket, SimSnapshots

EVENTS = 120
REQUESTS, CLIENTS = 200, 40
TIGHT = SessionPolicy(lease_ms=30 * DAY_MS, sessions_max=6)


async def restart_from(world: ReshardWorld, bucket: SimBucket) -> int:
    """Have a process begin with an empty disk beside a bucket; return how many indexes it has restored."""
    await world.crash()
    world.disk = MemoryStore(world.log.rng)
    world.disk.snapshots = snapshots = SimSnapshots(bucket, world.disk)
    await world.start()
    return snapshots.restored


def take_all(world: ReshardWorld) -> None:
    assert isinstance(world.disk.snapshots, SimSnapshots)
    for partition in range(world.layout.partitions):
        world.disk.snapshots.take(world.index_identity(partition))


def judge(world: ReshardWorld, stored: int) -> None:
    world.judge_homes()
    assert sum(map(len, world.committed())) == stored, "an event is stored twice, or lost"
    assert world.router is not None
    for lane in world.router.lanes:
        if lane.lineage is not None:
            world.judge_heir(lane)


async def test_snapshots_of_before_a_plan_restore_parents_and_heirs() -> None:
    bucket = SimBucket(Reliable(1))
    world = await begun()
    await restart_from(world, bucket)
    await deliver(world, range(EVENTS))
    take_all(world)
    await deliver(world, range(EVENTS + 20))
    await world.divide(2 * CLEAN.partitions)

    assert await restart_from(world, bucket) == CLEAN.partitions, "those of parents; heirs have none yet"
    await deliver(world, range(EVENTS + 40))
    judge(world, EVENTS + 40)
    take_all(world)
    await deliver(world, range(EVENTS + 60))
    await world.divide(4 * CLEAN.partitions)

    assert await restart_from(world, bucket) == 2 * CLEAN.partitions
    await deliver(world, range(EVENTS + 80))
    judge(world, EVENTS + 80)


def requests_of(world: ReshardWorld, rng: Random) -> Iterator[list[Event]]:
    """Yield requests of more clients than sessions are remembered, some again, some that end."""
    highest: dict[str, int] = {}
    for _ in range(REQUESTS):
        client = f"c{rng.randrange(CLIENTS)}"
        again = rng.random() < 0.4 and client in highest
        sequence = rng.randint(1, highest[client]) if again else highest.get(client, 0) + 1
        highest[client] = max(sequence, highest.get(client, 0))
        acknowledged = sequence - 1 if rng.random() < 0.5 and not again else 0
        yield [world.sent(sequence, "s", client, acknowledged=acknowledged)]


@pytest.mark.parametrize("seed", range(8))
async def test_sessions_at_their_limit_are_those_of_the_logs_and_nothing_is_stored_twice(seed: int) -> None:
    worlds = await begun(sessions=TIGHT), await begun(sessions=TIGHT)
    requests = [requests_of(world, Random(seed)) for world in worlds]
    told: list[list[Admission]] = []

    for number in range(REQUESTS):
        for world, is_lost in zip(worlds, (False, True), strict=True):
            if number in (70, 140):
                await world.divide(CLEAN.partitions * (2 if number == 70 else 4))
                await world.restart(loses_disk=is_lost)
            elif is_lost and number % 25 == 24:
                await world.restart(loses_disk=True)
        answers = []
        for world, own in zip(worlds, requests, strict=True):
            world.clock.ms += 10
            answers.append(await world.admissions(*next(own)))
        assert answers[0] == answers[1], number
        told.append(answers[0])

    kept, lost = ([record.key for log in world.committed() for record in log] for world in worlds)
    assert kept == lost
    assert len(kept) == len(set(kept)), "stored twice"
    assert any(Admission.EXPIRED in each for each in told), "no session was evicted"
    worlds[0].judge_homes()
