"""Claim: liveness is answered while the ingest's event loop does something else, and says when it hangs."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.responses import Response

from app.admin import ingest_loop as ingest
from app.process.life import ThreadServer, bind, url_of
from tests.support.waiting import PATIENCE_S
from tests.unit.admin.admin_port import admin_of


@asynccontextmanager
async def admin() -> AsyncIterator[str]:
    """Serve an admin port over this loop, whose heart does not beat by itself."""
    app = admin_of()
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
    client = threading.Thread(target=lambda: answers.append(httpx.get(url)))
    client.start()
    client.join()  # the event loop of the caller stands still until the answer is there
    return answers[0]


async def test_liveness_is_answered_while_the_ingest_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.admin.probes.ALIVE_S", PATIENCE_S)
    async with admin() as url:
        answer = ask_while_this_loop_is_held(f"{url}/livez")
        assert (answer.status_code, answer.json()["alive"]) == (200, True)


async def test_ingest_that_hangs_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin() as url:
        monkeypatch.setattr("app.admin.probes.ALIVE_S", 0.0)
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
