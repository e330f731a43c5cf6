"""
Claim: storage that is damaged, copied, full, cleared or of an earlier version, and a page with a policy and a
clock of its own neither stop the JavaScript client nor have an event lost or stored twice.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlencode

import orjson
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, sync_playwright

from tests.e2e.sdks.browser_sdks import CHROMIUM, PATIENCE_MS, pages_served
from tests.support.gateway import Gateway
from tests.support.processes import HOST, free_port
from tests.support.verdict import assert_sessions_whole, read_sqlite
from tests.support.waiting import until

POLL_INTERVAL_S = 0.05
A_DAY_LATER = "const now = Date.now; Date.now = () => now() + 86_400_000;"
FULL = """
    for (let size = 1 << 22; size; size >>= 1) {
      try {
        for (let n = 0; n < 9; n++) localStorage[`filler ${size} ${n}`] = "x".repeat(size);
      } catch {}
    }
"""
DENIED = """
    const denied = { get() { throw new DOMException("", "SecurityError"); } };
    Object.defineProperty(window, "localStorage", denied);
"""
LOAD_ANALYTICS = """async ([host, options]) => {
    const { Analytics } = await import("/clients/javascript/gateway-analytics.js");
    window.client = new Analytics(host, "browser", options);
    await client.clientId;
}"""


class Site:
    """Pages in a browser, and their gateway; each test names its events."""

    def __init__(self, browser: Browser, gateway: Gateway, url: str, name: str) -> None:
        self.browser = browser
        self.gateway = gateway
        self.url = url
        self.name = name
        self.down = f"http://{HOST}:{free_port()}"

    def tab(self, context: BrowserContext, host: str | None = None, *, whole: bool = False) -> Page:
        """Open a tab with a client: the core, or with `whole` all of it."""
        page = context.new_page()
        page.goto(f"{self.url}/page.html")
        page.evaluate("([host, isWhole]) => load(host, { isWhole })", [host or self.gateway.url, whole])
        return page

    def left(self, context: BrowserContext) -> None:
        """Leave a page in the tick in which its client is made and tracks."""
        page = context.new_page()
        asked = {"name": self.name, "n": 0, "last": 1, "ways": "first", "away": "about:blank"}
        page.goto(f"{self.url}/left.html?{urlencode(asked | {'host': self.gateway.url})}")
        page.wait_for_url("about:blank")
        page.close()

    def track(self, page: Page, *numbers: int) -> str:
        """Queue events in one session, and return it."""
        places = [page.evaluate("([name, n]) => client.track(name, { n })", [self.name, n]) for n in numbers]
        (session,) = {place["session"] for place in places}
        return str(session)

    def numbers(self) -> list[int]:
        """Return the numbers of what is stored, in order."""
        committed = read_sqlite(self.gateway.data)
        assert_sessions_whole(committed)
        events = [orjson.loads(record.value) for record in committed]
        found = Counter(event["properties"]["n"] for event in events if event.get("event") == self.name)
        return sorted(found.elements())

    def wait_until_stored(self, *numbers: int) -> None:
        until(lambda: len(self.numbers()) >= len(numbers), lambda: str(self.numbers()))
        assert self.numbers() == sorted(numbers)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, Gateway, str]]:
    with (
        Gateway(tmp_path_factory.mktemp("gateway")) as gateway,
        pages_served() as pages_url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=CHROMIUM, timeout=PATIENCE_MS
        )
        yield browser, gateway, f"{pages_url}/../../clients"
        browser.close()


@pytest.fixture
def site(shared: tuple[Browser, Gateway, str], request: pytest.FixtureRequest) -> Site:
    return Site(*shared, name=request.node.name)


@pytest.fixture
def context(site: Site) -> Iterator[BrowserContext]:
    context = site.browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    yield context
    context.close()


def flush(page: Page) -> bool:
    return bool(page.evaluate("client.flush(30000)"))


@pytest.mark.regression(
    "Damaged notes of a page stopped the JavaScript client, or kept it from writing anything."
)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gateway", "null"),
        ("gateway", '{"client"'),
        ("gateway", '{"client":5}'),
        ("gateway", '{"client":"a b"}'),
        ("gateway note x", "5"),
        ("gateway note x", "[5]"),
        ("gateway note x", '[["events'),
        ("gateway note x", '[["events",[{}],{}]]'),
        ("gateway note x", '[["sessions",null,null]]'),
        ("gateway note x", '[["receipts","a",1]]'),
    ],
)
def test_what_is_damaged_in_the_pages_storage_stops_nothing(
    key: str, value: str, site: Site, context: BrowserContext
) -> None:
    page = context.new_page()
    page.goto(f"{site.url}/page.html")
    page.evaluate("([key, value]) => (localStorage[key] = value)", [key, value])
    page.evaluate("host => load(host)", site.gateway.url)
    site.track(page, 1, 2)
    assert flush(page)
    assert page.evaluate("client.isDurable")
    assert page.evaluate("problems") == []
    assert page.evaluate('key => localStorage[key]?.startsWith(\'{"client":"\')', key) in {True, None}
    assert site.numbers() == [1, 2]


@pytest.mark.regression("Two copies of a browser profile gave the same number to two events.")
def test_a_profile_that_was_copied_and_restored_numbers_in_a_session_of_its_own(
    site: Site, context: BrowserContext
) -> None:
    page = site.tab(context, whole=True)
    first = site.track(page, 1)
    assert flush(page)
    site.track(page, 2)
    page.goto(f"{site.url}/page.html?left")
    kept = page.evaluate("({ ...sessionStorage })")
    assert any(value.startswith(first) for value in kept.values())
    restored = site.browser.new_context(storage_state=context.storage_state(indexed_db=True))
    restored.add_init_script(f"Object.assign(sessionStorage, {orjson.dumps(kept).decode()}); {A_DAY_LATER}")
    page.evaluate("host => load(host, { isWhole: true })", site.gateway.url)
    assert site.track(page, 3) == first
    copy = site.tab(restored, whole=True)
    assert site.track(copy, 4) != first
    assert copy.evaluate("client.clientId") == page.evaluate("client.clientId")
    assert flush(page)
    assert flush(copy)
    assert site.numbers() == [1, 2, 3, 4]
    restored.close()


def test_a_queue_of_the_first_version_is_delivered_once(site: Site, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{site.url}/page.html")
    session = page.evaluate("module.ksuid()")
    page.evaluate(
        """([session, event]) => new Promise((done) => {
            const opening = indexedDB.open("gateway", 1);
            opening.onupgradeneeded = () => {
                const db = opening.result;
                db.createObjectStore("installation").put("first-version", "client");
                db.createObjectStore("sessions", { keyPath: "session" })
                    .put({ session, last: 3, sentThrough: 2, doubtfulThrough: 0 });
                const events = db.createObjectStore("events", { keyPath: ["session", "sequence"] });
                for (const sequence of [1, 2, 3]) {
                    const told = { type: "track", event, anonymousId: "a", properties: { n: sequence } };
                    const content = JSON.stringify(told);
                    events.put({ session, sequence, content, hasId: false });
                }
                db.createObjectStore("deadLetters", { autoIncrement: true });
            };
            opening.onsuccess = () => done(opening.result.close());
        })""",
        [session, site.name],
    )
    page.evaluate("host => load(host, { isWhole: true })", site.gateway.url)
    assert page.evaluate("client.clientId") == "first-version"
    site.track(page, 4)
    assert flush(page)
    assert site.numbers() == [1, 2, 3, 4]
    assert page.evaluate("client.oldest") is None


@pytest.mark.regression("Traits that IndexedDB cannot clone kept all events from being written.")
def test_what_cannot_be_cloned_is_remembered_and_does_not_keep_events_from_being_written(
    site: Site, context: BrowserContext
) -> None:
    page = site.tab(context)
    page.evaluate(LOAD_ANALYTICS, [site.gateway.url, {"name": "cloned"}])
    page.evaluate("client.identify('u', new Proxy({ plan: 'pro', call: () => 1 }, {}))")
    site.track(page, 1)
    assert page.evaluate("client.isDurable")
    assert page.evaluate("client.user") == {"userId": "u", "traits": {"plan": "pro"}}
    assert flush(page)
    assert site.numbers() == [1]


@pytest.mark.regression("What an open tab queued after an opt-out in another was sent.")
def test_an_opt_out_holds_for_what_another_tab_queues_meanwhile(site: Site, context: BrowserContext) -> None:
    tabs = [context.new_page() for _ in range(3)]
    for page in tabs:
        page.goto(f"{site.url}/page.html")
    for page in tabs[:2]:
        page.evaluate(LOAD_ANALYTICS, [site.down, {}])
    site.track(tabs[0], 1)
    tabs[1].evaluate("client.optOut()")
    site.track(tabs[0], 2)
    tabs[0].close()
    tabs[2].evaluate(LOAD_ANALYTICS, [site.gateway.url, {}])
    assert tabs[2].evaluate("client.isOptedOut")
    assert flush(tabs[2])
    tabs[2].evaluate("client.optIn()")
    site.track(tabs[2], 3)
    assert flush(tabs[2])
    assert site.numbers() == [3]


@pytest.mark.regression("A page without localStorage lost what it tracked in its first tick.")
@pytest.mark.parametrize("script", [FULL, DENIED], ids=["full", "denied"])
def test_a_page_without_room_for_a_note_that_is_left_in_its_first_tick_sends(
    script: str, site: Site, context: BrowserContext
) -> None:
    context.add_init_script(f"if (location.protocol !== 'about:') {{ {script} }}")
    site.left(context)
    site.wait_until_stored(0)


def test_a_page_whose_own_requests_use_up_what_may_outlive_it_loses_nothing(
    site: Site, context: BrowserContext
) -> None:
    page = site.tab(context)
    context.route("**/sink", lambda route: None)
    page.evaluate(
        "fetch('/sink', { method: 'POST', keepalive: true, body: 'x'.repeat(65000) }).catch(() => {}), 0"
    )
    page.evaluate(f"addEventListener('pagehide', () => client.track('{site.name}', {{ n: 1 }}))")
    page.goto("about:blank")
    page = site.tab(context)
    assert flush(page)
    site.wait_until_stored(1)


def test_site_data_that_is_cleared_while_a_batch_is_sent_costs_nothing(
    site: Site, context: BrowserContext
) -> None:
    page = site.tab(context)
    held: list[Route] = []
    page.route("**/v1/events*", lambda route: route.continue_() if held else held.append(route))
    site.track(page, 1, 2)
    while not held:
        page.wait_for_timeout(POLL_INTERVAL_S * 1000)
    origin = page.evaluate("location.origin")
    context.new_cdp_session(page).send(
        "Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"}
    )
    site.track(page, 3)
    held[0].continue_()
    site.track(page, 4)
    assert flush(page)
    assert page.evaluate("client.isDurable")
    assert site.numbers() == [1, 2, 3, 4]


def test_a_client_that_is_closed_and_made_again_at_once_delivers_what_the_first_left(
    site: Site, context: BrowserContext
) -> None:
    page = site.tab(context, site.down)
    for n in range(10):
        page.evaluate(
            """async ([host, name, n]) => {
                const tracked = client.track(name, { n });
                const closed = client.close();
                open_(host);
                client.track(name, { n: n + 100 });
                await Promise.all([tracked, closed]);
            }""",
            [site.down if n < 9 else site.gateway.url, site.name, n],
        )
    assert flush(page)
    site.wait_until_stored(*range(10), *range(100, 110))


def test_a_clock_that_jumps_neither_stops_nor_silences_anything(site: Site, context: BrowserContext) -> None:
    page = site.tab(context)
    for n, at in enumerate(["Date.UTC(2096, 1)", "0", "-1e12", "Date.UTC(2026, 1)"]):
        page.evaluate(f"Date.now = () => {at}; open_('{site.gateway.url}')")
        site.track(page, n)
        assert flush(page)
    assert site.numbers() == [0, 1, 2, 3]


def test_a_policy_that_forbids_the_gateway_is_told(site: Site, context: BrowserContext) -> None:
    policy = "<meta http-equiv='Content-Security-Policy' content=\"connect-src 'self'\">"

    def with_policy(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace("<title>", f"{policy}<title>"))

    context.route("**/page.html", with_policy)
    page = site.tab(context)
    site.track(page, 1)
    page.wait_for_function("problems.length")
    assert page.evaluate("[client.isDurable, client.waiting]") == [True, 1]
    page.close()
    context.unroute("**/page.html")
    page = site.tab(context)
    assert flush(page)
    site.wait_until_stored(1)


def test_a_service_worker_delivers(site: Site, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{site.url}/page.html")
    told = page.evaluate(
        """async (told) => {
            await navigator.serviceWorker.register("service_worker.js", { type: "module" });
            const { active } = await navigator.serviceWorker.ready;
            const { port1, port2 } = new MessageChannel();
            const answered = new Promise((done) => (port1.onmessage = ({ data }) => done(data)));
            active.postMessage(told, [port2]);
            return answered;
        }""",
        [site.gateway.url, site.name],
    )
    assert told == [True, True]
    assert site.numbers() == [1]


def test_of_tabs_of_which_one_is_killed_while_it_sends_all_is_stored_once(
    site: Site, context: BrowserContext
) -> None:
    tabs = [site.tab(context) for _ in range(3)]
    held: list[Route] = []

    def answer_later(route: Route) -> None:
        route.fetch()  # it is stored, and the tab does not hear of it
        held.append(route)

    tabs[0].route("**/v1/events*", answer_later)
    for n in range(30):
        tabs[n % 3].evaluate("([name, n]) => void client.track(name, { n })", [site.name, n])
    while not held:
        tabs[0].wait_for_timeout(POLL_INTERVAL_S * 1000)
    tabs[0].close(run_before_unload=False)
    assert flush(tabs[1])
    assert flush(tabs[2])
    site.wait_until_stored(*range(30))
    assert all(flush(page) for page in tabs[1:])


def test_two_clients_of_a_page_and_an_event_too_large_to_outlive_it_lose_nothing(
    site: Site, context: BrowserContext
) -> None:
    page = site.tab(context, site.down)
    page.evaluate(
        """([host, name]) => {
            const first = client;
            open_(host);
            addEventListener("pagehide", () => {
                first.track(name, { n: 1, text: "x".repeat(300_000) });
                first.track(name, { n: 2 });
                client.track(name, { n: 3, text: "x".repeat(300_000) });
                client.track(name, { n: 4 });
            });
        }""",
        [site.down, site.name],
    )
    page.goto("about:blank")
    page = site.tab(context)
    assert flush(page)
    site.wait_until_stored(1, 2, 3, 4)
