"""Claim: the admin port replays what was kept apart, once however often it is asked."""

from typing import Any

import httpx
import orjson
import pytest

from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event, post, stored


def kept_apart(gateway: Gateway) -> dict[str | None, dict[str, Any]]:
    """Return what is in quarantine by message id, the last one of each."""
    lines = cli(gateway, "quarantine", "list").stdout.splitlines()
    return {line["messageId"]: line for line in map(orjson.loads, lines)}


def replayed(gateway: Gateway, kept: dict[str, Any], **query: str) -> dict[str, Any]:
    path = f"/admin/v1/quarantine/{kept['partition']}/{kept['offset']}/replay"
    answer = httpx.post(f"{gateway.admin_url}{path}", params=query)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_each_event_is_stored_once_or_says_why_it_is_not(gateway: Gateway) -> None:
    event = new_event(messageId="twice")
    sent = [event, event | {"event": "another"}, new_event(messageId="typed") | {"type": 7}, "no event"]
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        post(client, "/v1/events", sent)
        post(client, "/v1/events", [new_event(messageId="x" * 5_000, event="long id")])
    kept = kept_apart(gateway)
    listed = cli(gateway, "quarantine", "list").stdout.splitlines()
    nameless = [line for line in map(orjson.loads, listed) if line["messageId"] is None]

    conflict = replayed(gateway, kept["twice"])
    assert (conflict["result"], "new_id=true" in conflict["why"]) == ("skipped", True)
    renewed = [replayed(gateway, kept["twice"], new_id="true") for _ in range(2)]
    assert [one["result"] for one in renewed] == ["accepted", "duplicate"]
    assert renewed[0]["receipt"]["messageId"] == renewed[1]["receipt"]["messageId"] != "twice"
    typed = replayed(gateway, kept["typed"])
    assert (typed["result"], typed["why"]) == ("rejected", "type_invalid")
    results = {line["reason"]: replayed(gateway, line, new_id="true")["result"] for line in nameless}
    assert results == {"not_an_object": "skipped", "message_id_invalid": "accepted"}

    names = ("another", "long id")
    renewed_lines = [line for line in stored(gateway) if line["value"].get("event") in names]
    assert sorted(line["value"]["event"] for line in renewed_lines) == sorted(names)
    assert {line["source"] for line in renewed_lines} == {kept["twice"]["source"]}
    # The command sends the same, and it is known.
    place = f"{kept['twice']['partition']}:{kept['twice']['offset']}"
    told = cli(gateway, "quarantine", "replay", place, "--new-id", "--url", gateway.admin_url)
    assert orjson.loads(told.stdout)["result"] == "duplicate"


@pytest.mark.parametrize("place", ["0/999999", "999/0"])
def test_place_without_a_record_is_not_found(gateway: Gateway, place: str) -> None:
    answer = httpx.post(f"{gateway.admin_url}/admin/v1/quarantine/{place}/replay")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_events_kept_apart_last_say_where_they_are(gateway: Gateway) -> None:
    event = new_event(messageId="where")
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        post(
            client,
            "/v1/events",
            [event, event | {"event": "another"}, new_event(messageId="so") | {"type": 7}],
        )
    kept = kept_apart(gateway)
    told = httpx.get(f"{gateway.admin_url}/admin/v1/tail/apart").json()["events"]
    for message_id in ("where", "so"):
        (one,) = [each for each in told if each["message_id"] == message_id]
        assert one["quarantine"] == {name: kept[message_id][name] for name in ("partition", "offset")}
