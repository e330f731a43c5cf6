"""
A simulated group: several workers on one log, each with a disk, links and a place in the group of its own.

Router, lanes, lane managers, routes and connections are the real ones; log, disks, network, coordinator and
time are simulated. A worker's process can be killed, frozen and thawed at any moment. Clients send to any
worker that is open, as a load balancer does, and what one worker told them binds all others.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from random import Random
from typing import Any

from app.group import GroupBefore, GroupLanes
from app.peers.peers import Peers
from dedupe.cluster.lane_moves import MOVE_AGAIN_S
from dedupe.cluster.membership import MemberPlace
from dedupe.model.clock import Deadline
from dedupe.model.errors import OutcomeUnknownError
from dedupe.model.types import Event
from dedupe.partition.context import LaneTimes
from dedupe.partition.lane import Lane
from dedupe.partition.state import LaneState
from dedupe.router import Router
from dedupe.submission import Outcomes
from tests.sim.group_coordinator import SimCoordinator, SimMembership
from tests.sim.world import CLEAN, QUARANTINE, SLACK_S, ManualClock, Seen, World
from tests.support.settings import make_settings
from tests.support.sim.faults import SimFaults
from tests.support.sim_net import SimNet, address_of
from tests.support.virtual_time import PROCESS, VirtualTimeLoop

LANES = CLEAN.partitions + QUARANTINE.partitions
TIMES = LaneTimes(fencings_max=0)
"""As the gateway's own in a group."""
SECRET = b"what all workers of the simulation know"
DEADLINE_S = 4.5
PAUSE_S = 0.05
RARELY_S = 1.0
"""Between the events of one client while nothing but time has to pass."""
"""Of a client after a refusal, and of whoever looks whether something has become true."""
LATE_MAX = 10
PATIENCE_S = 60.0
"""Within it the group must have got over everything that is over."""


class GroupClock(ManualClock):
    """A machine's clock: log time passes, and may be wrong."""

    def now_ms(self) -> int:
        return self.ms + int(asyncio.get_running_loop().time() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class SimListener:
    """Stands for a bound socket: the simulated network knows who listens by name."""

    def dup(self) -> "SimListener":
        return self


LISTENER: Any = SimListener()


class Worker:
    """One worker of the group, which may be started again and again on its disk."""

    def __init__(self, group: "GroupWorld", name: str, address: str) -> None:
        """Take what it is called, and where it is reached."""
        self.group, self.name, self.address = group, name, address
        self._host = address.partition(":")[0]
        self.settings = make_settings(worker_id=name, peer_listen="127.0.0.1:0", peer_address=address)
        self.world = group.world.beside()
        self.world.standing = self.role_of
        self.is_open = False  # to clients
        self.is_frozen = False
        self.has_disk_room = True
        self.before: GroupBefore | None = None
        """With which its next process goes on, as after a plan."""
        self.freezes = 0
        self.sent = 0  # events, to the router that runs
        self._starts = 0
        self._died: asyncio.Future[None] | None = None
        self._running: asyncio.Task[None] | None = None

    # ---- its process

    @property
    def is_alive(self) -> bool:
        """Whether its process is there, be it frozen."""
        return self._running is not None

    @property
    def has_died(self) -> bool:
        """Whether its process was killed: what still ends is no deed of it."""
        return self._died is not None and self._died.done()

    @property
    def router(self) -> Router:
        assert self.world.router is not None
        return self.world.router

    def start(self) -> None:
        """Start a process on what log and disk hold; it is open to clients once it is ready."""
        assert not self.is_alive
        self._starts += 1
        self.sent = 0
        self._context = copy_context()
        self._context.run(PROCESS.set, f"{self.address}-{self._starts}")
        self.group.net.contexts[self._host] = self._context.copy()
        self._died = asyncio.get_running_loop().create_future()
        self._context.run(self._compose)
        self._running = self._within(self._run())

    def _compose(self) -> None:
        """Compose what the process has from its start on."""
        path = self.world.connection
        self.world.router = self.world.build()
        self.world.connection.reach_as(path)
        self._join(self.before)

    def _join(self, before: GroupBefore | None) -> None:
        """Have the router's lanes run as the group assigns them, as app.round does."""
        group, router, clock = self.group, self.router, self.world.clock
        router.has_disk_room = self.has_disk_room
        host, plan = self._host, router.layout.plan
        started = MemberPlace(f"{host}-{self._starts}", 0, clock.now_ms())
        place = started if before is None else before.place
        self.membership = SimMembership(group.coordinator, self.name, place)
        self.peers = Peers(
            self.name,
            secret=SECRET,
            clock=clock,
            network=group.net.network(host),
            rng=Random(f"{host} {self._starts}"),
            plan=plan,
        )
        self.lanes = GroupLanes(
            self.settings, router, self.membership, self.peers, LISTENER, clock, before=before
        )
        self.manager, self.handler, self.shares = (
            self.lanes.manager,
            self.lanes.handler,
            self.lanes.input_shares,
        )
        self._note_given_up()
        router.standing = self.manager.standing
        router.reach_by(self.lanes.routes)

    def _note_given_up(self) -> None:
        """Have the world learn of each lane that it gives up and that nobody has taken from it meanwhile."""
        hand_overs = self.manager.hand_overs
        told = hand_overs.appends._on_change
        before: set[int] = set()

        def on_change() -> None:
            now = asyncio.get_running_loop().time()
            lost = hand_overs.given_up - before - self.group.run_beside(self)
            others = {each.name: each._starts for each in self.group.workers.values() if each is not self}
            self.group.given_up += [(lane, now, others) for lane in lost]
            before.clear()
            before.update(hand_overs.given_up)
            told()

        hand_overs.appends._on_change = hand_overs.disk._on_change = on_change

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as running:
            running.create_task(self.lanes.run())
            running.create_task(self._open())
            if self.group.beside is not None:
                running.create_task(self.group.beside(self))

    async def _open(self) -> None:
        """Open it to clients while it is ready, and look at its disk, as app.process.disk does."""
        while not self.router.is_leaving:
            self.router.has_disk_room = self.has_disk_room
            self.is_open = self.router.is_ready
            await asyncio.sleep(PAUSE_S)

    async def kill(self, *, lost_updates: int = 0) -> None:
        """End the process without a goodbye; the tail of its indexes may be lost with it."""
        assert self._running is not None
        assert self._died is not None
        self.group.net.end(self._host)
        self.is_open = self.membership.is_alive = False
        self._died.set_result(None)
        self._running.cancel()
        self.thaw()
        await asyncio.wait([self._running])
        if not self._running.cancelled():
            raise AssertionError(f"{self.name} had ended by itself") from self._running.exception()
        self._running = None
        self.world.disk.crash(lost_updates=lost_updates)

    def freeze(self) -> None:
        """Let nothing of the process run, until `thaw`."""
        self.is_frozen = True
        self.freezes += 1
        _loop().freeze(self._context[PROCESS])

    def thaw(self) -> None:
        """Let it go on: what came meanwhile has waited, and what was to be done by then is late."""
        if self.is_frozen:
            self.is_frozen = False
            _loop().thaw(self._context[PROCESS])

    async def stop(self) -> bool:
        """End the process as SIGTERM does; true if others have taken its lanes over."""
        has_handed_over: bool = await self._within(self._stop())
        self.world.router = None
        self._running = None
        return has_handed_over

    async def _stop(self) -> bool:
        """As app.process.supervise and app.group do it, without listeners."""
        assert self._running is not None
        router, manager = self.router, self.manager
        router.is_leaving = True
        if has_handed_over := await manager.hand_over():
            self.is_open = False
        else:
            router.drain()
            await manager.finish(10.0)
        self.is_open = False
        while router.in_flight:
            await asyncio.sleep(PAUSE_S)
        router.drain()
        await manager.finish(10.0)
        self._running.cancel()
        await asyncio.wait([self._running])
        self.group.check_totals(self)
        self.world.disk.crash()
        return has_handed_over

    def _within(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run something in this process."""
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def claim(self, lane: int) -> None:
        """Take a lane as its follower does when its owner is gone, with no reason at all."""
        self._within(self._claim(lane))

    async def _claim(self, lane: int) -> None:
        self.manager._claim(lane)

    def note(self, fault: str) -> None:
        """Count what befalls it, in each role that it has."""
        self.world.note(fault)

    # ---- what it is to lanes

    def role_of(self, lane: Lane) -> str:
        """What it is to a lane, for what befalls it."""
        if lane.state is LaneState.FOLLOWING:
            return "follower"
        number = self.router.all_lanes.index(lane)
        return "owner" if number in self.manager._running else "none"

    @property
    def owned(self) -> set[int]:
        """Lanes that it serves."""
        if self._running is None:
            return set()
        return {n for n, lane in enumerate(self.router.all_lanes) if lane.state is LaneState.ACTIVE}

    @property
    def followed(self) -> set[int]:
        """Lanes whose index it holds up to the end."""
        if self._running is None:
            return set()
        return {n for n, lane in enumerate(self.router.all_lanes) if lane.follower.is_caught_up}

    # ---- its clients

    async def send(
        self, events: Sequence[Event], rejected: Sequence[Event] = (), deadline_s: float = DEADLINE_S
    ) -> bool:
        """See World.send."""
        return await self.world.send(events, rejected, deadline_s, by=self._submit)

    async def _submit(
        self, events: Sequence[Event], rejected: Sequence[Event], *, received_ms: int, deadline: Deadline
    ) -> Outcomes:
        """Have the process answer; a client gives up one that says nothing, and notices one that ends."""
        assert self._died is not None
        router, died = self.router, self._died
        freezes = self.freezes - self.is_frozen

        answering = self._answer(router, events, rejected, received_ms=received_ms, deadline=deadline)
        answer: asyncio.Task[Outcomes] = self._within(answering)
        try:
            waited: set[asyncio.Future[Any]] = {answer, died}
            late = 0
            while not answer.done() and not died.done():
                patience_s = max(deadline.remaining_s, SLACK_S / 4)
                await asyncio.wait(waited, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                if deadline.is_over and not answer.done() and (self.is_frozen or self.freezes > freezes):
                    raise OutcomeUnknownError("no answer from a process that stands still")
                if deadline.is_over:
                    late += 1
                    assert late < LATE_MAX, f"{self.name} answers late"
            if not answer.done():
                raise OutcomeUnknownError("the process has ended")
            return answer.result()
        finally:
            answer.cancel()

    async def _answer(
        self,
        router: Router,
        events: Sequence[Event],
        rejected: Sequence[Event],
        *,
        received_ms: int,
        deadline: Deadline,
    ) -> Outcomes:
        self.sent += len(events) + len(rejected)
        return await router.submit(events, rejected, received_ms=received_ms, deadline=deadline)


class GroupWorld:
    """All workers, what they share, and all their clients."""

    worker_of: type[Worker] = Worker

    def __init__(
        self,
        *names: str,
        seed: int = 0,
        faults: SimFaults | None = None,
        times: LaneTimes = TIMES,
        standbys: bool = True,
        seen: Seen | None = None,
    ) -> None:
        """Make workers with these names, none of them started."""
        self.world = self.make_world(faults=faults, times=times, seen=seen)
        self.world.clock = GroupClock()
        self.seen = self.world.seen
        self.rng = Random(seed)
        self.net = SimNet(self.rng)
        self.coordinator = SimCoordinator(LANES, standbys=standbys)
        self.workers = {name: self.worker_of(self, name, address_of(name)) for name in names}
        self.slowest_s = 0.0
        """The longest that a request of `deliver` has taken, with all its retries."""
        self.refusals = 0
        """Answers of `deliver` but success, and whoever of them could not even ask."""
        self.given_up: list[tuple[int, float, dict[str, int]]] = []
        """Lanes that their owner gave up, when, and who else ran then."""
        self.beside: Callable[[Worker], Coroutine[Any, Any, None]] | None = None
        """What each process runs besides lanes."""
        self._background: list[asyncio.Task[Any]] = []
        self._is_busy = True

    def make_world(self, **options: Any) -> World:
        """Return what all workers share; see World."""
        return World(**options)

    async def __aenter__(self) -> "GroupWorld":
        self._background.append(asyncio.ensure_future(self.coordinator.keep_time()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._background:
            task.cancel()
        ends = await asyncio.gather(*self._background, return_exceptions=True)
        for worker in self.workers.values():
            if worker.is_alive:
                await worker.kill()
        for end in ends:
            if isinstance(end, Exception):
                raise end

    def __getitem__(self, name: str) -> Worker:
        return self.workers[name]

    def add(self, name: str, *, host: str) -> Worker:
        """Add a worker that is reached under another name than its own."""
        self.workers[host] = worker = self.worker_of(self, name, address_of(host))
        return worker

    @property
    def lanes(self) -> int:
        """How many lanes there are."""
        return LANES

    @property
    def owned(self) -> set[int]:
        """Lanes that are served."""
        return set().union(*(worker.owned for worker in self.alive))

    async def start(self, *names: str) -> None:
        """Start these, or all, and wait until the group has settled."""
        for name in names or self.workers:
            self.workers[name].start()
        await self.settle()

    @property
    def alive(self) -> list[Worker]:
        """Workers whose processes are there and run."""
        return [worker for worker in self.workers.values() if worker.is_alive and not worker.is_frozen]

    def run_beside(self, worker: Worker) -> set[int]:
        """Return the lanes that run in other workers' processes."""
        others = [each for each in self.workers.values() if each.is_alive and each is not worker]
        return set().union(*(each.manager._running for each in others))

    def owner_of(self, lane: int) -> Worker | None:
        """Return who serves a lane, if somebody who is not frozen does."""
        return next((worker for worker in self.alive if lane in worker.owned), None)

    def follower_of(self, lane: int) -> Worker | None:
        """Return who has followed a lane, if somebody has."""
        return next((worker for worker in self.alive if lane in worker.followed), None)

    @property
    def is_settled(self) -> bool:
        """Whether every lane is served and followed as the group has agreed, and everybody knows."""
        members = self.alive
        for lane in range(self.lanes):
            owners = [worker for worker in members if lane in worker.owned]
            followers = [worker for worker in members if lane in worker.followed]
            if len(owners) != 1 or (len(members) > 1 and self.coordinator.standbys and len(followers) != 1):
                return False
        return all(
            worker.manager.assignment.is_settled
            and not worker.manager._unreachable
            and worker.manager.generation == max(member.manager.generation for member in members)
            and len(worker.manager.assignment.addresses) == len(members)
            and all(route.is_serving for route in (*worker.router.routes, *worker.router.quarantine_routes))
            and worker.router.is_ready
            for worker in members
        ) and bool(members)

    async def settle(self, limit_s: float = PATIENCE_S) -> float:
        """Wait until the group has settled; return how long it took, in seconds."""
        return await self.until(lambda: self.is_settled, limit_s)

    async def let_pass(self, seconds: float) -> None:
        """Sleep while clients send rarely, and for their last pause: a test of minutes is one of seconds."""
        self._is_busy = False
        await asyncio.sleep(seconds - RARELY_S)
        self._is_busy = True
        await asyncio.sleep(RARELY_S)

    async def until(
        self, holds: Callable[[], bool], limit_s: float = PATIENCE_S, *, every_s: float = PAUSE_S
    ) -> float:
        """Wait until something holds; return how long it took, in seconds."""
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(limit_s):
                while not holds():
                    await asyncio.sleep(every_s)
        except TimeoutError:
            raise AssertionError(f"it did not come to it in {limit_s} s: {self.told()}") from None
        return asyncio.get_running_loop().time() - began

    def told(self) -> str:
        """Say what every worker believes, for a test that fails."""
        return "; ".join(
            f"{worker.name}: generation {worker.manager.generation} {worker.manager.assignment}"
            f" lanes {[lane.state.value for lane in worker.router.all_lanes]}"
            f" alive {list(worker.manager.directory.alive())} claimed {worker.manager._claimed}"
            f" failures {[lane.health.last_error for lane in worker.router.all_lanes]}"
            for worker in self.alive
        )

    # ---- clients

    async def deliver(self, events: Sequence[Event], by: Sequence[str] = ()) -> float:
        """Send one request until it is answered, by some workers or any; return how many seconds it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(PATIENCE_S):
            while not await self._send_once(events, by):
                self.refusals += 1
                await asyncio.sleep(PAUSE_S)
        self.slowest_s = max(self.slowest_s, loop.time() - began)
        return loop.time() - began

    async def _send_once(self, events: Sequence[Event], by: Sequence[str]) -> bool:
        able = [
            worker
            for worker in self.workers.values()
            if worker.is_alive and worker.is_open and worker.name in (by or self.workers)
        ]
        return bool(able) and await self.rng.choice(able).send(events)

    def stream(
        self, name: str, *, by: Sequence[str] = (), every_s: float = 0.05, size: int = 0
    ) -> "asyncio.Task[None]":
        """Let a client send one event of this size after another, each until answered, until cancelled."""

        async def send_all() -> None:
            number = 0
            while True:
                number += 1
                await self.deliver([self.world.event(f"{name}-{number}", "x" * size)], by)
                await asyncio.sleep(every_s if self._is_busy else max(every_s, RARELY_S))

        task = asyncio.ensure_future(send_all())
        self._background.append(task)
        return task

    # ---- the verdict

    async def judge(self, ids: Sequence[str] = ()) -> None:
        """Every worker gives the same receipts, and the log holds everything acknowledged, once."""
        for task in self._background[1:]:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.gather(*self._background[1:], return_exceptions=True)
        del self._background[1:]
        self.world._forget()  # an answer may have come after its record was trimmed
        told = [*self.world.told, *ids]
        for worker in self.alive:
            for at in range(0, len(told), 7):
                await self.deliver([self.world.event(name) for name in told[at : at + 7]], by=[worker.name])
        self.world._forget()  # an index may know for a while what the log has deleted
        self.world.judge_log()
        self._judge_moves()
        for worker in self.alive:
            self.check_totals(worker)
            for number in worker.owned | worker.followed:
                if number < len(worker.router.lanes):
                    self.world.judge_index(worker.router.lanes[number])

    def _judge_moves(self) -> None:
        """No lane was given up twice in ten minutes, unless one of those who knew was restarted."""
        last: dict[int, tuple[float, dict[str, int]]] = {}
        for lane, at, others in self.given_up:
            before, knew = last.get(lane, (-MOVE_AGAIN_S, {}))
            is_known = all(knew.get(name, starts) == starts for name, starts in others.items())
            assert at - before >= MOVE_AGAIN_S or not is_known, f"lane {lane} was given up again"
            last[lane] = at, others

    def check_totals(self, worker: Worker) -> None:
        """What was sent to a worker was counted there, once, or is still under way."""
        router = worker.router
        assert router.totals.received + router.in_flight == worker.sent, (worker.name, worker.sent)


def _loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop
