"""Claim: `gateway index rebuild` makes an index that knows what the log holds, never in a folder in use."""

import shutil
from pathlib import Path

import httpx
import orjson

from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event, post

SETTINGS = {
    "GATEWAY_PARTITIONS": "2",
    "GATEWAY_IDENTITY_SECRET": "an identity secret of tests",
}


def test_rebuilt_index_knows_every_event_and_a_running_gateway_is_left_alone(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, SETTINGS)
    events = [new_event() for _ in range(300)]
    with gateway, httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        first = post(client, "/v1/events", {"batch": events})
        assert post(client, "/v1/events", {"batch": [events[0] | {"event": "x"}]}).json()["rejected"]
        refused = cli(gateway, "index", "rebuild")
        assert (refused.returncode, refused.stdout) == (2, b"")
        assert b"is in use by another gateway" in refused.stderr
        assert gateway.stats()["totals"]["accepted"] == 300

    shutil.rmtree(gateway.data / "index" / "events" / "0")  # damage that is to be mended
    done = cli(gateway, "index", "rebuild")
    assert (done.returncode, done.stderr) == (0, b"")
    rows = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert [(row["topic"], row["partition"]) for row in rows] == [("events", 0), ("events", 1)]
    assert sum(row["records"] for row in rows) == sum(row["keys"] for row in rows) == 300
    (row,) = map(orjson.loads, cli(gateway, "index", "rebuild", "0", "--quarantine").stdout.splitlines())
    assert (row["topic"], row["records"]) == ("events.quarantine", 1)

    with gateway, httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        again = post(client, "/v1/events", {"batch": events})
        assert (again.content, again.headers["Gateway-Duplicates"]) == (first.content, "300")
        assert [part["restored_records"] for part in gateway.stats()["partitions"]] == [0, 0]
        assert [part["rebuilds"] for part in gateway.stats()["partitions"]] == [0, 0]


def test_wrong_secret_deletes_nothing(tmp_path: Path) -> None:
    with Gateway(tmp_path, SETTINGS) as gateway, httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        post(client, "/v1/events", {"batch": [new_event() for _ in range(20)]}).raise_for_status()
    before = sorted(gateway.data.rglob("*.sst"))
    other = SETTINGS | {"GATEWAY_IDENTITY_SECRET": "another secret of tests"}
    done = cli(Gateway(tmp_path, other), "index", "rebuild")
    assert (done.returncode, done.stdout) == (3, b"")
    assert sorted(gateway.data.rglob("*.sst")) == before


def test_partition_that_does_not_exist_is_wrong_usage(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, SETTINGS)
    assert cli(gateway, "index", "rebuild", "2").returncode == 2
    assert b"there is no log in" in cli(gateway, "index", "rebuild").stderr
