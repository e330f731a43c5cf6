"""
Claim: each load profile runs against a real gateway, finds it in order, and ends by itself; a gateway that
says something wrong, or misses a limit, makes the exit code 1.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from loadtests.load.profiles import PROFILES
from tests.support.gateway import Gateway
from tests.support.processes import HOST, children_of, free_port
from tests.support.tcp_server import TCPServer, close
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
LENIENT = ("--p99-ms", "60000", "--late-max", "1", "--refused-max", "1")
"""Nothing is asserted about time: others may have the cores."""


class Ended(NamedTuple):
    """A run of locust."""

    code: int
    output: str
    summary: dict[str, Any]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    settings = {"GATEWAY_LOGGING_LEVEL": "warning"}
    with Gateway(tmp_path_factory.mktemp("gateway"), settings) as running:
        yield running


def command(url: str, folder: Path, *options: str) -> list[str]:
    outputs = ("--html", str(folder / "report.html"), "--summary", str(folder / "summary.json"))
    return [sys.executable, "-m", "loadtests.load", "--host", url, *outputs, *options]


def environment(gateway: Gateway) -> Mapping[str, str]:
    return os.environ | {"GATEWAY_DATA_DIR": str(gateway.data)}


def ended(code: int | None, output: bytes, folder: Path) -> Ended:
    summary = folder / "summary.json"
    found = json.loads(summary.read_text()) if summary.exists() else {}
    assert code is not None
    return Ended(code, output.decode(), found)


def run(
    gateway: Gateway, folder: Path, *options: str, more: Mapping[str, str] = MappingProxyType({})
) -> Ended:
    done = subprocess.run(
        command(gateway.url, folder, *options),
        cwd=ROOT,
        env={**environment(gateway), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENCE_S,
        check=False,
    )
    return ended(done.returncode, done.stdout, folder)


@pytest.mark.parametrize("profile", [name for name, profile in PROFILES.items() if not profile.divides])
def test_profile_finds_a_gateway_in_order(profile: str, gateway: Gateway, tmp_path: Path) -> None:
    before = gateway.stats()["totals"]
    options = ("--load-profile", profile, "--seconds", "2", "--events-per-s", "400", "--duplicates", "0.3")
    found = run(gateway, tmp_path, *options, *LENIENT)
    assert (found.code, found.summary["broken"], found.summary["failures"]) == (0, [], 0), found.output
    after = gateway.stats()["totals"]
    assert after["accepted"] > before["accepted"]
    assert (after["conflicts"], after["unknown"]) == (0, 0)
    assert "each event is in the log once" in found.summary["log"]
    assert "<html" in (tmp_path / "report.html").read_text()


def in_two_processes() -> tuple[str, ...]:
    port = str(free_port())
    return ("--processes", "2", "--master-bind-port", port, "--master-port", port)


def test_topic_is_divided_in_the_middle_of_a_profile(kafka_bootstrap: str, tmp_path: Path) -> None:
    log = {
        "GATEWAY_LOG": "kafka",
        "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": kafka_bootstrap,
        "GATEWAY_TOPIC": f"load-{uuid.uuid4().hex[:12]}",
        "GATEWAY_PARTITIONS": "2",
    }
    with Gateway(tmp_path / "gateway", log) as gateway:
        options = ("--load-profile", "reshard", "--seconds", "6", "--events-per-s", "200", *LENIENT)
        found = run(gateway, tmp_path, *options, more=gateway.environment)
        assert (found.code, found.summary["broken"]) == (0, []), found.output
        assert len(gateway.stats()["partitions"]) == 4
        assert "each event is in the log once" in found.summary["log"]


def test_profile_that_divides_says_why_the_topic_was_not(gateway: Gateway, tmp_path: Path) -> None:
    options = ("--load-profile", "reshard", "--seconds", "2", "--events-per-s", "100", *LENIENT)
    found = run(gateway, tmp_path, *options, more=gateway.environment)
    assert found.code == 1, found.output
    assert "only a topic on Kafka can be divided" in found.output


def test_workers_share_a_profile_and_the_master_judges(gateway: Gateway, tmp_path: Path) -> None:
    before = gateway.stats()["totals"]["received"]
    found = run(gateway, tmp_path, "--seconds", "2", *in_two_processes(), *LENIENT)
    assert (found.code, found.summary["broken"]) == (0, []), found.output
    assert found.summary["events_acknowledged"] == gateway.stats()["totals"]["received"] - before


@pytest.mark.regression("a load test counted without the figures of a worker that died, and said nothing")
def test_figures_of_a_worker_that_died_are_missed(gateway: Gateway, tmp_path: Path) -> None:
    before = gateway.stats()["totals"]["received"]
    words = command(gateway.url, tmp_path, "--seconds", "6", *in_two_processes(), *LENIENT)
    with subprocess.Popen(
        words, cwd=ROOT, env=environment(gateway), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as running:
        until(lambda: gateway.stats()["totals"]["received"] > before, "the first events")
        os.kill(children_of(running.pid)[0], signal.SIGKILL)
        output, _ = running.communicate(timeout=PATIENCE_S)
    found = ended(running.returncode, output, tmp_path)
    assert found.code == 1, found.output
    assert "the last figures of 1 of the workers did not arrive" in found.summary["broken"]


def test_broken_limit_is_an_exit_code(gateway: Gateway, tmp_path: Path) -> None:
    found = run(gateway, tmp_path, "--seconds", "1", "--p99-ms", "0.001", "--late-max", "1")
    assert found.code == 1, found.output
    assert "LIMIT BROKEN: p99 is" in found.output


class Liar(TCPServer):
    """Passes everything on, but for one word of the answers."""

    def __init__(self, gateway: Gateway, word: bytes, lie: bytes) -> None:
        super().__init__()
        assert len(word) == len(lie), "Content-Length must stay right"
        self._gateway, self._word, self._lie = gateway, word, lie

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_gateway, to_gateway = await asyncio.open_connection(HOST, self._gateway.port)

        async def send() -> None:
            while data := await reader.read(65_536):
                to_gateway.write(data)
                await to_gateway.drain()

        sending = asyncio.create_task(send())
        try:
            while data := await from_gateway.read(65_536):
                writer.write(data.replace(self._word, self._lie))
                await writer.drain()
        finally:
            sending.cancel()
            to_gateway.close()  # at once: whoever is cancelled does not come to the next line
            await asyncio.gather(sending, return_exceptions=True)
            await close(to_gateway)


@pytest.mark.parametrize(
    ("word", "lie", "sentence"),
    [
        (b'"partition":3', b'"partition":4', "the log disagrees"),
        (b"idempotent-replayed", b"idempotent-repeated", "Idempotent-Replayed does not say so"),
        (b"ajs-next-", b"ajs-last-", "receipts of other events"),
        (b"HTTP/1.1 200 OK", b"HTTP/1.1 404 OK", "404"),
    ],
)
async def test_wrong_answer_is_an_exit_code(
    word: bytes, lie: bytes, sentence: str, gateway: Gateway, tmp_path: Path
) -> None:
    async with Liar(gateway, word, lie) as liar:
        url = f"http://{HOST}:{liar.port}"
        options = ("--seconds", "2", "--events-per-s", "400", "--duplicates", "0.4", *LENIENT)
        process = await asyncio.create_subprocess_exec(
            *command(url, tmp_path, *options),
            cwd=ROOT,
            env=environment(gateway),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    found = ended(process.returncode, output, tmp_path)
    assert found.code == 1, found.output
    assert found.summary["broken"] != []
    assert sentence in found.output
