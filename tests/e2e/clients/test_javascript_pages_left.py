"""
Claim: in Chromium, Firefox and WebKit, what a page tracks while it is left, in whatever handler, is in the
log exactly once, at the latest after the next visit, also while others wait and while the gateway is down.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

import orjson
import pytest

from tests.e2e.clients.browsers import BROWSERS, Browser
from tests.e2e.sdks.browser_sdks import pages_served
from tests.support.gateway import Gateway
from tests.support.processes import HOST, free_port
from tests.support.verdict import assert_sessions_whole, read_sqlite
from tests.support.waiting import PATIENCE_S, until

WAYS = ["first", "click", "hidden", "pagehide", "beforeunload"]
EACH = {"chromium": 14, "firefox": 4, "webkit": 4}  # of three rounds; with ALL=1 as many as in Chromium
PAGE_S = 2.0  # for each page, in a browser on a machine that has other work


class Site:
    """Pages that are left, in a browser, with a gateway of their own; each test names its events."""

    name = ""

    def __init__(self, browser: Browser, gateway: Gateway, pages_url: str, each: int) -> None:
        self.browser = browser
        self.each = each
        self.gateway = gateway
        self._page_url = f"{pages_url}/../../clients/left.html"

    def url(
        self,
        *,
        first: int = 0,
        last: int = 0,
        ways: Sequence[str] = WAYS,
        host: str | None = None,
        away: bool = False,
    ) -> str:
        """Return a page that is left for the next one or for nowhere, and so on until the last."""
        said = {
            "name": self.name,
            "n": first,
            "last": last,
            "ways": ",".join(ways),
            "host": host or self.gateway.url,
        }
        return f"{self._page_url}?{urlencode(said | ({'away': 'about:blank'} if away else {}))}"

    def queue(self, count: int, host: str) -> None:
        """Have so many events of a kilobyte wait."""
        self.browser.visit(self.url(host=host))
        self.browser.run(f"send({count}, 1000).then(() => null)")

    def leave_pages(self, **asked: Any) -> None:
        self.browser.visit(self.url(**asked))
        pages = asked["last"] - asked.get("first", 0)
        self.browser.wait_until(
            f"location.search.includes('n={asked['last']}&') && !!window.client",
            timeout_s=PATIENCE_S + PAGE_S * pages,
        )

    def wait_until_left(self, count: int) -> None:
        until(lambda: len(self.left()) >= count, lambda: str(self.left()))

    def flush(self) -> None:
        self.browser.visit(self.url())
        assert self.browser.run("client.flush(120000)") is True

    def stored(self) -> list[dict[str, Any]]:
        committed = read_sqlite(self.gateway.data)
        assert_sessions_whole(committed)
        return [orjson.loads(record.value) for record in committed]

    def left(self) -> Counter[int]:
        return Counter(event["properties"]["n"] for event in self.stored() if event["event"] == self.name)

    def waiting(self) -> int:
        return sum(event["event"] == "Waiting" for event in self.stored())


@pytest.fixture(params=BROWSERS, scope="module")
def open_site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp(request.param)
    with (
        Gateway(folder / "gateway") as gateway,
        pages_served() as pages_url,
        BROWSERS[request.param](folder) as browser,
    ):
        yield Site(browser, gateway, pages_url, EACH["chromium" if "ALL" in os.environ else request.param])


@pytest.fixture
def site(open_site: Site, request: pytest.FixtureRequest) -> Site:
    open_site.name = request.function.__name__
    return open_site


@pytest.mark.timeout(900)
def test_what_a_page_tracks_while_it_is_left_is_stored_once(site: Site) -> None:
    """With an empty queue, with 20 KB in it, and with 200 KB while the gateway is down."""
    count = len(WAYS) * site.each
    down = f"http://{HOST}:{free_port()}"
    site.leave_pages(last=count)
    site.queue(20, host=down)
    site.leave_pages(first=count, last=2 * count)
    site.queue(200, host=down)
    site.leave_pages(first=2 * count, last=3 * count, host=down)
    site.flush()
    assert site.left() == Counter(range(3 * count))
    assert site.waiting() == 220


def test_what_a_page_tracks_while_it_is_left_is_sent_without_another_visit(site: Site) -> None:
    for number, way in enumerate(WAYS[1:]):
        site.browser.visit(site.url(first=number, last=number + 1, ways=[way], away=True))
        site.wait_until_left(number + 1)
    assert site.left() == Counter(range(len(WAYS) - 1))


def test_tabs_that_are_closed_and_pages_that_come_back_lose_nothing(site: Site) -> None:
    down = f"http://{HOST}:{free_port()}"
    site.browser.visit(site.url())
    for number in range(4):
        site.browser.open_tab()
        site.browser.visit(site.url(host=down))
        site.browser.run(f"client.track('{site.name}', {{ n: {number} }})")
        site.browser.close_tab()
    for number in range(4, 8):
        site.browser.run(f"client.track('{site.name}', {{ n: {number} }})")
        site.browser.visit(site.url(first=number))
        site.browser.back()
    assert site.browser.run("client.flush(120000)") is True
    site.wait_until_left(8)
    assert site.left() == Counter(range(8))
