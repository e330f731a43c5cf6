"""
Claim: `gateway verify` prints what a gateway tells of a verification; it ends with 1 unless each partition
was verified to its end.
"""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from typer.testing import CliRunner, Result

from app.cli.commands import app

DIFFERENCE = {
    "type": "difference",
    "kind": "missing",
    "offset": 7,
    "key": "00ff",
    "source": "web",
    "message_id": "m-1",
    "index_offset": None,
}
STATS = {"partitions": [{"partition": 0, "state": "active"}, {"partition": 1, "state": "standby"}]}


def begin(partition: int) -> dict[str, Any]:
    return {
        "type": "begin",
        "topic": "events",
        "partition": partition,
        "start_offset": 0,
        "end_offset": 9,
        "rate": 100,
    }


def end(differences: int) -> dict[str, Any]:
    return {
        "type": "end",
        "verified": differences == 0,
        "records": 9,
        "differences": differences,
        "seconds": 0.1,
    }


class AdminPort(ThreadingHTTPServer):
    """Answers with lines, by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answerer)
        self.answers: dict[str, list[dict[str, Any]]] = {"/admin/v1/stats": [STATS]}
        self.asked: list[str] = []


class Answerer(BaseHTTPRequestHandler):
    """One connection."""

    server: AdminPort

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        documents = self.server.answers.get(urlsplit(self.path).path)
        self.send_response(404 if documents is None else 200)
        self.end_headers()
        refusal = {"type": "about:blank", "status": 404, "code": "not_found", "detail": "No such partition."}
        self.wfile.write(b"".join(orjson.dumps(line) + b"\n" for line in documents or [refusal]))

    def log_message(self, *_: object) -> None:
        """Be silent."""


@pytest.fixture
def port() -> Iterator[AdminPort]:
    with AdminPort() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def verified(port: AdminPort, *arguments: str) -> Result:
    url = f"http://127.0.0.1:{port.server_port}"
    return CliRunner().invoke(app, ["verify", *arguments, "--url", url, "-o", "json"])


def rows(result: Result) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in result.stdout.splitlines()]


def test_partitions_that_are_served_are_verified(port: AdminPort) -> None:
    progress = {"type": "progress", "offset": 4, "records": 4, "differences": 0, "ratio": 0.4}
    port.answers["/admin/v1/verify/0"] = [begin(0), progress, end(0)]
    result = verified(port)
    assert result.exit_code == 0
    assert rows(result) == [
        {
            "topic": "events",
            "partition": 0,
            "verified": True,
            "records": 9,
            "differences": 0,
            "seconds": 0.1,
        }
    ]
    assert port.asked == ["/admin/v1/stats", "/admin/v1/verify/0?rate=10000"]


def test_differences_are_printed_and_end_with_one(port: AdminPort) -> None:
    port.answers |= {
        "/admin/v1/verify/3": [begin(3), DIFFERENCE, end(1)],
        "/admin/v1/verify/4": [begin(4), end(0)],
    }
    result = verified(port, "3", "4", "--quarantine", "--rate", "500")
    assert result.exit_code == 1
    told, *ends = rows(result)
    assert (told["partition"], told["kind"], told["message_id"]) == (3, "missing", "m-1")
    assert [(row["partition"], row["verified"]) for row in ends] == [(3, False), (4, True)]
    assert port.asked[0] == "/admin/v1/verify/3?rate=500&quarantine=true"


@pytest.mark.parametrize(
    "lines",
    [[begin(0), {"type": "error", "code": "lane_not_active", "detail": "The partition moved."}], [begin(0)]],
    ids=["told", "cut off"],
)
def test_verification_that_does_not_end_is_an_error(port: AdminPort, lines: list[dict[str, Any]]) -> None:
    port.answers["/admin/v1/verify/0"] = [dict(line) for line in lines]
    result = verified(port, "0")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("gateway: ")


def test_verification_ends_when_its_time_is_over(port: AdminPort) -> None:
    progress = {"type": "progress", "offset": 4, "records": 4, "differences": 0, "ratio": 0.4}
    port.answers["/admin/v1/verify/0"] = [begin(0), *[progress] * 5, end(0)]
    result = verified(port, "0", "--timeout", "0s")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "gateway: not all is verified in 0s: raise --rate, or --timeout\n"

    assert verified(port, "0", "--timeout", "soon").exit_code == 2


def test_progress_is_told_where_nobody_sees_a_bar(port: AdminPort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.progress.LINE_S", 0.0)
    progress = {"type": "progress", "offset": 4, "records": 4, "differences": 0, "ratio": 0.4}
    port.answers["/admin/v1/verify/0"] = [begin(0), progress, end(0)]
    assert verified(port, "0").stderr == "gateway: 4 of 9 (44%)\n"


def test_refusal_is_told_in_its_own_words(port: AdminPort) -> None:
    result = verified(port, "7")
    assert result.exit_code == 2
    assert result.stderr.endswith("answers: No such partition.\n")
