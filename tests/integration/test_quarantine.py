"""
Claim: an operator sees every event that was kept apart, once and with its reason, and can send it again
after a fix as often as he likes; on both logs, beside a running gateway.
"""

import hashlib
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.fault.conftest import kafka_log, sqlite_log
from tests.support.constants import Constants
from tests.support.documents import ROOT
from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, stored

DEEP = {"messageId": "deep", "type": "track", "properties": {"a": {"b": {"c": {"d": 1}}}}}
NAMELESS = {name: value for name, value in DEEP.items() if name != "messageId"}
LARGE = {"messageId": "large", "type": "track", "text": "x" * 20_000}
HUGE = {"messageId": "huge", "type": "track", "text": "ü" * 300_000}
"""Larger than a record: it is stored in pieces."""
MISNAMED = {"messageId": "x" * 300, "type": "track", "event": "Numbered"}
FIRST = {"messageId": "taken", "type": "track", "event": "First"}
SECOND = {"messageId": "taken", "type": "track", "event": "Second", "batch": [1, 2]}

SENT = [DEEP, NAMELESS, LARGE, HUGE, MISNAMED, 7, FIRST, SECOND]
KEPT = [
    ("event_too_deep", "deep"),
    ("event_too_deep", None),
    ("event_too_large", "large"),
    *[("event_too_large", "huge")] * 4,
    ("message_id_invalid", None),
    ("not_an_object", None),
    ("conflict", "taken"),
]

LIMITS = {"GATEWAY_EVENT_BYTES_MAX": "10KiB"}
SHALLOW: Constants = {"app.build:EVENT_DEPTH_MAX": 4, "app.build:RETRY_AFTER_MAX_S": 1}
FIXED = {"GATEWAY_EVENT_BYTES_MAX": "1MiB"}
DEEPER: Constants = {**SHALLOW, "app.build:EVENT_DEPTH_MAX": 10}


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def log_env(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """What selects each log."""
    is_kafka = request.param == "kafka"
    return kafka_log(request.getfixturevalue("kafka_bootstrap")).env if is_kafka else sqlite_log().env


def send_all(gateway: Gateway) -> None:
    for _ in range(3):
        answer = httpx.post(f"{gateway.url}/v1/events", content=orjson.dumps(SENT), auth=AUTH)
        assert [entry["index"] for entry in answer.json()["rejected"]] == [0, 1, 2, 3, 4, 5, 7]


def listed(gateway: Gateway, *options: str) -> list[dict[str, Any]]:
    done = cli(gateway, "quarantine", "list", *options)
    assert (done.returncode, done.stderr) == (0, b"")
    return [orjson.loads(line) for line in done.stdout.splitlines()]


def place_of(line: Mapping[str, Any]) -> str:
    return f"{line['partition']}:{line['offset']}"


def replayed(gateway: Gateway, *options: str, code: int = 0) -> dict[str, Any]:
    """Replay and return the results by the event's id, or its reason if it has none."""
    done = cli(gateway, "quarantine", "replay", "--url", gateway.admin_url, *options)
    assert done.returncode == code, done.stderr.decode()
    lines = [orjson.loads(line) for line in done.stdout.splitlines()]
    return {line["messageId"] or line["reason"]: line for line in lines}


def results(lines: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {name: line["result"] for name, line in lines.items()}


@pytest.mark.regression("A replay stored events under the write key of another source.")
def test_bad_events_are_kept_once_and_replayed_once(log_env: Mapping[str, str], tmp_path: Path) -> None:
    with Gateway(tmp_path / "gateway", {**log_env, **LIMITS}, constants=SHALLOW) as gateway:
        send_all(gateway)
        lines = listed(gateway)
        assert [(line["reason"], line["messageId"]) for line in lines] == KEPT
        assert list(lines[0]) == [
            "partition", "offset", "timestamp", "reason", "source", "messageId", "truncated", "length",
            "position", "keySha256", "piece", "pieces",
        ]  # fmt: skip
        assert {line["source"] for line in lines} == {AUTH[0]}
        assert not any(line["truncated"] for line in lines)
        pieces = [(line["piece"], line["pieces"]) for line in lines if line["messageId"] == "huge"]
        assert pieces == [(number, 4) for number in range(4)]
        shown = orjson.loads(cli(gateway, "quarantine", "show", place_of(lines[0])).stdout)
        assert {name: shown[name] for name in lines[0]} == lines[0]
        assert shown["event"] == DEEP
    with Gateway(tmp_path / "gateway", {**log_env, **LIMITS, **FIXED}, constants=DEEPER) as fixed:
        check_replay(fixed)


def check_replay(gateway: Gateway) -> None:
    """Replays what the larger limits admit, then all of it again and what needs an id of its own."""
    first = replayed(gateway, code=1)
    assert results(first) == {
        "deep": "accepted",
        "event_too_deep": "accepted",
        "large": "accepted",
        "huge": "accepted",
        "message_id_invalid": "skipped",
        "not_an_object": "skipped",
        "taken": "skipped",
    }
    renewed = replayed(gateway, "--new-id", code=1)
    for name in ("deep", "event_too_deep", "large", "huge"):
        assert (renewed[name]["result"], renewed[name]["receipt"]) == ("duplicate", first[name]["receipt"])
    assert (renewed["taken"]["result"], renewed["message_id_invalid"]["result"]) == ("accepted", "accepted")
    again = replayed(gateway, "--new-id", "--reason", "conflict")
    assert (again["taken"]["result"], again["taken"]["receipt"]) == ("duplicate", renewed["taken"]["receipt"])

    events = {line["messageId"]: line["value"] for line in stored(gateway)}
    assert len(events) == 7
    assert events["huge"]["text"] == HUGE["text"]
    new_id = renewed["taken"]["receipt"]["messageId"]
    assert (events[new_id]["event"], events[new_id]["batch"]) == ("Second", [1, 2])
    assert events["deep"]["properties"] == DEEP["properties"]
    own_retry = httpx.post(f"{gateway.url}/v1/events", content=orjson.dumps([DEEP, LARGE, HUGE]), auth=AUTH)
    assert own_retry.headers["Gateway-Duplicates"] == "3"


def test_operator_selects_looks_and_tries_without_effect(tmp_path: Path) -> None:
    with Gateway(tmp_path / "gateway", LIMITS, constants=SHALLOW) as gateway:
        send_all(gateway)
        lines = listed(gateway, "--source", AUTH[0], "--since", "1h")
        assert len(lines) == len(KEPT)
        assert listed(gateway, "--reason", "conflict") == lines[-1:]
        assert listed(gateway, "--source", "nobody") == []
        assert listed(gateway, "--since", "2100-01-01T00:00:00Z") == []
        assert cli(gateway, "quarantine", "list", "--since", "yesterday").returncode == 2
        check_show(gateway, lines)
        check_dry_run(gateway)
        too_large = replayed(gateway, "--reason", "event_too_large", code=1)
        assert results(too_large) == {"large": "skipped", "huge": "skipped"}
        assert "GATEWAY_EVENT_BYTES_MAX" in too_large["huge"]["why"]
        counts = cli(gateway, "quarantine", "stats", "--output", "json").stdout.splitlines()
        assert {line["reason"]: line["events"] for line in map(orjson.loads, counts)} == {
            "event_too_deep": 2,
            "event_too_large": 2,
            "message_id_invalid": 1,
            "not_an_object": 1,
            "conflict": 1,
        }
        still_bad = replayed(gateway, "--reason", "event_too_deep", code=1)
        assert results(still_bad) == {"deep": "rejected", "event_too_deep": "rejected"}
        assert still_bad["deep"]["why"] == "event_too_deep"
        assert listed(gateway) == lines


def check_show(gateway: Gateway, lines: list[dict[str, Any]]) -> None:
    content = orjson.dumps(HUGE, option=orjson.OPT_SORT_KEYS)
    for line in lines[3:7]:  # by any of its pieces
        whole = orjson.loads(cli(gateway, "quarantine", "show", place_of(line)).stdout)
        assert (whole["event"], whole["piece"], whole["problem"]) == (HUGE, 0, None)
        assert (whole["length"], whole["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert cli(gateway, "quarantine", "show", "--raw", place_of(lines[5])).stdout == content
    conflict = orjson.loads(cli(gateway, "quarantine", "show", place_of(lines[-1])).stdout)["conflict"]
    assert conflict["differs"] == ["batch", "event"]
    assert conflict["values"]["event"] == ['"First"', '"Second"']
    told = httpx.get(
        f"{gateway.admin_url}/admin/v1/quarantine/{place_of(lines[-1]).replace(':', '/')}"
    ).json()
    assert (told["conflict"]["differs"], "values" in told["conflict"]) == (["batch", "event"], False)
    missing = cli(gateway, "quarantine", "show", "0:999999")
    assert (missing.returncode, missing.stdout) == (1, b"")
    assert missing.stderr == b"gateway: there is no record at 0:999999\n"
    assert cli(gateway, "quarantine", "show", "17").returncode == 2


def check_dry_run(gateway: Gateway) -> None:
    expected = ["ready", "ready", "ready", "skipped", "skipped", "skipped", "ready"]
    done = cli(gateway, "quarantine", "replay", "--dry-run")
    found = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, b"gateway: 4 ready, 3 skipped\n")
    assert [line["result"] for line in found] == expected
    assert "--new-id" in found[5]["why"]
    assert [line["messageId"] for line in stored(gateway)] == ["taken"]


def test_retries_in_other_company_and_after_a_crash_land_once(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "gateway", LIMITS, constants=SHALLOW)
    bad = [item for item in SENT if item is not FIRST]
    with gateway:
        answers = [send(gateway, body) for item in [FIRST, *bad] for body in tries_of(item)]
        gateway.kill()
        gateway.delete_index()
        gateway.start()
        again = [send(gateway, body) for item in [FIRST, *bad] for body in tries_of(item)]
        assert again == answers
        assert [(line["reason"], line["messageId"]) for line in listed(gateway)] == KEPT
        assert gateway.stats()["quarantine"][0]["next_lane_seq"] == len(KEPT)


def tries_of(item: Any) -> list[bytes]:
    """Return requests that hold one event alone, in a batch, and as a later try of an SDK sends it."""
    later = item
    if isinstance(item, dict):
        later = {**item, "sentAt": "2026-01-01T00:00:09Z", "_metadata": {"retryCount": 1}, "writeKey": "x"}
    companion = {"messageId": "companion", "type": "track"}
    return [
        orjson.dumps([item]),
        orjson.dumps({"batch": [companion, item], "sentAt": "2026-01-01T00:00:05Z", "context": {"c": 1}}),
        orjson.dumps({"sentAt": "2026-01-01T00:00:09Z", "batch": [later, later]}),
    ]


def send(gateway: Gateway, body: bytes) -> bytes:
    answer = httpx.post(f"{gateway.url}/v1/events", content=body, auth=AUTH)
    assert answer.status_code == 200
    return answer.content


def test_each_event_is_replayed_under_its_own_source(own_gateway: Gateway) -> None:
    keys = own_gateway.folder / "keys.yaml"
    own_gateway.folder.mkdir()
    keys.write_text("- {key: web-key, source: web}\n- {key: app-key, source: app}\n")
    gateway = Gateway(own_gateway.folder, {"GATEWAY_WRITE_KEYS_FILE": str(keys)})
    with gateway:
        for write_key in ("web-key", "app-key"):
            httpx.post(f"{gateway.url}/v1/events", content=b'[{"messageId":true},7]', auth=(write_key, ""))
        done = cli(gateway, "quarantine", "replay", "0:0", "0:77", "--new-id", "--url", gateway.admin_url)
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"there is no such record at 0:77" in done.stderr
        assert stored(gateway) == []
        done = cli(gateway, "quarantine", "replay", "--new-id", "--url", gateway.admin_url)
        assert (done.returncode, done.stderr) == (1, b"gateway: 2 accepted, 2 skipped\n")
        assert sorted(line["source"] for line in stored(gateway)) == ["app", "web"]


def test_replay_needs_the_token_that_may_write(own_gateway: Gateway) -> None:
    gateway = Gateway(own_gateway.folder, {"GATEWAY_ADMIN_READ_TOKEN": "r" * 32})
    with gateway:
        httpx.post(f"{gateway.url}/v1/events", content=b'[{"messageId":true}]', auth=AUTH)
        options = ("quarantine", "replay", "--new-id", "--url", gateway.admin_url)
        for token, sentence in (((), b"Bearer"), (("--admin-token", "r" * 32), b"this token may only read")):
            done = cli(gateway, *options, *token)
            assert (done.returncode, done.stdout) == (2, b"")
            assert sentence in done.stderr
        assert stored(gateway) == []


def test_person_is_erased_from_quarantine_as_the_runbook_says(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "gateway", LIMITS, constants=SHALLOW)
    person = {"messageId": "x" * 300, "type": "track", "userId": "u-4711", "text": "x" * 5_000}
    long_one = {"messageId": "long", "type": "track", "text": "y" * (300 * 1024) + "u-4711"}
    with gateway:
        send(gateway, orjson.dumps([person, long_one, 7]))
        found = listed(gateway, "--contains", "u-4711")
        assert [(line["reason"], line["piece"]) for line in found] == [
            ("message_id_invalid", 0),
            ("event_too_large", 0),
            ("event_too_large", 1),
        ]
        before = listed(gateway)
    runbook = (ROOT / "docs/runbooks/erase-a-person.md").read_text()
    (sql,) = re.findall(r"```sql\n(PRAGMA .*?)```", runbook, re.DOTALL)
    for line in found:
        filled = sql.replace("<17>", str(line["offset"])).replace("<0>", str(line["partition"]))
        with closing(sqlite3.connect(gateway.data / "log.sqlite", isolation_level=None)) as log:
            log.executescript(filled.replace("<events.quarantine>", "events.quarantine"))
            assert log.total_changes == 1
    assert b"u-4711" not in b"".join(path.read_bytes() for path in gateway.data.glob("log.sqlite*"))
    gateway.delete_index()
    with gateway:
        assert listed(gateway, "--contains", "u-4711") == []
        assert [place_of(line) for line in listed(gateway)] == [place_of(line) for line in before]
        erased = replayed(gateway, "--new-id", *map(place_of, found), code=1)
        assert {line["result"] for line in erased.values()} == {"skipped"}
        assert send(gateway, b'[{"messageId":"next","type":"track"}]')
