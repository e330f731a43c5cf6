"""SDKs for browsers, each on a page in Debian's Chromium."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.async_api import Page, async_playwright

from tests.e2e.sdks.session import EVENTS_PER_FAULT, SDK
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.gateway import Gateway
from tests.support.processes import HOST
from tests.support.waiting import PATIENCE_S

PAGES = Path(__file__).parent / "browser"
ROOT = PAGES.parents[3]
POLL_INTERVAL_S = 0.1
PATIENCE_MS = PATIENCE_S * 1000
CHROMIUM = ["--no-sandbox"]  # as root, it starts without a sandbox or not at all


@dataclass(frozen=True, kw_only=True)
class BrowserSDK(SDK):
    """
    An SDK on a page that has `load(host, options)` and `send(name, count)`; the page lies in PAGES, or is
    named from there.

    It does not say when it is done. So a fault is over when its events are stored and the struck one
    came once more, if that is to be expected.
    """

    page: str
    options: Any = None

    async def send(self, proxy: FaultProxy, gateway: Gateway) -> set[str]:
        with pages_served() as pages_url:
            async with chromium_page() as page:
                await page.goto(f"{pages_url}/{self.page}")
                await page.evaluate("([host, options]) => load(host, options)", [proxy.url, self.options])
                for number, fault in enumerate(Fault, start=1):
                    await page.evaluate("([name, count]) => send(name, count)", [fault, EVENTS_PER_FAULT])
                    await _stored(gateway, number * EVENTS_PER_FAULT)
                    while fault not in proxy.sent_again | self.sends_once or not proxy.is_settled:
                        await asyncio.sleep(POLL_INTERVAL_S)
        return set()


async def _stored(gateway: Gateway, count: int) -> None:
    while (await asyncio.to_thread(gateway.stats))["totals"]["accepted"] < count:
        await asyncio.sleep(POLL_INTERVAL_S)


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files, and says nothing of it."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def pages_served() -> Iterator[str]:
    """Serve the pages and the SDKs from an origin that is not the gateway's."""
    with ThreadingHTTPServer((HOST, 0), partial(QuietHandler, directory=str(ROOT))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}/{PAGES.relative_to(ROOT)}"
        finally:
            server.shutdown()
            thread.join()


@asynccontextmanager
async def chromium_page() -> AsyncIterator[Page]:
    """A page of a fresh browser, without cookies or storage."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=CHROMIUM, timeout=PATIENCE_MS
        )
        page = await browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        yield page
        await browser.close()


# Analytics.js waits for an answer as long as it takes, and does not read the body of a 200.
ANALYTICS_JS_SENDS_ONCE = frozenset({Fault.TWO_COPIES, Fault.ANSWER_LATE, Fault.ANSWER_TRUNCATED})

BROWSER_SDKS = [
    BrowserSDK(
        name="rudder-js-3.34.1",
        page="rudder.html",
        late_s_max=PATIENCE_S,  # it waits for 30 s, and no option changes that
    ),
    BrowserSDK(
        name="segment-js-1.84.3-standard",
        page="segment.html",
        options={"strategy": "standard"},
        late_s_max=3.0,
        sends_once=ANALYTICS_JS_SENDS_ONCE,
    ),
    BrowserSDK(
        name="segment-js-1.84.3-batching",
        page="segment.html",
        options={"strategy": "batching", "config": {"size": EVENTS_PER_FAULT, "timeout": 500}},
        late_s_max=3.0,
        sends_once=ANALYTICS_JS_SENDS_ONCE,
    ),
]
