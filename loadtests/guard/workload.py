"""
The guard's workload: events through the gateway's code, without sockets and without Kafka.

    python -m loadtests.guard.workload NEW:AGAIN ...

Each pair is a process of its own, forked after the imports: it posts NEW batches of new events to the ingest
application, and AGAIN of them again. Parse, identify, lanes, admission, record and index on RocksDB are the
gateway's; the log is the simulated one, which costs little.
"""

import asyncio
import gc
import logging
import os
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
import uvloop
from starlette.types import ASGIApp, Message

from app.build import build_ingest, build_ingress_limits, build_router
from app.cli.load.events import body
from app.http.body_memory import BodyMemory
from app.http.problems import Problems
from app.http.request_metrics import RequestMetrics
from app.ingest.application import create_edge
from app.settings.model import Settings
from app.stores import create_indexes
from dedupe.decide.layout import Layout
from dedupe.model.clock import SystemClock
from dedupe.model.identity import Identity
from dedupe.router import Router
from dedupe.storage.index import IndexStore
from dedupe.storage.log import no_crashpoint
from tests.support.settings import make_settings
from tests.support.sim.sim_log import SimStore

BATCH_EVENTS = 100
READY_POLL_S = 0.05
SECRET = b"the guard's, of 24 bytes"

Post = Callable[[bytes], Awaitable[int]]


@asynccontextmanager
async def gateway() -> AsyncIterator[Post]:
    """Run a gateway in this process; yield what posts the batch of a number and checks the verdict."""
    async with ingest_application() as (edge, _):
        yield partial(_post, edge)


@asynccontextmanager
async def ingest_application() -> AsyncIterator[tuple[ASGIApp, BodyMemory]]:
    """Run a gateway in this process; yield its ingest application, and the memory of its bodies."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as folder:
        native = os.environ.get("GATEWAY_NATIVE", "off")
        settings = make_settings(mode="development", data_dir=Path(folder), native=native)
        indexes = create_indexes(settings, Layout(settings.log.partitions), SystemClock())
        router = _router(settings, indexes)
        edge, memory = _edge(settings, router)
        lanes = [asyncio.create_task(lane.run()) for lane in router.all_lanes]
        while not router.is_ready:  # noqa: ASYNC110 - a spin would be counted
            await asyncio.sleep(READY_POLL_S)
        yield edge, memory
        router.drain()
        await asyncio.gather(*lanes)
        indexes.close()


async def run(new: Sequence[bytes], again: Sequence[bytes]) -> None:
    """Post some bodies with new events, then some of these again."""
    async with gateway() as post:
        for content in new:
            assert await post(content) == BATCH_EVENTS
        for content in again:
            assert await post(content) == 0


def bodies(count: int) -> list[bytes]:
    """Return `count` batches, always the same."""
    return [
        body(range(first, first + BATCH_EVENTS)) for first in range(0, count * BATCH_EVENTS, BATCH_EVENTS)
    ]


def _router(settings: Settings, indexes: IndexStore) -> Router:
    store = SimStore()
    for topic in settings.log.topics:
        store.create_topic(topic.name, topic.partitions)
    return build_router(
        settings,
        store,
        indexes,
        identity=Identity(SECRET),
        clock=SystemClock(),
        crashpoint=no_crashpoint,
    )


def _edge(settings: Settings, router: Router) -> tuple[ASGIApp, BodyMemory]:
    clock = SystemClock()
    ingress = build_ingress_limits(settings, clock, index_files=0)
    ingest = build_ingest(
        settings, router, identity=Identity(SECRET), ingress=ingress, clock=clock, earlier_ignore=()
    )
    edge = create_edge(
        ingest,
        memory=ingress.memory,
        problems=Problems(retry_after_max=1, rng=random.Random(0)),
        metrics=RequestMetrics(),
    )
    return edge, ingress.memory


async def _post(edge: ASGIApp, content: bytes) -> int:
    """Post one body as the server's protocol would hand it over; return how many events were new."""
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/batch",
        "raw_path": b"/v1/batch",
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"authorization", b"Basic Z3VhcmQ6"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(content)),
        ],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8080),
    }
    answer: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Message) -> None:
        answer.append(message)

    await edge(scope, receive, send)
    assert answer[0]["status"] == 200, answer
    return int(dict(answer[0]["headers"])[b"gateway-accepted"])


def main() -> None:
    """Fork a process for each pair, one after another."""
    gc.disable()
    pairs = [tuple(map(int, pair.split(":"))) for pair in sys.argv[1:]]
    batches = bodies(max(new for new, _ in pairs))
    for new, again in pairs:
        child = os.fork()
        if child == 0:
            uvloop.run(run(batches[:new], batches[:again]))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
