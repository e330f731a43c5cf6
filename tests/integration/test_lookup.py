"""Claim: whoever asks whether an event arrived is told where and when, and of it what he asked for."""

import asyncio

import httpx
import orjson
import pytest

from app.admin import quarantine_search
from app.admin.quarantine_search import QuarantineSearch
from dedupe.model.clock import SystemClock
from dedupe.model.types import Topic
from dedupe.storage.sqlite.log import SqliteStore
from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event, post

SESSION = "2QFJqkpBsNEkzYbnNbJbbHGkNqM"


def looked_up(gateway: Gateway, *arguments: str, code: int = 0) -> dict[str, object]:
    done = cli(gateway, "lookup", *arguments, "--url", gateway.admin_url)
    assert (done.returncode, done.stderr) == (code, b"")
    found: dict[str, object] = orjson.loads(done.stdout)
    return found


def test_stored_event_is_found_by_its_id_and_shown_as_far_as_asked(gateway: Gateway) -> None:
    event = new_event(messageId="an id/with ?words", userId="u-1", properties={"secret": 1})
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        (receipt,) = post(client, "/v1/events", [event]).json()["receipts"]

    found = looked_up(gateway, "web", event["messageId"])

    assert (found["seen"], found["partition"], found["offset"]) == (
        True,
        receipt["partition"],
        receipt["offset"],
    )
    assert found["record"] == {
        "messageId": event["messageId"],
        "type": "track",
        "event": "Tested",
        "receivedAt": found["record"]["receivedAt"],  # type: ignore[index]
    }
    assert {"userId", "properties"} <= set(found["fields"])  # type: ignore[call-overload]
    assert 0 <= found["age_seconds"] < 60  # type: ignore[operator]
    whole = looked_up(gateway, "web", event["messageId"], "--value")["record"]
    assert whole["userId"] == "u-1"  # type: ignore[index]


def test_event_that_nobody_sent_is_not_known(gateway: Gateway) -> None:
    assert looked_up(gateway, "web", "never sent", code=1)["seen"] is False
    assert looked_up(gateway, "another source", "an id/with ?words", code=1)["seen"] is False


def test_event_of_a_session_is_found_by_its_place_and_by_its_clients_id(gateway: Gateway) -> None:
    headers = {"Gateway-Client": "phone-of-lookup", "Gateway-Session": SESSION}
    event = {"event": "Seen", "sequence": 1, "messageId": "own-id"}
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        assert post(client, "/v1/events", [event], **headers).status_code == 200
    place = ("--client", "phone-of-lookup", "--session", SESSION, "--sequence")

    found = looked_up(gateway, "web", *place, "1")
    assert (found["seen"], found["message_id"]) == (True, "own-id")
    by_id = looked_up(gateway, "web", "own-id", "--client", "phone-of-lookup")
    assert by_id["offset"] == found["offset"]
    assert looked_up(gateway, "web", "own-id", code=1)["seen"] is False  # it has no such identity
    assert looked_up(gateway, "web", *place, "2", code=1)["seen"] is False


@pytest.mark.regression("Message ids with slashes could not be looked up.")
@pytest.mark.parametrize("message_id", [".", "..", "a/../b", "a?b=c#d", "%2e"])
def test_message_id_that_no_path_can_have_is_found(gateway: Gateway, message_id: str) -> None:
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        (receipt,) = post(client, "/v1/events", [new_event(messageId=message_id)]).json()["receipts"]
    found = looked_up(gateway, "web", message_id)
    assert (found["message_id"], found["offset"]) == (message_id, receipt["offset"])


def test_question_without_an_answer_is_refused(gateway: Gateway) -> None:
    answer = httpx.get(f"{gateway.admin_url}/admin/v1/lookup", params={"source": "web", "session": "s"})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert cli(gateway, "lookup", "web").returncode == 2
    place = {"client": "phone", "session": SESSION}
    for sequence in (-1, 2**64, 10**30):
        url = f"{gateway.admin_url}/admin/v1/lookup"
        answer = httpx.get(url, params={**place, "source": "web", "sequence": sequence})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


def test_event_that_was_kept_apart_is_found_in_quarantine(gateway: Gateway) -> None:
    event = new_event(messageId="twice")
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        post(client, "/v1/events", [event, event | {"event": "other"}, event | {"type": 7}])
    with httpx.Client(base_url=gateway.url, auth=("another", "")) as client:
        post(client, "/v1/events", [event, event | {"event": "another"}])

    found = looked_up(gateway, "web", "twice")

    quarantine = found["quarantine"]
    assert isinstance(quarantine, dict)
    assert sorted(place["reason"] for place in quarantine["found"]) == ["conflict", "type_invalid"]
    assert {place["topic"] for place in quarantine["found"]} == {"events.quarantine"}
    assert quarantine["searched_all"] is True
    assert quarantine["searched_records"] >= 3
    (conflict,) = [place for place in quarantine["found"] if place["reason"] == "conflict"]
    shown = cli(gateway, "quarantine", "show", f"{conflict['partition']}:{conflict['offset']}")
    assert b'"other"' in shown.stdout
    answer = httpx.get(f"{gateway.admin_url}/admin/v1/lookup/web/twice?quarantine=false")
    assert answer.json()["quarantine"] is None


def test_search_of_the_quarantine_says_where_it_stopped(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        for number in range(6):
            post(client, "/v1/events", [new_event(messageId=f"bad-{number}") | {"type": 7}])
    monkeypatch.setattr(quarantine_search, "CHUNK_OFFSETS", 2)
    monkeypatch.setattr(quarantine_search, "OFFSETS_MAX", 4)

    async def search(message_id: str) -> quarantine_search.Found:
        store = await SqliteStore.open(gateway.data / "log.sqlite", read_only=True)
        try:
            clock = SystemClock()
            return await QuarantineSearch(store, Topic("events.quarantine", 1), clock).search(
                "web", message_id
            )
        finally:
            await store.close()

    newest, oldest = (asyncio.run(search(message_id)) for message_id in ("bad-5", "bad-0"))
    assert ([place["reason"] for place in newest.places], newest.records) == (["type_invalid"], 4)
    assert (oldest.places, oldest.is_complete) == ([], False)
