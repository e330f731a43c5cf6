"""Claim: the examples of the clients' READMEs deliver their event, run as they are printed."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.e2e.clients.kotlin import kotlin_command
from tests.e2e.sdks.browser_sdks import QuietHandler, chromium_page
from tests.support.documents import ROOT, blocks_of, for_gateway
from tests.support.gateway import Gateway
from tests.support.processes import HOST
from tests.support.waiting import PATIENCE_S

CLIENTS = ROOT / "clients"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.mark.parametrize(("number", "printed"), [(0, "True\n"), (1, "True 0\n"), (2, "")])
def test_the_python_examples_deliver_their_event(
    gateway: Gateway, tmp_path: Path, number: int, printed: str
) -> None:
    examples = blocks_of(CLIENTS / "python" / "README.md", "python")
    assert len(examples) == 3
    before = gateway.stats()["totals"]["accepted"]
    done = subprocess.run(
        [sys.executable, "-c", for_gateway(examples[number], gateway)],
        env={"PYTHONPATH": str(CLIENTS / "python")},
        cwd=tmp_path,
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert (done.stdout.decode(), done.stderr) == (printed, b"")
    assert gateway.stats()["totals"]["accepted"] == before + 1


def test_the_kotlin_example_delivers_its_event(gateway: Gateway, tmp_path: Path) -> None:
    (example,) = blocks_of(CLIENTS / "kotlin" / "README.md", "kotlin")
    source = (CLIENTS / "kotlin/src/test/kotlin/gateway/Example.kt").read_text()
    imports, _, body = example.partition("fun main() {")
    assert imports in source
    assert body.replace('"http://127.0.0.1:8080"', "arguments[0]") in source
    before = gateway.stats()["totals"]["accepted"]
    done = subprocess.run(
        [*kotlin_command("Example").split(), gateway.url],
        cwd=tmp_path,
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert (done.stdout, done.stderr) == (b"true\n", b"")
    assert gateway.stats()["totals"]["accepted"] == before + 1


async def test_the_javascript_example_delivers_its_event(gateway: Gateway, tmp_path: Path) -> None:
    (example,) = blocks_of(CLIENTS / "javascript" / "README.md", "html")
    before = gateway.stats()["totals"]["accepted"]
    page_file = '<!doctype html><link rel="icon" href="data:,">' + for_gateway(example, gateway)
    (tmp_path / "index.html").write_text(page_file)
    (tmp_path / "gateway-client.js").write_bytes((CLIENTS / "javascript" / "gateway-client.js").read_bytes())
    with ThreadingHTTPServer((HOST, 0), partial(QuietHandler, directory=str(tmp_path))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            async with chromium_page() as page:
                async with page.expect_console_message() as logged:
                    await page.goto(f"http://{HOST}:{server.server_port}/index.html")
                assert (await logged.value).text == "true"
        finally:
            server.shutdown()
            thread.join()
    assert gateway.stats()["totals"]["accepted"] == before + 1
