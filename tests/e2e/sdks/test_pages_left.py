"""Claim: what an SDK sends again by itself when its page is hidden or left is stored once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page

from tests.e2e.sdks.browser_sdks import chromium_page, pages_served
from tests.e2e.sdks.session import running
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.gateway import Gateway
from tests.support.http import stored
from tests.support.waiting import PATIENCE_S

POLL_INTERVAL_S = 0.1
HIDE = """
Object.defineProperty(document, "visibilityState", { value: "hidden" });
document.dispatchEvent(new Event("visibilitychange"));
"""


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(Gateway(tmp_path / "gateway")) as gateway:
        yield gateway


@pytest.mark.parametrize("name", ["segment.html", "rudder.html"])
async def test_an_event_in_flight_when_its_page_is_left_is_sent_again_by_the_next(
    name: str, gateway: Gateway
) -> None:
    async with FaultProxy(gateway.port, late_s_max=PATIENCE_S) as proxy, chromium_page() as page:
        with pages_served() as pages_url:
            await _load(page, f"{pages_url}/{name}", proxy.url)
            await page.evaluate("name => send(name, 1)", Fault.ANSWER_LATE)
            await _counted(gateway, "accepted", 1)
            await _load(page, f"{pages_url}/{name}", proxy.url)
            await _counted(gateway, "duplicates", 1)
    assert len(stored(gateway)) == 1


async def test_a_batch_sent_when_its_page_is_hidden_and_again_when_it_is_due_is_stored_once(
    gateway: Gateway,
) -> None:
    batching = {"strategy": "batching", "config": {"size": 10, "timeout": 1000}}
    async with chromium_page() as page:
        with pages_served() as pages_url:
            await _load(page, f"{pages_url}/segment.html", gateway.url, batching)
            await page.evaluate("send('Seen', 3)")
            await page.evaluate(HIDE)
            await _counted(gateway, "duplicates", 3)
    assert len(stored(gateway)) == 3


async def _load(page: Page, url: str, host: str, options: Any = None) -> None:
    await page.goto(url)
    await page.evaluate("([host, options]) => load(host, options)", [host, options])


async def _counted(gateway: Gateway, what: str, count: int) -> None:
    """Wait until the gateway has counted so many events."""
    async with asyncio.timeout(PATIENCE_S):
        while (await asyncio.to_thread(gateway.stats))["totals"][what] < count:
            await asyncio.sleep(POLL_INTERVAL_S)
