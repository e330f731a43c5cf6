"""
Claim: whatever befalls the workers of a group, their log, disks, network and coordinator, nothing
acknowledged is lost, nothing is committed twice, all workers give the same receipts, and the group
gets over it by itself.

A failing history prints the line that repeats it; tests/sim/seeds.py says how others are drawn. That the
histories see what they should is planned in tests/sim/group_plan.py.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any, TypeAlias

import pytest

from dedupe.cluster.append_watch import PROVED_S
from dedupe.cluster.disk_watch import ROOM_S
from dedupe.decide.committed import Committed
from tests.sim.group_plan import missing_cells
from tests.sim.group_world import PAUSE_S, GroupWorld, Worker
from tests.sim.seeds import ARE_AS_PLANNED, DEFAULT_HISTORIES, each_seed
from tests.sim.test_histories import faults_of, request_of
from tests.sim.world import CLEAN, QUARANTINE, Seen
from tests.support.sim.faults import NO_FAULTS
from tests.support.sim.sim_log import LEADER

ONE_IN = 20
ROUNDS = 4
NAMES = ("a", "b", "c", "d")
HEALED_S = 60.0
"""
Within it a group is whole again once nothing goes wrong any more: sessions, rebalances, pauses, and the 30 s
for which a follower waits for what it was told and the log does not show.
"""


@pytest.fixture(scope="module")
def seen() -> Seen:
    """What all histories of this run have seen."""
    return Counter()


@each_seed(one_in=ONE_IN)
async def test_history_of_a_group_keeps_every_promise(seed: int, seen: Seen) -> None:
    rng = Random(seed)
    names = NAMES[: rng.choice((2, 3, 3, 3, 4))]
    async with GroupWorld(*names, seed=seed, standbys=rng.random() < 0.9, seen=seen) as group:
        if rng.random() < 0.5:
            group.world.log.leaders[CLEAN.name, 1] = "another"
        for worker in group.workers.values():
            worker.start()
        if rng.random() < 0.8:
            await group.settle()
        group.world.log.rng.faults = faults_of(seed)
        for _ in range(ROUNDS):
            sending = [asyncio.ensure_future(_send(group, rng)) for _ in range(rng.randint(1, 6))]
            for _ in range(rng.randint(1, 3)):
                await befall(group, rng)
                await asyncio.sleep(rng.choice((0.01, 0.3, 1.0, 4.0)))
            for end in await asyncio.gather(*sending, return_exceptions=True):
                if isinstance(end, Exception):
                    raise end
        await heal(group)
        disks = [worker.manager.hand_overs.disk for worker in group.alive]
        is_low = any(disk.given_up or disk.declined for disk in disks)
        await group.settle(HEALED_S + max(ROOM_S * is_low, PROVED_S * bool(group.given_up)))
        await group.judge([str(number) for number in range(60)])
    seen["histories", "run"] += 1


@each_seed(one_in=2 * ONE_IN)
async def test_outage_that_all_share_moves_no_lane(seed: int) -> None:
    rng = Random(seed)
    names = NAMES[: rng.choice((2, 3, 4))]
    async with GroupWorld(*names, seed=seed) as group:
        if rng.random() < 0.5:
            group.world.log.leaders[CLEAN.name, 1] = "another"
        await group.start()
        for client in range(rng.randint(1, 3)):
            group.stream(f"x{client}")
        await asyncio.sleep(1)
        moves = sum(worker.manager.moves for worker in group.alive)
        for _ in range(ROUNDS):
            for fault in rng.sample(list(OUTAGES), rng.randint(1, 2)):
                OUTAGES[fault](group, rng)
                await asyncio.sleep(rng.choice((0.5, 3.0, 10.0, 20.0)))
            await heal(group)
            await asyncio.sleep(rng.choice((6.0, 12.0)))  # longer than a lane's longest pause
        await group.settle(HEALED_S)

        if not group.coordinator.cut_short:  # whom it has put out owns nothing, until the next assignment
            assert sum(worker.manager.moves for worker in group.alive) == moves
        assert not group.given_up
        await group.judge()


if ARE_AS_PLANNED:

    def test_histories_of_groups_see_everything_that_is_planned(seen: Seen) -> None:
        assert seen["histories", "run"] >= DEFAULT_HISTORIES // ONE_IN, "it needs all of this file"
        assert not missing_cells(seen)


async def _send(group: GroupWorld, rng: Random) -> None:
    """Send some requests to any workers, some of them with rejected events, or in haste."""
    for _ in range(rng.randint(1, 5)):
        able = [worker for worker in group.workers.values() if worker.is_alive]
        if able:
            rejected = [group.world.rejected(str(rng.randrange(60))) for _ in range(rng.choice((0, 0, 0, 2)))]
            events = request_of(group.world, rng)
            await rng.choice(able).send(events, rejected, rng.choice((4.5, 4.5, 0.02, 0.5)))
        await asyncio.sleep(rng.choice((0, 0.01, 0.2)))


async def befall(group: GroupWorld, rng: Random) -> None:
    """Let something happen; what lasts is over some time later, or in the end."""
    fault = rng.choice(list(BEFALLS))
    worker = rng.choice(list(group.workers.values()))
    if fault == "start" or not worker.is_alive:
        if not worker.is_alive:
            worker.start()
        return
    if worker.is_frozen:
        worker.thaw()
        return
    worker.note(fault)
    await BEFALLS[fault](group, worker, rng)


async def heal(group: GroupWorld) -> None:
    """End everything that lasts."""
    group.world.log.rng.faults = NO_FAULTS
    for lane in LANES_OF:
        partition = group.world.log.partition(*lane)
        partition.is_stuck, partition.refused_appends = False, 0
    group.coordinator.is_up, group.coordinator.is_frozen, group.coordinator.slow_s = True, False, 0
    group.coordinator.cut_off.clear()
    group.coordinator.unheard.clear()
    group.net.mend_all()
    for worker in group.workers.values():
        worker.world.clock.ms = group.world.clock.ms
        worker.world.disk.has_room = worker.has_disk_room = True
        worker.world.connection.mend()
        worker.thaw()
        if not worker.is_alive:
            worker.start()


async def _kill(_group: GroupWorld, worker: Worker, rng: Random) -> None:
    await worker.kill(lost_updates=rng.choice((0, 0, 1, 4)))
    if rng.random() < 0.5:
        worker.start()


async def _freeze(_group: GroupWorld, worker: Worker, rng: Random) -> None:
    worker.freeze()
    if rng.random() < 0.5:
        await asyncio.sleep(rng.choice((0.1, 2.5, 10)))
        worker.thaw()


async def _leave(group: GroupWorld, worker: Worker, rng: Random) -> None:
    if len(group.alive) > 1:
        await worker.stop()
        if rng.random() < 0.5:
            worker.start()


def _another(group: GroupWorld, worker: Worker, rng: Random) -> str:
    return rng.choice([name for name in group.workers if name != worker.name])


async def _cut(group: GroupWorld, worker: Worker, rng: Random) -> None:
    group.net.cut(worker.name, _another(group, worker, rng))


async def _cut_one_way(group: GroupWorld, worker: Worker, rng: Random) -> None:
    group.net.hold(worker.name, _another(group, worker, rng))


async def _reset(group: GroupWorld, worker: Worker, rng: Random) -> None:
    group.net.reset(worker.name, _another(group, worker, rng))


async def _slow_network(group: GroupWorld, worker: Worker, rng: Random) -> None:
    group.net.delays_s[worker.name, _another(group, worker, rng)] = rng.choice((0.05, 0.5))


async def _large_lost(group: GroupWorld, worker: Worker, rng: Random) -> None:
    way = worker.name, _another(group, worker, rng)
    group.net.size_max[way] = 1_000
    if rng.random() < 0.5:
        group.net.size_max[way[::-1]] = 1_000


async def _grey(group: GroupWorld, worker: Worker, rng: Random) -> None:
    """Let pings pass between two workers, and hardly anything else."""
    way = worker.name, _another(group, worker, rng)
    for each in (way, way[::-1])[: rng.randint(1, 2)]:
        if rng.random() < 0.5:
            group.net.swallowed_over[each] = 1_600
        else:
            group.net.bytes_per_s[each] = rng.choice((2_000, 8_000))


async def _large_appends_lost(group: GroupWorld, worker: Worker, rng: Random) -> None:
    worker.world.connection.drops_large.add(_leader(group, rng))


async def _broker_cut_off(group: GroupWorld, worker: Worker, rng: Random) -> None:
    worker.world.connection.silent.add(_leader(group, rng))


async def _broker_slow(group: GroupWorld, worker: Worker, rng: Random) -> None:
    worker.world.connection.latency_s[_leader(group, rng)] = rng.choice((0.3, 2.0))


async def _broker_frozen(group: GroupWorld, worker: Worker, rng: Random) -> None:
    leader = _leader(group, rng)
    for each in group.workers.values():
        each.world.connection.silent.add(leader)
        if each is not worker and each.is_alive:
            each.note("broker_frozen")


def _leader(group: GroupWorld, rng: Random) -> str:
    return rng.choice([LEADER, *group.world.log.leaders.values()])


async def _log_cut_off(_group: GroupWorld, worker: Worker, _rng: Random) -> None:
    worker.world.connection.is_available = False


async def _disk_full(_group: GroupWorld, worker: Worker, _rng: Random) -> None:
    worker.world.disk.has_room = False


async def _disk_low(_group: GroupWorld, worker: Worker, _rng: Random) -> None:
    worker.has_disk_room = False


async def _coordinator_down(group: GroupWorld, _worker: Worker, _rng: Random) -> None:
    group.coordinator.is_up = False


async def _coordinator_slow(group: GroupWorld, _worker: Worker, rng: Random) -> None:
    group.coordinator.slow_s = rng.choice((0.3, 2.0))


async def _coordinator_frozen(group: GroupWorld, _worker: Worker, _rng: Random) -> None:
    group.coordinator.is_frozen = True


async def _coordinator_unheard(group: GroupWorld, worker: Worker, _rng: Random) -> None:
    group.coordinator.unheard.add(worker.name)


async def _coordinator_cut_off(group: GroupWorld, worker: Worker, _rng: Random) -> None:
    group.coordinator.cut_off.add(worker.name)


async def _clock_wrong(_group: GroupWorld, worker: Worker, rng: Random) -> None:
    worker.world.clock.ms += rng.choice((-3_600_000, 3_600_000))


async def _trim(group: GroupWorld, _worker: Worker, rng: Random) -> None:
    partition = rng.randrange(CLEAN.partitions)
    group.world.trim(partition, rng.randrange(group.world.log.partition(CLEAN.name, partition).end + 1))


async def _tail_lost(group: GroupWorld, _worker: Worker, rng: Random) -> None:
    """Lose it while nobody runs: until its next commit an owner would go on telling what it has committed."""
    for worker in group.workers.values():
        if worker.is_alive:
            worker.note("tail_lost")
            await worker.kill()
    await asyncio.sleep(PAUSE_S)  # until clients have heard what they were answered
    partition = rng.randrange(CLEAN.partitions)
    records = len(group.world.log.partition(CLEAN.name, partition).records)
    group.world.lose_tail(partition, min(records, rng.randint(1, 8)))
    for worker in group.workers.values():
        worker.start()


def _replication(arrive: Callable[[Random, list[Committed], Committed], list[Committed]]) -> "Befall":
    async def befall_replication(_group: GroupWorld, worker: Worker, rng: Random) -> None:
        held: list[Committed] = []
        for lane in worker.router.all_lanes:
            receive = lane.follower.receive

            def receive_other(committed: Committed, receive: Callable[[Committed], None] = receive) -> None:
                for other in arrive(rng, held, committed):
                    receive(other)

            lane.follower.receive = receive_other  # type: ignore[method-assign] # what a network does

    return befall_replication


def _lost(rng: Random, _held: list[Committed], committed: Committed) -> list[Committed]:
    return [committed] if rng.random() < 0.7 else []


def _doubled(_rng: Random, _held: list[Committed], committed: Committed) -> list[Committed]:
    return [committed, committed]


def _late(rng: Random, held: list[Committed], committed: Committed) -> list[Committed]:
    held.append(committed)
    rng.shuffle(held)
    arrived, held[:] = held[2:], held[:2]
    return arrived


def _of_all(group: GroupWorld, rng: Random, what: str) -> None:
    leader = _leader(group, rng)
    for worker in group.workers.values():
        getattr(worker.world.connection, what).add(leader)


def _large_lost_for_all(group: GroupWorld, rng: Random) -> None:
    """Lose them where each worker has a lane to try: the others ask the leader by a small request."""
    if not group.world.log.leaders and all(worker.manager._running for worker in group.workers.values()):
        _of_all(group, rng, "drops_large")


def _slow_for_all(group: GroupWorld, rng: Random) -> None:
    leader, latency_s = _leader(group, rng), rng.choice((0.3, 2.0))
    for worker in group.workers.values():
        worker.world.connection.latency_s[leader] = latency_s


def _log_down(group: GroupWorld, _rng: Random) -> None:
    for worker in group.workers.values():
        worker.world.connection.is_available = False


def _stuck(group: GroupWorld, rng: Random) -> None:
    group.world.log.partition(*rng.choice(LANES_OF)).is_stuck = True


def _disks_low(group: GroupWorld, _rng: Random) -> None:
    for worker in group.workers.values():
        worker.has_disk_room = False


def _refusing(group: GroupWorld, rng: Random) -> None:
    group.world.log.partition(*rng.choice(LANES_OF)).refused_appends = rng.choice((3, 1_000_000))


LANES_OF = [(topic.name, number) for topic in (CLEAN, QUARANTINE) for number in range(topic.partitions)]

OUTAGES: dict[str, Callable[[GroupWorld, Random], None]] = {
    "broker frozen": partial(_of_all, what="silent"),
    "large requests lost": _large_lost_for_all,
    "broker slow": _slow_for_all,
    "log down": _log_down,
    "disks low": _disks_low,
    "replicas silent": _stuck,
    "appends refused": _refusing,
    "coordinator frozen": lambda group, _rng: setattr(group.coordinator, "is_frozen", True),
    "coordinator down": lambda group, _rng: setattr(group.coordinator, "is_up", False),
    "coordinator slow": lambda group, rng: setattr(group.coordinator, "slow_s", rng.choice((0.3, 2.0))),
}
"""What befalls all workers alike."""

Befall: TypeAlias = Callable[[GroupWorld, Worker, Random], Coroutine[Any, Any, None]]

BEFALLS: dict[str, Befall] = {
    "kill": _kill,
    "freeze": _freeze,
    "leave": _leave,
    "start": _leave,
    "cut": _cut,
    "cut_one_way": _cut_one_way,
    "reset": _reset,
    "slow_network": _slow_network,
    "large_lost": _large_lost,
    "grey": _grey,
    "large_appends_lost": _large_appends_lost,
    "broker_cut_off": _broker_cut_off,
    "broker_slow": _broker_slow,
    "broker_frozen": _broker_frozen,
    "log_cut_off": _log_cut_off,
    "disk_full": _disk_full,
    "disk_low": _disk_low,
    "coordinator_down": _coordinator_down,
    "coordinator_slow": _coordinator_slow,
    "coordinator_frozen": _coordinator_frozen,
    "coordinator_unheard": _coordinator_unheard,
    "coordinator_cut_off": _coordinator_cut_off,
    "clock_wrong": _clock_wrong,
    "trim": _trim,
    "tail_lost": _tail_lost,
    "commit_lost": _replication(_lost),
    "commit_doubled": _replication(_doubled),
    "commit_late": _replication(_late),
}
