"""
Claim: whatever a body holds, the answer is the documented one, the same when it is sent again, never an
internal error and never a hang; and other clients are served meanwhile.
"""

import socket
from collections.abc import Iterator
from typing import Any, BinaryIO

import httpx
import orjson
import pytest

from tests.support.gateway import Gateway
from tests.support.hostile import Hostile, read_corpus
from tests.support.http import AUTH, new_event, post
from tests.support.waiting import PATIENCE_S, until

PIPELINED = 20


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with default limits, which has met nothing unforeseen at the end."""
    with Gateway(tmp_path_factory.mktemp("gateway"), {"GATEWAY_LOGGING_LEVEL": "debug"}) as running:
        yield running
        until(lambda: running.stats()["in_flight"] == 0)
        totals = running.stats()["totals"]
        assert (totals["unknown"], totals["refused"]) == (0, 0)
        said = running.log_path.read_text()
        assert "unforeseen" not in said
        assert "Traceback" not in said


@pytest.fixture(scope="module")
def healthy(gateway: Gateway) -> Iterator[httpx.Client]:
    """Somebody else's client, on a connection of its own."""
    with httpx.Client(base_url=gateway.url, auth=("healthy", "")) as client:
        yield client


@pytest.fixture(scope="module")
def attacker(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        yield client


@pytest.mark.parametrize("case", read_corpus(), ids=lambda case: case.name.replace(" ", "-"))
def test_hostile_body_has_its_documented_answer(
    case: Hostile, attacker: httpx.Client, healthy: httpx.Client
) -> None:
    first, again = (attacker.post("/v1/events", content=case.wire, headers=case.headers) for _ in range(2))
    document = first.json()
    assert first.status_code == again.status_code == case.status, document
    if case.status == 200:
        found = [receipt["messageId"] for receipt in document["receipts"]]
        assert [None if expected is None else id_ for id_, expected in zip(found, case.ids, strict=True)] == (
            case.ids
        )
        rejected = [(entry["index"], entry["code"]) for entry in document.get("rejected", [])]
        assert rejected == case.rejected
    else:
        assert (document["code"], list(document)) == (case.code, ["code", "message"])
    if None not in case.ids:  # what has no id of its own is stored again, and its receipt says so
        assert first.content == again.content
    assert post(healthy, "/v1/events", new_event()).headers["Gateway-Accepted"] == "1"


def test_pipelined_requests_are_answered_in_order(gateway: Gateway) -> None:
    bodies = [orjson.dumps([{"messageId": f"piped-{i}"}, i]) for i in range(PIPELINED)]
    bodies[7] = b"{"
    requests = b"".join(
        b"POST /v1/events?writeKey=web HTTP/1.1\r\nHost: gateway\r\nContent-Length: %d\r\n\r\n%s"
        % (len(body), body)
        for body in bodies
    )
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE_S) as connection:
        connection.sendall(requests)
        with connection.makefile("rb") as stream:
            answers = [read_answer(stream) for _ in bodies]
    assert [status for status, _ in answers] == [200] * 7 + [400] + [200] * (PIPELINED - 8)
    for i, (_, document) in enumerate(answers):
        if i != 7:
            assert document["receipts"][0]["messageId"] == f"piped-{i}"
            assert document["rejected"][0]["code"] == "not_an_object"


def read_answer(stream: BinaryIO) -> tuple[int, dict[str, Any]]:
    """Read one answer off a connection: its status and its JSON body."""
    status = int(stream.readline().split()[1])
    length = 0
    while (line := stream.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, orjson.loads(stream.read(length))
