"""
A gateway within the test's process, whose clock the test sets: the real edge, router and lanes on a
simulated log and index, reached by an httpx transport that can fail like a network.
"""

import asyncio
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import httpx
import orjson

from app.build import build_ingest, build_ingress_limits, build_router
from app.http.problems import Problems
from app.http.request_metrics import RequestMetrics
from app.ingest.application import create_edge
from dedupe.model.identity import Identity
from dedupe.model.record import parse_identity
from dedupe.model.types import Session
from dedupe.router import Router
from dedupe.storage.log import no_crashpoint
from tests.support.settings import make_settings
from tests.support.sim.memory_index import MemoryStore
from tests.support.sim.sim_log import SimStore
from tests.support.waiting import PATIENCE_S

URL = "http://gateway"
DAY_MS = 86_400_000

Send: TypeAlias = Callable[[httpx.Request], httpx.Response]
Fault: TypeAlias = Callable[[httpx.Request, Send], httpx.Response]
"""What a request meets instead of an answer, or before it."""


class SetClock:
    """Log time stands still unless the test moves it; deadlines go on."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return time.monotonic()


class Stored(NamedTuple):
    """One record of the clean topic."""

    session: Session | None
    value: dict[str, Any]


ASK = b'{"batch":[]}'
"""What a client sends to learn the source of its key."""


class GatewayInProcess:
    """
    Serves from a thread of its own while the context is open. `faults` befall requests, one each.

    Requests that only ask for the source meet none and are not kept, unless `asks_meet_faults`.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        """Take settings by their names; whether they contradict one another is not asked."""
        chosen: dict[str, Any] = {"mode": "development", "data_dir": folder, "partitions": 2, **settings}
        self.settings = make_settings(**chosen)
        self.clock = SetClock()
        self.log = SimStore()
        self.faults: deque[Fault] = deque()
        self.requests: list[httpx.Request] = []
        self.asks_meet_faults = False
        self.transport = _Transport(self)
        self._indexes = MemoryStore(self.log.rng)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Any) -> Any:
        """Run a coroutine on the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    @property
    def router(self) -> Router:
        """All lanes behind one call."""
        return self._router

    def http(self, write_key: str = "web") -> httpx.Client:
        """Return a plain client that meets no faults."""
        return httpx.Client(
            transport=_Transport(self, meets_faults=False), base_url=URL, auth=(write_key, "")
        )

    def stored(self, name: str = "events") -> list[Stored]:
        """Return what is in the log, in no particular order of partitions."""
        return [
            Stored(parse_identity(record).session, orjson.loads(record.value))
            for topic in self.settings.log.topics
            if topic.name == name
            for number in range(topic.partitions)
            for record in self.log.partition(name, number).records
        ]

    def by_source(self, name: str = "events") -> list[tuple[str, dict[str, Any]]]:
        """Return source and value of each record of a topic, in no particular order of partitions."""
        return [
            (parse_identity(record).source, orjson.loads(record.value))
            for topic in self.settings.log.topics
            if topic.name == name
            for number in range(topic.partitions)
            for record in self.log.partition(name, number).records
        ]

    def quarantined(self) -> Counter[str]:
        """Return how many events were quarantined, by reason."""
        _, quarantine = self.settings.log.topics
        return Counter(stored.value["reason"] for stored in self.stored(quarantine.name))

    async def _start(self) -> None:
        clock, identity = self.clock, Identity(b"a secret of the tests, long enough")
        for topic in self.settings.log.topics:
            self.log.create_topic(topic.name, topic.partitions)
        self._router = build_router(
            self.settings,
            self.log,
            self._indexes,
            identity=identity,
            clock=clock,
            crashpoint=no_crashpoint,
        )
        ingress = build_ingress_limits(self.settings, clock, index_files=0)
        ingest = build_ingest(
            self.settings, self._router, identity=identity, ingress=ingress, clock=clock, earlier_ignore=()
        )
        problems = Problems(retry_after_max=1, rng=random.Random(0))
        edge = create_edge(ingest, memory=ingress.memory, problems=problems, metrics=RequestMetrics())
        self._asgi = httpx.ASGITransport(edge)
        self._lanes = [asyncio.create_task(lane.run()) for lane in self._router.all_lanes]
        while not self._router.is_ready:
            await asyncio.sleep(0.001)

    async def _stop(self) -> None:
        self._router.drain()
        await asyncio.gather(*self._lanes)

    async def answer(self, request: httpx.Request) -> httpx.Response:
        """Answer one request, whole."""
        answer = await self._asgi.handle_async_request(request)
        return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())


class _Transport(httpx.BaseTransport):
    def __init__(self, gateway: GatewayInProcess, *, meets_faults: bool = True) -> None:
        self._gateway = gateway
        self._meets_faults = meets_faults

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        gateway = self._gateway
        request.read()
        if not self._meets_faults:
            return self._send(request)
        if request.content == ASK and not gateway.asks_meet_faults:
            return self._send(request)
        gateway.requests.append(request)
        fault = gateway.faults.popleft() if gateway.faults else None
        return fault(request, self._send) if fault is not None else self._send(request)

    def _send(self, request: httpx.Request) -> httpx.Response:
        answer: httpx.Response = self._gateway.run(self._gateway.answer(request))
        return answer


# ---- faults


def not_connected(_request: httpx.Request, _send: Send) -> httpx.Response:
    """Nobody listens."""
    raise httpx.ConnectError("refused")


def answer_lost(request: httpx.Request, send: Send) -> httpx.Response:
    """The gateway decides, and nobody hears it."""
    send(request)
    raise httpx.ReadTimeout("too late")


def half_an_answer(request: httpx.Request, send: Send) -> httpx.Response:
    """The answer is cut where nobody notices but who reads it."""
    answer = send(request)
    return httpx.Response(answer.status_code, content=answer.content[: len(answer.content) // 2])


def killed_before(_request: httpx.Request, _send: Send) -> httpx.Response:
    """The client's process ends as it begins to send."""
    raise SystemExit


def killed_after(request: httpx.Request, send: Send) -> httpx.Response:
    """The client's process ends before it reads the answer."""
    send(request)
    raise SystemExit


def answered(status: int, content: bytes = b"", **headers: str) -> Fault:
    """Somebody answers, and the gateway never hears of it."""

    def answer(_request: httpx.Request, _send: Send) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.Response(status, content=content, headers=named)

    return answer
