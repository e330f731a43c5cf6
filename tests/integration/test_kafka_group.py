"""
Claim: on a real broker the workers of a group agree on one assignment, whoever joins, leaves or is cut off,
and whatever happens to the connection, the broker, or in the words of other members.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest

from dedupe.adapters.kafka_client import KafkaConfig
from dedupe.adapters.kafka_group import GroupTimes, KafkaMembership
from dedupe.adapters.kafka_log import KafkaStore
from dedupe.clock import SystemClock
from dedupe.group import Assignment, Member
from tests.support.kafka import KafkaBroker

LANES = 5
PATIENCE_S = 30.0


class Worker:
    """A member that serves what it is assigned at once, and follows what it is told."""

    def __init__(self, name: str, membership: KafkaMembership) -> None:
        self.name = name
        self.membership = membership
        self.taken: list[tuple[int, Assignment]] = []
        self.changed = asyncio.Event()
        self.describes_more: Callable[[Member], Member] = lambda member: member
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self.membership.run(self.describe, self.take))

    async def cut_off(self) -> None:
        """End without leaving."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def assignment(self) -> Assignment | None:
        return self.taken[-1][1] if self.taken else None

    @property
    def lanes(self) -> set[int]:
        """What it owns."""
        owners = self.assignment.owners if self.assignment else ()
        return {lane for lane, owner in enumerate(owners) if owner == self.name}

    def describe(self) -> Member:
        serving, followed = tuple(sorted(self.lanes)), tuple(range(LANES))
        member = Member(self.name, f"{self.name}:1", serving=serving, followed=followed)
        return self.describes_more(member)

    def take(self, generation: int, assignment: Assignment) -> None:
        assert generation == assignment.generation
        assert not self.taken or generation > self.taken[-1][0]
        self.taken.append((generation, assignment))
        self.changed.set()

    async def knows(self, *names: str) -> float:
        """Wait until exactly these are the group; return how many seconds that took."""
        began_at = monotonic()
        async with asyncio.timeout(PATIENCE_S):
            while not self.taken or set(self.taken[-1][1].addresses) != set(names):
                self.changed.clear()
                await self.changed.wait()
        return monotonic() - began_at


class Group:
    """Workers on one store and group, each with connections of its own."""

    def __init__(self, store: KafkaStore, topic: str) -> None:
        self.store = store
        self.topic = topic
        self.workers: list[Worker] = []

    def worker(self, name: str, **more: Any) -> Worker:
        membership = self.store.membership(
            self.topic, lanes=more.get("lanes", LANES), standbys=True, clock=SystemClock()
        )
        worker = Worker(name, membership)
        self.workers.append(worker)
        worker.start()
        return worker

    async def of(self, *names: str) -> list[Worker]:
        """Start workers, and wait until all know all."""
        workers = [self.worker(name) for name in names]
        await asyncio.gather(*(worker.knows(*names) for worker in workers))
        return workers


@asynccontextmanager
async def group_at(bootstrap_servers: str) -> AsyncIterator[Group]:
    store = await KafkaStore.open(KafkaConfig(bootstrap_servers, request_timeout_s=2))
    group = Group(store, f"events-{uuid.uuid4().hex[:12]}")
    try:
        yield group
    finally:
        for worker in group.workers:
            await worker.cut_off()
            await worker.membership.leave()
        await store.close()


@pytest.fixture
async def group(kafka_bootstrap: str) -> AsyncIterator[Group]:
    async with group_at(kafka_bootstrap) as group:
        yield group


@pytest.fixture
async def own_group(private_kafka_broker: KafkaBroker) -> AsyncIterator[Group]:
    async with group_at(private_kafka_broker.bootstrap_servers) as group:
        yield group


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.02)


def assert_agree(workers: list[Worker]) -> None:
    """All were told the same, and each lane is somebody's."""
    told = {(generation, str(found)) for generation, found in (worker.taken[-1] for worker in workers)}
    assert len(told) == 1
    assert set().union(*(worker.lanes for worker in workers)) == set(range(LANES))


async def test_one_worker_owns_everything(group: Group) -> None:
    (worker,) = await group.of("a")

    assert worker.lanes == set(range(LANES))
    assert worker.membership.silence_s < GroupTimes().session_s


async def test_three_workers_are_told_the_same(group: Group) -> None:
    workers = await group.of("a", "b", "c")

    await until(lambda: len({worker.taken[-1][0] for worker in workers}) == 1)
    assert_agree(workers)
    assert sorted(len(worker.lanes) for worker in workers) == [1, 2, 2]


async def test_worker_that_leaves_is_gone_at_once_and_its_lanes_are_given_on(group: Group) -> None:
    a, b, c = await group.of("a", "b", "c")
    await c.cut_off()
    await c.membership.leave()

    took_s = max(await asyncio.gather(a.knows("a", "b"), b.knows("a", "b")))

    assert took_s < 3
    assert_agree([a, b])


async def test_worker_that_is_killed_is_gone_after_its_session(group: Group) -> None:
    a, b, c = await group.of("a", "b", "c")
    await c.cut_off()

    took_s = max(await asyncio.gather(a.knows("a", "b"), b.knows("a", "b")))

    assert took_s < GroupTimes().session_s + 1
    assert_agree([a, b])


async def test_restart_after_a_kill_waits_for_no_session(group: Group) -> None:
    a, b = await group.of("a", "b")
    await b.cut_off()
    again = group.worker("b")

    took_s = await again.knows("a", "b")

    assert took_s < GroupTimes().rebalance_s + 1
    await until(lambda: a.taken[-1][0] == again.taken[-1][0])
    assert_agree([a, again])
