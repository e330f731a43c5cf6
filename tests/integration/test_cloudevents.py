"""
Claim: on both logs a CloudEvent stays one through a rebuild of the index and through its replay from
quarantine, and a reader of the log is told its dialect.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.fault.conftest import kafka_log, sqlite_log
from tests.support.constants import Constants
from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, post, stored

PATH = "/v1/cloudevents"
FIRST = {
    "specversion": "1.0",
    "id": "1",
    "source": "/shop",
    "type": "com.example.sold",
    "data": {"price": 10},
}
SECOND = {**FIRST, "data": {"price": 20}}
BLANK = {**FIRST, "source": "a shop"}
DEEP = {**FIRST, "id": "2", "data": {"a": {"b": {"c": {"d": 1}}}}}
SENT = [FIRST, BLANK, SECOND, DEEP]
SHALLOW: Constants = {"app.build:EVENT_DEPTH_MAX": 4}


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def log_env(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """What selects each log."""
    is_kafka = request.param == "kafka"
    return kafka_log(request.getfixturevalue("kafka_bootstrap")).env if is_kafka else sqlite_log().env


def replayed(gateway: Gateway, *options: str) -> dict[str, dict[str, Any]]:
    """Replay what is in quarantine, and return the results by reason."""
    done = cli(gateway, "quarantine", "replay", "--url", gateway.admin_url, *options)
    return {line["reason"]: line for line in map(orjson.loads, done.stdout.splitlines())}


def test_cloudevents_outlive_a_rebuild_and_are_replayed_as_what_they_are(
    log_env: Mapping[str, str], tmp_path: Path
) -> None:
    with Gateway(tmp_path / "gateway", log_env, constants=SHALLOW) as gateway:
        with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
            first = post(client, PATH, SENT)
        assert [each["code"] for each in first.json()["rejected"]] == ["conflict", "event_too_deep"]
    gateway.delete_index()
    with Gateway(tmp_path / "gateway", log_env) as gateway:
        with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
            again = post(client, PATH, SENT[:2])
        assert (again.headers["Gateway-Duplicates"], again.json()["receipts"]) == (
            "2",
            first.json()["receipts"],
        )
        asked = replayed(gateway)
        assert {reason: line["result"] for reason, line in asked.items()} == {
            "conflict": "skipped",
            "event_too_deep": "accepted",
        }
        renewed = [replayed(gateway, "--new-id", "--reason", "conflict")["conflict"] for _ in range(2)]
        assert [line["result"] for line in renewed] == ["accepted", "duplicate"]
        lines = stored(gateway)
        with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
            late = post(client, PATH, DEEP)
        assert late.headers["Gateway-Duplicates"] == "1"
    new_id = renewed[0]["receipt"]["messageId"].removeprefix("/shop ")
    assert sorted(orjson.dumps(line["value"], option=orjson.OPT_SORT_KEYS) for line in lines) == sorted(
        orjson.dumps(event, option=orjson.OPT_SORT_KEYS)
        for event in (FIRST, BLANK, DEEP, {**SECOND, "id": new_id})
    )
