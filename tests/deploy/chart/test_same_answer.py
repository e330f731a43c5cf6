"""Claim: `helm test` passes on a gateway that keeps its promise, and fails on one that does not."""

import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from tests.deploy.chart.helm import only, render
from tests.support.gateway import Gateway


def run(url: str) -> subprocess.CompletedProcess[str]:
    """Run what the pod of `helm test` runs."""
    container = only(render("development"), "Pod")["spec"]["containers"][0]
    words = [sys.executable, *container["command"][1:]]
    environment = os.environ | {item["name"]: item["value"] for item in container["env"]} | {"URL": url}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_it_passes_on_a_gateway(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        done = run(f"{gateway.url}/v1/events")
        assert done.returncode == 0, done.stderr
        assert gateway.stats()["totals"]["accepted"] == 1
        assert gateway.stats()["totals"]["duplicates"] == 1


def test_it_fails_where_answers_differ() -> None:
    class Forgetful(BaseHTTPRequestHandler):
        count = 0

        def do_POST(self) -> None:
            Forgetful.count += 1
            self.send_response(200)
            self.send_header("Idempotent-Replayed", "true")
            self.end_headers()
            self.wfile.write(b"%d" % Forgetful.count)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Forgetful) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            assert run(f"http://127.0.0.1:{server.server_port}/").returncode == 1
        finally:
            server.shutdown()
            thread.join()
