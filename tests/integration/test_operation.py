"""
Claim: an operator sees every event in exactly one counter, and the committed log as it is.
"""

import subprocess
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import orjson

from tests.support.forked import COMMAND
from tests.support.gateway import Gateway
from tests.support.http import cli, new_event, post, stored
from tests.support.raw_http import RawConnection
from tests.support.waiting import until


def test_every_event_has_one_verdict_in_the_stats(client: httpx.Client, gateway: Gateway) -> None:
    event = new_event()
    post(client, "/v1/batch", {"batch": [event, event, event | {"event": "x"}, 5, new_event()]})
    until(lambda: gateway.stats()["in_flight"] == 0)
    stats = gateway.stats()
    totals = stats["totals"]
    parts = ("accepted", "duplicates", "conflicts", "rejected", "unknown", "refused")
    assert totals["received"] == sum(totals[part] for part in parts)
    assert (stats["mode"], stats["log"]) == ("development", "sqlite")
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
        assert {lane["state"] for lane in ready.json()["progress"]} == {"active"}
        assert len(ready.json()["progress"]) == 5
        assert (ready.json()["active_lanes"], ready.json()["lanes"], ready.json()["share"]) == (4, 4, 1.0)
        assert admin.get("/nothing").json()["code"] == "not_found"
        metrics = admin.get("/metrics").text
        stats = gateway.stats()
    for line in (
        'gateway_http_requests_total{code="200",route="/v1/batch"}',
        f'gateway_events_total{{partition="0",result="accepted"}} {stats["partitions"][0]["accepted"]}.0',
        'gateway_lane_state{partition="0",state="active",topic="events"} 1.0',
        'gateway_index_window_seconds{partition="3",topic="events"} 604800.0',
        'gateway_queue_events{partition="0",topic="events.quarantine"} 0.0',
        "process_resident_memory_bytes",
    ):
        assert line in metrics


def test_admin_port_has_limits_of_its_own(tmp_path: Path) -> None:
    impatient = {"app.http.port:ConnectionLimits.head_timeout_s": 0.3}
    with Gateway(tmp_path, {"GATEWAY_PARTITIONS": "1"}, constants=impatient) as gateway:
        with RawConnection(gateway.admin_port) as slow:
            slow.send(b"GET /livez HTTP/1.1\r\nHost: x")
            assert slow.is_closed()
        with RawConnection(gateway.admin_port) as large:
            large.send(b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Large: " + b"x" * 20_000 + b"\r\n\r\n")
            assert large.answer().code == "head_too_large"
        crowd = [RawConnection(gateway.admin_port) for _ in range(300)]
        try:
            assert httpx.get(f"{gateway.admin_url}/livez").status_code == 200
            until(lambda: len(list(Path(f"/proc/{gateway.process.pid}/fd").iterdir())) < 300)
        finally:
            for connection in crowd:
                connection.socket.close()
        rebound = httpx.get(f"{gateway.admin_url}/admin/v1/stats", headers={"Host": "attacker.example"})
        assert (rebound.status_code, rebound.json()["code"]) == (403, "host_not_allowed")


def test_load_balancers_are_answered_and_not_counted(client: httpx.Client, gateway: Gateway) -> None:
    before = gateway.stats()["totals"]
    healthy = client.get("/health", auth=None)
    assert (healthy.status_code, healthy.content) == (200, b'{"ready":true}')
    assert client.head("/health").status_code == 200
    assert client.post("/health").status_code == 404
    assert gateway.stats()["totals"] == before
    metrics = httpx.get(f"{gateway.admin_url}/metrics").text
    assert not [line for line in metrics.splitlines() if "http_requests" in line and "health" in line]


def test_ready_made_curl_works_as_printed(gateway: Gateway) -> None:
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
        "context": {"ip": "127.0.0.1"},
        "receivedAt": value["receivedAt"],
    }
    received_at = datetime.fromisoformat(value["receivedAt"])
    assert line["timestamp"] == round(received_at.timestamp() * 1000)
    assert timedelta() <= datetime.now(UTC) - received_at < timedelta(minutes=1)
    assert stored(gateway, "--from-start", "--until-end") == stored(gateway)


def test_events_follow_the_log(client: httpx.Client, gateway: Gateway) -> None:
    post(client, "/v1/events", new_event())
    command = [COMMAND, "events", "--follow"]
    with subprocess.Popen(command, env=gateway.environment, stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        lines: list[bytes] = []
        reader = threading.Thread(target=lambda: lines.extend(following.stdout or ()))
        reader.start()
        sent: set[str] = set()

        def is_followed() -> bool:
            event = new_event()
            sent.add(event["messageId"])
            post(client, "/v1/events", event)
            return bool(lines)

        until(is_followed)  # it may not have found the end yet
        following.terminate()
        reader.join()
    assert {orjson.loads(line)["messageId"] for line in lines} <= sent
    assert lines


def test_reader_that_stops_early_is_no_error(gateway: Gateway, client: httpx.Client) -> None:
    post(client, "/v1/batch", {"batch": [new_event() for _ in range(50)]})
    command = f"{COMMAND} events | head -c 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=gateway.environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{", b"")


def test_contradicting_options_are_refused(gateway: Gateway) -> None:
    assert cli(gateway, "events", "--follow", "--until-end").returncode == 2


def test_events_are_chosen_by_source_and_time(tmp_path: Path) -> None:
    with Gateway(tmp_path, {"GATEWAY_PARTITIONS": "2"}) as gateway:
        ids: dict[str, list[str]] = {"web": [], "ios": []}
        with httpx.Client(base_url=gateway.url) as client:
            for source, sent in ids.items():
                for _ in range(6):
                    event = new_event()
                    sent.append(event["messageId"])
                    client.post("/v1/events", json=event, auth=(source, "")).raise_for_status()
        everything = stored(gateway)
        assert sorted(found["messageId"] for found in stored(gateway, "--source", "ios")) == sorted(
            ids["ios"]
        )
        assert stored(gateway, "--limit", "5") == everything[:5]
        assert stored(gateway, "--limit", "500", "--since", "1h") == everything
        times = sorted(event["timestamp"] for event in everything)
        since = datetime.fromtimestamp(times[6] / 1000, UTC).isoformat()
        late = [event for event in everything if event["timestamp"] >= times[6]]
        assert stored(gateway, "--since", since) == late
        assert stored(gateway, "--since", (datetime.now(UTC) + timedelta(hours=1)).isoformat()) == []
        assert stored(gateway, "--follow", "--since", "1h", "--limit", "12") == everything
        assert cli(gateway, "events", "--since", "yesterday").returncode == 2
