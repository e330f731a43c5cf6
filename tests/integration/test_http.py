"""
Claim: the real process, on the embedded log and RocksDB, answers as the HTTP contract says, gives
every retry the same bytes, and keeps what it acknowledged through stops and restarts.
"""

import base64
import gzip
import itertools
import shutil
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.support.gateway import Gateway

NUMBERS = itertools.count()
AUTH = ("web", "")
SUCCESS = b'{"success":true}'


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway for all tests that leave it as it was."""
    with Gateway(
        tmp_path_factory.mktemp("gateway"),
        {
            "GATEWAY_PARTITIONS": "4",
            "GATEWAY_BODY_BYTES_MAX": "200KiB",
            "GATEWAY_BODY_COMPRESSED_BYTES_MAX": "20KiB",
            "GATEWAY_REQUEST_EVENTS_MAX": "50",
            "GATEWAY_EVENT_BYTES_MAX": "10KiB",
            "GATEWAY_BODY_TIMEOUT": "500ms",
        },
    ) as running:
        yield running


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway of the test's own, not started yet."""
    gateway = Gateway(tmp_path / "gateway", {"GATEWAY_PARTITIONS": "2", "GATEWAY_DRAIN_LINGER": "0"})
    yield gateway
    gateway.stop()


@pytest.fixture
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        yield client


def new_event(**fields: Any) -> dict[str, Any]:
    return {"messageId": f"id-{next(NUMBERS)}", "type": "track", "event": "Tested", **fields}


def post(client: httpx.Client, path: str, document: Any, **headers: str) -> httpx.Response:
    return client.post(path, content=orjson.dumps(document), headers=headers)


def cli(gateway: Gateway, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command with the gateway's settings."""
    command = [str(Path(sys.executable).with_name("gateway")), *arguments]
    return subprocess.run(command, env=gateway.environment, capture_output=True, timeout=30, check=False)


def stored(gateway: Gateway, *arguments: str) -> list[dict[str, Any]]:
    """Return what `gateway events` prints."""
    done = cli(gateway, "events", *arguments)
    assert (done.returncode, done.stderr) == (0, b"")
    return [orjson.loads(line) for line in done.stdout.splitlines()]


# ---- answers


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
    request = {"batch": [7, good, new_event(messageId=5), new_event(deep=[[]]), new_event(big="x" * 11_000)]}
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
    key = f"key-{next(NUMBERS)}"
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
        (b"\xef\xbb\xbf{}", {}, "invalid_json"),
        (b'{"batch":[{"messageId":"\\ud800"}]}', {}, "invalid_json"),
        (b"[" * 5_000, {}, "invalid_json"),
        (b"{}", {}, "batch_missing"),
        (b"[]", {}, "batch_missing"),
        (b'{"batch":{}}', {}, "batch_missing"),
        (b" " * 204_801, {}, "body_too_large"),
        (gzip.compress(b" " * 204_801), GZIP, "body_too_large"),
        (b"{}", GZIP, "body_not_decompressable"),
        (gzip.compress(b"{}")[:-1], GZIP, "body_not_decompressable"),
        (b"{}", {"Content-Encoding": "br"}, "unsupported_encoding"),
        (b'{"batch":[' + b"{}," * 50 + b"{}]}", {}, "too_many_events"),
    ],
)
def test_bad_body_is_refused_for_good(
    client: httpx.Client, content: bytes, headers: dict[str, str], code: str
) -> None:
    answer = client.post("/v1/batch", content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert list(answer.json()) == ["code", "message"]
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "Retry-After" not in answer.headers


def test_request_too_large_after_merging_is_refused(own_gateway: Gateway) -> None:
    own_gateway.start()
    batch = {"batch": [new_event() for _ in range(100)], "context": {"page": "x" * 200_000}}
    with httpx.Client(base_url=own_gateway.url, auth=AUTH) as client:
        answer = post(client, "/v1/batch", batch)
        assert (answer.status_code, answer.json()["code"]) == (400, "request_too_large")
        assert post(client, "/v1/batch", batch | {"batch": [new_event()]}).content == SUCCESS


def test_body_that_does_not_arrive_gets_503_and_the_connection_closed(gateway: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as connection:
        connection.sendall(b"POST /v1/batch HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: " in answer
    assert b"connection: close" in answer
    assert b'"code":"body_timeout"' in answer


def test_client_that_does_not_wait_loses_nothing(gateway: Gateway) -> None:
    event = new_event()
    body = orjson.dumps(event | {"writeKey": "web"})
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as connection:
        head = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # leave with RST
    deadline = time.monotonic() + 10
    while event["messageId"] not in {line["messageId"] for line in stored(gateway)}:
        assert time.monotonic() < deadline, "the event is not in the log"


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
        ("POST", "/v1/batch/", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
        ("GET", "/openapi.json", 404, "not_found"),
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


# ---- the operator's side


def test_every_event_has_one_verdict_in_the_stats(client: httpx.Client, gateway: Gateway) -> None:
    event = new_event()
    post(client, "/v1/batch", {"batch": [event, event, event | {"event": "x"}, 5, new_event()]})
    stats = gateway.stats()
    totals = stats["totals"]
    parts = ("accepted", "duplicates", "conflicts", "rejected", "unknown", "refused")
    assert totals["received"] == sum(totals[part] for part in parts)
    assert (stats["mode"], stats["log"], stats["in_flight"]) == ("development", "sqlite", 0)
    assert [partition["partition"] for partition in stats["partitions"]] == [0, 1, 2, 3]
    committed = stored(gateway)
    for partition in stats["partitions"]:
        records = [line for line in committed if line["partition"] == partition["partition"]]
        assert partition["accepted"] == len(records) == partition["applied_offset"] == partition["keys"]
        assert (partition["state"], partition["since_offset"], partition["queue_events"]) == ("active", 0, 0)
        assert partition["window_seconds"] == 7 * 86_400
    assert sum(partition["accepted"] for partition in stats["partitions"]) == totals["accepted"]


def test_health_and_metrics_are_served(client: httpx.Client, gateway: Gateway) -> None:
    post(client, "/v1/batch", {"batch": [new_event()]})
    with httpx.Client(base_url=gateway.admin_url) as admin:
        assert admin.get("/livez").status_code == 200
        ready = admin.get("/readyz?verbose")
        assert ready.status_code == 200
        assert {lane["state"] for lane in ready.json()["lanes"]} == {"active"}
        assert len(ready.json()["lanes"]) == 5
        assert admin.get("/nothing").json()["code"] == "not_found"
        metrics = admin.get("/metrics").text
        stats = gateway.stats()
    for line in (
        'gateway_http_requests_total{code="200",route="/v1/batch"}',
        f'gateway_events_total{{partition="0",result="accepted"}} {stats["partitions"][0]["accepted"]}.0',
        'lane_state{partition="0",state="active",topic="events"} 1.0',
        'dedupe_index_window_seconds{partition="3",topic="events"} 604800.0',
        'gateway_queue_events{partition="0",topic="events.quarantine"} 0.0',
        "process_resident_memory_bytes",
    ):
        assert line in metrics


def test_ready_made_curl_works_as_printed(gateway: Gateway) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (line,) = [line for line in gateway.log_path.read_text().splitlines() if line.startswith("  curl ")]
    bodies = [subprocess.run(line, shell=True, capture_output=True, check=True).stdout for _ in range(2)]
    assert b"200 OK" in bodies[0]
    assert bodies[0].partition(b"\r\n\r\n")[2] == bodies[1].partition(b"\r\n\r\n")[2] != b""


def test_events_are_printed_as_lines(client: httpx.Client, gateway: Gateway) -> None:
    event = new_event(properties={"n": 1.5, "ü": None}, writeKey="web")
    (receipt,) = post(client, "/v1/events", event).json()["receipts"]
    (line,) = [line for line in stored(gateway) if line["messageId"] == event["messageId"]]
    assert list(line) == ["messageId", "source", "partition", "offset", "timestamp", "value"]
    assert (line["source"], line["partition"], line["offset"]) == (
        "web",
        receipt["partition"],
        receipt["offset"],
    )
    value = line["value"]
    assert value == {
        **{name: field for name, field in event.items() if name != "writeKey"},
        "receivedAt": value["receivedAt"],
    }
    assert abs(line["timestamp"] / 1000 - time.time()) < 60
    assert stored(gateway, "--from-start", "--until-end") == stored(gateway)


def test_events_follow_the_log(client: httpx.Client, gateway: Gateway) -> None:
    post(client, "/v1/events", new_event())
    command = [str(Path(sys.executable).with_name("gateway")), "events", "--follow"]
    with subprocess.Popen(command, env=gateway.environment, stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        lines: list[bytes] = []
        reader = threading.Thread(target=lambda: lines.extend(following.stdout or ()))
        reader.start()
        sent: set[str] = set()
        deadline = time.monotonic() + 20
        while not lines and time.monotonic() < deadline:  # it may not have found the end yet
            event = new_event()
            sent.add(event["messageId"])
            post(client, "/v1/events", event)
            time.sleep(0.2)
        following.terminate()
        reader.join()
    assert {orjson.loads(line)["messageId"] for line in lines} <= sent
    assert lines


def test_events_of_no_log_is_nothing(tmp_path: Path) -> None:
    assert stored(Gateway(tmp_path)) == []


def test_reader_that_stops_early_is_no_error(gateway: Gateway, client: httpx.Client) -> None:
    post(client, "/v1/batch", {"batch": [new_event() for _ in range(50)]})
    command = f"{Path(sys.executable).with_name('gateway')} events | head -c 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=gateway.environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{", b"")


def test_contradicting_options_are_refused(gateway: Gateway) -> None:
    assert cli(gateway, "events", "--follow", "--until-end").returncode == 2


# ---- stop, start, refuse to start


def test_restart_and_lost_index_change_no_receipt(own_gateway: Gateway) -> None:
    requests = [orjson.dumps([new_event() for _ in range(9)]) for _ in range(5)]
    conflicting = new_event()
    requests.append(orjson.dumps([conflicting, conflicting | {"event": "x"}, 7]))
    answers: list[list[bytes]] = []
    for restart in range(4):
        own_gateway.start()
        answers.append(
            [httpx.post(f"{own_gateway.url}/v1/events", content=r, auth=AUTH).content for r in requests]
        )
        if restart % 2:
            own_gateway.kill()
        else:
            assert own_gateway.stop() == 0
        if restart:
            own_gateway.delete_index()
    assert answers[0] == answers[1] == answers[2] == answers[3]
    assert len(stored(own_gateway)) == 46


def test_graceful_stop_refuses_new_requests_and_loses_none(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, {"GATEWAY_DRAIN_LINGER": "1.5s", "GATEWAY_PARTITIONS": "2"})
    accepted: set[str] = set()
    refusals: list[httpx.Response] = []

    def send() -> None:
        with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
            while not refusals or time.monotonic() < stopped_at + 0.5:
                events = [new_event() for _ in range(20)]
                answer = post(client, "/v1/batch", {"batch": events})
                if answer.status_code == 200:
                    accepted.update(event["messageId"] for event in events)
                else:
                    refusals.append(answer)

    gateway.start()
    stopped_at = float("inf")
    clients = [threading.Thread(target=send) for _ in range(4)]
    for client in clients:
        client.start()
    time.sleep(0.5)
    stopped_at = time.monotonic()
    gateway.process.terminate()
    for client in clients:
        client.join()
    ready = httpx.get(f"{gateway.admin_url}/readyz?verbose")
    assert (ready.status_code, ready.json()["draining"]) == (503, True)
    assert {lane["state"] for lane in ready.json()["lanes"]} == {"unassigned"}
    assert gateway.wait() == 0
    for refusal in refusals:
        assert (refusal.status_code, refusal.json()["code"]) == (503, "lane_not_active")
        assert 1 <= int(refusal.headers["Retry-After"]) <= 30
        assert refusal.headers["Connection"] == "close"
    lines = stored(gateway)
    assert len(lines) == len({line["messageId"] for line in lines})
    assert {line["messageId"] for line in lines} == accepted != set()


def test_second_signal_stops_at_once_and_safely(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, {"GATEWAY_DRAIN_LINGER": "60s", "GATEWAY_PARTITIONS": "2"})
    with gateway:
        body = orjson.dumps(new_event())
        first = httpx.post(f"{gateway.url}/v1/events", content=body, auth=AUTH)
        gateway.process.terminate()
        deadline = time.monotonic() + 10
        while gateway.is_ready():
            assert time.monotonic() < deadline
        gateway.process.terminate()
        assert gateway.wait(timeout_s=5) == 128 + 15
        gateway.start()
        again = httpx.post(f"{gateway.url}/v1/events", content=body, auth=AUTH)
        assert again.content == first.content
        assert again.headers["Idempotent-Replayed"] == "true"
        gateway.kill()


def test_full_disk_refuses_before_any_effect(tmp_path: Path) -> None:
    with Gateway(tmp_path, {"GATEWAY_DISK_FREE_MIN": "100000TiB"}) as gateway:
        answer = httpx.post(f"{gateway.url}/v1/events", content=orjson.dumps(new_event()), auth=AUTH)
        assert (answer.status_code, answer.json()["code"]) == (503, "disk_full")
        assert "Retry-After" in answer.headers
        totals = gateway.stats()["totals"]
        assert (totals["refused"], totals["received"]) == (1, 1)
        assert stored(gateway) == []


@pytest.mark.parametrize(
    ("env", "code", "sentence"),
    [
        ({"GATEWAY_MODE": ""}, 2, "GATEWAY_IDENTITY_SECRET must be set in production"),
        ({"GATEWAY_PARTITION": "8"}, 2, "GATEWAY_PARTITION is not a setting of the gateway; did you mean"),
        ({"GATEWAY_PORT": "tcp://10.0.0.1:80"}, 2, "service link of Kubernetes"),
        ({"GATEWAY_WINDOW": "1h"}, 2, "GATEWAY_WINDOW must be at least 24h"),
        ({"GATEWAY_HOST": "192.0.2.1"}, 2, "cannot listen on 192.0.2.1:"),
        ({"GATEWAY_WRITE_KEYS_FILE": "missing.yaml"}, 2, "missing.yaml cannot be read"),
        ({"GATEWAY_DATA_DIR": "/dev/null/x"}, 2, "data folder /dev/null/x cannot be used"),
        ({"GATEWAY_IDENTITY_SECRET": "another secret of mine"}, 3, "GATEWAY_IDENTITY_SECRET"),
        ({"GATEWAY_PARTITIONS": "3"}, 2, "partitions"),
        ({"PYTHONOPTIMIZE": "1"}, 2, "python -O"),
    ],
)
def test_wrong_start_is_refused_in_a_sentence(
    env: dict[str, str], code: int, sentence: str, own_gateway: Gateway
) -> None:
    own_gateway.start()
    httpx.post(f"{own_gateway.url}/v1/events", content=orjson.dumps(new_event()), auth=AUTH)
    own_gateway.stop()
    wrong = Gateway(own_gateway.folder, {"GATEWAY_PARTITIONS": "2", **env})
    done = cli(wrong, "serve")
    last = done.stderr.decode().splitlines()[-1]
    said = [line for line in done.stderr.decode().splitlines() if line.startswith("gateway: ")]
    assert (done.returncode, done.stdout) == (code, b""), done.stderr.decode()
    assert any(sentence in line for line in said), last
    assert b"Traceback" not in done.stderr
    assert b"another secret of mine" not in done.stderr


def test_two_gateways_in_one_folder_are_refused(gateway: Gateway) -> None:
    second = Gateway(gateway.folder, {"GATEWAY_PARTITIONS": "4"})
    done = cli(second, "serve")
    assert done.returncode == 2
    assert b"is in use by another gateway" in done.stderr.splitlines()[-1]


def test_folder_of_a_newer_version_is_refused(own_gateway: Gateway) -> None:
    own_gateway.start()
    own_gateway.stop()
    (own_gateway.data / "FORMAT").write_text("2\n")
    for command in ("serve", "events"):
        done = cli(own_gateway, command)
        assert done.returncode == 2
        assert b"has format 2, this gateway knows up to 1" in done.stderr.splitlines()[-1]


def test_version_is_printed(gateway: Gateway) -> None:
    assert cli(gateway, "--version").stdout.decode().strip() == gateway.stats()["version"]
