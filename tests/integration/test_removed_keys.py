"""
Claim: a write key that vanishes from the file loses no event before its term ends, over restarts, and nobody
can miss it; unknown keys are seen, and a loop of refusals is slow.
"""

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from app.auth.key_memory import FILE
from app.http.penalties import DELAY_S
from tests.support.gateway import Gateway
from tests.support.http import cli, new_event, post, stored
from tests.support.waiting import until

APP = "- {key: key-of-the-app, source: app, name: The app, scopes: [ingest, replay]}\n"
REST = "- {key: key-of-the-rest, source: rest}\n"
ENDED = "- {key: key-that-ended, source: old, enabled: false}\n"

SENT = 5
"""What else the machine does makes one answer late, not all."""

TEN_DAYS_MS = 864_000_000


class Keyed(Gateway):
    """A gateway with a key file that changes."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.keys = folder / "keys.yaml"
        settings = {"GATEWAY_WRITE_KEYS_FILE": str(self.keys), "GATEWAY_PARTITIONS": "2", **env}
        super().__init__(
            folder / "gateway",
            settings,
            constants={"app.round:LOOK_INTERVAL_S": 0.05, "app.round:DELAY_S": DELAY_S},
        )

    def send(self, write_key: str, **headers: str) -> httpx.Response:
        with httpx.Client(base_url=self.url, auth=(write_key, "")) as client:
            return post(client, "/v1/events", new_event(), **headers)

    def told(self) -> dict[str, Any]:
        keys: dict[str, Any] = self.stats()["write_keys"]
        return keys

    def listed(self) -> dict[str, dict[str, Any]]:
        done = cli(self, "keys", "list", "--url", self.admin_url)
        assert done.returncode == 0, done.stderr
        return {row["source"]: row for row in map(orjson.loads, done.stdout.splitlines())}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Keyed]:
    keyed = Keyed(tmp_path)
    keyed.keys.write_text(APP + REST + ENDED)
    with keyed:
        yield keyed


@pytest.mark.parametrize("is_down", [True, False])
def test_vanished_key_goes_on_over_a_restart_until_it_is_forgotten(gateway: Keyed, is_down: bool) -> None:
    assert gateway.send("key-of-the-app").status_code == 200
    if is_down:
        gateway.stop()
        gateway.keys.write_text(REST)
        gateway.start()
    else:
        gateway.keys.write_text(REST)
        until(lambda: gateway.told()["removed"] == 1)
        gateway.kill()
        gateway.start()
    assert gateway.send("key-of-the-app").status_code == 200
    assert {line["source"] for line in stored(gateway)} == {"app"}
    again = gateway.send("key-of-the-app", **{"Gateway-Fingerprints": "0" * 16})
    assert (again.status_code, again.json()["code"]) == (403, "scope_missing")
    config = httpx.get(f"{gateway.url}/sourceConfig", auth=("key-of-the-app", ""))
    assert config.json()["source"]["enabled"] is True
    assert gateway.send("key-that-ended").status_code == 401
    told = gateway.told()
    assert (told["keys"], told["removed"], told["removed_keys"][0]["source"]) == (1, 1, "app")
    assert "gateway_write_keys_removed 1.0" in httpx.get(f"{gateway.admin_url}/metrics").text
    row = gateway.listed()["app"]
    assert (row["state"], row["scopes"], row["refused"]) == ("removed", ["ingest"], 1)
    assert row["until_ms"] - row["since_ms"] == 86_400_000
    log = gateway.log_path.read_text()
    assert "write keys have vanished from the file: they work on" in log
    done = cli(gateway, "keys", "forget", row["key_sha256"], "--url", gateway.admin_url)
    assert (done.returncode, done.stderr) == (0, b"gateway: forgotten: app\n")
    assert gateway.send("key-of-the-app").status_code == 401
    assert cli(gateway, "keys", "forget", "app", "--url", gateway.admin_url).returncode == 2
    gateway.kill()
    gateway.start()
    assert gateway.send("key-of-the-app").status_code == 401
    assert gateway.send("key-of-the-rest").status_code == 200
    for path in (*gateway.data.glob("*.json"), gateway.log_path):
        assert "key-of-the-app" not in path.read_text()


def test_term_ends_by_itself(tmp_path: Path) -> None:
    gateway = Keyed(tmp_path, GATEWAY_WRITE_KEYS_GRACE="2s")
    gateway.keys.write_text(APP + REST)
    with gateway:
        gateway.keys.write_text(REST)
        until(lambda: gateway.told()["removed"] == 1)
        assert gateway.send("key-of-the-app").status_code == 200
        until(lambda: gateway.told()["removed"] == 0)
        assert gateway.send("key-of-the-app").status_code == 401
    assert "the grace of removed write keys is over" in gateway.log_path.read_text()


@pytest.mark.regression("A start that was refused for its clock ended the grace of removed keys.")
def test_clock_that_is_refused_ends_no_term(gateway: Keyed) -> None:
    gateway.send("key-of-the-app")
    gateway.stop()
    gateway.keys.write_text(REST)
    gateway.start()
    gateway.stop()
    memory = gateway.data / FILE
    later = re.sub(
        r'"removed_ms": (\d+)',
        lambda found: f'"removed_ms": {int(found[1]) - TEN_DAYS_MS}',
        memory.read_text(),
    )
    memory.write_text(later)
    with closing(sqlite3.connect(gateway.data / "log.sqlite")) as log:
        log.execute("UPDATE records SET timestamp_ms = timestamp_ms - ?", (TEN_DAYS_MS,))
        log.execute("UPDATE meta SET value = value - ? WHERE key LIKE 'note/clock/%'", (TEN_DAYS_MS,))
        log.commit()
    done = cli(gateway, "serve")
    assert (done.returncode, b"this machine's clock shows" in done.stderr) == (2, True)
    assert memory.read_text() == later


def test_other_data_folder_answers_401(gateway: Keyed, tmp_path: Path) -> None:
    gateway.stop()
    other = Keyed(tmp_path / "other")
    other.keys.parent.mkdir()
    other.keys.write_text(REST)
    with other:
        assert other.send("key-of-the-app").status_code == 401


def test_senders_of_unknown_keys_are_seen_and_their_loop_is_slow(gateway: Keyed) -> None:
    began = time.monotonic()
    headers = {"User-Agent": "analytics-swift/1.5.0"}
    with httpx.Client(base_url=gateway.url, auth=("an-old-key", ""), headers=headers) as client:
        answers = [post(client, "/v1/batch", {"batch": [new_event()]}) for _ in range(24)]
        assert {answer.status_code for answer in answers} == {401}
        assert time.monotonic() - began >= 1.5  # at least three of them had to wait
        pixel = client.get("/pixel/v1/track?writeKey=an-old-key&event=Seen")
    assert pixel.status_code == 200
    others = [gateway.send("key-of-the-rest").elapsed.total_seconds() for _ in range(SENT)]
    assert min(others) < DELAY_S
    told = gateway.told()
    assert told["unknown_requests"] == 25
    (sender,) = told["unknown_senders"]
    assert (sender["address"], sender["key"], sender["library"], sender["requests"]) == (
        "127.0.0.1",
        "an-o",
        "analytics-swift",
        25,
    )
    metrics = httpx.get(f"{gateway.admin_url}/metrics").text
    assert "gateway_unknown_write_key_requests_total 25.0" in metrics
    log = gateway.log_path.read_text()
    assert log.count("an unknown write key is sent") == 1
    for text in (metrics, orjson.dumps(gateway.stats()).decode(), log):
        assert "an-old-key" not in text


@pytest.mark.regression(
    "A quarantined event with an unknown key was replayed into the source of the first key."
)
def test_event_with_a_bad_key_is_replayed_once_its_key_is_in_the_file(gateway: Keyed) -> None:
    events = [new_event(writeKey="key-of-the-rest"), new_event(writeKey="key-to-come")]
    answer = httpx.post(f"{gateway.url}/v1/events", content=orjson.dumps(events))
    assert [each["code"] for each in answer.json()["rejected"]] == ["write_key_invalid"]

    def replayed() -> dict[str, Any]:
        done = cli(gateway, "quarantine", "replay", "--url", gateway.admin_url)
        result: dict[str, Any] = orjson.loads(done.stdout)
        return result

    assert (replayed()["result"], "not valid" in replayed()["why"]) == ("skipped", True)
    gateway.keys.write_text(APP + REST + "- {key: key-to-come, source: new}\n")
    until(lambda: b'"new"' in cli(gateway, "keys", "--url", gateway.admin_url).stdout)
    assert replayed()["result"] == "accepted"
    assert replayed()["result"] == "duplicate"
    assert {line["messageId"]: line["source"] for line in stored(gateway)} == {
        events[0]["messageId"]: "rest",
        events[1]["messageId"]: "new",
    }
    again = httpx.post(f"{gateway.url}/v1/events", content=orjson.dumps(events))
    assert again.headers["Gateway-Duplicates"] == "2"


def test_list_shows_every_key_without_a_command(gateway: Keyed) -> None:
    gateway.send("key-of-the-app")
    gateway.send("key-that-ended")
    done = cli(gateway, "keys", "--url", gateway.admin_url)
    rows = {row["source"]: row for row in map(orjson.loads, done.stdout.splitlines())}
    assert {source: row["state"] for source, row in rows.items()} == {
        "app": "enabled",
        "rest": "enabled",
        "old": "disabled",
    }
    assert (rows["app"]["requests"], rows["app"]["refused"]) == (1, 0)
    assert abs(rows["app"]["last_used_ms"] / 1000 - time.time()) < 60
    assert (rows["old"]["refused"], rows["old"]["last_used_ms"]) == (1, None)
    table = cli(gateway, "keys", "list", "-o", "table", "--url", gateway.admin_url).stdout.decode()
    assert "The app" in table
