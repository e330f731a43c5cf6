"""
Claim: a group stores the events of an input once each, whoever of it is killed, sleeps, stops or is cut off,
and in the end each partition is read by one worker.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random

from app.inputs.inputs import Inputs
from dedupe.model.clock import Deadline
from dedupe.model.types import Event
from dedupe.router import Router
from dedupe.submission import Outcomes
from tests.sim.group_world import GroupWorld, Worker
from tests.sim.seeds import each_seed
from tests.sim.test_inputs import behind_verdicts, event, filled, inputs_of, stored
from tests.support.sim.sim_inputs import SimInputs

NAMES = ("a", "b", "c")
PARTITIONS, EVENTS, BEFALLS = 5, 400, 8
SLEEP_S = 60.0
"""Longer than the group and the inputs' shares wait for whoever sleeps."""
PATIENCE_S = 300.0


class CountingRouter:
    """A worker's router; what is submitted to it counts as sent, as the world counts what clients send."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.quarantine = worker.router.quarantine

    async def submit(
        self,
        events: Sequence[Event],
        rejected: Sequence[Event],
        *,
        received_ms: int,
        deadline: Deadline,
        has_several_sources: bool,
    ) -> Outcomes:
        self._worker.sent += len(events) + len(rejected)
        return await self._worker.router.submit(
            events,
            rejected,
            received_ms=received_ms,
            deadline=deadline,
            has_several_sources=has_several_sources,
        )


class Reading:
    """The inputs of all workers, as their last processes have them."""

    def __init__(self, group: GroupWorld, cluster: SimInputs) -> None:
        self.group, self.cluster = group, cluster
        self.of: dict[str, Inputs] = {}
        group.beside = self.run

    async def run(self, worker: Worker) -> None:
        starts = worker._starts
        cluster = self.cluster.reached_by(lambda: worker.has_died or worker._starts != starts)
        router: Router = CountingRouter(worker)  # type: ignore[assignment] # what inputs use of it
        inputs = self.of[worker.name] = inputs_of(worker.world, router, cluster, worker.shares)
        await inputs.run()

    @property
    def readers(self) -> Counter[int]:
        """Return by how many workers each partition is read."""
        alive = [self.of[worker.name] for worker in self.group.alive if worker.name in self.of]
        return Counter(number for inputs in alive for number in inputs.inputs[0].partitions)


async def befall(group: GroupWorld, rng: Random) -> None:
    """Let something happen to one worker, and let it end."""
    worker = rng.choice(list(group.workers.values()))
    what = rng.choice(("kill", "stop", "sleep", "cut off"))
    if what == "kill":
        await worker.kill(lost_updates=rng.randrange(3))
    elif what == "stop":
        await worker.stop()
    elif what == "sleep":
        worker.freeze()
    else:
        group.coordinator.cut_off.add(worker.name)
    await asyncio.sleep(rng.choice((1, 5, SLEEP_S)) * rng.random())
    worker.thaw()
    group.coordinator.cut_off.clear()
    if not worker.is_alive:
        worker.start()


@each_seed(one_in=50)
async def test_events_of_a_groups_input_are_stored_once_through_all_moves(seed: int) -> None:
    rng = Random(seed)
    async with GroupWorld(*NAMES, seed=seed) as group:
        cluster, ids = filled(group.world, rng, failing=0.1, partitions=PARTITIONS, events=EVENTS)
        cluster.on_commit = behind_verdicts(group.world, cluster)
        reading = Reading(group, cluster)
        await group.start()
        for _ in range(BEFALLS):
            await befall(group, rng)
            if rng.random() < 0.2:
                cluster.offsets.clear()
            more = f"more-{len(ids)}"
            cluster.append(rng.randrange(PARTITIONS), event(more), group.world.clock.ms)
            ids.add(more)
        await group.until(lambda: stored(group.world).keys() >= ids, PATIENCE_S)
        await group.until(lambda: reading.readers == Counter(range(PARTITIONS)), PATIENCE_S)
        assert stored(group.world) == Counter(ids)


async def test_input_that_one_worker_stops_is_read_by_none() -> None:
    async with GroupWorld(*NAMES) as group:
        cluster, ids = filled(group.world, Random(1), failing=0, partitions=PARTITIONS)
        reading = Reading(group, cluster)
        await group.start()
        await group.until(lambda: stored(group.world).keys() >= ids)
        assert reading.readers == Counter(range(PARTITIONS))
        reading.of["b"]._shares.stop("raw")
        await group.until(lambda: not reading.readers)
        await group["b"].kill()
        group["b"].start()
        await group.until(lambda: reading.readers == Counter(range(PARTITIONS)))


async def test_worker_that_stops_leaves_its_partitions_where_it_read_them_to() -> None:
    async with GroupWorld(*NAMES) as group:
        cluster, ids = filled(group.world, Random(1), failing=0, partitions=PARTITIONS)
        reading = Reading(group, cluster)
        await group.start()
        await group.until(lambda: stored(group.world).keys() >= ids)
        await group["a"].stop()
        await group.until(lambda: reading.readers == Counter(range(PARTITIONS)))
        ends = {number: len(records) for number, records in enumerate(cluster.records)}
        await group.until(lambda: {n: at.offset for n, at in cluster.offsets.items()} == ends)


@each_seed(one_in=100)
async def test_worker_that_has_slept_takes_no_commit_back(seed: int) -> None:
    rng = Random(seed)
    async with GroupWorld(*NAMES, seed=seed) as group:
        cluster, ids = filled(group.world, rng, failing=0, partitions=1, events=40)
        reading = Reading(group, cluster)
        await group.start()
        await group.until(lambda: stored(group.world).keys() >= ids)
        sleeper = next(worker for worker in group.alive if reading.of[worker.name].inputs[0].partitions)
        for number in range(20):
            cluster.append(0, event(f"later-{number}"), group.world.clock.ms)
        await asyncio.sleep(rng.random() * 0.3)
        sleeper.freeze()
        ends = {0: len(cluster.records[0])}
        await group.until(lambda: {n: at.offset for n, at in cluster.offsets.items()} == ends)
        await asyncio.sleep(SLEEP_S)
        sleeper.thaw()
        for _ in range(100):
            assert cluster.offsets[0].offset == ends[0]
            await asyncio.sleep(0.1)
