"""
Claim: an operator sees every event that was kept apart, once and with its reason, and can send it again
after a fix as often as he likes; on both logs, beside a running gateway.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson
import pytest

from tests.fault.conftest import kafka_log, sqlite_log
from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, post, stored

DEEP = {"messageId": "deep", "type": "track", "properties": {"a": {"b": {"c": {"d": 1}}}}}
NAMELESS = {name: value for name, value in DEEP.items() if name != "messageId"}
LARGE = {"messageId": "large", "type": "track", "text": "x" * 20_000}
HUGE = {"messageId": "huge", "type": "track", "text": "ü" * 50_000}
MISNAMED = {"messageId": 5, "type": "track", "event": "Numbered"}
FIRST = {"messageId": "taken", "type": "track", "event": "First"}
SECOND = {"messageId": "taken", "type": "track", "event": "Second", "batch": [1, 2]}

SENT = [DEEP, NAMELESS, LARGE, HUGE, MISNAMED, 7, FIRST, SECOND]
KEPT = [
    ("event_too_deep", "deep"),
    ("event_too_deep", None),
    ("event_too_large", "large"),
    ("event_too_large", "huge"),
    ("message_id_invalid", None),
    ("not_an_object", None),
    ("conflict", "taken"),
]

LIMITS = {"GATEWAY_EVENT_BYTES_MAX": "10KiB", "GATEWAY_EVENT_DEPTH_MAX": "4", "GATEWAY_RETRY_AFTER_MAX": "1"}
FIXED = {"GATEWAY_EVENT_BYTES_MAX": "100KiB", "GATEWAY_EVENT_DEPTH_MAX": "10"}


class World(NamedTuple):
    """A running gateway that has kept events apart, and how to start it again with other settings."""

    gateway: Gateway
    env: Mapping[str, str]

    def restarted(self, **env: str) -> Gateway:
        self.gateway.stop()
        return Gateway(self.gateway.folder, {**self.env, **LIMITS, **env})


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    is_kafka = request.param == "kafka"
    log = kafka_log(request.getfixturevalue("kafka_bootstrap")) if is_kafka else sqlite_log()
    with Gateway(tmp_path / "gateway", {**log.env, **LIMITS}) as gateway:
        for _ in range(3):
            with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
                answer = post(client, "/v1/events", SENT)
                assert [entry["index"] for entry in answer.json()["rejected"]] == [0, 1, 2, 3, 4, 5, 7]
        yield World(gateway, log.env)


def listed(gateway: Gateway, *options: str) -> list[dict[str, Any]]:
    done = cli(gateway, "quarantine", "list", *options)
    assert (done.returncode, done.stderr) == (0, b"")
    return [orjson.loads(line) for line in done.stdout.splitlines()]


def place_of(line: Mapping[str, Any]) -> str:
    return f"{line['partition']}:{line['offset']}"


def replayed(gateway: Gateway, *options: str, code: int = 0, write_key: str = AUTH[0]) -> dict[str, Any]:
    """Replay and return the results by the event's id, or its reason if it has none."""
    done = cli(gateway, "quarantine", "replay", "--url", gateway.url, "--write-key", write_key, *options)
    assert done.returncode == code, done.stderr.decode()
    lines = [orjson.loads(line) for line in done.stdout.splitlines()]
    return {line["messageId"] or line["reason"]: line for line in lines}


def results(lines: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {name: line["result"] for name, line in lines.items()}


def test_bad_events_are_kept_once_and_replayed_once(world: World) -> None:
    gateway = world.gateway
    lines = listed(gateway)
    assert [(line["reason"], line["messageId"]) for line in lines] == KEPT
    assert list(lines[0]) == [
        "partition", "offset", "timestamp", "reason", "source", "messageId", "truncated", "length",
    ]  # fmt: skip
    assert {line["source"] for line in lines} == {AUTH[0]}
    assert [line["messageId"] for line in lines if line["truncated"]] == ["huge"]
    assert lines[3]["length"] == len(orjson.dumps(HUGE))
    check_filters(gateway, lines)
    check_show(gateway, lines)
    check_dry_run(gateway, lines)

    still_bad = replayed(gateway, "--reason", "event_too_deep", code=1)
    assert results(still_bad) == {"deep": "rejected", "event_too_deep": "rejected"}
    assert still_bad["deep"]["why"] == "event_too_deep"
    assert listed(gateway) == lines
    with world.restarted(**FIXED) as fixed:
        check_replay(fixed)
        assert listed(fixed) == lines


def check_filters(gateway: Gateway, lines: list[dict[str, Any]]) -> None:
    assert listed(gateway, "--reason", "conflict") == lines[6:]
    assert listed(gateway, "--source", AUTH[0], "--since", "1h") == lines
    assert listed(gateway, "--source", "nobody") == []
    assert listed(gateway, "--since", "2100-01-01T00:00:00Z") == []
    assert cli(gateway, "quarantine", "list", "--since", "yesterday").returncode == 2


def check_show(gateway: Gateway, lines: list[dict[str, Any]]) -> None:
    whole, truncated = (
        orjson.loads(cli(gateway, "quarantine", "show", place_of(line)).stdout)
        for line in (lines[0], lines[3])
    )
    assert {name: whole[name] for name in lines[0]} == lines[0]
    assert whole["event"] == DEEP
    assert truncated["head"].startswith('{"messageId":"huge","text":"üü')
    assert truncated["sha256"] == hashlib.sha256(orjson.dumps(HUGE, option=orjson.OPT_SORT_KEYS)).hexdigest()
    missing = cli(gateway, "quarantine", "show", "0:999999")
    assert (missing.returncode, missing.stdout) == (1, b"")
    assert missing.stderr == b"gateway: there is no record at 0:999999\n"
    assert cli(gateway, "quarantine", "show", "17").returncode == 2


def check_dry_run(gateway: Gateway, lines: list[dict[str, Any]]) -> None:
    expected = ["ready", "ready", "ready", "skipped", "skipped", "skipped", "skipped"]
    done = cli(gateway, "quarantine", "replay", "--dry-run")
    found = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, b"gateway: 3 ready, 4 skipped\n")
    assert [line["result"] for line in found] == expected
    assert "--new-id" in found[6]["why"]
    assert [line["messageId"] for line in stored(gateway)] == ["taken"]


def check_replay(gateway: Gateway) -> None:
    """Replays what the larger limits admit, then what needs an id of its own, then all of it again."""
    first = replayed(gateway, code=1)
    assert results(first) == {
        "deep": "accepted",
        "event_too_deep": "accepted",
        "large": "accepted",
        "huge": "skipped",
        "message_id_invalid": "skipped",
        "not_an_object": "skipped",
        "taken": "skipped",
    }
    renewed = replayed(gateway, "--new-id", code=1)
    for name in ("deep", "event_too_deep", "large"):
        assert (renewed[name]["result"], renewed[name]["receipt"]) == ("duplicate", first[name]["receipt"])
    assert (renewed["taken"]["result"], renewed["message_id_invalid"]["result"]) == ("accepted", "accepted")
    again = replayed(gateway, "--new-id", "--reason", "conflict")
    assert (again["taken"]["result"], again["taken"]["receipt"]) == ("duplicate", renewed["taken"]["receipt"])

    events = {line["messageId"]: line["value"] for line in stored(gateway)}
    assert len(events) == 6
    new_id = renewed["taken"]["receipt"]["messageId"]
    assert (events[new_id]["event"], events[new_id]["batch"]) == ("Second", [1, 2])
    assert events["deep"]["properties"] == DEEP["properties"]
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        own_retry = post(client, "/v1/events", [DEEP, LARGE])
    assert own_retry.headers["Gateway-Duplicates"] == "2"


def test_replay_refuses_what_could_harm(own_gateway: Gateway) -> None:
    keys = own_gateway.folder / "keys.yaml"
    own_gateway.folder.mkdir()
    keys.write_text("- {key: web-key, source: web}\n- {key: app-key, source: app}\n")
    gateway = Gateway(own_gateway.folder, {"GATEWAY_WRITE_KEYS_FILE": str(keys)})
    with gateway:
        for write_key in ("web-key", "app-key"):
            httpx.post(f"{gateway.url}/v1/events", content=b'[{"messageId":"1"},5]', auth=(write_key, ""))
        options = ("quarantine", "replay", "--url", gateway.url)
        for arguments, sentence in (
            ((), "--write-key"),
            (("--write-key", "web-key"), "of 2 sources (app, web)"),
            (("--write-key", "web-key", "0:77"), "there is no such record at 0:77"),
        ):
            done = cli(gateway, *options, *arguments)
            assert (done.returncode, done.stdout) == (2, b"")
            assert sentence in done.stderr.decode()


def test_replay_says_when_nobody_answers_like_a_gateway(own_gateway: Gateway) -> None:
    with own_gateway:
        deep = orjson.dumps([{"messageId": "1", "a": orjson.loads(b"[" * 40 + b"]" * 40)}])
        httpx.post(f"{own_gateway.url}/v1/events", content=deep, auth=AUTH)
        done = cli(own_gateway, "quarantine", "replay", "--write-key", "w", "--url", own_gateway.admin_url)
        assert done.returncode == 2
        assert b"does not answer like a gateway" in done.stderr


def test_quarantine_of_no_log_is_nothing(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    assert listed(gateway) == []
    assert cli(gateway, "quarantine", "replay", "--dry-run").stderr == b"gateway: no record matches\n"
