"""
Claim: the real process, on the embedded log and RocksDB, answers as the HTTP contract says, and gives
every retry the same bytes.
"""

import base64
import gzip
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.support.gateway import Gateway
from tests.support.http import new_event, post, stored
from tests.support.waiting import PATIENCE_S, until

SUCCESS = b'{"success":true}'


def test_same_request_twice_gets_the_same_bytes(client: httpx.Client) -> None:
    event = new_event()
    first, again = (post(client, "/v1/events", event) for _ in range(2))
    assert first.status_code == again.status_code == 200
    assert first.content == again.content
    document = first.json()
    assert list(document) == ["success", "receipts"]
    (receipt,) = document["receipts"]
    assert list(receipt) == ["messageId", "partition", "offset"]
    assert receipt["messageId"] == event["messageId"]
    assert first.headers["Content-Type"] == "application/json"
    assert (first.headers["Gateway-Accepted"], first.headers["Gateway-Duplicates"]) == ("1", "0")
    assert (again.headers["Gateway-Accepted"], again.headers["Gateway-Duplicates"]) == ("0", "1")
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert first.headers["Gateway-Request-Id"] != again.headers["Gateway-Request-Id"]


def test_sdk_path_answers_exactly_success(client: httpx.Client) -> None:
    batch = {"batch": [new_event(), new_event()], "sentAt": "2026-11-21T20:00:00Z"}
    first = post(client, "/v1/batch", batch)
    again = post(client, "/v1/batch", batch | {"sentAt": "2026-11-21T20:00:05Z"})
    assert first.content == again.content == SUCCESS
    assert first.headers["Gateway-Accepted"] == again.headers["Gateway-Duplicates"] == "2"


@pytest.mark.parametrize(
    "prefer",
    ["return=representation", 'respond-async, return="representation"', "Return = Representation; x=1"],
)
def test_sdk_path_gives_receipts_when_asked(client: httpx.Client, prefer: str) -> None:
    event = new_event()
    native = post(client, "/v1/events", event)
    assert post(client, "/v1/batch", {"batch": [event]}, Prefer=prefer).content == native.content
    assert post(client, "/v1/batch", {"batch": [event]}, Prefer="return=minimal").content == SUCCESS


def test_native_path_takes_one_event_an_array_or_a_batch(client: httpx.Client) -> None:
    events = [new_event(), new_event()]
    receipts = [post(client, "/v1/events", event).json()["receipts"][0] for event in events]
    for document in (events, {"batch": events}):
        assert post(client, "/v1/events", document).json()["receipts"] == receipts


@pytest.mark.parametrize("path", ["/v1/batch", "/v1/events"])
def test_empty_batch_is_a_success(client: httpx.Client, path: str) -> None:
    answer = client.post(path, content=b'{"batch":[],"writeKey":"web"}')
    assert answer.status_code == 200
    assert answer.content == (SUCCESS if path == "/v1/batch" else b'{"success":true,"receipts":[]}')
    assert (answer.headers["Gateway-Accepted"], answer.headers["Gateway-Duplicates"]) == ("0", "0")


def test_receipts_are_in_request_order_whatever_the_grouping(client: httpx.Client) -> None:
    events = [new_event() for _ in range(12)]
    first = post(client, "/v1/events", events[:8]).json()["receipts"]
    regrouped = [events[5], events[10], events[0], events[5], events[11], events[7]]
    answer = post(client, "/v1/events", regrouped)
    receipts = answer.json()["receipts"]
    assert [receipt["messageId"] for receipt in receipts] == [event["messageId"] for event in regrouped]
    assert [receipts[0], receipts[2], receipts[3], receipts[5]] == [first[5], first[0], first[5], first[7]]
    assert (answer.headers["Gateway-Accepted"], answer.headers["Gateway-Duplicates"]) == ("2", "4")
    assert post(client, "/v1/events", regrouped).content == answer.content


def test_retries_of_one_event_may_differ_in_what_sdks_change(client: httpx.Client) -> None:
    event = new_event()
    first = post(client, "/v1/events", event)
    retry = event | {"sentAt": "2026-11-21T20:00:05Z", "_metadata": {"retryCount": 3}, "writeKey": "web"}
    assert post(client, "/v1/events", dict(reversed(retry.items()))).content == first.content


def test_conflict_is_kept_apart_and_said_to_be(client: httpx.Client, gateway: Gateway) -> None:
    event = new_event()
    receipt = post(client, "/v1/events", event).json()["receipts"][0]
    before = gateway.stats()["totals"]
    request = [new_event(), event | {"event": "Another"}, event]
    answer, again = (post(client, "/v1/events", request) for _ in range(2))
    assert answer.status_code == 200
    assert answer.content == again.content
    assert answer.json()["receipts"][1] == receipt
    (rejected,) = answer.json()["rejected"]
    assert list(rejected) == ["index", "messageId", "code", "message"]
    assert (rejected["index"], rejected["messageId"], rejected["code"]) == (1, event["messageId"], "conflict")
    after = gateway.stats()
    assert after["totals"]["conflicts"] - before["conflicts"] == 2
    sdk = post(client, "/v1/batch", {"batch": request})
    assert list(sdk.json()) == ["success", "rejected"]


def test_rejected_events_leave_the_others_alone(client: httpx.Client, gateway: Gateway) -> None:
    before = gateway.stats()
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    good = new_event()
    request = {
        "batch": [7, good, new_event(messageId=True), new_event(deep=[[]]), new_event(big="x" * 11_000)]
    }
    body = orjson.dumps(request).replace(b'"deep":[[]]', b'"deep":' + b"[" * 300 + b"]" * 300)
    answer, again = (client.post("/v1/batch", content=body) for _ in range(2))
    assert answer.status_code == 200
    assert answer.content == again.content
    assert [(item["index"], item["code"]) for item in answer.json()["rejected"]] == [
        (0, "not_an_object"),
        (2, "message_id_invalid"),
        (3, "event_too_deep"),
        (4, "event_too_large"),
    ]
    assert "receipts" not in answer.json()
    after = gateway.stats()
    assert after["totals"]["rejected"] - before["totals"]["rejected"] == 8
    assert after["quarantine"][0]["accepted"] - before["quarantine"][0]["accepted"] == 4


def test_event_without_id_gets_one(client: httpx.Client) -> None:
    event = {"type": "track", "event": "No id"}
    receipts = [post(client, "/v1/events", event).json()["receipts"][0] for _ in range(2)]
    assert [receipt["idempotent"] for receipt in receipts] == [False, False]
    assert receipts[0]["messageId"] != receipts[1]["messageId"]


def test_idempotency_key_makes_events_without_id_repeatable(client: httpx.Client) -> None:
    request = [{"event": "a", "timestamp": "2026-11-21T20:00:00Z"}, {"event": "b"}]
    key = f"key-{new_event()['messageId']}"
    first, again = (post(client, "/v1/events", request, **{"Idempotency-Key": key}) for _ in range(2))
    assert first.content == again.content
    assert again.headers["Gateway-Duplicates"] == "2"
    assert all("idempotent" not in receipt for receipt in first.json()["receipts"])
    for bad in ("", "x" * 256):
        answer = post(client, "/v1/events", request, **{"Idempotency-Key": bad})
        assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_invalid")


# ---- bodies


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("GZIP", lambda data: gzip.compress(data[:5]) + gzip.compress(data[5:])),
    ],
)
@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/json"]
)
def test_compressed_body_of_any_type_is_read(
    client: httpx.Client, encoding: str, encode: Any, content_type: str
) -> None:
    body = encode(orjson.dumps({"batch": [new_event()]}))
    headers = {"Content-Encoding": encoding, "Content-Type": content_type}

    def chunks() -> Iterator[bytes]:
        yield body[:20]
        yield body[20:]

    assert client.post("/v1/batch", content=body, headers=headers).content == SUCCESS
    assert client.post("/v1/batch", content=chunks(), headers=headers).headers["Gateway-Duplicates"] == "1"


GZIP = {"Content-Encoding": "gzip"}


@pytest.mark.parametrize(
    ("content", "headers", "code"),
    [
        (b"", {}, "invalid_json"),
        (b"{", {}, "invalid_json"),
        (b"\xef\xbb\xbf{", {}, "invalid_json"),
        (b"[" * 5_000, {}, "invalid_json"),
        (b"{}", {}, "batch_missing"),
        (b"5", {}, "batch_missing"),
        (b'{"batch":{}}', {}, "batch_missing"),
        (b" " * 204_801, {}, "body_too_large"),
        (gzip.compress(b" " * 204_801), GZIP, "body_too_large"),
        (b"text", GZIP, "body_not_decompressable"),
        (gzip.compress(b"{}", mtime=0)[:10], GZIP, "body_not_decompressable"),
        (b"{}", {"Content-Encoding": "br"}, "unsupported_encoding"),
    ],
)
def test_bad_body_is_refused_for_good(
    client: httpx.Client, content: bytes, headers: dict[str, str], code: str
) -> None:
    answer = client.post("/v1/batch", content=content, headers={**headers, "Prefer": "handling=strict"})
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert list(answer.json()) == ["code", "message"]
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "Retry-After" not in answer.headers


@pytest.mark.parametrize(
    "words", [("UTF-8", "gzip"), ("gzip", "UTF-8"), ("identity", "identity"), ("gzip", "gzip")]
)
def test_content_encoding_in_two_lines_is_no_obstacle(client: httpx.Client, words: tuple[str, str]) -> None:
    body = orjson.dumps({"batch": [new_event()]})
    headers = [("Content-Encoding", word) for word in words]
    assert client.post("/v1/batch", content=body, headers=headers).content == SUCCESS
    compressed = client.post("/v1/batch", content=gzip.compress(body), headers=headers)
    assert compressed.headers["Gateway-Duplicates"] == "1"


def test_body_that_does_not_arrive_gets_503_and_the_connection_closed(tmp_path: Path) -> None:
    hasty = Gateway(tmp_path, {}, constants={"app.http.body:BodyLimits.grace_s": 0.5})
    with hasty, socket.create_connection(("127.0.0.1", hasty.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"POST /v1/batch HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: " in answer
    assert b"connection: close" in answer
    assert b'"code":"body_timeout"' in answer


def test_client_that_does_not_wait_loses_nothing(gateway: Gateway) -> None:
    event = new_event()
    body = orjson.dumps(event | {"writeKey": "web"})
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE_S) as connection:
        head = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # leave with RST
    until(lambda: event["messageId"] in {line["messageId"] for line in stored(gateway)})


# ---- who may, and from where


@pytest.mark.parametrize(
    ("headers", "query", "body_key"),
    [
        ({"Authorization": "Basic " + base64.b64encode(b"key-1:").decode()}, "", None),
        ({"X-Write-Key": "key-1:secret"}, "", None),
        ({}, "?writeKey=key-1", None),
        ({}, "", "key-1"),
        ({"Authorization": "Bearer nothing"}, "", "key-1"),
    ],
)
def test_every_place_of_the_write_key_leads_to_its_source(
    gateway: Gateway, headers: dict[str, str], query: str, body_key: str | None
) -> None:
    event = new_event()
    document: dict[str, Any] = {"batch": [event]}
    if body_key:
        document["writeKey"] = body_key  # the last key, as mobile SDKs send it
    with httpx.Client(base_url=gateway.url) as client:
        assert post(client, f"/v1/batch{query}", document, **headers).content == SUCCESS
    (line,) = [line for line in stored(gateway) if line["messageId"] == event["messageId"]]
    assert line["source"] == "key-1"
    assert "writeKey" not in line["value"]


def test_write_key_missing_everywhere_is_refused(gateway: Gateway) -> None:
    answer = httpx.post(f"{gateway.url}/v1/events", content=orjson.dumps(new_event()))
    assert (answer.status_code, answer.json()["code"]) == (400, "write_key_missing")


def test_key_file_decides_in_production(own_gateway: Gateway, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(
        "- {key: good, source: web}\n- {key: also, source: web}\n"
        "- {key: disabled-key, source: web, enabled: false}\n"
    )
    gateway = Gateway(
        own_gateway.folder,
        {
            "GATEWAY_MODE": "production",
            "GATEWAY_IDENTITY_SECRET": "a secret for production",
            "GATEWAY_WRITE_KEYS_FILE": str(keys),
        },
    )
    event = new_event()
    with gateway:
        first, same_source = (
            httpx.post(f"{gateway.url}/v1/events", content=orjson.dumps(event), auth=(key, ""))
            for key in ("good", "also")
        )
        assert first.content == same_source.content
        assert same_source.headers["Idempotent-Replayed"] == "true"
        for key in ("disabled-key", "unknown"):
            answer = httpx.post(f"{gateway.url}/v1/events", content=orjson.dumps(event), auth=(key, ""))
            assert (answer.status_code, answer.json()["code"]) == (401, "invalid_write_key")
    log = gateway.log_path.read_text()
    assert not [word for word in ("good", "a secret for production") if word in log]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/batch", 405, "method_not_allowed"),
        ("PUT", "/v1/events", 405, "method_not_allowed"),
        ("GET", "/", 404, "not_found"),
        ("POST", "/v1/unknown", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
    ],
)
def test_unknown_paths_and_methods_get_json(
    client: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert "Access-Control-Allow-Origin" in answer.headers
    assert "Gateway-Request-Id" in answer.headers


def test_preflight_allows_what_it_asks_for(client: httpx.Client) -> None:
    asked = "authorization,content-type,x-retry-count"
    answer = client.options(
        "/v1/batch",
        headers={
            "Origin": "https://shop.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": asked,
        },
    )
    assert answer.status_code == 200
    assert answer.headers["Access-Control-Allow-Origin"] == "https://shop.example"
    assert answer.headers["Access-Control-Allow-Credentials"] == "true"
    assert answer.headers["Access-Control-Allow-Headers"] == asked
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]
    assert answer.headers["Access-Control-Max-Age"] == "86400"


def test_browser_can_read_every_answer(client: httpx.Client) -> None:
    for content in (orjson.dumps({"batch": [new_event()]}), b"{"):
        answer = client.post("/v1/batch", content=content, headers={"Origin": "https://shop.example"})
        assert answer.headers["Access-Control-Allow-Origin"] == "https://shop.example"
        assert answer.headers["Vary"] == "Origin"
        assert "Retry-After" in answer.headers["Access-Control-Expose-Headers"]


def test_odd_headers_are_not_echoed(client: httpx.Client) -> None:
    answer = client.options("/v1/batch", headers={"Access-Control-Request-Headers": "x" * 5_000})
    assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
