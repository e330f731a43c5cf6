"""
Claim: on Kafka a drill proves a snapshot beside running gateways, and says so to all of them; the snapshots
of a topic that was deleted are none of a topic that was made anew.
"""

import time
from pathlib import Path

import httpx
import pytest

from dedupe.storage.routing_records import routing_topic_of
from tests.fault.conftest import kafka_log
from tests.integration.test_snapshots import (
    CONSTANTS,
    EVENTS,
    Stored,
    flip,
    rows_of,
    send,
    snapshots_of,
)
from tests.support.gateway import Gateway
from tests.support.http import cli, new_event
from tests.support.kafka import delete_topics
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

DRILL_AGE = "gateway_snapshot_drill_age_seconds"


def gateway_on(kafka_bootstrap: str, tmp_path: Path, **settings: str) -> Gateway:
    env = {
        **kafka_log(kafka_bootstrap).env,
        "GATEWAY_PARTITIONS": "1",
        "GATEWAY_QUARANTINE_PARTITIONS": "1",
        "GATEWAY_SNAPSHOTS_URL": f"file://{tmp_path}/bucket",
        "GATEWAY_SNAPSHOTS_INTERVAL": "1s",
        **settings,
    }
    return Gateway(tmp_path / "gateway", env, constants=CONSTANTS)


def drill_age_s(gateway: Gateway) -> float:
    lines = httpx.get(f"{gateway.admin_url}/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(DRILL_AGE)))


def store_some(gateway: Gateway) -> Stored:
    events = [new_event() for _ in range(EVENTS)]
    stored = Stored(gateway, events, send(gateway, events).content)
    until(lambda: snapshots_of(gateway)["made"])
    return stored


def test_drill_proves_a_snapshot_or_fails(kafka_bootstrap: str, tmp_path: Path) -> None:
    gateway = gateway_on(kafka_bootstrap, tmp_path)
    gateway._constants["dedupe.partition.snapshotter:DRILL_LOOK_S"] = 0.1
    with gateway:
        stored = store_some(gateway)
        done = cli(gateway, "snapshots", "drill", "0", "-o", "json")
        (row,) = rows_of(done)
        assert (done.returncode, row["partition"], row["keys"]) == (0, 0, EVENTS)
        assert row["snapshot"]
        (note,) = (tmp_path / "bucket").glob("*/*/drills/*")
        an_hour_ago_ms = round((time.time() - 3_600) * 1000)  # an age that the process itself does not have
        note = note.rename(note.with_name(f"{an_hour_ago_ms:015}"))
        until(lambda: drill_age_s(gateway) >= 3_600)
        for path in (tmp_path / "bucket").glob("*/*/0/files/*"):
            flip(path)
        failed = cli(gateway, "snapshots", "drill", "0", "-o", "json")
        assert (failed.returncode, rows_of(failed)[0]["snapshot"]) == (1, None)
        assert list((tmp_path / "bucket").glob("*/*/drills/*")) == [note]
        stored.answers_as_before()


async def test_snapshots_of_a_topic_that_was_made_anew(kafka_bootstrap: str, tmp_path: Path) -> None:
    gateway = gateway_on(kafka_bootstrap, tmp_path)
    with gateway:
        stored = store_some(gateway)
        gateway.kill()
    topic = gateway.environment["GATEWAY_TOPIC"]
    await delete_topics(kafka_bootstrap, [topic, f"{topic}.quarantine", routing_topic_of(topic)])
    quiet = gateway_on(kafka_bootstrap, tmp_path, GATEWAY_TOPIC=topic, GATEWAY_SNAPSHOTS_INTERVAL="1h")
    quiet.delete_index()
    with quiet:
        anew = send(quiet, stored.events[::-1])
        assert anew.headers["Gateway-Accepted"] == str(EVENTS)
        quiet.kill()
    quiet.delete_index()
    with quiet:
        assert send(quiet, stored.events[::-1]).content == anew.content
        assert snapshots_of(quiet)["restored"] == 0
    assert b"a snapshot is not of this log" in quiet.log_path.read_bytes()
