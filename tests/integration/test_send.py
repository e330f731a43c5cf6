"""Claim: `gateway send` sends what it was told, tells what became of each event, and stops by itself."""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson

from tests.support.forked import COMMAND
from tests.support.gateway import Gateway
from tests.support.http import cli, stored


def sent_to(gateway: Gateway, *arguments: str) -> dict[str, Any]:
    done = cli(gateway, "send", *arguments, "--url", gateway.url)
    assert (done.returncode, done.stderr) == (0, b"")
    document: dict[str, Any] = orjson.loads(done.stdout)
    return document


def test_each_event_gets_the_verdict_it_was_made_for(gateway: Gateway) -> None:
    before = len(stored(gateway))
    told = sent_to(gateway, "400", "--duplicate-ratio", "0.3", "--conflicts", "0.1", "--sources", "2")
    sent = told["sent"]
    assert sent["events"] == 400 == sent["new"] + sent["duplicates"] + sent["conflicts"]
    assert min(sent["duplicates"], sent["conflicts"]) > 0
    assert told["verdicts"] == {
        "accepted": sent["new"],
        "duplicates": sent["duplicates"],
        "conflict": sent["conflicts"],
    }
    lines = stored(gateway)[before:]
    assert len(lines) == sent["new"]
    assert {line["source"] for line in lines if line["messageId"].startswith("send-")} == {"demo-1", "demo-2"}


def test_what_is_no_url_is_refused_at_once(gateway: Gateway) -> None:
    done = cli(gateway, "send", "1", "--url", "127.0.0.1:8080")
    assert done.returncode == 2
    assert b"is no URL of a gateway" in done.stderr


def test_what_answers_and_is_no_gateway_is_told(tmp_path: Path) -> None:
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
            done = cli(Gateway(tmp_path), "send", "1", "--url", f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)
    assert b"is no gateway" in done.stderr


def test_rate_is_kept(gateway: Gateway) -> None:
    told = sent_to(gateway, "60", "--rate", "100", "--batch", "10")
    assert told["seconds"] >= 0.5
    assert told["verdicts"]["accepted"] + told["verdicts"]["duplicates"] == 60


def test_gateway_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, {"GATEWAY_PARTITIONS": "1"})
    command = [COMMAND, "send", "40", "--duplicate-ratio", "0", "--url", gateway.url]
    with subprocess.Popen(command, env=gateway.environment, stdout=subprocess.PIPE) as sending:
        time.sleep(1.5)  # it has met a closed port by then, or the test shows less than it could
        with gateway:
            output, _ = sending.communicate(timeout=60)
    told = orjson.loads(output)
    assert (sending.returncode, told["verdicts"]["accepted"]) == (0, 40)
    assert told["tries_again"]


def test_write_key_that_is_not_known_ends_it(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {key: good, source: web}\n")
    settings = {"GATEWAY_WRITE_KEYS_FILE": str(keys), "GATEWAY_PARTITIONS": "1"}
    with Gateway(tmp_path / "gateway", settings) as gateway:
        refused = cli(gateway, "send", "100", "--url", gateway.url, "--write-key", "bad")
        assert refused.returncode == 2
        (line,) = refused.stderr.decode().splitlines()
        assert line == f"gateway: the gateway at {gateway.url} says 401, invalid_write_key"
        assert sent_to(gateway, "20", "--write-key", "good")["verdicts"]["accepted"] > 0


def test_shares_of_more_than_all_are_wrong_usage(gateway: Gateway) -> None:
    assert cli(gateway, "send", "--duplicate-ratio", "0.7", "--conflicts", "0.4").returncode == 2
    assert cli(gateway, "send", "--sources", "2", "--write-key", "x").returncode == 2
