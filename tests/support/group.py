"""Workers of a group for tests: each serves what it is assigned at once, and follows what it is told."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dedupe.cluster.assignment import Assignment, Member
from dedupe.model.clock import SystemClock
from dedupe.storage.kafka.group import GroupTimes, KafkaMembership
from dedupe.storage.kafka.store import KafkaStore
from tests.support.settings import kafka_config
from tests.support.waiting import PATIENCE_S

LANES = 5
ENDLESS = GroupTimes(session_s=2 * PATIENCE_S)
"""No session of a group ends while a test waits."""


class Worker:
    """A member that notes what it is told."""

    def __init__(self, name: str, membership: KafkaMembership) -> None:
        self.name = name
        self.membership = membership
        self.taken: list[tuple[int, Assignment]] = []
        self.told: dict[str, object] = {}
        """What it tells the group, besides what it serves and follows."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self.membership.run(self.describe, self.take))

    async def cut_off(self) -> None:
        """End without leaving."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def generation(self) -> int:
        return self.taken[-1][0] if self.taken else 0

    @property
    def lanes(self) -> set[int]:
        """What it owns."""
        return self._lanes_of(self.taken[-1][1].owners if self.taken else ())

    def describe(self) -> Member:
        followed = self._lanes_of(self.taken[-1][1].followers if self.taken else ())
        member = Member(
            self.name, f"{self.name}:1", serving=tuple(sorted(self.lanes)), followed=tuple(sorted(followed))
        )
        return member._replace(**self.told)  # type: ignore[arg-type] # whatever a test says

    def take(self, generation: int, assignment: Assignment) -> None:
        assert self.generation < generation == assignment.generation
        self.taken.append((generation, assignment))
        self._changed.set()

    async def knows(self, *names: str) -> None:
        """Wait until exactly these are the group."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.taken or set(self.taken[-1][1].addresses) != set(names):
                self._changed.clear()
                await self._changed.wait()

    def _lanes_of(self, names: tuple[str, ...]) -> set[int]:
        return {lane for lane, name in enumerate(names) if name == self.name}


class Group:
    """Workers of one group, each with a connection of its own to the coordinator."""

    def __init__(self, store: KafkaStore, lanes: int, times: GroupTimes) -> None:
        self.store = store
        self.lanes = lanes
        self.times = times
        self.topic = f"events-{uuid.uuid4().hex[:12]}"
        self.name = f"gateway-{self.topic}-workers"
        self.workers: list[Worker] = []

    def worker(self, name: str) -> Worker:
        """Start one."""
        membership = KafkaMembership(
            self.store.config,
            self.store.cluster,
            self.name,
            self.lanes,
            times=self.times,
            standbys=True,
            clock=SystemClock(),
        )
        worker = Worker(name, membership)
        self.workers.append(worker)
        worker.start()
        return worker

    async def of(self, *names: str) -> list[Worker]:
        """Start workers, and wait until all agree."""
        workers = [self.worker(name) for name in names]
        await self.agree(*workers)
        return workers

    async def agree(self, *workers: Worker) -> None:
        """Wait until these are the group and were told the same."""
        names = {worker.name for worker in workers}
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await asyncio.gather(*(worker.knows(*names) for worker in workers))
                if len({worker.generation for worker in workers}) == 1:
                    break
                await asyncio.sleep(0.02)
        assert len({str(worker.taken[-1]) for worker in workers}) == 1
        assert set().union(*(worker.lanes for worker in workers)) == set(range(self.lanes))


@asynccontextmanager
async def group_at(
    bootstrap_servers: str, *, lanes: int = LANES, times: GroupTimes | None = None
) -> AsyncIterator[Group]:
    """A group without workers; those that are started leave it in the end."""
    store = await KafkaStore.open(kafka_config(bootstrap_servers, request_timeout_s=2))
    group = Group(store, lanes, times or GroupTimes())
    try:
        yield group
    finally:
        for worker in group.workers:
            await worker.cut_off()
        await asyncio.gather(*(worker.membership.leave() for worker in group.workers))
        await store.close()
