"""Claim: whoever asks whether an event arrived is told where and when, and of it what he asked for."""

import httpx
import orjson

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


def test_question_without_an_answer_is_refused(gateway: Gateway) -> None:
    answer = httpx.get(f"{gateway.admin_url}/admin/v1/lookup/web", params={"client": "phone"})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert cli(gateway, "lookup", "web").returncode == 2
