"""Claim: `gateway bench` measures a running gateway, tells what it counted, and stops by itself."""

from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.gateway import Gateway
from tests.support.http import cli, stored
from tests.support.processes import free_port


def measured(gateway: Gateway, *arguments: str) -> dict[str, Any]:
    done = cli(gateway, "bench", "--seconds", "1", "--batch", "10", "--url", gateway.url, *arguments)
    assert (done.returncode, done.stderr) == (0, b"")
    document: dict[str, Any] = orjson.loads(done.stdout)
    return document


def test_shares_and_cpu_are_those_of_what_was_sent(gateway: Gateway) -> None:
    before = len(stored(gateway))
    told = measured(gateway, "--connections", "2", "--duplicates", "0.4", "--admin-url", gateway.admin_url)
    shares = told["shares"]
    assert sum(shares.values()) == pytest.approx(1, abs=0.001)
    assert shares["rejected"] == shares["refused"] == shares["unanswered"] == 0
    assert 0.1 < shares["duplicates"] < 0.7
    warm_up = 2 * 10
    new = len(stored(gateway)) - before - warm_up
    assert new == pytest.approx(shares["accepted"] * told["events"], abs=1 + told["events"] / 10_000)
    assert told["seconds"] >= 1
    assert told["events_per_second"] == pytest.approx(told["events"] / told["seconds"], rel=0.01)
    assert 0 < told["answer_ms"]["p50"] <= told["answer_ms"]["p99"] <= told["answer_ms"]["max"]
    assert 1 < told["gateway_cpu_us_per_event"] < 1e6


def test_without_the_admin_port_no_cpu_is_told(gateway: Gateway) -> None:
    assert "gateway_cpu_us_per_event" not in measured(gateway)


def test_what_is_refused_is_counted_and_not_sent_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {key: few, source: web, quotas: {events: 0.1, burst: 500s}}\n")
    settings = {"GATEWAY_WRITE_KEYS_FILE": str(keys), "GATEWAY_PARTITIONS": "1"}
    with Gateway(tmp_path / "gateway", settings) as gateway:
        told = measured(gateway, "--connections", "1", "--write-key", "few")
        assert len(stored(gateway)) == 50
        assert told["refusals"] == {"quota_exceeded": 1}, "its Retry-After is longer than the measurement"
        assert told["shares"]["accepted"] == pytest.approx(0.8), "40 of 50, since 10 have warmed it up"
        assert told["shares"]["refused"] == pytest.approx(0.2)
        again = cli(gateway, "bench", "--seconds", "0.1", "--url", gateway.url, "--write-key", "few")
        assert (again.returncode, orjson.loads(again.stdout)["answer_ms"]["p50"]) == (1, None)
        unknown = cli(gateway, "bench", "--url", gateway.url, "--write-key", "other")
        assert (unknown.returncode, unknown.stdout) == (2, b"")
        (line,) = unknown.stderr.decode().splitlines()
        assert line == f"gateway: the gateway at {gateway.url} answers 401, invalid_write_key"


def test_gateway_that_does_not_answer_ends_it(gateway: Gateway) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    done = cli(gateway, "bench", "--seconds", "0.1", "--url", nowhere)
    assert (done.returncode, orjson.loads(done.stdout)["shares"]["unanswered"]) == (1, 1)
    done = cli(gateway, "bench", "--batch", "1", "--url", gateway.url, "--admin-url", gateway.url)
    assert done.returncode == 1
    assert b"without metrics of a gateway" in done.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://127.0.0.1", "http://[", "http://"])
def test_what_is_no_url_is_refused_at_once(gateway: Gateway, url: str) -> None:
    done = cli(gateway, "bench", "--url", url)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"is no URL of a gateway" in done.stderr


def test_what_answers_and_is_no_gateway_is_told(gateway: Gateway) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        try:
            done = cli(gateway, "bench", "--url", f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)
    assert b"is no gateway" in done.stderr
