"""Claim: a lost index is restored from a snapshot as if it were not lost; if that is wrong, from the log."""

import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson
import pytest

from tests.support.gateway import Crash, Gateway
from tests.support.http import AUTH, cli, new_event, post
from tests.support.waiting import until

EVENTS = 400
MAKING = ("copied", "files", "manifest")
RESTORING = ("files", "installed")
CONSTANTS = {
    "dedupe.storage.rocksdb.snapshots:RECORDS_MIN": 1,
    "dedupe.partition.snapshotter:RECORDS_MIN": 1,
}


def gateway_in(tmp_path: Path, name: str = "gateway", **settings: str) -> Gateway:
    return Gateway(
        tmp_path / name,
        {
            "GATEWAY_PARTITIONS": "1",
            "GATEWAY_QUARANTINE_PARTITIONS": "1",
            "GATEWAY_SNAPSHOTS_URL": f"file://{tmp_path}/bucket",
            "GATEWAY_SNAPSHOTS_INTERVAL": "1s",
            **settings,
        },
        constants=CONSTANTS,
    )


def manifests_in(tmp_path: Path) -> list[Path]:
    """Return the manifests of the clean topic, the newest last."""
    return sorted((tmp_path / "bucket").glob("*/events/0/manifests/*"))


def files_in(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "bucket").glob("*/events/0/files/*"), key=lambda path: path.stat().st_size)


def snapshots_of(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = gateway.stats()["partitions"][0]["snapshots"]
    return found


def send(gateway: Gateway, events: list[dict[str, Any]]) -> httpx.Response:
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        return post(client, "/v1/events", {"batch": events})


class Stored(NamedTuple):
    """A stopped gateway whose snapshots lack its last events; its events, and the answer to them."""

    gateway: Gateway
    events: list[dict[str, Any]]
    answer: bytes

    def answers_as_before(self) -> None:
        again = send(self.gateway, self.events)
        assert again.headers["Gateway-Duplicates"] == str(EVENTS)
        assert again.content == self.answer


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    gateway, events = gateway_in(tmp_path), [new_event() for _ in range(EVENTS)]
    with gateway:
        send(gateway, events[: EVENTS // 2]).raise_for_status()
        until(lambda: snapshots_of(gateway)["newest_offset"] == EVENTS // 2)
        send(gateway, [events[0] | {"event": "Other"}])  # a conflict, for the quarantine's lane
        gateway.kill()
    without = gateway_in(tmp_path, GATEWAY_SNAPSHOTS_INTERVAL="1h")
    with without:
        answer = send(without, events)
        assert answer.headers["Gateway-Duplicates"] == str(EVENTS // 2)
    return Stored(gateway, events, answer.content)


def lose_index(gateway: Gateway) -> None:
    shutil.rmtree(gateway.data / "index" / "events")


def test_lost_index_comes_back_with_what_the_log_has_beyond(
    stored: Stored,
) -> None:
    gateway = stored.gateway
    lose_index(gateway)
    with gateway:
        stored.answers_as_before()
        partition = gateway.stats()["partitions"][0]
    assert partition["snapshots"]["restored"] == 1
    assert partition["restored_records"] == EVENTS // 2
    assert b"index restored from a snapshot" in gateway.log_path.read_bytes()


def flip(*paths: Path) -> None:
    for path in paths:
        content = bytearray(path.read_bytes())
        if content:
            content[len(content) // 2] ^= 1
            path.write_bytes(content)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def largest(tmp_path: Path) -> Path:
    return files_in(tmp_path)[-1]


def swap_two(tmp_path: Path) -> None:
    *_, one, other = files_in(tmp_path)
    one_bytes, other_bytes = one.read_bytes(), other.read_bytes()
    one.write_bytes(other_bytes)
    other.write_bytes(one_bytes)


DAMAGES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a bit of a file": ("damaged", lambda tmp_path: flip(*files_in(tmp_path))),
    "a file that is gone": ("missing", lambda tmp_path: largest(tmp_path).unlink()),
    "a file that is cut": ("damaged", lambda tmp_path: largest(tmp_path).write_bytes(b"")),
    "a file that is longer": (
        "damaged",
        lambda tmp_path: largest(tmp_path).write_bytes(largest(tmp_path).read_bytes() + b"x"),
    ),
    "two files that are swapped": ("damaged", swap_two),
    "a bit of each manifest": ("", lambda tmp_path: flip(*manifests_in(tmp_path))),
    "manifests that are empty": (
        "",
        lambda tmp_path: [path.write_bytes(b"") for path in manifests_in(tmp_path)],
    ),
    "a bucket that is gone": ("", lambda tmp_path: shutil.rmtree(tmp_path / "bucket")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_snapshot_is_said_and_the_log_has_the_index(
    tmp_path: Path, stored: Stored, damage: str
) -> None:
    gateway = stored.gateway
    lose_index(gateway)
    reason, make = DAMAGES[damage]
    make(tmp_path)
    with gateway:
        stored.answers_as_before()
        partition = gateway.stats()["partitions"][0]
    assert partition["snapshots"]["restored"] == 0
    assert partition["restored_records"] == EVENTS
    if reason:
        assert partition["snapshots"]["failed"].keys() == {reason}
        assert b"the index is not restored from a snapshot" in gateway.log_path.read_bytes()


def test_snapshots_of_another_secret_are_not_used(tmp_path: Path, stored: Stored) -> None:
    other = gateway_in(tmp_path, "other", GATEWAY_IDENTITY_SECRET="another secret of tests")
    (own,) = (tmp_path / "bucket").iterdir()
    with other:
        send(other, stored.events[:3]).raise_for_status()
        until(lambda: snapshots_of(other)["made"])
        other.kill()
    (place,) = (folder for folder in (tmp_path / "bucket").iterdir() if folder != own)
    shutil.rmtree(place)
    shutil.copytree(own, place)  # as whoever can write to the bucket may do
    lose_index(other)
    with other:
        assert send(other, stored.events[:3]).headers["Gateway-Duplicates"] == "3"
        assert send(other, stored.events[3:6]).headers["Gateway-Accepted"] == "3"
        assert snapshots_of(other)["restored"] == 0
    assert b"its MAC is wrong" in other.log_path.read_bytes()


def test_snapshot_of_a_log_that_lost_its_tail_is_not_fetched(stored: Stored) -> None:
    """An older copy of the log is put back: the snapshot knows events that it does not have."""
    gateway = stored.gateway
    lose_index(gateway)
    with sqlite3.connect(gateway.data / "log.sqlite") as log:
        which, kept = "topic = 'events' AND partition = 0", EVENTS // 4
        ((first_id,),) = log.execute(f"SELECT first_id FROM partitions WHERE {which}")
        log.execute("DELETE FROM records WHERE id BETWEEN ? AND ?", (first_id + kept, first_id + EVENTS))
        log.execute(f"UPDATE partitions SET next_offset = ? WHERE {which}", (kept,))
    log.close()
    with gateway:
        again = send(gateway, stored.events)
        assert (again.headers["Gateway-Duplicates"], again.headers["Gateway-Accepted"]) == ("100", "300")
        assert snapshots_of(gateway)["restored"] == 0
        assert snapshots_of(gateway)["failed"] == {}
    assert b"a snapshot is not of this log" in gateway.log_path.read_bytes()


@pytest.mark.parametrize("step", MAKING)
def test_kill_while_a_snapshot_is_made(tmp_path: Path, step: str) -> None:
    events = [new_event() for _ in range(EVENTS)]
    with gateway_in(tmp_path, GATEWAY_SNAPSHOTS_INTERVAL="1h") as gateway:
        stored = Stored(gateway, events, send(gateway, events).content)
    stored = stored._replace(gateway=gateway_in(tmp_path))
    stored.gateway.start(crash=Crash(f"snapshot_{step}", 1), wait=False)
    stored.gateway.wait()
    with stored.gateway:
        stored.answers_as_before()
    lose_index(stored.gateway)
    with stored.gateway:
        stored.answers_as_before()


@pytest.mark.parametrize("step", RESTORING)
def test_kill_while_an_index_is_restored(stored: Stored, step: str) -> None:
    lose_index(stored.gateway)
    stored.gateway.start(crash=Crash(f"restore_{step}", 1), wait=False)
    stored.gateway.wait()
    with stored.gateway:
        stored.answers_as_before()
    assert not list((stored.gateway.data / "index").rglob("*.restoring"))


def test_commands_list_verify_make_and_restore(tmp_path: Path, stored: Stored) -> None:
    gateway = stored.gateway
    (listed, *_) = rows_of(cli(gateway, "snapshots", "list", "-o", "json"))
    assert (listed["partition"], listed["applied_offset"]) == (0, EVENTS // 2)
    (verified,) = rows_of(cli(gateway, "snapshots", "verify", "0", "-o", "json"))
    assert (verified["snapshot"], verified["verified"]) == (listed["snapshot"], True)
    with gateway as running:
        (made,) = rows_of(cli(running, "snapshots", "make", "0", "--url", running.admin_url, "-o", "json"))
        assert made["applied_offset"] == EVENTS
        stored.answers_as_before()
    (restored,) = rows_of(cli(gateway, "snapshots", "restore", "0", "-o", "json"))
    assert (restored["snapshot"], restored["records"], restored["keys"]) == (made["snapshot"], 0, EVENTS)
    with gateway:
        stored.answers_as_before()
    flip(*files_in(tmp_path))
    broken = cli(gateway, "snapshots", "verify", "0", "-o", "json")
    assert broken.returncode == 1
    assert "differs from what the manifest says" in rows_of(broken)[0]["error"]


@pytest.mark.regression("snapshots of an index that an operator doubted outlived its rebuild")
def test_rebuilt_index_has_no_snapshots_of_before(tmp_path: Path, stored: Stored) -> None:
    assert manifests_in(tmp_path)
    assert cli(stored.gateway, "index", "rebuild").returncode == 0
    assert not manifests_in(tmp_path)


def test_commands_say_what_is_missing(tmp_path: Path) -> None:
    without = Gateway(tmp_path / "gateway", {"GATEWAY_PARTITIONS": "1"})
    refused = cli(without, "snapshots", "list")
    assert (refused.returncode, b"GATEWAY_SNAPSHOTS_URL is not set" in refused.stderr) == (2, True)
    with gateway_in(tmp_path) as gateway:
        answer = httpx.post(f"{gateway.admin_url}/admin/v1/snapshots/7")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        embedded = cli(gateway, "snapshots", "drill")
        assert (embedded.returncode, b"only one on Kafka" in embedded.stderr) == (2, True)
    with without:
        answer = httpx.post(f"{without.admin_url}/admin/v1/snapshots/0")
        assert "GATEWAY_SNAPSHOTS_URL" in answer.json()["detail"]


def rows_of(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    assert done.stdout, done.stderr
    return [orjson.loads(line) for line in done.stdout.splitlines()]
