"""
A group of real gateway processes on one broker, and clients that send to any of them.

The clients behave as SDKs behind a load balancer that has not noticed anything: each request goes to a worker
at random, answers are lost at random, and whatever is sent again, to another worker too, has to be answered
with the same bytes.
"""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson

from app.settings.model import DEVELOPMENT_SECRET
from dedupe.model.identity import Identity
from dedupe.model.routing import partition_of
from tests.support.client import RETRY_PAUSE_S, Client
from tests.support.constants import Constants
from tests.support.gateway import Crash, Gateway
from tests.support.processes import HOST
from tests.support.waiting import PATIENCE_S, until_in_thread

LOST = 0.2
AGAIN = 0.2
PAUSE_S = 0.05
REPEATED = 20
SESSION_EVENTS = 5
SOURCE = "fault-test"


SESSION = "2dlpu8idjvw2es2uvixfliqYNu0"

SHORT: Constants = {
    "app.main:DRAIN_LINGER_S": 0.2,
    "app.process.plan_watch:ALONE_S": 3.0,
    "dedupe.cluster.lane_manager:NEW_S": 5.0,
}
"""Waits that a test need not wait for."""


class Worker(Gateway):
    """One of the group."""

    def __init__(
        self,
        folder: Path,
        name: str,
        env: Mapping[str, str],
        *,
        options: Sequence[str] = (),
        constants: Constants = SHORT,
    ) -> None:
        """Choose ports; nothing is started yet. Constants stay as they are where there are options."""
        own = {"GATEWAY_WORKER_ID": name, "GATEWAY_PEER_LISTEN": f"{HOST}:0"}
        constants = {} if options else constants
        super().__init__(folder / name, {**own, **env}, options=options, constants=constants)
        self.name = name
        self.is_in_use = True
        """Whether clients send to it."""

    def states(self) -> list[str]:
        """Return in what state each lane is, quarantine's last."""
        return [lane["state"] for lane in self.lanes()]

    def lanes(self) -> list[dict[str, Any]]:
        """Return what stats say of each lane, quarantine's last."""
        stats = self.stats()
        return [*stats["partitions"], *stats["quarantine"]]


class Said(NamedTuple):
    """One answer of a worker, or that there was none."""

    worker: str
    at: float
    seconds: float
    status: int | None  # None: the connection was refused or ended
    events: int
    text: str


class Roamer(Client):
    """A client whose requests go to any worker in use, and that loses answers."""

    def __init__(self, workers: Sequence[Worker], *, seed: int, lost: float = LOST) -> None:
        """Lose this share of the answers."""
        super().__init__("", seed=seed, source=SOURCE)
        self.said: list[Said] = []
        self.pause_s = PAUSE_S
        self._workers = workers
        self._only: Worker | None = None
        self._rng = random.Random(seed)
        self._lost = lost

    def stay_with(self, worker: Worker | None) -> None:
        """Send to this worker alone from now on; None: to any."""
        self._only = worker

    async def run(self, stop: asyncio.Event) -> None:
        """See Client; at a pace that leaves the workers time."""
        while not stop.is_set():
            await self.deliver(self.new_body())
            if self._rng.random() < AGAIN:
                await self.deliver(self._rng.choice(list(self._answers)))
                await self.deliver(self._regrouped_body())
            await asyncio.sleep(self.pause_s)

    async def repeat_to(self, worker: Worker) -> None:
        """Send at most REPEATED bodies that were accepted to a worker."""
        self.stay_with(worker)
        bodies = list(self._answers)
        for body in self._rng.sample(bodies, min(len(bodies), REPEATED)):
            await self.deliver(body)
        self.stay_with(None)

    async def _post(self, body: bytes) -> bytes | None:
        worker = self._only or self._rng.choice([one for one in self._workers if one.is_in_use])
        self.redirect(worker.url)
        began = time.monotonic()
        status, answer = None, b""
        try:
            response = await self._http.post("/v1/events", content=body)
            status, answer = response.status_code, response.content
        except httpx.TransportError as err:
            answer = repr(err).encode()
        events = len(orjson.loads(body)["batch"])
        seconds = time.monotonic() - began
        self.said.append(Said(worker.name, began, seconds, status, events, answer[:200].decode()))
        assert status in (None, 200, 429, 503), (status, answer)
        if status != httpx.codes.OK:
            return None
        if self._rng.random() < self._lost:
            earlier = self._answers.setdefault(body, answer)
            assert answer == earlier, f"answers differ:\n{earlier!r}\n{answer!r}"
            return None
        return answer


class Device(Roamer):
    """A client of one session, which numbers its events."""

    def __init__(self, workers: Sequence[Worker], *, seed: int, lost: float = LOST) -> None:
        super().__init__(workers, seed=seed, lost=lost)
        self._name = f"device-{seed}"
        self._sequence = 1

    def new_body(self) -> bytes:
        """Return the next events of the session."""
        batch = [self._new_event() for _ in range(self._random.randint(1, SESSION_EVENTS))]
        first, self._sequence = self._sequence, self._sequence + len(batch)
        return orjson.dumps(
            {"client": self._name, "session": SESSION, "firstSequence": first, "batch": batch}
        )

    def _regrouped_body(self) -> bytes:
        return self._random.choice(list(self._answers))


class Load:
    """Clients that send until told to stop."""

    def __init__(self, clients: Sequence[Roamer]) -> None:
        self.clients = clients
        self.began_at = time.monotonic()

    def said(self, since: float = 0.0) -> list[Said]:
        """Return what was answered to requests that began at that time or later."""
        return [said for client in self.clients for said in client.said if said.at >= since]

    def refusals(self, since: float = 0.0, *, but: Sequence[Worker] = ()) -> list[Said]:
        """Return every answer that was not 200, and connections that ended, of all but these workers."""
        names = {worker.name for worker in but}
        return [said for said in self.said(since) if said.status != 200 and said.worker not in names]

    def errors(self, since: float = 0.0) -> list[Said]:
        """Return every answer that was not 200."""
        return [said for said in self.refusals(since) if said.status is not None]

    def slowest_s(self, since: float = 0.0, *, but: Sequence[Worker] = ()) -> float:
        """Return how long the slowest request took that was answered with 200."""
        names = {worker.name for worker in but}
        took = [said.seconds for said in self.said(since) if said.status == 200 and said.worker not in names]
        return max(took, default=0.0)


class Workers:
    """The group. Its methods block unless they are asynchronous."""

    def __init__(
        self, folder: Path, env: Mapping[str, str], count: int, *, constants: Constants = SHORT
    ) -> None:
        """Name so many workers of one topic; none is started yet."""
        self._folder, self._env, self._constants = folder, dict(env), constants
        self.all = [self.new(f"worker-{number}") for number in range(count)]
        self.clients: list[Roamer] = []
        self._probes: list[Roamer] = []  # made beforehand: that takes 0.1 s each
        self._numbers = itertools.count()
        self.partitions = int(self._env["GATEWAY_PARTITIONS"])

    def new(self, name: str, **env: str) -> Worker:
        """Return a worker that is no member yet."""
        return Worker(self._folder, name, {**self._env, **env}, constants=self._constants)

    @property
    def running(self) -> list[Worker]:
        """Those whose process is there."""
        return [worker for worker in self.all if worker.is_running]

    async def start(self, *, crash: Crash | None = None) -> None:
        """Start all, with a crash point if one is named, and wait until they have shared the lanes out."""
        self.make_probes()
        for worker in self.all:
            worker.start(wait=False, crash=crash)
        for worker in self.all:
            await asyncio.to_thread(worker.wait_until_ready)
        await self.settle()

    def make_probes(self) -> None:
        """Prepare for `all_answer`."""
        self._probes = [self.client(lost=0.0) for _ in range(self.partitions)]

    async def stop(self) -> None:
        """Stop all, and close the clients."""
        for client in self.clients:
            await client.close()
        stopped = await asyncio.gather(
            *(asyncio.to_thread(worker.stop) for worker in self.all), return_exceptions=True
        )
        for error in stopped:
            if isinstance(error, BaseException):
                raise error

    async def settle(self, *, are_even: bool = True) -> None:
        """Wait until every lane has one owner and is followed, and, if even, all workers own as many."""
        await until_in_thread(partial(self._is_settled, are_even=are_even), self._why_not_settled)

    def _is_settled(self, *, are_even: bool) -> bool:
        running = self.running
        states = [worker.states() for worker in running]
        if len({*map(len, states)}) > 1:
            return False  # some know of more partitions than others
        columns = list(zip(*states, strict=True))
        follows = self._env.get("GATEWAY_STANDBY") != "false" and len(running) > 1
        wanted = {"active": 1, "following": int(follows)}
        owned = [row.count("active") for row in states]
        return (not are_even or max(owned) - min(owned) <= 1) and all(
            column.count(state) == count for column in columns for state, count in wanted.items()
        )

    def _why_not_settled(self) -> str:
        states = [f"{worker.name}: {worker.states()}" for worker in self.running]
        return "\n".join([*states, *(worker.log_tail() for worker in self.running)])

    def client(self, *, lost: float = LOST) -> Roamer:
        """Return a client of all workers, whose events count in the verdict."""
        client = Roamer(self.all, seed=len(self.clients), lost=lost)
        self.clients.append(client)
        return client

    def device(self) -> Device:
        """Return a client of one session; see `client`."""
        device = Device(self.all, seed=len(self.clients))
        self.clients.append(device)
        return device

    @asynccontextmanager
    async def load(self, clients: int = 4, *, devices: int = 0) -> AsyncIterator[Load]:
        """Send from so many clients while the context lasts; then finish what was begun."""
        load = Load([*(self.client() for _ in range(clients)), *(self.device() for _ in range(devices))])
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as running:
            for client in load.clients:
                running.create_task(client.run(stop))
            try:
                yield load
            finally:
                stop.set()

    async def all_answer(self, worker: Worker) -> float:
        """Return after how many seconds a worker has answered a new event of every clean lane with 200."""
        began = time.monotonic()
        bodies = [self._body_for(lane) for lane in range(len(self._probes))]
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*map(partial(_deliver_to, worker), self._probes, bodies))
        return time.monotonic() - began

    def _body_for(self, lane: int) -> bytes:
        """Return one new event of a lane."""
        identity = Identity(DEVELOPMENT_SECRET.encode())
        while True:
            message_id = f"lane-{lane}-{next(self._numbers)}"
            if partition_of(identity.message_key(SOURCE, message_id), self.partitions) == lane:
                return orjson.dumps(
                    {"batch": [{"messageId": message_id, "type": "track", "event": "Tested"}]}
                )

    async def repeat(self) -> None:
        """Send bodies of every client again to every worker that runs: the same bytes come from each."""
        for worker in self.running:
            await asyncio.gather(*(client.repeat_to(worker) for client in self.clients))

    def totals(self) -> dict[str, int]:
        """Return the sum of what the running workers have counted."""
        totals = [worker.stats()["totals"] for worker in self.running]
        return {name: sum(total[name] for total in totals) for name in totals[0]}


async def _deliver_to(worker: Worker, client: Roamer, body: bytes) -> None:
    client.stay_with(worker)
    while not await client.attempt(body):
        await asyncio.sleep(RETRY_PAUSE_S)
    client.stay_with(None)
