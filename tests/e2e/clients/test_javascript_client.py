"""
Claim: in a real browser, through faults of the network, killed tabs and a killed browser, every sequence that
the JavaScript client has given is in the log exactly once, and the gateway's own account of it agrees.
"""

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Error, Page, Playwright, async_playwright

from app.ingest.client_sessions import is_ksuid
from tests.e2e.sdks.browser_sdks import CHROMIUM, PATIENCE_MS, BrowserSDK, pages_served
from tests.e2e.sdks.session import EVENTS_PER_FAULT, run_session, running
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.gateway import Gateway
from tests.support.verdict import Committed, assert_sessions_whole, read_sqlite
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = "../../clients/page.html"
KEY = "browser"
POLL_INTERVAL_S = 0.05
CORS = {"Access-Control-Allow-Origin": "*"}

EVERY_FAULT = BrowserSDK(name="gateway-client", page=PAGE, options={"timeoutMs": 1000}, late_s_max=PATIENCE_S)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """One for all tests that do not kill it; each has events of its own name."""
    async with running(Gateway(tmp_path_factory.mktemp("gateway"))) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def playwright() -> AsyncIterator[Playwright]:
    async with async_playwright() as playwright:
        yield playwright


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(playwright: Playwright) -> AsyncIterator[Browser]:
    browser = await playwright.chromium.launch(
        executable_path=shutil.which("chromium"), args=CHROMIUM, timeout=PATIENCE_MS
    )
    yield browser
    await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """Tabs that share what is stored, and nothing with other tests."""
    context = await browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    yield context
    await context.close()


@pytest.fixture(scope="module")
def page_url() -> Iterator[str]:
    with pages_served() as url:
        yield f"{url}/{PAGE}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def context_page(browser: Browser, page_url: str) -> AsyncIterator[Page]:
    """A page without a client."""
    page = await browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    await page.goto(page_url)
    yield page
    await page.close()


async def tab_of(context: BrowserContext, page_url: str, host: str, **options: Any) -> Page:
    """Open a tab with a client."""
    page = await context.new_page()
    await begin(page, page_url, host, **options)
    return page


async def begin(page: Page, page_url: str, host: str, **options: Any) -> None:
    await page.goto(page_url)
    await page.evaluate("([host, options]) => load(host, options)", [host, options])


async def queue(page: Page, name: str, first: int, last: int) -> str:
    """Queue numbered events in a tab; return their session."""
    places = await page.evaluate(
        "([name, count, first]) => send(name, count, first)", [name, last - first + 1, first]
    )
    (session,) = {place["session"] for place in places}
    return str(session)


async def flushed(page: Page) -> bool:
    return bool(await page.evaluate("client.flush(120000)"))


async def stored(gateway: Gateway, name: str, count: int) -> list[Committed]:
    """Wait until so many events of a name are stored, and return them."""
    async with asyncio.timeout(PATIENCE_S):
        while len(found := stored_now(gateway, name)) < count:
            await asyncio.sleep(POLL_INTERVAL_S)
    return found


def stored_now(gateway: Gateway, name: str) -> list[Committed]:
    return [record for record in read_sqlite(gateway.data) if orjson.loads(record.value)["event"] == name]


def numbers(committed: list[Committed]) -> list[int]:
    return sorted(orjson.loads(record.value)["properties"]["n"] for record in committed)


async def watermark(gateway: Gateway, page: Page, session: str) -> int:
    """Return what the gateway tells of a session, of which nothing is missing."""
    answer = await asyncio.to_thread(
        httpx.get,
        f"{gateway.url}/v1/sessions/{session}",
        auth=(KEY, ""),
        headers={"Gateway-Client": await page.evaluate("client.clientId")},
    )
    told = answer.raise_for_status().json()
    assert (told["missing"], told["highest"]) == ([], told["watermark"])
    return int(told["watermark"])


async def crash(page: Page) -> None:
    """End a tab's process as the system would."""
    crashed = asyncio.get_running_loop().create_future()
    page.once("crash", lambda page: crashed.set_result(None))
    cdp = await page.context.new_cdp_session(page)
    asking = asyncio.ensure_future(cdp.send("Page.crash"))
    await crashed
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await page.close()


async def test_every_event_is_stored_once_through_every_fault(tmp_path: Path) -> None:
    session = await run_session(EVERY_FAULT, gateway := Gateway(tmp_path / "gateway"))
    assert session.proxy.has_struck_all
    assert session.proxy.sent_again >= set(Fault) - {Fault.TWO_COPIES}
    assert {status for status, _ in session.proxy.answers} == {200}
    committed = read_sqlite(gateway.data)
    events = [orjson.loads(record.value) for record in committed]
    assert Counter((event["event"], event["properties"]["n"]) for event in events) == Counter(
        (fault.value, n) for fault in Fault for n in range(EVENTS_PER_FAULT)
    )
    assert list(assert_sessions_whole(committed).values()) == [len(Fault) * EVENTS_PER_FAULT]


async def test_tabs_have_sessions_of_their_own_over_reloads(
    gateway: Gateway, context: BrowserContext, page_url: str
) -> None:
    first, second = [await tab_of(context, page_url, gateway.url, isWhole=True) for _ in range(2)]
    sessions = await asyncio.gather(queue(first, "Tabs", 1, 150), queue(second, "Tabs", 151, 160))
    assert sessions[0] != sessions[1]
    assert await flushed(first)
    assert await flushed(second)
    await begin(first, page_url, gateway.url, isWhole=True)
    assert await queue(first, "Tabs", 161, 165) == sessions[0]
    assert await flushed(first)
    committed = stored_now(gateway, "Tabs")
    assert numbers(committed) == list(range(1, 166))
    assert sorted(assert_sessions_whole(committed).values()) == [10, 155]
    assert [await watermark(gateway, first, session) for session in sessions] == [155, 10]


async def test_what_a_killed_tab_has_queued_offline_is_delivered_by_another(
    gateway: Gateway, context: BrowserContext, page_url: str
) -> None:
    killed, other = [await tab_of(context, page_url, gateway.url) for _ in range(2)]
    await context.set_offline(True)
    session = await queue(killed, "Orphaned", 1, 120)
    await crash(killed)
    assert stored_now(gateway, "Orphaned") == []
    await context.set_offline(False)
    committed = await stored(gateway, "Orphaned", 120)
    assert numbers(committed) == list(range(1, 121))
    assert list(assert_sessions_whole(committed).values()) == [120]
    assert await watermark(gateway, other, session) == 120


@asynccontextmanager
async def own_browser(playwright: Playwright, profile: Path) -> AsyncIterator[tuple[BrowserContext, int]]:
    """A browser whose profile stays, and its process."""
    context = await playwright.chromium.launch_persistent_context(
        profile, executable_path=shutil.which("chromium"), args=CHROMIUM, timeout=PATIENCE_MS
    )
    context.set_default_timeout(PATIENCE_MS)
    try:
        yield context, int(os.readlink(profile / "SingletonLock").rpartition("-")[2])
    finally:
        with suppress(Error):  # it may have been killed
            await context.close()


async def test_a_killed_browser_delivers_when_it_is_opened_again(
    playwright: Playwright, page_url: str, tmp_path: Path
) -> None:
    async with (
        running(Gateway(tmp_path / "gateway")) as gateway,
        FaultProxy(gateway.port, late_s_max=PATIENCE_S) as proxy,
    ):
        async with own_browser(playwright, tmp_path / "profile") as (context, pid):
            page = await tab_of(context, page_url, proxy.url)
            session = await queue(page, Fault.ANSWER_LATE, 1, 30)  # they are decided, and nobody hears of it
            await stored(gateway, Fault.ANSWER_LATE, 30)
            gateway.kill()
            await queue(page, "Seen", 31, 60)
            os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(gateway.start)
        async with own_browser(playwright, tmp_path / "profile") as (context, _):
            page = await tab_of(context, page_url, proxy.url)
            assert await queue(page, "Seen", 61, 70) != session
            assert await flushed(page)
            await stored(gateway, "Seen", 40)
            assert await watermark(gateway, page, session) == 60
        committed = read_sqlite(gateway.data)
        assert numbers(committed) == list(range(1, 71))
        assert sorted(assert_sessions_whole(committed).values()) == [10, 60]
        assert Fault.ANSWER_LATE in proxy.sent_again


async def test_a_session_whose_lease_is_over_goes_on_in_another(
    context: BrowserContext, page_url: str, tmp_path: Path
) -> None:
    async with running(Gateway(tmp_path / "gateway", {"GATEWAY_SESSION_LEASE": "1s"})) as gateway:
        page = await tab_of(context, page_url, gateway.url)
        first = await queue(page, "MemoryReservationMiddleware", 1, 10)
        assert await flushed(page)
        await asyncio.sleep(1.1)  # the lease itself
        assert await queue(page, "MemoryReservationMiddleware", 11, 20) == first
        assert await flushed(page)
        second = await queue(page, "MemoryReservationMiddleware", 21, 30)
        assert await flushed(page)
        committed = read_sqlite(gateway.data)
        assert numbers(committed) == list(range(1, 31))
        assert len(assert_sessions_whole(committed)) >= 2
        assert await page.evaluate("letters") == []
        assert second != first


async def test_a_rejected_event_is_a_dead_letter_and_a_refused_client_goes_on(
    gateway: Gateway, context: BrowserContext, page_url: str
) -> None:
    page = await tab_of(context, page_url, gateway.url, isWhole=True)
    bad = {"type": 5, "event": "Bad"}
    session = await queue(page, "Around", 1, 1)
    await page.evaluate("bad => client.send(bad)", bad)
    await queue(page, "Around", 2, 3)
    assert await flushed(page)
    assert numbers(stored_now(gateway, "Around")) == [1, 2, 3]
    (letter,) = await page.evaluate("letters")
    assert (letter["session"], letter["sequence"], letter["code"]) == (session, 2, "type_invalid")
    assert await page.evaluate("client.deadLetters()") == [letter]
    refusal = {"status": 401, "body": '{"code":"invalid_write_key","message":"unknown"}'}
    headers = {**CORS, "Access-Control-Expose-Headers": "Gateway-Request-Id", "Gateway-Request-Id": "r"}
    await page.route("**/v1/events*", lambda route: route.fulfill(**refusal, headers=headers))
    await queue(page, "Around", 4, 4)
    await page.wait_for_function("problems.length")
    assert await page.evaluate("[problems, client.waiting]") == [[f"401 {refusal['body']}"], 1]
    await page.unroute("**/v1/events*")
    assert await flushed(page)
    assert numbers(stored_now(gateway, "Around")) == [1, 2, 3, 4]


async def test_storage_that_is_deleted_or_upgraded_under_an_open_page_is_opened_again(
    gateway: Gateway, context: BrowserContext, page_url: str
) -> None:
    page = await tab_of(context, page_url, gateway.url)
    await queue(page, "Cleared", 1, 2)
    deleted = "new Promise((done, failed) => Object.assign(indexedDB.deleteDatabase('gateway'), \
        { onsuccess: () => done(true), onblocked: failed }))"
    assert await page.evaluate(deleted)
    await queue(page, "Cleared", 3, 4)
    assert await page.evaluate("client.isDurable")
    assert await flushed(page)
    assert numbers(stored_now(gateway, "Cleared")) == [1, 2, 3, 4]
    later = "new Promise((done, failed) => Object.assign(indexedDB.open('gateway', 2), \
        { onsuccess: () => done(true), onblocked: failed }))"
    assert await page.evaluate(later)
    await queue(page, "Cleared", 5, 6)
    assert not await page.evaluate("client.isDurable")
    await page.evaluate("client.flush(5000)")
    assert numbers(await stored(gateway, "Cleared", 6)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("missing", ["indexedDB", "localStorage", "sessionStorage", "AbortSignal.timeout"])
async def test_what_a_browser_lacks_stops_nothing(
    missing: str, gateway: Gateway, context: BrowserContext, page_url: str
) -> None:
    owner, _, name = f"window.{missing}".rpartition(".")
    refuse = "{ get() { throw new DOMException('denied', 'SecurityError'); } }"
    await context.add_init_script(f"Object.defineProperty({owner}, '{name}', {refuse})")
    page = await tab_of(context, page_url, gateway.url)
    await queue(page, missing, 1, 3)
    assert await flushed(page)
    assert numbers(stored_now(gateway, missing)) == [1, 2, 3]
    assert await page.evaluate("client.isDurable") is (missing != "indexedDB")
    assert bool(await page.evaluate("problems.length")) is (missing == "indexedDB")


async def test_a_sandboxed_frame_and_a_worker_deliver(
    gateway: Gateway, context: BrowserContext, page_url: str
) -> None:
    page = await context.new_page()
    await page.goto(page_url)
    run = """async (host) => {
        const source = await (await fetch("/clients/javascript/gateway-client.js")).text();
        const textOf = (name, tell) => `${source}
            const client = new Client(${JSON.stringify(host)}, "browser");
            await client.track("${name}", { n: 1 });
            ${tell}(["${name}", await client.flush(30000), client.isDurable], ...TARGET);`;
        const framed = new Promise((done) => addEventListener("message", ({ data }) => done(data)));
        const script = `const TARGET = ["*"];${textOf("Framed", "parent.postMessage")}`;
        const frame = { sandbox: "allow-scripts", srcdoc: `<script type="module">${script}<` + "/script>" };
        document.body.append(Object.assign(document.createElement("iframe"), frame));
        const text = `const TARGET = [];${textOf("Worked", "postMessage")}`;
        const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
        const worker = new Worker(url, { type: "module" });
        const worked = new Promise((done) => (worker.onmessage = ({ data }) => done(data)));
        return Promise.all([framed, worked]);
    }"""
    told = await page.evaluate(run, gateway.url)
    assert told == [["Framed", True, False], ["Worked", True, True]]
    for name in ("Framed", "Worked"):
        assert numbers(stored_now(gateway, name)) == [1]


async def test_without_locks_tabs_may_meet_in_a_queue_and_nothing_is_stored_twice(
    gateway: Gateway, context: BrowserContext, page_url: str
) -> None:
    await context.add_init_script("delete Navigator.prototype.locks")
    pages = [await tab_of(context, page_url, gateway.url) for _ in range(3)]
    for number, page in enumerate(pages):
        await queue(page, "Unlocked", 100 * number, 100 * number + 99)
    for number, page in enumerate(pages):
        await queue(page, "Unlocked", 300 + 10 * number, 309 + 10 * number)
        assert await flushed(page)
    committed = await stored(gateway, "Unlocked", 330)
    assert numbers(committed) == list(range(330))
    assert_sessions_whole(committed)


async def test_sessions_are_ksuids(context_page: Page) -> None:
    made = await context_page.evaluate("Array.from({ length: 50 }, module.ksuid)")
    assert len(set(made)) == 50
    assert all(map(is_ksuid, made))
