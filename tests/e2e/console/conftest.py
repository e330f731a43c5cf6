"""One browser and one gateway for all of it; what a page complains of fails its test."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.gateway import Gateway
from tests.support.http import AUTH
from tests.support.waiting import PATIENCE_S

Open = Callable[..., Page]

WAIT_MS = PATIENCE_S * 1000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, as Debian has it."""
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway on the embedded log."""
    with Gateway(tmp_path_factory.mktemp("gateway"), {}) as running:
        yield running


@pytest.fixture
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    """A client of its ingest port."""
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        yield client


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """
    Open the console at an admin URL; `before` prepares the page, `view` is `#` and a tab.

    In the end no page has complained of anything but answers that the test has it get.
    """
    complaints: list[str] = []
    contexts = []

    def complain(text: str) -> None:
        if not text.startswith("Failed to load resource"):
            complaints.append(text)

    def open_page(
        url: str, *, before: Callable[[Page], Any] = lambda _page: None, view: str = "", **options: Any
    ) -> Page:
        context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, "permissions": ["clipboard-read"], **options}
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda said: complain(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complain(str(error)))
        before(page)
        page.goto(f"{url}/console/{view}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for a gateway of a test's own."""
    return tmp_path / "own"
