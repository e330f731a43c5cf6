"""
A simulated group whose processes go on through plans, round after round, while clients send.

Real are: router, lanes, GroupLanes with its links and its lane manager, PlanWatch, Preparation, Turn,
supervise, Gate, Settling and the command that plans. Simulated are log, routing topic, network, coordinator,
disks and time. `TurnWorker._run` stands for app.main._Process.run: it has no HTTP in front of its gate, and
opens the log and goes on with it as app.stores and app.going_on do. What is computed takes no time here, nor
does a disk. So a pause is that of waiting alone: for the log (tests/support/sim/log_times.py), for other
workers, and for the product's own polls.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from app.cli.resharding import Resharding, Wanted
from app.group import GroupBefore
from app.process.background_tasks import open_gate
from app.process.gate import Gate
from app.process.life import BEGIN_S, DRAIN_LINGER_S, Lanes, Servers, Turn, goes_on, supervise, unless_set
from app.process.plan_progress import PlanProgress
from app.process.plan_watch import PlanWatch
from app.stores import START_RETRY_S
from dedupe.decide.layout import Layout
from dedupe.decide.resharding import Routing
from dedupe.model.clock import Deadline
from dedupe.model.errors import DividedAnewError, LaneNotActiveError, RetriableError
from dedupe.model.types import Event
from dedupe.partition.preparation import Preparation
from dedupe.router import Router
from dedupe.storage.settling import Settling
from dedupe.submission import Outcomes
from tests.sim.group_world import DEADLINE_S, PAUSE_S, GroupWorld, Worker
from tests.sim.reshard_world import ReshardWorld, RoutingTopic
from tests.sim.world import CLEAN, QUARANTINE
from tests.support.settings import QUEUE_LIMITS
from tests.support.sim.log_times import MEASURED, LogTimes
from tests.support.sim.sim_log import SimStore

DRAIN_S = 10.0
WINDOW_S, REMEMBERED_S = 3600.0, 24 * 3600.0
CLIENT_S = 2 * DEADLINE_S + 0.5
"""How long clients wait: a request may wait for its answer as long in front of the gate, and again inside."""

DUE, LEFT, DECIDING, DECIDED = "due", "left off", "deciding", "decided"
SETTLED, BEGUN, OPENED = "settled", "begun", "opened"
STEPS = (DUE, LEFT, DECIDING, DECIDED, SETTLED, BEGUN, OPENED)
"""
Of one worker's turn: its round is to end, and has ended; it has sent and made a decision, of one partition;
knows all decisions, and begins the next round; requests are let in.
"""


class Step(NamedTuple):
    """A step of a turn."""

    at: float
    worker: str
    name: str


class NotedTurn(Turn):
    """Tells when a round leaves off, and when it has."""

    note: Callable[[str], None]

    async def leave_off(self, router: Router, lanes: Lanes, *, drain_timeout_s: float) -> None:
        self.note(DUE)
        await super().leave_off(router, lanes, drain_timeout_s=drain_timeout_s)
        self.note(LEFT)


class NotedGate(Gate):
    """Tells when requests are let in that had to wait."""

    is_open = True
    note: Callable[[str], None]

    def open(self) -> None:
        super().open()
        if not self.is_open:
            self.is_open = True
            self.note(OPENED)

    def close(self) -> None:
        super().close()
        self.is_open = False


class TurnWorker(Worker):
    """A worker whose process goes on through plans."""

    world: ReshardWorld
    group: "TurnWorld"

    # ---- its process

    def _compose(self) -> None:
        """Begin without a log, a round, or a server."""
        self.gate = NotedGate(_nobody, wait_s=DEADLINE_S)
        self.gate.note = self._reach
        self.world.router = None
        self.group.net.bound.add(self._host)
        self._servers = Servers([])
        self._stop_event = asyncio.Event()
        self._progress = PlanProgress(self.world.clock)

    async def _run(self) -> None:
        """As app.main._Process.run."""
        owned: Sequence[int] | None = None
        before: GroupBefore | None = None
        store: SimStore | None = None
        async with asyncio.TaskGroup() as running:
            opening = running.create_task(self._open())
            running.create_task(self._servers.run())
            while goes_on(self._stop_event, owned):
                grace_s = 0.0 if owned is None else BEGIN_S
                store = await unless_set(self._stop_event, self._opened(store, owned), grace_s=grace_s)
                if store is None:
                    break
                is_first = self.world.router is None
                router = self.world.router = self.world.build(store=store)
                self._join(before)
                router.goes_on = not is_first
                self.gate.app = self._app_of(router)
                self.sent = 0
                self._progress.follow(router.layout.plan)
                if not is_first:
                    self._reach(BEGUN)
                owned = await self._run_round(store, router)
                before = self.lanes.left
                self._progress.wait()
            if self.world.router is not None:
                await self.lanes.leave()
            self.gate.open()
            opening.cancel()

    async def _opened(self, store: SimStore | None, owned: Collection[int] | None) -> SimStore:
        """Return the log for the next round, open: as app.going_on does, or as app.stores does at a start."""
        if store is not None and owned is not None:
            with suppress(RetriableError):
                await self._settle(store, owned)
                return store
        while True:
            path = self.world.connection
            store = self.world.log.another(crashpoint=self._crashpoint)
            store.reach_as(path)
            store.routing_topic = self.group.topic.another()
            with suppress(RetriableError):
                await self._settle(store, owned or (), is_at_start=True)
                return store
            await asyncio.sleep(START_RETRY_S)

    async def _settle(self, store: SimStore, owned: Collection[int], *, is_at_start: bool = False) -> None:
        """Settle a plan that is due, and take the layout."""
        settling = Settling(store, CLEAN, self.world.identity, self.world.clock, lambda _: None)
        if not is_at_start or await settling.is_due():
            await settling.settle(owned)
        routing, _ = await store.routing_topic.routing(CLEAN.partitions)
        if routing.waiting:
            raise RetriableError("the topic is being divided")
        self.world.layout = Layout(CLEAN.partitions, routing)
        if not is_at_start:
            self._reach(SETTLED)

    async def _run_round(self, store: SimStore, router: Router) -> list[int] | None:
        """As app.main._Process._run_round."""
        turn = NotedTurn(self.gate, store.fences, answer_s=DEADLINE_S)
        turn.note = self._reach
        layout = router.layout
        prepare = partial(self._prepare, store, router)
        plans = store.routing_topic, CLEAN, prepare, layout.plan, layout.open
        watch = PlanWatch(*plans, self._progress, self.world.clock, turn.is_due)
        try:
            await supervise(
                router,
                self.lanes,
                self._servers,
                [open_gate(self.gate, router, store.fences, turn.is_due), watch.run()],
                stop=self._stop_event,
                turn=turn,
                drain_timeout_s=DRAIN_S,
                linger_s=DRAIN_LINGER_S,
            )
        except ExceptionGroup as err:
            if err.split(DividedAnewError)[1] is not None:
                raise
            self.gate.close()
            router.is_paused = True
            router.drain()
            return None
        return turn.owned

    @asynccontextmanager
    async def _prepare(
        self, store: SimStore, router: Router, routing: Routing
    ) -> AsyncIterator[Preparation | None]:
        """As app.round.build_plan_watch, on the one disk there is."""
        log_of = partial(store.partition_log, CLEAN.name)
        context = router.lanes[0].context
        yield Preparation(
            routing, router.lanes, log_of, context, self.world.disk, lambda: router.has_disk_room
        )

    async def _open(self) -> None:
        """Open it to clients while it is ready, as load balancers do."""
        while True:
            router = self.world.router
            if router is not None:
                router.has_disk_room = self.has_disk_room
            self.is_open = router is not None and router.is_ready
            await asyncio.sleep(PAUSE_S)

    async def _stop(self) -> bool:
        """Get SIGTERM."""
        assert self._running is not None
        self._stop_event.set()
        await asyncio.wait([self._running])
        self._running.result()
        self.is_open = False
        self.group.net.end(self._host)
        self.group.check_totals(self)
        self.world.disk.crash()
        return True

    def _reach(self, step: str) -> None:
        self.group.reach(self, step)

    def _crashpoint(self, step: str) -> None:
        if step in ("decide", "decided"):
            self._reach(DECIDING if step == "decide" else DECIDED)

    # ---- its clients

    def _app_of(self, router: Router) -> Any:
        """Return the application of a round, which spreads events by its layout."""

        async def app(scope: Any, _receive: object, _send: object) -> None:
            events: list[Event] = scope["events"]
            events[:] = [event._replace(partition=router.partition_of(event.key)) for event in events]
            if router is self.world.router:
                self.sent += len(events)
            deadline = Deadline(self.world.clock, DEADLINE_S)
            now_ms = self.world.clock.now_ms()
            scope["outcomes"] = await router.submit(events, [], received_ms=now_ms, deadline=deadline)

        return app

    async def send(
        self, events: Sequence[Event], rejected: Sequence[Event] = (), deadline_s: float = CLIENT_S
    ) -> bool:
        """See World.send; the round that answers says to which partitions the events belong."""
        assert not rejected
        return await super().send(list(events), deadline_s=deadline_s)

    async def _submit(
        self, events: Sequence[Event], rejected: Sequence[Event], *, received_ms: int, deadline: Deadline
    ) -> Outcomes:
        if not self.is_alive:
            raise LaneNotActiveError("the connection is refused")
        return await super()._submit(events, rejected, received_ms=received_ms, deadline=deadline)

    async def _answer(
        self,
        router: Router,
        events: Sequence[Event],
        rejected: Sequence[Event],
        *,
        received_ms: int,
        deadline: Deadline,
    ) -> Outcomes:
        """Have the round answer that runs when the gate is open."""
        scope: dict[str, Any] = {"type": "http", "events": events}
        await self.gate(scope, _receive, _send)
        outcomes: Outcomes = scope["outcomes"]
        return outcomes


class TurnWorld(GroupWorld):
    """A group whose topic can be divided by the command."""

    world: ReshardWorld
    worker_of = TurnWorker

    def __init__(self, *names: str, log_times: LogTimes = MEASURED, **options: Any) -> None:
        """See GroupWorld; `log_times` are those of the log."""
        super().__init__(*names, **options)
        self.topic = RoutingTopic(self.world)
        self.steps: list[Step] = []
        """Of all workers, in order, since the last plan."""
        self.on_step: Callable[[TurnWorker, str], None] = lambda _worker, _step: None
        self._log_times = log_times
        self._layout: tuple[Routing, Layout] | None = None

    def make_world(self, **options: Any) -> ReshardWorld:
        world = ReshardWorld(limits=QUEUE_LIMITS, **options)
        world.prepare()
        return world

    async def __aenter__(self) -> "TurnWorld":
        asyncio.get_running_loop().set_default_executor(AtOnce())
        self.world.log.times = self._log_times
        await super().__aenter__()
        return self

    @property
    def lanes(self) -> int:
        return self.layout.partitions + QUARANTINE.partitions

    @property
    def layout(self) -> Layout:
        """How the topic is divided now."""
        routing = self.world.routing()
        if self._layout is None or self._layout[0] is not routing:
            self._layout = routing, Layout(CLEAN.partitions, routing)
        return self._layout[1]

    @property
    def alive(self) -> list[Worker]:
        return [worker for worker in super().alive if worker.world.router is not None]

    @property
    def is_settled(self) -> bool:
        plan = self.layout.plan
        are_there = all(
            worker.world.router is not None and worker.world.router.layout.plan == plan
            for worker in self.workers.values()
            if worker.is_alive
        )
        return are_there and super().is_settled

    def reach(self, worker: TurnWorker, step: str) -> None:
        """Note a step of a worker's turn."""
        self.steps.append(Step(asyncio.get_running_loop().time(), worker.name, step))
        self.on_step(worker, step)

    def plan(self, partitions: int) -> "asyncio.Task[None]":
        """Run `gateway reshard plan`, a process of its own."""
        self.steps.clear()
        store = self.world.log.another()
        store.routing_topic = self.topic.another()

        async def add_partitions(name: str, count: int) -> bool:
            if name == CLEAN.name:
                self.world.log.add_partitions(name, count)
            return False

        settling = Settling(store, CLEAN, self.world.identity, self.world.clock, self.topic.told.append)
        times = WINDOW_S, REMEMBERED_S
        command = Resharding(
            settling, f"{CLEAN.name}.routing", add_partitions, *times, lambda _: None, lambda: None
        )
        running = command.plan(Wanted(partitions), notice_s=0, is_dry=False)
        return asyncio.ensure_future(running)

    @property
    def are_serving(self) -> bool:
        """Whether all who live have begun their next rounds, and serve everything behind open gates."""
        plan, workers = self.layout.plan, [each for each in self.workers.values() if each.is_alive]
        return len(self.owned) == self.lanes and all(
            isinstance(each, TurnWorker) and each.gate.is_open and each.router.layout.plan == plan
            for each in workers
        )

    async def judge(self, ids: Sequence[str] = ()) -> None:
        self.world.layout = self.layout
        await super().judge(ids)


class AtOnce(ThreadPoolExecutor):
    """Does in the loop what is meant for a thread, so that virtual time does not run on meanwhile."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **more: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **more))
        except Exception as err:
            future.set_exception(err)
        return future


async def _nobody(*_: object) -> None:
    raise LaneNotActiveError("no round has begun")


async def _receive() -> Any:
    raise AssertionError("a simulated request has no body")


async def _send(_message: object) -> None:
    raise AssertionError("a simulated answer is no message")
