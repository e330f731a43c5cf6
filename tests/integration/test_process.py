"""
Claim: the process keeps what it acknowledged through stops and restarts, and refuses a wrong start in a
sentence.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event, post, stored
from tests.support.waiting import until

EVENTS_BEFORE_THE_STOP = 500
LINGER = "app.main:DRAIN_LINGER_S"


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that has stored an event and does not run."""
    gateway = Gateway(tmp_path_factory.mktemp("begun"), {"GATEWAY_PARTITIONS": "2"})
    with gateway:
        httpx.post(f"{gateway.url}/v1/events", content=orjson.dumps(new_event()), auth=AUTH)
    yield gateway
    gateway.stop()


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
    gateway = Gateway(tmp_path, {"GATEWAY_PARTITIONS": "2"}, constants={LINGER: 6})
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
    until(lambda: len(accepted) >= EVENTS_BEFORE_THE_STOP)
    stopped_at = time.monotonic()
    gateway.process.terminate()
    until(lambda: refusals)
    ready = httpx.get(f"{gateway.admin_url}/readyz?verbose")
    for client in clients:
        client.join()
    assert (ready.status_code, ready.json()["draining"]) == (503, True)
    assert {lane["state"] for lane in ready.json()["progress"]} == {"unassigned"}
    assert gateway.wait() == 0
    for refusal in refusals:
        assert (refusal.status_code, refusal.json()["code"]) == (503, "lane_not_active")
        assert 1 <= int(refusal.headers["Retry-After"]) <= 30
        assert refusal.headers["Connection"] == "close"
    lines = stored(gateway)
    assert len(lines) == len({line["messageId"] for line in lines})
    assert {line["messageId"] for line in lines} == accepted != set()


def test_second_signal_stops_at_once_and_safely(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, {"GATEWAY_PARTITIONS": "2"}, constants={LINGER: 600})
    with gateway:
        body = orjson.dumps(new_event())
        first = httpx.post(f"{gateway.url}/v1/events", content=body, auth=AUTH)
        gateway.process.terminate()
        until(lambda: not gateway.is_ready())
        gateway.process.terminate()
        assert gateway.wait() == 128 + 15
        gateway.start()
        again = httpx.post(f"{gateway.url}/v1/events", content=body, auth=AUTH)
        assert again.content == first.content
        assert again.headers["Idempotent-Replayed"] == "true"
        gateway.kill()


def test_full_disk_refuses_before_any_effect(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, {"GATEWAY_DISK_FREE_MIN": "100000TiB"})
    gateway.start(wait=False)
    try:
        gateway.wait_until_lanes_serve()
        ready = httpx.get(f"{gateway.admin_url}/readyz")
        assert (ready.status_code, ready.json()["ready"], ready.json()["share"]) == (503, False, 0.0)
        assert (ready.json()["disk_has_room"], ready.json()["active_lanes"]) == (False, 8)
        assert httpx.get(f"{gateway.url}/health").status_code == 503
        disk = gateway.stats()["disk"]
        assert not disk["has_room"]
        assert 0 < disk["free_bytes"] < disk["free_min_bytes"]
        metrics = httpx.get(f"{gateway.admin_url}/metrics").text
        assert "\ngateway_disk_has_room 0.0\n" in metrics
        assert "\ngateway_ready 0.0\n" in metrics
        assert " is ready (" not in gateway.log_path.read_text()
        answer = httpx.post(f"{gateway.url}/v1/events", content=orjson.dumps(new_event()), auth=AUTH)
        assert (answer.status_code, answer.json()["code"]) == (503, "disk_full")
        assert "Retry-After" in answer.headers
        totals = gateway.stats()["totals"]
        assert (totals["refused"], totals["received"]) == (1, 1)
        assert stored(gateway) == []
    finally:
        gateway.stop()


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
        ({"GATEWAY_PARTITIONS": "3"}, 3, "begun with 2 partitions"),
        ({"PYTHONOPTIMIZE": "1"}, 2, "python -O"),
    ],
)
def test_wrong_start_is_refused_in_a_sentence(
    env: dict[str, str], code: int, sentence: str, begun: Gateway
) -> None:
    wrong = Gateway(begun.folder, {"GATEWAY_PARTITIONS": "2", **env})
    done = cli(wrong, "serve")
    last = done.stderr.decode().splitlines()[-1]
    said = [line for line in done.stderr.decode().splitlines() if line.startswith("gateway: ")]
    assert (done.returncode, done.stdout) == (code, b""), done.stderr.decode()
    assert any(sentence in line for line in said), last
    assert b"Traceback" not in done.stderr
    assert b"another secret of mine" not in done.stderr


def test_folder_of_wrong_starts_is_as_it_was(begun: Gateway) -> None:
    begun.start()
    assert len(stored(begun)) == 1


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


@pytest.mark.regression(
    "A lost log beside its index was begun anew, and retries were answered with places that did not exist."
)
@pytest.mark.parametrize("is_empty", [False, True])
def test_lost_log_beside_its_index_is_refused_until_the_index_is_given_up(
    own_gateway: Gateway, is_empty: bool
) -> None:
    own_gateway.start()
    httpx.post(f"{own_gateway.url}/v1/events", content=orjson.dumps(new_event()), auth=AUTH)
    own_gateway.kill()
    left = own_gateway.data / "log.sqlite-wal"
    (own_gateway.data / "log.sqlite").unlink()
    if is_empty:
        (own_gateway.data / "log.sqlite").touch()

    done = cli(own_gateway, "serve")

    assert done.returncode == 2
    assert b"restore it from a backup" in done.stderr.splitlines()[-1]
    assert left.exists()
    own_gateway.delete_index()
    own_gateway.start()
    assert stored(own_gateway) == []


def test_version_is_printed(gateway: Gateway) -> None:
    assert cli(gateway, "--version").stdout.decode().strip() == gateway.stats()["version"]
