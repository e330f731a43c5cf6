"""
Claim: on every path the events of a damaged body are stored once, the rest is quarantined, and retries have
the same answer; a client that wants all or nothing gets nothing.
"""

import gzip
from collections.abc import Iterator

import httpx
import orjson
import pytest

from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event, stored

PATHS = ("/v1/batch", "/v1/import", "/v1/events", "/v1/track")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway"), {}) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, auth=AUTH) as running:
        yield running


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("form", "accepted", "rejected"),
    [
        (b'{"batch":[%b%b]}', 2, 0),
        (b',%b,%b],"sentAt":"2026-01-01T00:00:00Z"}', 2, 0),
        (b'{"batch":[%b,{"type":"\xffa"},%b]}', 3, 0),
        (b'{"batch":[%b,{"type":"tra,%b]}', 2, 1),
        (b'{"batch":[%b,{"messageId":"\xff"},%b]}', 2, 1),
        (b'{"batch":[%b,%b,{"type":"x","a":{"b', 2, 1),
    ],
)
def test_events_are_stored_once_and_the_rest_is_kept(
    client: httpx.Client, path: str, form: bytes, accepted: int, rejected: int
) -> None:
    body = form % (orjson.dumps(new_event()), orjson.dumps(new_event()))
    strict = client.post(path, content=body, headers={"Prefer": "handling=strict"})
    assert (strict.status_code, strict.json()["code"]) == (400, "invalid_json")
    answer = client.post(path, content=body)
    assert (answer.status_code, answer.headers["Gateway-Accepted"]) == (200, str(accepted))
    found = answer.json().get("rejected", [])
    assert [each["code"] for each in found] == ["unreadable"] * rejected
    again = client.post(path, content=body)
    assert again.status_code == 200
    assert int(again.headers["Gateway-Duplicates"]) >= 2
    assert again.json().get("rejected", []) == found


@pytest.mark.parametrize("path", PATHS)
def test_body_without_an_event_is_kept(client: httpx.Client, path: str) -> None:
    for body in (b"hello", b'{"batch":[{"type":"tra', b"\x1f\x8bgarbage"):
        answer = client.post(path, content=body)
        if path == "/v1/events":
            assert answer.status_code == 400
        else:
            assert answer.status_code == 200
            assert answer.json()["rejected"][0]["code"] == "unreadable"
    if path != "/v1/events":
        assert client.post(path, content=b'{"batch":[, , ]}').json() == {"success": True}


def test_damaged_gzip_is_taken_as_far_as_it_goes(client: httpx.Client) -> None:
    events = [new_event(text=str(number) * 500) for number in range(50)]
    wire = bytearray(gzip.compress(orjson.dumps({"batch": events})))
    del wire[-60:]
    answer = client.post("/v1/batch", content=bytes(wire), headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 200
    assert int(answer.headers["Gateway-Accepted"]) > 0


def test_key_is_found_in_a_damaged_body(client: httpx.Client) -> None:
    body = b'{"writeKey":"web","batch":[%b,,]}' % orjson.dumps(new_event())
    answer = httpx.post(f"{client.base_url}/v1/batch", content=body)
    assert (answer.status_code, answer.headers["Gateway-Accepted"]) == (200, "1")
    assert httpx.post(f"{client.base_url}/v1/batch", content=b"hello").status_code == 400


@pytest.mark.regression("An event too costly to parse was kept under no key although one stood in it.")
def test_key_of_an_event_too_costly_to_parse_is_found_in_it(client: httpx.Client) -> None:
    many = b"[" + b"[1]," * 170_000 + b"1]"
    body = b'{"type":"track","messageId":"costly","path":%b,"writeKey":"web"}' % many
    for path in PATHS:
        answer = httpx.post(f"{client.base_url}{path}", content=body)
        assert answer.status_code == 200
        assert [each["code"] for each in answer.json()["rejected"]] == ["event_too_complex"]


@pytest.mark.regression("A body wrapped more often than is undone was refused, and its events were lost.")
def test_what_is_wrapped_too_often_is_kept_under_the_key_in_it(client: httpx.Client) -> None:
    event = new_event(writeKey="web")
    twice = orjson.dumps(orjson.dumps(orjson.dumps([event]).decode()).decode())
    for number, body in enumerate(
        (
            b"[[[%b]]]" % orjson.dumps(event),
            b'{"batch":[{"batch":[{"batch":[%b]}]}]}' % orjson.dumps(event),
            twice,
            orjson.dumps({"batch": [orjson.dumps(orjson.dumps(event).decode()).decode()]}),
        )
    ):
        answer = httpx.post(f"{client.base_url}/v1/batch", content=body)
        assert (answer.status_code, answer.headers["Gateway-Accepted"]) == (200, "0"), number
        assert len(answer.json()["rejected"]) == 1
    mixed = [new_event(), {"batch": [new_event()]}]
    answer = client.post("/v1/batch", content=orjson.dumps({"batch": mixed}))
    assert [each["code"] for each in answer.json()["rejected"]] == ["unreadable"]
    own = {"type": "track", "properties": {"writeKey": "web"}}
    assert httpx.post(f"{client.base_url}/v1/batch", content=orjson.dumps([own])).status_code == 400


@pytest.mark.regression("An event of one of several batches was stored again when it came in another batch.")
def test_same_event_is_a_duplicate_in_whatever_batch_it_comes(client: httpx.Client) -> None:
    one, two = (orjson.dumps(new_event()) for _ in range(2))
    form = b'{"batch":[%b],"context":{"app":%b}}'
    both = form % (one, b"1") + form % (two, b"2")
    assert client.post("/v1/batch", content=both).headers["Gateway-Accepted"] == "2"
    for body in (
        form % (one, b"3"),
        b'{"batch":[%b]}' % two,
        b"[%b,%b]" % (form % (one, b"4"), form % (two, b"5")),
    ):
        answer = client.post("/v1/batch", content=body)
        assert (answer.json(), answer.headers["Gateway-Accepted"]) == ({"success": True}, "0")


def test_event_of_a_damaged_session_is_stored_once_by_its_retry(
    client: httpx.Client, gateway: Gateway
) -> None:
    session = client.post("/v1/sessions", headers={"Gateway-Client": "c-1"}).json()["session"]
    events = [new_event(sequence=number) for number in (1, 2)]
    body = orjson.dumps({"client": "c-1", "session": session, "batch": events})
    damaged = client.post("/v1/events", content=body.replace(session.encode(), session.encode() + b'"'))
    assert (damaged.status_code, damaged.json()["code"]) == (400, "invalid_json")
    answer = client.post("/v1/events", content=body)
    assert answer.headers["Gateway-Accepted"] == "2"


@pytest.mark.regression(
    "The client session in the head of a damaged body was ignored, so that a retry stored its events again."
)
def test_damaged_body_has_the_session_of_its_head(client: httpx.Client) -> None:
    head = {"Gateway-Client": "c-2"}
    head["Gateway-Session"] = client.post("/v1/sessions", headers=head).json()["session"]
    events = [orjson.dumps({"type": "track", "sequence": number}) for number in (1, 2)]
    answer = client.post("/v1/events", content=b'{"batch":[%b,,%b]}' % tuple(events), headers=head)
    assert [receipt["sequence"] for receipt in answer.json()["receipts"]] == [1, 2]
    again = client.post("/v1/events", content=b"[%b,%b]" % tuple(events), headers=head)
    assert (again.headers["Gateway-Duplicates"], again.content) == ("2", answer.content)


def test_what_was_kept_is_sent_again_by_a_replay(gateway: Gateway, client: httpx.Client) -> None:
    lost, other, kept = (new_event() for _ in range(3))
    wrapped = orjson.dumps(orjson.dumps(orjson.dumps([kept]).decode()).decode())
    torn = b'{"type":"tr,"a":{"b":[%b,%b]}]}' % (orjson.dumps(lost), orjson.dumps(other))
    for body in (wrapped, torn):
        answer = client.post("/v1/batch", content=body)
        assert (answer.status_code, answer.headers["Gateway-Accepted"]) == (200, "0")
    for _ in range(2):
        done = cli(gateway, "quarantine", "replay", "--url", gateway.admin_url)
        assert b"accepted" in done.stderr or b"duplicate" in done.stderr  # others are skipped
    after = [each["messageId"] for each in stored(gateway)]
    assert after.count(kept["messageId"]) == 1
    assert not {lost["messageId"], other["messageId"]} & set(after)
