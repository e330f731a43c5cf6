"""
Claim: in Chromium, Firefox and WebKit, what a page tracks while it is left, in whatever handler, is in the log
exactly once, at the latest after the next visit, also while others wait and while the gateway is down.
"""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest

from tests.e2e.clients.browsers import BROWSERS, Browser
from tests.e2e.sdks.browser_sdks import pages_served
from tests.support.gateway import Gateway
from tests.support.processes import HOST, free_port
from tests.support.verdict import assert_sessions_whole, read_sqlite

WAYS = ["first", "click", "hidden", "pagehide", "beforeunload"]
EACH = 10
TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.05


class Site:
    """Pages that are left, in a browser, with a gateway of their own."""

    def __init__(self, browser: Browser, gateway: Gateway, pages_url: str) -> None:
        self.browser = browser
        self.gateway = gateway
        self._page_url = f"{pages_url}/../../clients/left.html"

    def url(self, *, first: int = 0, last: int = 0, ways: list[str] = WAYS, host: str | None = None) -> str:
        """Return a page that is left for the next one, and that for the next, until the last."""
        return f"{self._page_url}?n={first}&last={last}&ways={','.join(ways)}&host={quote(host or self.gateway.url)}"

    def leave_pages(self, **asked: Any) -> None:
        self.browser.visit(self.url(**asked))
        self.browser.wait_until(f"location.search.includes('n={asked['last']}&') && !!window.client")

    def flush(self) -> None:
        self.browser.visit(self.url())
        assert self.browser.run("client.flush(60000)") is True

    def stored(self) -> list[dict[str, Any]]:
        committed = read_sqlite(self.gateway.data)
        assert_sessions_whole(committed)
        return [orjson.loads(record.value) for record in committed]

    def left(self) -> Counter[int]:
        return Counter(event["properties"]["n"] for event in self.stored() if event["event"] == "Left")

    def waiting(self) -> int:
        return sum(event["event"] == "Waiting" for event in self.stored())


@pytest.fixture(params=BROWSERS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with (
        Gateway(tmp_path / "gateway") as gateway,
        pages_served() as pages_url,
        BROWSERS[request.param](tmp_path) as browser,
    ):
        yield Site(browser, gateway, pages_url)


def test_what_a_page_tracks_while_it_is_left_is_stored_once(site: Site) -> None:
    """With an empty queue, with 20 KB in it, and with 200 KB while the gateway is down."""
    count = len(WAYS) * EACH
    down = f"http://{HOST}:{free_port()}"
    t = time.time()
    site.leave_pages(last=count)
    print("a", time.time() - t)
    site.browser.visit(site.url(host=down))
    site.browser.run("send(20, 1000).then(() => null)")
    site.leave_pages(first=count, last=2 * count)
    print("b", time.time() - t)
    site.browser.visit(site.url(host=down))
    site.browser.run("send(200, 1000).then(() => null)")
    site.leave_pages(first=2 * count, last=3 * count, host=down)
    print("c", time.time() - t)
    site.flush()
    print("d", time.time() - t)
    assert site.left() == Counter(range(3 * count))
    assert site.waiting() == 220
