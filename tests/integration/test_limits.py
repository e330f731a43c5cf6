"""Claim: a limit refuses no request that a client could not send otherwise; what is beyond it is kept."""

import gzip
import socket
from collections.abc import Iterator

import httpx
import orjson
import pytest

from tests.support.gateway import Gateway
from tests.support.http import AUTH, new_event, post
from tests.support.waiting import PATIENCE_S, until

HEAD = b"POST /v1/batch?writeKey=web HTTP/1.1\r\nHost: gateway\r\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with default limits."""
    with Gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        yield client


def refused(gateway: Gateway, code: str) -> float:
    """Return the number of refusals with a code, as the metrics tell it."""
    name = f'gateway_http_refused_requests_total{{code="{code}"}} '
    for line in httpx.get(f"{gateway.admin_url}/metrics").text.splitlines():
        if line.startswith(name):
            return float(line.removeprefix(name))
    return 0


def test_events_beyond_the_limit_of_a_request_are_quarantined_in_pieces(client: httpx.Client) -> None:
    events = [{"messageId": f"many-{n}", "type": "track", "event": "a"} for n in range(26_000)]
    body = orjson.dumps({"batch": events, "sentAt": "2026-01-01T00:00:00Z"})
    first = client.post("/v1/batch", content=body)
    assert first.status_code == 200, first.text
    assert first.headers["Gateway-Accepted"] == "20000"
    rejected = first.json()["rejected"]
    assert {entry["code"] for entry in rejected} == {"too_many_events"}
    assert [entry["index"] for entry in rejected] == list(range(20_000, 20_000 + len(rejected)))
    assert 1 < len(rejected) < 10

    again = client.post("/v1/batch", content=body)
    assert again.headers["Gateway-Duplicates"] == "20000"
    assert again.content == first.content


def test_lists_of_a_large_answer_are_cut_and_say_so(client: httpx.Client) -> None:
    events = [{"messageId": f"listed-{n}-{'x' * 60}"} for n in range(15_000)]
    answer = client.post("/v1/events", content=orjson.dumps([*events, *range(5_000)]))
    document = answer.json()
    assert answer.headers["Gateway-Accepted"] == "15000"
    assert len(document["receipts"]) + document["receiptsOmitted"] == 15_000
    assert document["receipts"][0]["messageId"] == events[0]["messageId"]
    assert len(document["rejected"]) == 5_000
    assert "rejectedOmitted" not in document
    assert len(orjson.dumps(document["receipts"])) <= 1024 * 1024 < len(answer.content)


def test_batch_level_fields_that_would_grow_too_much_are_kept_apart(client: httpx.Client) -> None:
    batch = {"batch": [new_event() for _ in range(100)], "context": {"page": "x" * 200_000}}
    answer = post(client, "/v1/batch", batch)
    assert (answer.status_code, answer.headers["Gateway-Accepted"]) == (200, "100")
    assert [(one["index"], one["code"]) for one in answer.json()["rejected"]] == [
        (100, "batch_fields_too_large")
    ]
    again = post(client, "/v1/batch", batch)
    assert (again.content, again.headers["Gateway-Duplicates"]) == (answer.content, "100")


@pytest.mark.parametrize("key_in", ["top", "events"])
def test_batch_of_megabytes_may_have_its_key_in_it(gateway: Gateway, key_in: str) -> None:
    own = {"writeKey": "web"} if key_in == "events" else {}
    events = [new_event(properties={"text": "é" * 50_000}, **own) for _ in range(15)]
    batch = {"batch": events, "sentAt": "2026-01-01T00:00:00Z"}
    if key_in == "top":
        batch["writeKey"] = "web"
    with httpx.Client(base_url=gateway.url) as client:
        answer = post(client, "/v1/batch", batch)
    assert (answer.status_code, answer.headers["Gateway-Accepted"]) == (200, "15"), answer.text


@pytest.mark.regression("A body with many brackets was refused for its shape, and its events were lost.")
@pytest.mark.parametrize("path", ["/v1/batch", "/v1/events", "/v1/track"])
@pytest.mark.parametrize("token", [[1, 2], {"a": 1}, 5, "", [[]]], ids=repr)
def test_event_of_many_short_tokens_is_stored(client: httpx.Client, path: str, token: object) -> None:
    size = 475_000 // (len(orjson.dumps(token)) + 1)
    if token == [[]]:
        size //= 2
    event = new_event(path=[token] * size)
    answer = post(client, path, {"batch": [event]} if path == "/v1/batch" else event)
    assert (answer.status_code, answer.headers["Gateway-Accepted"]) == (200, "1"), answer.text


def test_body_over_the_limit_is_refused_as_each_sdk_needs_it(client: httpx.Client) -> None:
    large = b"[" + b" " * (8 << 20) + b"]"
    answer = client.post("/v1/batch", content=large)
    assert (answer.status_code, answer.json()["code"]) == (400, "body_too_large")
    answer = client.post("/v1/batch", content=large, headers={"AnonymousId": "YQ=="})
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


@pytest.mark.regression("Bodies cut on their way were counted only where the client still listened.")
@pytest.mark.parametrize(
    "head",
    [
        HEAD + b'Content-Length: 100\r\n\r\n{"batch":[',
        HEAD + b'Transfer-Encoding: chunked\r\n\r\na\r\n{"batch":[\r\n',
    ],
    ids=["length", "chunked"],
)
@pytest.mark.parametrize("is_half", [True, False], ids=["half closed", "closed"])
def test_body_cut_in_transit_is_counted_whether_it_can_be_answered_or_not(
    gateway: Gateway, head: bytes, is_half: bool
) -> None:
    before = refused(gateway, "body_truncated")
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head)
        if is_half:
            connection.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b'"body_truncated"' in answer
    until(lambda: refused(gateway, "body_truncated") > before)
    assert refused(gateway, "body_truncated") == before + 1


def test_compressed_body_cut_in_transit_is_counted_and_what_it_has_is_taken(
    gateway: Gateway, client: httpx.Client
) -> None:
    before = refused(gateway, "body_truncated")
    body = gzip.compress(orjson.dumps([new_event()]))[:-6]
    assert client.post("/v1/events", content=body).headers["Gateway-Accepted"] == "1"
    until(lambda: refused(gateway, "body_truncated") > before)
    assert refused(gateway, "body_truncated") == before + 1
