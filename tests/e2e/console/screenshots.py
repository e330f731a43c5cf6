"""
`python -m tests.e2e.console.screenshots` (`make screenshots`) takes the pictures in docs/images anew.

The events, the live tail and the rejections are a real gateway's. The hour behind them, the windows and the
states that take long to get into are made up: tests/e2e/console/states.py. tests/e2e/console/board.py draws
the board.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, TypeAlias

from playwright.sync_api import Browser, sync_playwright

from tests.e2e.console import states
from tests.e2e.console.board import picture_of_board
from tests.e2e.console.small_png import shrunk
from tests.support.gateway import Gateway
from tests.support.traffic import traffic

FOLDER = Path(__file__).parents[3] / "docs" / "images"
BYTES_MAX = 150_000
LIVE_S = 9.0
"""Two rounds of the page's figures, and a table full of rows."""

State: TypeAlias = tuple[states.Document, states.Document]
"""The stats document and the group's."""


def main() -> None:
    """Take them all."""
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        Gateway(Path(folder), {}) as gateway,
        traffic(gateway, pause_s=0.35),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for picture in PICTURES:
            _take(browser, gateway, picture)
        _keep("board", picture_of_board(browser))
        browser.close()
    too_large = [path.name for path in FOLDER.glob("*.png") if path.stat().st_size > BYTES_MAX]
    if too_large:
        sys.exit(f"larger than {BYTES_MAX:,} bytes: {', '.join(too_large)}")


def _take(browser: Browser, gateway: Gateway, picture: "Picture") -> None:
    context = browser.new_context(
        viewport={"width": picture.width, "height": picture.height}, color_scheme=picture.scheme
    )
    page = context.new_page()
    now_ms = round(time.time() * 1000)
    states.answer(page, "admin/v1/history", states.history(now_ms, down_steps=picture.down_steps))
    began, real = time.monotonic(), gateway.stats()
    page.route("**/admin/v1/stats", lambda route: route.fulfill(json=told()[0]))
    page.route("**/admin/v1/group", lambda route: route.fulfill(json=told()[1]))

    def told() -> tuple[states.Document, states.Document]:
        return picture.state(real, time.monotonic() - began)

    page.goto(f"{gateway.admin_url}/console/{picture.view}")
    page.wait_for_timeout(LIVE_S * 1000)
    if picture.opened:
        page.locator("#events-filter [name=event]").fill(picture.opened)
        others = page.locator("#events-rows tr", has_not_text=picture.opened)
        others.first.wait_for(state="detached")
        row = page.locator("#events-rows tr", has_text=picture.opened).first
        row.get_by_role("button").click()
        page.locator("#events-rows pre").wait_for()
        page.locator("#tab-events").evaluate("tab => tab.scrollIntoView()")
    _keep(picture.name, page.screenshot(full_page=picture.is_whole))
    context.close()


def _keep(name: str, png: bytes) -> None:
    path = FOLDER / f"{name}.png"
    path.write_bytes(shrunk(png))
    print(f"{path.name}: {path.stat().st_size:,} bytes")


# ---- states


def _grown(stats: states.Document, partitions: int, seconds: float) -> states.Document:
    """Return the stats of a gateway that has run for weeks, so many seconds after the first look."""
    keys = 490_000_000 // partitions
    changes = {
        number: {
            "keys": keys + 9_703 * number,
            "bytes": 31 * keys + 3_100_000 * number,
            "accepted": keys + 97_003 * number,
            "duplicates": keys // 150 + 977 * number,
            "window_seconds": 7 * 86_400,
        }
        for number in range(partitions)
    }
    accepted, duplicates = 245_190_022 + round(1710 * seconds), 1_719_404 + round(12 * seconds)
    totals = stats["totals"] | {
        "received": accepted + duplicates + 1_121 + 2_006,
        "accepted": accepted,
        "duplicates": duplicates,
        "conflicts": 1_121,
        "rejected": 2_006,
    }
    grown = states.changed(states.with_partitions(stats, partitions), changes)
    return grown | {"totals": totals, "uptime_seconds": 19 * 86_400, "log": "kafka", "mode": "production"}


def _day(stats: states.Document, seconds: float) -> State:
    return states.in_group(_grown(stats, 8, seconds), ["gateway-0", "gateway-1"], {})


def _at_work(stats: states.Document, seconds: float) -> State:
    """Return a developer's own gateway, as it is."""
    return stats, {}


def _restoring(stats: states.Document, seconds: float) -> State:
    end, done = 61_000_000, round(180_000 * seconds)
    back = {
        1: states.restoring(end, end // 5 - done),
        3: states.restoring(end, end // 2 - done),
        5: {"window_seconds": 150_000},
    }
    stats = states.changed(_grown(stats, 8, seconds), back)
    return states.in_group(stats, ["gateway-0", "gateway-1"], {"gateway-2": "there is no link to it"})


def _log_down(stats: states.Document, seconds: float) -> State:
    error = states.failed("RetriableError: none of kafka-0:9092, kafka-1:9092, kafka-2:9092 answers")
    since = datetime.now(UTC) - timedelta(minutes=4)
    why = f"has not been available since {since:%Y-%m-%dT%H:%M:%SZ}: the log does not answer"
    down = states.changed(_grown(stats, 8, 0), {number: error for number in range(8)})
    refused = 431_000 + round(2030 * seconds)
    down["totals"] |= {"refused": refused, "received": down["totals"]["received"] + refused}
    return down | {"outage": f"no partition serves; the first {why}", "group": None}, {}


def _many(stats: states.Document, seconds: float) -> State:
    end, done = 7_000_000, round(60_000 * seconds)
    changes = {
        9: {"window_seconds": 39_600.0},
        22: {"window_seconds": 130_000.0},
        40: states.restoring(end, end // 3 - done),
        41: states.restoring(end, end // 2 - done),
    }
    stats = states.changed(_grown(stats, 64, seconds), changes)
    return states.in_group(stats, ["gateway-0", "gateway-1", "gateway-2"], {})


@dataclass(frozen=True)
class Picture:
    """One picture: what the page is told, and how it looks at it."""

    name: str
    state: Callable[[states.Document, float], State]
    scheme: Literal["light", "dark"]
    width: int = 1280
    height: int = 760
    is_whole: bool = False
    down_steps: int = 0
    view: str = ""
    """`#` and the tab."""
    opened: str = ""
    """The name of the events that are shown, the newest of them opened."""


PICTURES = (
    Picture("console-light", _day, "light", is_whole=True),
    Picture("console-dark", _day, "dark", is_whole=True),
    Picture("console-events", _at_work, "light", view="#events", opened="Order Changed"),
    Picture("console-restoring", _restoring, "light", view="#partitions"),
    Picture("console-log-down", _log_down, "dark", down_steps=24),
    Picture("console-phone", _many, "light", width=390, height=1900, view="#partitions"),
)


if __name__ == "__main__":
    main()
