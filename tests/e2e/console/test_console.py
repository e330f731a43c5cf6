"""Claim: an operator sees in the console what is decided, what is wrong, and whether an event arrived."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.console import states
from tests.e2e.console.conftest import WAIT_MS, Open
from tests.support.documents import ROOT
from tests.support.gateway import Gateway
from tests.support.http import AUTH, new_event, post, stored
from tests.support.prefix_proxy import below
from tests.support.waiting import PATIENCE_S, until

expect.set_options(timeout=WAIT_MS)

TOKEN = "a token of an operator"
READ_TOKEN = "a token of who looks on"
PHONE = {"width": 390, "height": 844}

HOSTILE = [
    '<img src=x onerror="window.pwned=1">',
    "</td></tr></table><script>window.pwned=1</script>",
    "javascript:window.pwned=1",
    "\u202eevil\u202c\u0007\u0000{{7*7}}${7*7}",
    "x" * 255,
]

CONTRAST = """() => {
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0);
  const groundOf = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour;
    }
  };
  const bad = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest("svg, noscript, .toast")) continue;
    const lights = [light(parse(getComputedStyle(node).color)), light(groundOf(node))];
    const ratio = (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05);
    if (ratio < 4.5) bad.push(`${texts.currentNode.data}: ${ratio.toFixed(2)}`);
  }
  return bad;
}"""

NAMELESS = """() => [...document.querySelectorAll("button, input, dialog, [role]:not(.toast)")]
  .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length
    || document.getElementById(node.getAttribute("aria-labelledby"))))
  .map((node) => node.outerHTML)"""


CUT = "all => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway whose admin port has tokens."""
    tokens = {"GATEWAY_ADMIN_TOKEN": TOKEN, "GATEWAY_ADMIN_READ_TOKEN": READ_TOKEN}
    settings = {"GATEWAY_PARTITIONS": "1"} | tokens
    with Gateway(tmp_path_factory.mktemp("locked"), settings) as running:
        yield running


def state_of(page: Page) -> Any:
    return page.get_by_role("status", name="State of the gateway")


def row(page: Page, text: str) -> Any:
    return page.locator("#tail-rows tr", has_text=text)


def fits(page: Page, width: float) -> None:
    """Wait until nothing is wider: a chart is drawn anew after the window has its new size."""
    until(lambda: page.evaluate("document.documentElement.scrollWidth") <= width)


def test_what_is_decided_is_seen(client: httpx.Client, gateway: Gateway, open_page: Open) -> None:
    page = open_page(gateway.admin_url)
    expect(state_of(page)).to_have_text("All 8 partitions serve.")
    expect(page.locator("#tail-note")).to_contain_text("live")
    event = new_event()
    for sent in (event, event, event | {"event": "Changed"}):
        post(client, "/v1/events", [sent])
    for verdict in ("accepted", "duplicate", "conflict"):
        expect(row(page, event["messageId"]).filter(has_text=verdict)).to_have_count(1)
    kept = page.locator("#apart li", has_text=event["messageId"])
    expect(kept).to_contain_text("another event with this messageId was accepted before")
    expect(kept).to_contain_text("Differs in: event")
    figures = page.locator("#figures .figure")
    expect(figures.filter(has_text="Quarantined")).to_contain_text("of them conflicts")
    expect(figures.filter(has_text="Shortest window")).to_contain_text("7 d")
    expect(page.locator("#throughput path.edge.accepted")).not_to_have_count(0)
    kept.get_by_role("button", name="Look up the original").click()
    expect(page.locator("#found .answer")).to_have_text("It arrived.")
    expect(page.locator("#lookup [name=id]")).to_have_value(event["messageId"])


def test_refused_requests_are_seen_whatever_is_known_of_them(tmp_path: Path, open_page: Open) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {key: k, source: shop, quotas: {requests: 1, burst: 1s}}\n")
    settings = {"GATEWAY_PARTITIONS": "1", "GATEWAY_WRITE_KEYS_FILE": str(keys)}
    with Gateway(tmp_path / "gateway", settings) as gateway:
        page = open_page(gateway.admin_url)
        figure = page.locator("#figures .figure").filter(has_text="Refused or unknown")
        expect(figure.locator(".value")).to_have_text("0")
        expect(page.locator("#refused-card")).to_be_hidden()
        with httpx.Client(base_url=gateway.url) as client:
            statuses = [
                client.post("/v1/events", auth=("k", ""), json=[new_event()]).status_code for _ in range(4)
            ]
            client.post("/v1/events", auth=("unknown", ""), json=[new_event()])
            client.post("/v1/batch", content=b"{", headers={"User-Agent": "analytics-kotlin/1.16.0"})
        refused = statuses.count(429) + 2
        expect(figure.locator(".value")).to_have_text(str(refused))
        expect(figure).to_contain_text(f"{refused} are whole requests")
        rows = page.locator("#refused-rows tr")
        expect(rows.filter(has_text="shop")).to_contain_text(f"quota_exceeded {statuses.count(429)}")
        expect(rows.filter(has_text="not known yet")).to_contain_text("invalid_write_key 1")
        expect(rows.filter(has_text="not known yet")).to_contain_text("analytics-kotlin 1")
        history = f"{gateway.admin_url}/admin/v1/history"
        until(lambda: sum(httpx.get(history).json()["refused_requests"]) == refused)


def test_sources_tell_what_they_send(tmp_path: Path, open_page: Open) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {key: k, source: shop, quotas: {events: 1}}\n- {key: quiet-key, source: quiet}\n")
    settings = {"GATEWAY_PARTITIONS": "1", "GATEWAY_WRITE_KEYS_FILE": str(keys)}
    with Gateway(tmp_path / "gateway", settings) as gateway:
        page = open_page(gateway.admin_url)
        rows = page.locator("#sources-rows tr")
        expect(rows).to_have_count(2)
        event = new_event()
        with httpx.Client(base_url=gateway.url, auth=("k", "")) as client:
            sent = [event, event, event | {"event": "Changed"}]
            client.post("/v1/events", json=sent, headers={"User-Agent": "analytics-node/3.1.0"})
            client.post("/v1/events", json=[new_event() for _ in range(30)])
            client.post("/v1/events", json=event)
        shop = rows.filter(has_text="shop")
        expect(shop.locator("td").nth(3)).to_have_attribute("title", "same_request 1, other 1")
        expect(shop.locator("td").nth(4)).to_have_attribute("title", "conflict 1")
        expect(shop).to_contain_text("analytics-node 3.1.0 1")
        expect(shop.locator("td").nth(5)).to_have_attribute("title", "quota_exceeded 1")
        expect(shop).to_contain_text("% events")
        expect(page.locator("#sources-note")).to_contain_text("since ")
        page.get_by_role("button", name="Since the start").click()
        expect(page.get_by_role("button", name="Today")).to_be_visible()
        expect(shop.locator("td").nth(3)).to_have_text("2")
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        fits(page, PHONE["width"])


def test_inputs_are_shown_by_partition_and_why_one_is_stopped(gateway: Gateway, open_page: Open) -> None:
    reason = "topic raw was made anew"
    stats = states.with_inputs(gateway.stats(), reason)
    page = open_page(gateway.admin_url, before=lambda page: states.answer(page, "admin/v1/stats", stats))
    rows = page.locator("#inputs-rows tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("raw/3")
    assert rows.nth(1).locator("td").all_inner_texts()[2:] == ["1,490", "13", "7", "2", "2"]
    expect(rows.nth(2)).to_have_attribute("title", reason)
    expect(rows.nth(2)).to_contain_text("stopped")
    expect(state_of(page)).to_contain_text(f"Input old is stopped: {reason}.")
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    fits(page, PHONE["width"])


def test_without_an_input_there_is_no_card(gateway: Gateway, open_page: Open) -> None:
    page = open_page(gateway.admin_url)
    expect(state_of(page)).to_have_text("All 8 partitions serve.")
    expect(page.locator("#inputs-card")).to_be_hidden()


def test_the_tail_pauses_and_filters(client: httpx.Client, gateway: Gateway, open_page: Open) -> None:
    page = open_page(gateway.admin_url)
    note = page.locator("#tail-note")
    page.locator("#tail-verdicts").get_by_text("accepted").click()
    expect(note).to_contain_text("live")
    with page.expect_request("**/tail/values?*id=*") as asked:
        page.locator("#tail-filter [name=id]").fill("wanted")
    assert "verdict=duplicate%2Cconflict" in asked.value.url
    expect(note).to_contain_text("live")
    post(client, "/v1/events", [new_event(messageId="wanted"), new_event()])
    post(client, "/v1/events", [new_event(messageId="wanted", userId="other")])
    expect(row(page, "wanted")).to_have_count(1)
    expect(row(page, "wanted")).to_contain_text("conflict")
    page.get_by_role("button", name="Pause").click()
    expect(note).to_have_text("paused")
    expect(page.locator("#tail-rows tr")).to_have_count(1)
    page.get_by_role("button", name="Go on").click()
    expect(note).to_contain_text("live")


def test_events_are_text_whatever_they_say(gateway: Gateway, open_page: Open) -> None:
    page = open_page(gateway.admin_url)
    expect(page.locator("#tail-note")).to_contain_text("live")
    with httpx.Client(base_url=gateway.url, auth=(HOSTILE[0], "")) as client:
        for text in HOSTILE:
            event = {"messageId": text, "type": "track", "event": text, "properties": {text: text}}
            post(client, "/v1/events", [event])
            answer = post(client, "/v1/events", [event | {"event": f"{text}!"}])
            assert answer.json()["rejected"][0]["code"] == "conflict"
    titles = page.locator("#tail-rows button.id")
    until(lambda: set(HOSTILE) <= set(titles.evaluate_all("all => all.map((one) => one.title)")))
    codes = page.locator("#apart code")
    until(lambda: set(HOSTILE) <= set(codes.all_text_contents()))
    page.locator("#apart li", has_text=HOSTILE[0]).last.get_by_role("button", name="Look up").click()
    expect(page.locator("#found .answer")).to_have_text("It arrived.")
    page.locator("#found summary").click()
    expect(page.locator("#found pre")).to_contain_text(json.dumps(HOSTILE[0]))
    assert page.evaluate("[window.pwned, document.images.length, document.scripts.length]") == [None, 1, 1]
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_the_tail_begins_once_the_mode_is_known(
    client: httpx.Client, gateway: Gateway, open_page: Open
) -> None:
    """It began twice, and lost the rows between."""
    held: list[Route] = []
    asked: list[str] = []

    def prepare(page: Page) -> None:
        page.route("**/admin/v1/stats", lambda route: held.append(route), times=1)  # noqa: PLW0108
        page.on("request", lambda request: asked.append(request.url) if "v1/tail" in request.url else None)

    page = open_page(gateway.admin_url, before=prepare)
    with page.expect_response("**/admin/v1/history"):
        pass
    until(lambda: page.title() and held)  # a question has what the browser says taken in
    held[0].continue_()
    expect(page.locator("#tail-note")).to_contain_text("live")
    event = new_event()
    post(client, "/v1/events", [event])
    expect(row(page, event["messageId"])).to_have_count(1)
    assert [url.partition("/tail")[2] for url in asked if "apart" not in url] == ["/values"]


def test_restoring_partitions_show_how_far_they_are(gateway: Gateway, open_page: Open) -> None:
    stats = states.changed(gateway.stats(), {1: states.restoring(1000, 250), 2: states.restoring(1000, 750)})

    def before(page: Page) -> None:
        states.answer(page, "admin/v1/stats", stats)

    page = open_page(gateway.admin_url, before=before, view="#partitions")
    expect(state_of(page)).to_have_text("2 of 8 partitions restore: 50 % done.")
    button = page.get_by_role("button", name="Partition 1, 75 %")
    expect(button.locator(".bar span")).to_have_attribute("style", "width: 75%;")
    button.click()
    expect(page.locator("#partition")).to_contain_text("250 records")
    states.answer(page, "admin/v1/stats", states.changed(stats, {2: states.restoring(1000, 250)}))
    expect(state_of(page)).to_contain_text("75 % done, about")
    restore = {"restore": {"progress": 0.4, "remaining_seconds": 95.0}}
    both = {number: states.restoring(1000, 600) | restore for number in (1, 2)}
    states.answer(page, "admin/v1/stats", states.changed(stats, both))
    expect(state_of(page)).to_have_text("2 of 8 partitions restore: 40 % done, about 1.6 min left.")


def test_a_topic_that_is_being_divided_and_what_partitions_inherit_are_shown(
    gateway: Gateway, open_page: Open
) -> None:
    stats = gateway.stats()
    line = [
        {"partition": 0, "start_offset": 0, "end_offset": 1234},
        {"partition": 2, "start_offset": 5, "end_offset": 99},
    ]
    heir = {"slots": 256, "inherits": line, "inherited_lag": 750}
    stats["reshard"] |= {"plan": 1}
    resting = {"slots": 0, "inherits": [], "inherited_lag": None}
    reading = states.changed(stats, {4: states.restoring(1000, 750) | heir, 5: resting})

    def before(page: Page) -> None:
        states.answer(page, "admin/v1/stats", reading)

    page = open_page(gateway.admin_url, before=before, view="#partitions")
    expect(state_of(page)).to_have_text("1 of 8 partitions read what they inherit: 25 % done.")
    page.get_by_role("button", name="Partition 4, 25 %").click()
    facts = page.locator("#partition")
    expect(facts).to_contain_text("256 of 4,096")
    expect(facts).to_contain_text("partition 0 below 1,234, partition 2 from 5 below 99")
    expect(facts).to_contain_text("750 records")
    page.get_by_role("button", name="Partition 5").click()
    expect(facts).to_contain_text("none: it rests")
    preparing = [{"partition": 8, "lag": 1200}, {"partition": 9, "lag": None}]
    states.answer(page, "admin/v1/stats", stats | {"reshard": stats["reshard"] | {"preparing": preparing}})
    expect(state_of(page)).to_have_text(
        "The topic will be divided: this worker prepares 2 new partitions; the last one has 1,200 records to "
        "read."
    )
    waiting = stats["reshard"] | {"waiting_seconds": 3.2}
    states.answer(page, "admin/v1/stats", stats | {"reshard": waiting})
    expect(state_of(page)).to_have_text("The topic is being divided: requests have waited for 3 s.")
    expect(state_of(page)).to_have_attribute("data-level", "warn")
    waiting = stats["reshard"] | {"waiting_seconds": 12.0}
    states.answer(page, "admin/v1/stats", stats | {"reshard": waiting})
    expect(state_of(page)).to_have_attribute("data-level", "bad")


def test_a_log_that_is_down_a_full_disk_and_a_short_window_are_told_first(
    gateway: Gateway, open_page: Open
) -> None:
    stats = gateway.stats()
    since = datetime.now(UTC) - timedelta(minutes=4)
    outage = (
        f"no partition serves; the first has not been available since {since:%Y-%m-%dT%H:%M:%SZ}: it is down"
    )
    error = "RetriableError: no broker answers <b>at</b> 10.0.0.7:9092"
    down = states.changed(stats, {number: states.failed(error) for number in range(8)}) | {
        "outage": outage,
        "log": "kafka",
    }
    brokers = {"settings": [{"variable": "GATEWAY_KAFKA_BOOTSTRAP_SERVERS", "value": "kafka-0:9092"}]}

    def before(page: Page) -> None:
        states.answer(page, "admin/v1/stats", down)
        states.answer(page, "admin/v1/config", brokers)

    page = open_page(
        gateway.admin_url, before=before, view="#partitions", timezone_id="Asia/Tokyo", locale="en-GB"
    )
    local = f"{since.astimezone(ZoneInfo('Asia/Tokyo')):%H:%M:%S}"
    expect(state_of(page)).to_contain_text(re.compile(f"not been available since .*{local}: it is down."))
    facts = state_of(page).locator(".outage")
    expect(facts).to_contain_text(f"{error} (8 of 8 partitions)")
    expect(facts).to_contain_text(re.compile(f"Since.*{local}, for 4 min|Since.*{local}, for 4\\.\\d min"))
    expect(facts).to_contain_text("Kafka at kafka-0:9092")
    expect(page.locator("#foot")).to_contain_text("times in Asia/Tokyo")
    link = state_of(page).get_by_role("link", name="runbook log-down")
    address = link.get_attribute("href")
    assert address == f"{gateway.admin_url}/runbooks/log-down"
    assert httpx.get(address).text == (ROOT / "docs/runbooks/log-down.md").read_text(encoding="utf-8")
    assert httpx.get(f"{gateway.admin_url}/runbooks/unheard-of").status_code == 404
    expect(state_of(page)).to_have_attribute("data-level", "bad")
    page.get_by_role("button", name="Partition 7, failed").click()
    expect(page.locator("#partition .error")).to_have_text(error)

    full = stats["disk"] | {"has_room": False, "free_bytes": 2**29}
    short = states.changed(stats, {3: {"window_seconds": 39_600.0}}) | {"disk": full}
    states.answer(page, "admin/v1/stats", short)
    expect(state_of(page)).to_contain_text("512 MiB of disk are free")
    expect(state_of(page)).to_contain_text("Partition 3 remembers ids for 11 h: less than a day.")
    expect(page.get_by_role("button", name="Partition 3,")).to_have_attribute("data-level", "short")
    assert page.title().startswith("✕ ")


def event_row(page: Page, text: str) -> Any:
    return page.locator("#events-rows tr:not(.opened)", has_text=text)


def opened(row: Any) -> Any:
    """Open a row of the events and return what it says."""
    row.get_by_role("button").click()
    return row.locator("xpath=following-sibling::tr[1]")


def test_events_open_to_all_that_is_known_of_them(gateway: Gateway, open_page: Open) -> None:
    page = open_page(gateway.admin_url)
    bought = new_event(messageId="order-1", userId="ada", event="Bought", properties={"total": 3})
    odd = {"type": "track", "event": "Bought", "timestamp": "yesterday", "properties": {"total": "three"}}
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        for event in (bought, bought, bought | {"properties": {"total": 4}}, odd | {"messageId": "odd-1"}):
            post(client, "/v1/events", [event])
    rows = event_row(page, "order-1")
    expect(rows).to_have_count(3)
    expect(page.locator("#events-note")).to_contain_text("of at most 10,000 that this worker holds in memory")
    told = opened(rows.filter(has_text="accepted"))
    expect(told.locator("pre")).to_contain_text('"total": 3')
    expect(told).to_contain_text('Receipt: {"messageId":"order-1","partition":')
    expect(told).to_contain_text(re.compile("Its id came also: .*duplicate.*conflict"))
    told = opened(rows.filter(has_text="duplicate"))
    expect(told).to_contain_text(re.compile(r"Stored once; the original is at \d:\d+, from \d\d:\d\d:\d\d\."))
    expect(opened(rows.filter(has_text="conflict"))).to_contain_text("Differs in: properties")
    strange = event_row(page, "odd-1")
    expect(strange.locator(".warning")).to_have_text(["no user", "odd timestamp"])
    told = opened(strange)
    expect(told).to_contain_text("It has neither userId nor anonymousId")
    expect(told).to_contain_text("properties.total is a text; it was a number in the event before.")
    page.locator("#events-filter [name=user]").fill("ada")
    expect(strange).to_have_count(0)
    expect(event_row(page, "order-1")).to_have_count(3)
    page.locator("#events-filter [name=event]").fill("Left")
    expect(page.locator("#events-rows tr")).to_have_count(0)
    for width, height in ((390, 844), (820, 1180)):
        page.set_viewport_size({"width": width, "height": height})
        page.locator("#events-filter [name=event]").fill("Bought")
        expect(event_row(page, "conflict")).to_have_count(1)
        opened(event_row(page, "conflict"))
        fits(page, width)
        page.locator("#events-filter [name=event]").fill("Left")
        expect(page.locator("#events-rows tr")).to_have_count(0)


def test_values_of_events_are_hidden_until_the_full_token_asks(locked: Gateway, open_page: Open) -> None:
    def with_token(token: str) -> Page:
        script = f"sessionStorage.setItem('gateway-admin-token', '{token}')"
        return open_page(locked.admin_url, before=lambda page: page.add_init_script(script))

    page = with_token(TOKEN)
    with httpx.Client(base_url=locked.url, auth=AUTH) as client:
        post(client, "/v1/events", [new_event(event="Masked", properties={"secret": "word"})])
    told = opened(event_row(page, "Masked"))
    expect(told.locator("pre")).to_contain_text('"secret": "•••"')
    noted = "action='GET /admin/v1/events/{number}'"
    assert noted not in locked.log_path.read_text()
    told.get_by_role("button", name="Show values").click()
    expect(told.locator("pre")).to_contain_text('"secret": "word"')
    until(lambda: noted in locked.log_path.read_text())
    page = with_token(READ_TOKEN)
    expect(page.locator("#events-note")).to_contain_text("Events need the full token")


def test_charts_fit_what_there_is(gateway: Gateway, open_page: Open) -> None:
    now_ms = round(time.time() * 1000)
    hour = states.history(now_ms, down_steps=2)
    columns = [name for name, values in hour.items() if isinstance(values, list)]
    young = hour | {name: hour[name][-40:] for name in columns}
    page = open_page(gateway.admin_url, before=lambda page: states.answer(page, "admin/v1/history", young))
    chart = page.locator("#throughput svg")
    expect(chart).to_have_attribute(
        "aria-label", re.compile(r"^Events a second, last 10 minutes: now 0 a second")
    )
    box = page.locator("#throughput path.edge.accepted").bounding_box()
    assert box is not None
    assert box["width"] > 300  # of the half of the page that a chart has


def test_write_keys_that_vanished_or_are_unknown_are_told(gateway: Gateway, open_page: Open) -> None:
    now_ms = round(time.time() * 1000)
    page = open_page(
        gateway.admin_url,
        before=lambda page: states.answer(
            page, "admin/v1/stats", gateway.stats() | {"write_keys": states.lost_keys(now_ms)}
        ),
    )
    expect(state_of(page)).to_contain_text("Write keys of app, <b>shop</b> have vanished from the file")
    expect(state_of(page)).to_contain_text("they work for 2 h more, and then events are lost.")
    expect(state_of(page)).to_contain_text(
        "mostly one that begins with “old-”, from 192.0.2.1 (analytics-swift)."
    )
    expect(state_of(page)).to_have_attribute("data-level", "warn")


def test_a_group_is_shown_with_its_owners_and_who_is_silent(gateway: Gateway, open_page: Open) -> None:
    stats, group = states.in_group(gateway.stats(), ["a", "b"], {"c": "it is gone"})

    def before(page: Page) -> None:
        states.answer(page, "admin/v1/stats", stats)
        states.answer(page, "admin/v1/group", group)

    page = open_page(gateway.admin_url, before=before, view="#partitions")
    expect(state_of(page)).to_have_text("Worker c does not answer: it is gone.")
    expect(page.get_by_role("button", name="Partition 1, remembers 7 d, owner b, standby a")).to_be_visible()
    expect(page.locator(".facts")).to_contain_text("2 of 3 workers answer")
    expect(page.locator(".foot")).to_contain_text("asked: a")

    states.answer(
        page, "admin/v1/group", group | {"broken": ["a -> c: its certificate is not accepted: expired"]}
    )
    expect(state_of(page)).to_contain_text(
        "Worker a does not reach c: its certificate is not accepted: expired."
    )


def test_an_empty_gateway_says_so_and_a_dead_one_too(folder: Path, open_page: Open) -> None:
    with Gateway(folder, {"GATEWAY_PARTITIONS": "2"}) as own:
        page = open_page(own.admin_url)
        expect(state_of(page)).to_have_text("All 2 partitions serve.")
        expect(page.locator("#apart")).to_contain_text("Nothing was rejected")
        expect(page.locator("#tail-rows tr")).to_have_count(0)
        nothing = re.compile("nothing yet|now 0 a second")
        expect(page.locator("#throughput svg")).to_have_attribute("aria-label", nothing)
        own.kill()
        expect(state_of(page)).to_contain_text("No answer since")
        expect(page.locator("#tail-note")).to_contain_text("trying again")
        own.start()
        expect(state_of(page)).to_have_text("All 2 partitions serve.")
        expect(page.locator("#tail-note")).to_contain_text("live")


def test_64_partitions_fit_a_phone(gateway: Gateway, open_page: Open) -> None:
    stats = states.with_partitions(gateway.stats(), 64)
    changes = {5: states.restoring(10, 5), 9: {"window_seconds": 3600.0}, 11: {"window_seconds": 100_000.0}}
    stats, group = states.in_group(states.changed(stats, changes), ["gateway-0." + "x" * 60, "gateway-1"], {})

    def before(page: Page) -> None:
        states.answer(page, "admin/v1/stats", stats)
        states.answer(page, "admin/v1/group", group)

    page = open_page(gateway.admin_url, before=before, view="#partitions", viewport=PHONE, has_touch=True)
    expect(page.locator(".partition")).to_have_count(64)
    fits(page, PHONE["width"])
    page.get_by_role("button", name="Partition 9,").tap()
    expect(page.locator("#partition")).to_contain_text("1 h")
    assert page.locator(".partition .window").evaluate_all(CUT) == []
    assert page.locator("#partitions").bounding_box()["height"] < PHONE["height"]  # type: ignore[index]
    fits(page, PHONE["width"])


def test_a_keyboard_is_enough(client: httpx.Client, gateway: Gateway, open_page: Open) -> None:
    event = new_event()
    post(client, "/v1/events", [event])
    page = open_page(gateway.admin_url)
    expect(state_of(page)).to_have_text("All 8 partitions serve.")
    keys = page.keyboard
    keys.press("Tab")
    expect(page.get_by_role("link", name="Skip to the events")).to_be_focused()
    keys.press("Enter")
    expect(page.get_by_role("tab", name="Events")).to_be_focused()
    keys.press("ArrowRight")
    keys.press("Tab")
    expect(page.get_by_role("button", name="Partition 0,")).to_be_focused()
    keys.press("ArrowRight")
    keys.press("ArrowRight")
    keys.press("Enter")
    expect(page.get_by_role("heading", name="Partition 2")).to_be_visible()
    keys.press("Escape")
    expect(page.locator("#partition")).to_be_hidden()
    keys.press("Shift+Tab")
    keys.press("ArrowLeft")
    expect(page.get_by_role("tab", name="Events")).to_be_focused()
    expect(page.locator("#partitions")).to_be_hidden()
    page.locator("#lookup-curl").focus()
    keys.press("Tab")
    keys.press("Tab")
    keys.type("web")
    keys.press("Tab")
    keys.type(event["messageId"])
    keys.press("Enter")
    expect(page.locator("#found .answer")).to_have_text("It arrived.")
    page.locator("#throughput svg").focus()
    keys.press("ArrowLeft")
    expect(page.locator("#throughput .readout")).to_contain_text(":")
    page.get_by_role("button", name="Pause").focus()
    keys.press("Space")
    expect(page.locator("#tail-note")).to_have_text("paused")
    assert page.evaluate(NAMELESS) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_written_can_be_read(
    scheme: Any, client: httpx.Client, gateway: Gateway, open_page: Open
) -> None:
    stats = gateway.stats()
    short = states.changed(stats, {0: {"window_seconds": 4000.0}, 1: states.failed("Error: no")})
    page = open_page(
        gateway.admin_url,
        before=lambda page: states.answer(page, "admin/v1/stats", short),
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    expect(state_of(page)).to_contain_text("Partition 1 failed")
    expect(page.locator("#tail-note")).to_contain_text("live")
    event = new_event()
    for sent in (event, event | {"event": "Other"}, 5):
        post(client, "/v1/events", [sent])
    expect(page.locator("#tail-rows tr")).to_have_count(3)
    expect(page.locator("#apart li", has_text=event["messageId"])).to_be_visible()
    assert page.evaluate(CONTRAST) == []


def test_colours_are_the_operators_choice(gateway: Gateway, open_page: Open) -> None:
    page = open_page(gateway.admin_url, color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Colours: as the system").click()
    assert page.evaluate(ground) == light
    page.get_by_role("button", name="Colours: light").click()
    assert page.evaluate(ground) != light
    page.reload()
    expect(page.get_by_role("button", name="Colours: dark")).to_be_visible()


def test_a_token_is_asked_for_kept_in_the_tab_and_never_copied(locked: Gateway, open_page: Open) -> None:
    page = open_page(locked.admin_url)
    field = page.get_by_role("dialog").get_by_label("Token")
    field.fill("another token, long enough")
    field.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("not (or no longer) the gateway's")
    field.fill(TOKEN)
    field.press("Enter")
    expect(state_of(page)).to_have_text("The partition serves.")
    expect(page.locator("#tail-note")).to_contain_text("live")
    page.reload()
    expect(state_of(page)).to_have_text("The partition serves.")
    assert page.evaluate("[localStorage.length, document.cookie]") == [1, ""]
    command = _copied(page, "#tail-curl")
    assert TOKEN not in command
    assert '-H "Authorization: Bearer $GATEWAY_ADMIN_TOKEN"' in command
    page.get_by_role("button", name="Forget token").click()
    expect(page.get_by_role("dialog")).to_be_visible()


def test_a_late_refusal_of_an_earlier_token_asks_for_none(locked: Gateway, open_page: Open) -> None:
    held: list[Route] = []

    def hold_the_first(route: Route) -> None:
        held.append(route)
        if len(held) > 1:
            route.continue_()

    def prepare(page: Page) -> None:
        page.route("**/admin/v1/history", hold_the_first)

    page = open_page(locked.admin_url, before=prepare)
    page.get_by_role("dialog").get_by_label("Token").fill(TOKEN)
    page.get_by_role("dialog").get_by_label("Token").press("Enter")
    expect(state_of(page)).to_have_text("The partition serves.")
    with page.expect_response(lambda answer: answer.url.endswith("/admin/v1/history") and answer.ok):
        held[0].fulfill(status=401, json={})

    expect(page.locator("#tail-note")).to_contain_text("live")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_what_is_copied_is_a_command_that_asks_the_same(
    client: httpx.Client, gateway: Gateway, open_page: Open
) -> None:
    event = new_event(messageId='it\'s $(id) & "more"')
    post(client, "/v1/events", [event])
    page = open_page(gateway.admin_url)
    form = page.locator("#lookup")
    form.locator("[name=source]").fill("web")
    form.locator("[name=id]").fill(event["messageId"])
    command = _copied(page, "#lookup-curl")
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=True, timeout=PATIENCE_S)
    assert json.loads(done.stdout)["message_id"] == event["messageId"]
    assert json.loads(done.stdout)["seen"] is True


def _copied(page: Page, button: str) -> str:
    page.locator(button).click()
    expect(page.locator("#toast")).to_have_text("Command copied")
    command = page.evaluate("navigator.clipboard.readText()")
    assert isinstance(command, str)
    return command


def test_an_event_of_a_client_session_is_found(
    client: httpx.Client, gateway: Gateway, open_page: Open
) -> None:
    session = client.post("/v1/sessions", headers={"Gateway-Client": "phone"}).json()["session"]
    headers = {"Gateway-Client": "phone", "Gateway-Session": session}
    post(client, "/v1/events", [new_event(sequence=1)], **headers)
    page = open_page(gateway.admin_url)
    page.get_by_label("Client session").check()
    for name, value in (("Source", "web"), ("Client", "phone"), ("Session", session), ("Sequence", "1")):
        page.locator("#lookup").get_by_label(name, exact=True).fill(value)
    page.get_by_role("button", name="Look up", exact=True).click()
    expect(page.locator("#found .answer")).to_have_text("It arrived.")
    page.locator("#lookup").get_by_label("Sequence").fill("2")
    page.get_by_role("button", name="Look up", exact=True).click()
    expect(page.locator("#found .answer")).to_contain_text("Not known")


def test_copies_in_quarantine_are_named_where_they_are_looked_for(gateway: Gateway, open_page: Open) -> None:
    place = {"topic": "events.quarantine", "partition": 0, "offset": 17, "reason": "conflict"}
    quarantine = {
        "found": [place | {"timestamp_ms": 1_795_000_000_000, "age_seconds": 60.0, "bytes": 300}],
        "searched_records": 20_000,
        "searched_since_ms": 1_794_000_000_000,
        "searched_all": False,
    }
    found = {"seen": False, "topic": "events", "partition": 3, "quarantine": quarantine}
    page = open_page(gateway.admin_url, before=lambda page: states.answer(page, "admin/v1/lookup*", found))
    page.locator("#lookup [name=source]").fill("web")
    page.locator("#lookup [name=id]").fill("kept")
    page.keyboard.press("Enter")
    expect(page.locator("#found")).to_contain_text("conflict quarantined at 0:17")
    expect(page.locator("#found")).to_contain_text("Quarantine was searched back to")
    assert (
        _copied(page, "#found button >> text=Copy replay")
        == "gateway quarantine replay 0:17 --new-id --dry-run"
    )


def test_event_kept_apart_is_replayed_by_two_presses(
    client: httpx.Client, gateway: Gateway, open_page: Open
) -> None:
    event = new_event()
    post(client, "/v1/events", [event])
    post(client, "/v1/events", [event | {"event": "Changed"}])
    page = open_page(gateway.admin_url)
    kept = page.locator("#apart li", has_text=event["messageId"])
    for said in ("Stored.", "It is stored already."):
        kept.get_by_role("button", name="Replay under a new id").click()
        expect(page.locator("#toast")).not_to_have_text(said)
        kept.get_by_role("button", name="Really?").click()
        expect(page.locator("#toast")).to_have_text(said)
    assert [line["value"].get("event") for line in stored(gateway)].count("Changed") == 1


def test_replay_with_a_token_that_may_only_read_says_so(locked: Gateway, open_page: Open) -> None:
    with httpx.Client(base_url=locked.url, auth=AUTH) as client:
        post(client, "/v1/events", [new_event(messageId="bad") | {"type": 7}])
    page = open_page(locked.admin_url)
    page.locator("#ask [name=token]").fill(READ_TOKEN)
    page.keyboard.press("Enter")
    kept = page.locator("#apart li", has_text="bad")
    kept.get_by_role("button", name="Replay").first.click()
    kept.get_by_role("button", name="Really?").click()
    expect(page.locator("#toast")).to_contain_text("may only read")


def test_it_works_below_a_path_of_a_proxy(client: httpx.Client, gateway: Gateway, open_page: Open) -> None:
    with below("/ops/gateway", gateway.admin_port) as url:
        assert httpx.get(f"{url}/console").headers["Location"] == "console/"
        page = open_page(url)
        expect(state_of(page)).to_have_text("All 8 partitions serve.")
        expect(page.locator("#tail-note")).to_contain_text("live")
        event = new_event()
        post(client, "/v1/events", [event])
        expect(row(page, event["messageId"])).to_have_count(1)
        page.goto("about:blank")


def test_files_are_open_and_nothing_else_is(locked: Gateway) -> None:
    with httpx.Client(base_url=locked.admin_url) as admin:
        page = admin.get("/console/")
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert "unsafe" not in page.headers["Content-Security-Policy"]
        assert "://" not in page.text
        assert admin.get("/console/", headers={"If-None-Match": page.headers["ETag"]}).status_code == 304
        assert admin.get("/console/none.js").status_code == 404
        assert admin.get("/console/%2e%2e/__init__.py").status_code in (401, 404)
        for path in ("stats", "history", "tail", "tail/values", "tail/apart"):
            assert admin.get(f"/admin/v1/{path}").status_code == 401


def test_a_first_event_is_waited_for_and_then_shown(folder: Path, open_page: Open) -> None:
    with Gateway(folder, {"GATEWAY_PARTITIONS": "1"}) as own:
        page = open_page(own.admin_url)
        expect(page.locator("#first-state")).to_have_text("Waiting for the first event…")
        expect(page.locator("#first-key")).to_have_text("my-write-key")
        page.get_by_role("button", name="Copy curl").click()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert f"{own.url}/v1/events -u my-write-key:" in copied
        expect(page.locator("#tail-values")).to_have_text("Hide contents")
        expect(page.locator("#tail-note")).to_contain_text("live")
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        fits(page, PHONE["width"])
        with httpx.Client(base_url=own.url, auth=AUTH) as client:
            post(client, "/v1/events", [new_event(messageId="the-first", properties={"a": "b"})])
        expect(page.locator("#first-event")).to_contain_text('"a": "b"')
        page.locator("#tail-rows tr", has_text="the-first").locator(".time button").click()
        expect(page.locator("#tail-rows tr.opened pre").first).to_contain_text('"a": "b"')


def test_contents_are_hidden_until_the_full_token_asks_for_them(locked: Gateway, open_page: Open) -> None:
    page = open_page(
        locked.admin_url,
        before=lambda page: page.add_init_script(f"sessionStorage.setItem('gateway-admin-token', '{TOKEN}')"),
    )
    expect(page.locator("#tail-values")).to_have_text("Show contents")
    expect(page.locator("#tail-note")).to_contain_text("live")
    with httpx.Client(base_url=locked.url, auth=AUTH) as client:
        post(client, "/v1/events", [new_event(messageId="hidden", properties={"secret": "word"})])
        hidden = row(page, "hidden")
        hidden.locator(".time button").click()
        expect(page.locator("#tail-rows tr.opened")).to_contain_text("Its content is hidden")
        expect(page.locator("#tail-rows")).not_to_contain_text("word")
        with page.expect_response("**/tail/values*"):
            page.get_by_role("button", name="Show contents").click()
        expect(page.locator("#tail-note")).to_contain_text("live")
        post(client, "/v1/events", [new_event(messageId="shown", properties={"secret": "word"})])
        row(page, "shown").locator(".time button").click()
        expect(page.locator("#tail-rows tr.opened pre").first).to_contain_text("word")
