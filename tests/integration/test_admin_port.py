"""Claim: a real gateway's admin port keeps its contracts: statistics, tokens, ports, the log of changes."""

from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import orjson
import pytest

from tests.support.gateway import Gateway
from tests.support.http import AUTH, new_event, post
from tests.support.processes import HOST, free_port
from tests.support.waiting import PATIENCE_S, until

WRITE, READ = "a token that may write", "a token that may read"
PROBE_PORT = free_port()
CHANGED = "changed through the admin port"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with tokens and a port for probes."""
    settings = {
        "GATEWAY_PARTITIONS": "2",
        "GATEWAY_ADMIN_TOKEN": WRITE,
        "GATEWAY_ADMIN_READ_TOKEN": READ,
        "GATEWAY_PROBE_LISTEN": f"127.0.0.1:{PROBE_PORT}",
    }
    with Gateway(tmp_path_factory.mktemp("guarded"), settings) as running:
        yield running


def ask(gateway: Gateway, path: str, *, method: str = "GET", token: str | None = READ) -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.request(method, f"{gateway.admin_url}{path}", headers=headers)


def test_statistics_of_real_traffic_are_what_the_schema_says(client: httpx.Client, gateway: Gateway) -> None:
    event = new_event()
    post(client, "/v1/batch", {"batch": [event, event, event | {"event": "x"}, 5, new_event()]})
    schema = httpx.get(f"{gateway.admin_url}/admin/v1/stats.schema.json").json()
    stats: dict[str, Any] = gateway.stats()
    jsonschema.validate(stats, schema)
    listed = [*stats["sources"], stats["other_sources"]]
    for part, count in stats["totals"].items():
        assert sum(source[part] for source in listed) == count
    assert stats["rejected_reasons"]["not_an_object"] == stats["totals"]["rejected"]
    touched = [partition for partition in stats["partitions"] if partition["accepted"]]
    assert touched
    for partition in touched:
        assert partition["last_commit_ms"] >= partition["oldest_ms"] > 0
        assert (partition["owner"], partition["standby"], partition["in_doubt"]) == ("worker", None, 0)
        assert partition["files"] >= 0


def test_tokens_open_what_their_scope_says(guarded: Gateway) -> None:
    assert ask(guarded, "/admin/v1/stats").status_code == 200
    assert ask(guarded, "/admin/v1/stats", token=None).status_code == 401
    refused = ask(guarded, "/admin/v1/drain", method="POST")
    assert (refused.status_code, refused.json()["code"]) == (403, "admin_scope_missing")
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert ask(guarded, "/admin/v1/drain", method="POST", token=WRITE).json()["code"] == "alone"
    until(lambda: CHANGED in guarded.log_path.read_text())  # it is written once the answer is sent
    (line,) = [line for line in guarded.log_path.read_text().splitlines() if CHANGED in line]
    assert "POST /admin/v1/drain" in line
    assert "outcome=alone" in line
    assert WRITE not in guarded.log_path.read_text()


def test_probes_have_a_port_of_their_own(guarded: Gateway) -> None:
    probes = f"http://{HOST}:{PROBE_PORT}"
    for path in ("/livez", "/readyz", "/metrics"):
        assert httpx.get(f"{probes}{path}").status_code == 200
        assert ask(guarded, path, token=None).status_code == 200
    closed = httpx.get(f"{probes}/admin/v1/stats", headers={"Authorization": f"Bearer {WRITE}"})
    assert (closed.status_code, closed.json()["code"]) == (404, "not_found")


def test_real_index_says_what_its_log_says(guarded: Gateway) -> None:
    with httpx.Client(base_url=guarded.url, auth=AUTH) as client:
        for _ in range(2):
            post(client, "/v1/batch", {"batch": [new_event() for _ in range(600)]})
    accepted = [partition["accepted"] for partition in ask(guarded, "/admin/v1/stats").json()["partitions"]]
    for partition, count in enumerate(accepted):
        answer = ask(guarded, f"/admin/v1/verify/{partition}?rate=200000")
        lines = [orjson.loads(line) for line in answer.content.splitlines()]
        assert [line["type"] for line in lines] == ["begin", "end"]
        assert (lines[-1]["verified"], lines[-1]["records"]) == (True, count)


def test_verification_ends_when_its_reader_leaves(guarded: Gateway) -> None:
    with httpx.Client(base_url=guarded.url, auth=AUTH) as client:
        for _ in range(2):  # more than are verified at this pace while the test waits
            post(client, "/v1/batch", {"batch": [new_event() for _ in range(300 * int(PATIENCE_S) // 2)]})
    url = f"{guarded.admin_url}/admin/v1/verify/0?rate=100"
    headers = {"Authorization": f"Bearer {READ}"}
    with httpx.stream("GET", url, headers=headers) as answer:
        assert orjson.loads(next(answer.iter_lines()))["type"] == "begin"
        assert ask(guarded, "/admin/v1/verify/0?rate=200000").json()["code"] == "busy"
    answers: list[httpx.Response] = []

    def is_answered() -> bool:
        answers.append(ask(guarded, "/admin/v1/verify/0?rate=200000"))
        return answers[-1].status_code != 409

    until(is_answered)
    assert orjson.loads(answers[-1].content.splitlines()[-1])["verified"] is True
