"""Claim: liveness is answered while the ingest's event loop does something else, and says when it hangs."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.responses import Response

from app.admin import ingest_loop as ingest
from app.admin.application import Watched, create_admin
from app.admin.edge_metrics import EdgeCollector
from app.admin.ingest_loop import IngestLoop
from app.build import build_guards
from app.config.settings import Settings
from app.http.problems import Problems
from app.process.life import ThreadServer, bind, url_of
from dedupe.clock import SystemClock
from dedupe.identity import Identity
from dedupe.sim.sim_log import SimStore
from tests.sim.world import World


@asynccontextmanager
async def admin() -> AsyncIterator[str]:
    """Serve an admin port over this loop, whose heart does not beat by itself."""
    settings = Settings(mode="development", log="sqlite")
    app = create_admin(
        Watched(World().build(), EdgeCollector(build_guards(settings, SystemClock(), index_files=0))),
        settings=settings,
        identity=Identity(settings.identity_key),
        store=SimStore(log_id="log"),
        clock=SystemClock(),
        problems=Problems(retry_after_max=1, dice=random.Random(0)),
        registry=CollectorRegistry(),
        ingest_loop=IngestLoop(),
    )
    with bind("127.0.0.1", 0, send_timeout_s=5) as listener:
        url = url_of(listener)
        server = ThreadServer(app, keep_alive_s=5, stop_timeout_s=5)
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:
            assert not serving.done()
            await asyncio.sleep(0.01)
        yield url
        server.should_exit = True
        await serving


def ask_while_this_loop_is_held(url: str) -> httpx.Response:
    answers: list[httpx.Response] = []
    client = threading.Thread(target=lambda: answers.append(httpx.get(url, timeout=20)))
    client.start()
    client.join()  # the event loop of the caller stands still until the answer is there
    return answers[0]


async def test_liveness_is_answered_while_the_ingest_is_held() -> None:
    async with admin() as url:
        answer = ask_while_this_loop_is_held(f"{url}/livez")
        assert (answer.status_code, answer.json()["alive"]) == (200, True)


async def test_ingest_that_hangs_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin() as url:
        monkeypatch.setattr("app.admin.application.ALIVE_S", 0.0)
        answer = ask_while_this_loop_is_held(f"{url}/livez")
        assert (answer.status_code, answer.json()["alive"]) == (503, False)


async def test_figures_of_an_ingest_that_is_held_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "READ_TIMEOUT_S", 0.05)
    async with admin() as url:
        for path in ("/readyz", "/metrics", "/admin/v1/stats"):
            answer = ask_while_this_loop_is_held(f"{url}{path}")
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


async def test_server_that_is_cancelled_ends_its_thread() -> None:
    threads = threading.active_count()
    async with asyncio.TaskGroup() as group:
        with bind("127.0.0.1", 0, send_timeout_s=5) as listener:
            server = ThreadServer(Response(), keep_alive_s=5, stop_timeout_s=5)
            serving = group.create_task(server.serve([listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            serving.cancel()
            await asyncio.wait([serving])
    assert serving.cancelled()
    assert threading.active_count() == threads
