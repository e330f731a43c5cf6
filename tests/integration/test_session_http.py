"""
Claim: the real process takes client sessions on its native path as docs/http-api.md says, and on no other.
"""

import itertools
import json
import re
import time
from typing import Any

import httpx
import pytest

from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event, post, stored

U64_MAX = 2**64 - 1
KSUID_MAX = "aWgEPTl1tmebfsQzFP4bxwgy80V"
SESSION = "2dlpu8idjvw2es2uvixfliqYNu0"

_numbers = itertools.count(1)


def new_client() -> str:
    """Return an installation that no test has used before."""
    return f"phone-{next(_numbers)}"


def head(client: str, session: str = SESSION, **more: str) -> dict[str, str]:
    """Return the headers of a session; `more` by the last words of their names."""
    named = {f"Gateway-{name.replace('_', '-')}": value for name, value in more.items()}
    return {"Gateway-Client": client, "Gateway-Session": session, **named}


def said(*sequences: int, **fields: Any) -> list[dict[str, Any]]:
    """Return events that only their sequence tells from another."""
    return [{"event": "Seen", "sequence": sequence, **fields} for sequence in sequences]


def state_of(client: httpx.Client, phone: str, session: str = SESSION) -> dict[str, Any]:
    """Return what the gateway tells of a session."""
    answer = client.get(f"/v1/sessions/{session}", headers={"Gateway-Client": phone})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def codes_of(answer: httpx.Response) -> list[tuple[int, str]]:
    assert answer.status_code == 200, answer.text
    return [(rejected["index"], rejected["code"]) for rejected in answer.json().get("rejected", [])]


# ---- receipts


def test_receipts_have_sequences_and_a_retry_gets_the_same_bytes(client: httpx.Client) -> None:
    phone = new_client()
    first, again = (post(client, "/v1/events", said(1, 2), **head(phone)) for _ in range(2))
    assert first.content == again.content
    receipts = first.json()["receipts"]
    assert [list(receipt) for receipt in receipts] == [["messageId", "partition", "offset", "sequence"]] * 2
    assert [receipt["sequence"] for receipt in receipts] == [1, 2]
    assert all(re.fullmatch("[0-9A-Za-z]{27}", receipt["messageId"]) for receipt in receipts)
    assert len({receipt["messageId"] for receipt in receipts}) == 2
    assert len({receipt["partition"] for receipt in receipts}) == 1
    assert (first.headers["Gateway-Accepted"], again.headers["Gateway-Duplicates"]) == ("2", "2")
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"


def test_given_message_id_stays_and_is_known_in_the_clients_next_session_too(client: httpx.Client) -> None:
    phone, event = new_client(), new_event(sequence=1)
    first = post(client, "/v1/events", event, **head(phone))
    (receipt,) = first.json()["receipts"]
    assert receipt["messageId"] == event["messageId"]
    moved = post(client, "/v1/events", event | {"sequence": 7}, **head(phone, KSUID_MAX))
    assert moved.json()["receipts"] == [receipt | {"sequence": 7}]
    assert moved.headers["Gateway-Duplicates"] == "1"
    elsewhere = post(client, "/v1/events", event, **head(new_client()))
    assert elsewhere.headers["Gateway-Accepted"] == "1"
    without_session = post(client, "/v1/events", event)
    assert without_session.headers["Gateway-Accepted"] == "1"


def test_record_holds_what_the_client_sent_with_its_sequence(client: httpx.Client, gateway: Gateway) -> None:
    phone = new_client()
    document = {"client": phone, "session": SESSION, "sequence": 1, "event": "Seen"}
    (receipt,) = post(client, "/v1/events", document).json()["receipts"]
    (line,) = [line for line in stored(gateway) if line["messageId"] == receipt["messageId"]]
    assert {name: line["value"][name] for name in document} == document


def test_headers_and_fields_say_the_same(client: httpx.Client) -> None:
    phone = new_client()
    by_head = post(client, "/v1/events", said(1), **head(phone, Session_Epoch="3"))
    fields = {"client": phone, "session": SESSION, "epoch": 3, "acknowledgedThrough": 0}
    spellings: list[tuple[Any, dict[str, str]]] = [
        ({**said(1)[0], **fields}, {}),
        ({"batch": said(1), **fields}, {}),
        ({"batch": said(1), "client": phone, "session": None}, head(phone, Session_Epoch="3")),
        ({"batch": [{"event": "Seen"}], "firstSequence": 1, **fields}, head(phone)),
        (said(1)[0], head(phone)),
    ]
    for document, headers in spellings:
        assert post(client, "/v1/events", document, **headers).content == by_head.content, document
    assert state_of(client, phone)["epoch"] == 3


def test_first_sequence_counts_the_items_and_an_items_own_one_wins(client: httpx.Client) -> None:
    phone = new_client()
    batch = {"batch": [{"event": "a"}, {"event": "b", "sequence": None}, 5, *said(9)], "firstSequence": 4}
    answer = post(client, "/v1/events", batch, **head(phone))
    assert [receipt["sequence"] for receipt in answer.json()["receipts"]] == [4, 5, 9]
    assert codes_of(answer) == [(2, "not_an_object")]


def test_conflict_of_one_sequence_is_kept_apart_and_said_to_be(client: httpx.Client) -> None:
    phone = new_client()
    (receipt,) = post(client, "/v1/events", said(1), **head(phone)).json()["receipts"]
    other = [*said(1), *said(1, event="Another"), *said(2)]
    answer, again = (post(client, "/v1/events", other, **head(phone)) for _ in range(2))
    assert answer.content == again.content
    assert answer.json()["receipts"][0] == receipt
    (rejected,) = answer.json()["rejected"]
    assert list(rejected) == ["index", "messageId", "code", "message"]
    assert (rejected["index"], rejected["code"]) == (1, "conflict")
    assert "sequence" in rejected["message"]


# ---- what is stored, and what is missing


def test_watermark_and_missing_are_those_after_the_request(client: httpx.Client) -> None:
    phone = new_client()
    for sent, watermark, missing in [
        ([], "0", None),
        ([1, 2], "2", None),
        ([5, 9, 7], "2", "3-4,6,8"),
        ([3, 4], "5", "6,8"),
        ([1], "5", "6,8"),
        ([8, 6], "9", None),
    ]:
        answer = post(client, "/v1/events", {"batch": said(*sent)}, **head(phone))
        assert answer.headers["Gateway-Session-Watermark"] == watermark
        assert answer.headers.get("Gateway-Session-Missing") == missing


def test_of_many_missing_ranges_the_header_has_the_first_and_the_document_all(client: httpx.Client) -> None:
    phone = new_client()
    for count, more in ((32, ""), (33, ",...")):
        sent = [2 * n for n in range(1, count + 1)]
        answer = post(client, "/v1/events", said(*sent), **head(phone))
        told = ",".join(str(2 * n - 1) for n in range(1, 33))
        assert answer.headers["Gateway-Session-Missing"] == told + more
    assert state_of(client, phone)["missing"] == [[2 * n - 1] * 2 for n in range(1, 34)]


def test_acknowledged_and_forgotten_places_are_stale(client: httpx.Client) -> None:
    phone = new_client()
    first = post(client, "/v1/events", said(1, 2, 3), **head(phone)).json()["receipts"]
    answer, again = (
        post(client, "/v1/events", said(2, 3, 4), **head(phone, Acknowledged_Through="2")) for _ in range(2)
    )
    stale, known, new = answer.json()["receipts"]
    assert stale == {"messageId": first[1]["messageId"], "sequence": 2, "stale": True}
    assert list(stale) == ["messageId", "sequence", "stale"]
    assert (known, new["sequence"]) == (first[2], 4)
    assert (answer.headers["Gateway-Accepted"], answer.headers["Gateway-Duplicates"]) == ("1", "2")
    assert answer.content == again.content
    assert again.headers["Idempotent-Replayed"] == "true"
    unsaid = post(client, "/v1/events", said(2, event="Another"), **head(phone))
    assert unsaid.json()["receipts"][0]["stale"] is True
    assert state_of(client, phone)["acknowledgedThrough"] == 2


def test_beyond_512_is_not_taken_until_an_acknowledgement_moves_the_watermark(client: httpx.Client) -> None:
    phone = new_client()
    answer = post(client, "/v1/events", said(1, 513, 514), **head(phone))
    assert [receipt["sequence"] for receipt in answer.json()["receipts"]] == [1, 513]
    (rejected,) = answer.json()["rejected"]
    assert list(rejected) == ["index", "messageId", "code", "message", "retriable"]
    assert (rejected["index"], rejected["code"]) == (2, "sequence_window_exceeded")
    assert rejected["retriable"] is True
    assert answer.headers["Gateway-Session-Missing"] == "2-512"
    later = post(client, "/v1/events", said(514), **head(phone, Acknowledged_Through="100"))
    assert later.headers["Gateway-Accepted"] == "1"
    assert later.headers["Gateway-Session-Watermark"] == "100"


def test_strict_handling_refuses_what_is_not_the_next(client: httpx.Client, gateway: Gateway) -> None:
    phone = new_client()
    before = gateway.stats()
    strict = {"Prefer": "return=representation, handling=strict", **head(phone)}
    answer = post(client, "/v1/events", said(1, 3, 2), **strict)
    assert [receipt["sequence"] for receipt in answer.json()["receipts"]] == [1, 2]
    (rejected,) = answer.json()["rejected"]
    assert (rejected["index"], rejected["code"], rejected["retriable"]) == (1, "sequence_gap", True)
    assert answer.headers["Preference-Applied"] == "return=representation, handling=strict"
    assert post(client, "/v1/events", said(3), **strict).headers["Gateway-Accepted"] == "1"
    after = gateway.stats()
    assert after["totals"]["refused"] - before["totals"]["refused"] == 1
    assert after["quarantine"][0]["accepted"] == before["quarantine"][0]["accepted"]
    without_session = post(client, "/v1/events", new_event(), Prefer="handling=strict")
    assert "Preference-Applied" not in without_session.headers


def test_older_epoch_is_fenced_and_kept_apart(client: httpx.Client, gateway: Gateway) -> None:
    phone = new_client()
    assert post(client, "/v1/events", said(1), **head(phone, Session_Epoch="2")).status_code == 200
    before = gateway.stats()["quarantine"][0]["accepted"]
    old = head(phone, KSUID_MAX, Session_Epoch="1")
    answer, again = (post(client, "/v1/events", said(1), **old) for _ in range(2))
    assert codes_of(answer) == [(0, "session_fenced")]
    assert "retriable" not in answer.json()["rejected"][0]
    assert answer.content == again.content
    assert gateway.stats()["quarantine"][0]["accepted"] == before + 1


# ---- what is malformed


@pytest.mark.parametrize("sequence", [0, -1, 1.5, True, "1", [], {}, None, U64_MAX + 1])
def test_event_without_a_valid_sequence_is_kept_apart(client: httpx.Client, sequence: Any) -> None:
    phone = new_client()
    body = json.dumps([{"event": "Seen", "sequence": sequence}, *said(1)])
    answer = client.post("/v1/events", content=body, headers=head(phone))
    assert codes_of(answer) == [(0, "sequence_invalid")]
    assert [receipt["sequence"] for receipt in answer.json()["receipts"]] == [1]


def test_largest_sequence_is_one(client: httpx.Client) -> None:
    phone = new_client()
    almost = head(phone, Acknowledged_Through=str(U64_MAX - 1))
    answer = post(client, "/v1/events", {"batch": [{"event": "Seen"}], "firstSequence": U64_MAX}, **almost)
    assert [receipt["sequence"] for receipt in answer.json()["receipts"]] == [U64_MAX]
    assert answer.headers["Gateway-Session-Watermark"] == str(U64_MAX)


@pytest.mark.regression("Two rejected events of one content counted as one in their session.")
def test_rejected_events_of_two_sequences_are_two(client: httpx.Client, gateway: Gateway) -> None:
    phone = new_client()
    before = gateway.stats()["quarantine"][0]["accepted"]
    batch = [{"event": "Apart", "sequence": number, "type": 7} for number in (1, 2)]
    batch += [{"event": "Apart", "sequence": text} for text in ("1", "2")]
    for _ in range(2):
        answer = post(client, "/v1/events", batch, **head(phone))
        assert [code for _, code in codes_of(answer)] == ["type_invalid"] * 2 + ["sequence_invalid"] * 2
    assert gateway.stats()["quarantine"][0]["accepted"] == before + 4


WRONG_CLIENTS: list[Any] = ["", "x" * 101, "a\n", "a b", "é", 5, True]
WRONG_SESSIONS: list[Any] = ["", SESSION[1:], 5, [SESSION]]
WRONG_NUMBERS: list[Any] = [-1, True, "1", [], U64_MAX + 1]

MALFORMED: list[tuple[dict[str, Any], dict[str, str]]] = [
    *(({}, {"Gateway-Client": text, "Gateway-Session": SESSION}) for text in ("", "x" * 101, "a b", "\xe9")),
    *(({}, {"Gateway-Client": "c", "Gateway-Session": text}) for text in ("", SESSION[1:], SESSION + "0")),
    ({}, head("c", "aWgEPTl1tmebfsQzFP4bxwgy80W")),
    ({}, head("c", SESSION[:-1] + "-")),
    ({}, {"Gateway-Client": "c"}),
    ({}, {"Gateway-Session": SESSION}),
    ({}, {"Gateway-Session-Epoch": "1"}),
    ({}, {"Gateway-Acknowledged-Through": "1"}),
    *(
        ({}, head("c", **{name: text}))
        for name in ("Session_Epoch", "Acknowledged_Through")
        for text in ("", "-1", "01", "1.0", "+1", "1e3", "one", str(U64_MAX + 1))
    ),
    ({}, head("c", Session_Epoch="0")),
    *(({"client": value, "session": SESSION}, {}) for value in WRONG_CLIENTS),
    *(({"client": "c", "session": value}, {}) for value in WRONG_SESSIONS),
    ({"client": "c"}, {}),
    ({"session": SESSION}, {}),
    *(
        ({"client": "c", "session": SESSION, name: value}, {})
        for name in ("epoch", "acknowledgedThrough", "firstSequence")
        for value in WRONG_NUMBERS
    ),
    ({"client": "c", "session": SESSION, "epoch": 0}, {}),
    ({"firstSequence": 0}, head("c")),
    ({"firstSequence": U64_MAX}, head("c")),
]


@pytest.mark.parametrize(("fields", "headers"), MALFORMED)
def test_malformed_fields_are_refused_whole(
    client: httpx.Client, fields: dict[str, Any], headers: dict[str, str]
) -> None:
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    body = json.dumps({"batch": said(1, 2), **fields}).encode()
    answer = client.post("/v1/events", content=body, headers=encoded)
    assert (answer.status_code, answer.json()["code"]) == (400, "session_fields_invalid"), answer.text


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({"client": "d"}, head("c")),
        ({"session": KSUID_MAX}, head("c")),
        ({"epoch": 2}, head("c", Session_Epoch="1")),
        ({"acknowledgedThrough": 0}, head("c", Acknowledged_Through="1")),
    ],
)
def test_headers_and_fields_that_differ_are_refused(
    client: httpx.Client, fields: dict[str, Any], headers: dict[str, str]
) -> None:
    answer = post(client, "/v1/events", {"batch": said(1), **fields}, **headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "session_fields_conflict")


def test_paths_of_sdks_know_no_sessions(client: httpx.Client) -> None:
    for path, document in (
        ("/v1/batch", {"batch": [new_event(sequence="x")], "client": "c", "session": 5, "firstSequence": 0}),
        ("/v1/track", new_event(sequence=0, client=[], epoch="old")),
    ):
        headers = {**head("", "none", Session_Epoch="x"), "Prefer": "handling=strict"}
        answer = post(client, path, document, **headers)
        assert answer.content == b'{"success":true}'
        assert answer.headers["Gateway-Accepted"] == "1"
        assert not {"Gateway-Session-Watermark", "Preference-Applied"} & set(answer.headers)


# ---- POST and GET


def test_session_given_for_a_key_is_always_the_same_one(client: httpx.Client) -> None:
    phone = new_client()

    def given(document: Any, key: str | None = None, source: str = "web", **headers: str) -> str:
        if key is not None:
            headers["Idempotency-Key"] = key
        content = json.dumps(document)
        answer = client.post("/v1/sessions", content=content, headers=headers, auth=(source, ""))
        assert answer.status_code == 200, answer.text
        assert list(answer.json()) == ["session"]
        session: str = answer.json()["session"]
        return session

    first = given({}, "install-1", **{"Gateway-Client": phone})
    assert given({"client": phone}, "install-1") == first
    others = [
        given({"client": phone}, "install-2"),
        given({"client": new_client()}, "install-1"),
        given({"client": phone}, "install-1", "mail"),
        given({"client": phone}),
        given({"client": phone}),
    ]
    assert len({first, *others}) == 6
    assert post(client, "/v1/events", said(1), **head(phone, first)).headers["Gateway-Accepted"] == "1"
    headers = {"Gateway-Client": phone, "Idempotency-Key": "install-1"}
    bodiless = client.post("/v1/sessions", headers=headers)
    assert bodiless.json() == {"session": first}


@pytest.mark.parametrize(
    ("content", "headers", "code"),
    [
        (b"", {}, "session_fields_invalid"),
        (b'{"client":""}', {}, "session_fields_invalid"),
        (b'{"client":"c"}', {"Gateway-Client": "d"}, "session_fields_conflict"),
        (b'{"client":"c"}', {"Idempotency-Key": ""}, "idempotency_key_invalid"),
        (b"[]", {}, "invalid_json"),
        (b"{", {}, "invalid_json"),
        (b" " * 4_097, {}, "body_too_large"),
    ],
)
def test_wrong_request_for_a_session_is_refused(
    client: httpx.Client, content: bytes, headers: dict[str, str], code: str
) -> None:
    answer = client.post("/v1/sessions", content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, code)


def test_document_of_a_session_has_every_field(client: httpx.Client) -> None:
    phone = new_client()
    acknowledging = head(phone, Session_Epoch="7", Acknowledged_Through="2")
    post(client, "/v1/events", said(1, 2, 3, 5, 9), **acknowledging)
    document = state_of(client, phone)
    assert document == {
        "client": phone,
        "session": SESSION,
        "epoch": 7,
        "watermark": 3,
        "acknowledgedThrough": 2,
        "highest": 9,
        "missing": [[4, 4], [6, 8]],
    }
    assert list(document) == [
        "client", "session", "epoch", "watermark", "acknowledgedThrough", "highest", "missing"
    ]  # fmt: skip


def test_session_that_nobody_knows_is_told_so(client: httpx.Client) -> None:
    phone = new_client()
    post(client, "/v1/events", said(1), **head(phone))
    for session, asking in ((KSUID_MAX, phone), ("none", phone), (SESSION, new_client())):
        answer = client.get(f"/v1/sessions/{session}", headers={"Gateway-Client": asking})
        assert (answer.status_code, answer.json()["code"]) == (404, "session_unknown")
    other_source = client.get(f"/v1/sessions/{SESSION}", headers={"Gateway-Client": phone}, auth=("mail", ""))
    assert other_source.status_code == 404
    nobody = client.get(f"/v1/sessions/{SESSION}")
    assert (nobody.status_code, nobody.json()["code"]) == (400, "session_fields_invalid")


def test_sessions_are_for_those_with_a_write_key(gateway: Gateway) -> None:
    with httpx.Client(base_url=gateway.url, headers={"Gateway-Client": "c"}) as stranger:
        for answer in (stranger.get(f"/v1/sessions/{SESSION}"), stranger.post("/v1/sessions")):
            assert (answer.status_code, answer.json()["code"]) == (400, "write_key_missing")


def test_browser_can_read_what_is_said_of_a_session(client: httpx.Client) -> None:
    asked = "gateway-client,gateway-session,gateway-session-epoch,gateway-acknowledged-through"
    preflight = client.options(
        "/v1/events", headers={"Origin": "https://shop.example", "Access-Control-Request-Headers": asked}
    )
    assert preflight.headers["Access-Control-Allow-Headers"] == asked
    answer = post(client, "/v1/events", said(2), Origin="https://shop.example", **head(new_client()))
    exposed = answer.headers["Access-Control-Expose-Headers"].split(", ")
    assert {"Gateway-Session-Watermark", "Gateway-Session-Missing"} <= set(exposed)


# ---- operators


def test_operator_sees_a_clients_sessions(client: httpx.Client, gateway: Gateway) -> None:
    phone = new_client()
    post(client, "/v1/events", said(1, 4), **head(phone, Session_Epoch="2"))
    post(client, "/v1/events", said(1), **head(phone, KSUID_MAX))
    shown = cli(gateway, "sessions", "show", phone, "--source", "web", "--url", gateway.admin_url)
    assert (shown.returncode, shown.stderr) == (0, b"")
    sessions = [json.loads(line) for line in shown.stdout.splitlines()]
    assert sorted((told["watermark"], told["missing"], told["epoch"]) for told in sessions) == [
        (1, [], 0),
        (1, [[2, 3]], 2),
    ]
    assert {told["expired"] for told in sessions} == {False}
    asked = httpx.get(f"{gateway.admin_url}/admin/v1/sessions", params={"source": "web", "client": phone})
    document = asked.json()
    assert document.pop("sessions") == sessions
    assert document.pop("partition") in range(4)
    assert document == {"source": "web", "client": phone, "newest_epoch": 2, "more": False}
    unknown = cli(gateway, "sessions", "show", phone, "--source", "mail", "--url", gateway.admin_url)
    assert (unknown.returncode, unknown.stdout) == (1, b"")
    assert b"no session" in unknown.stderr


def test_operator_who_asks_wrongly_is_told_so(gateway: Gateway) -> None:
    answer = httpx.get(f"{gateway.admin_url}/admin/v1/sessions?client=phone")
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    for url, told in (("http://127.0.0.1:1", "no answer"), ("nowhere", "no answer")):
        done = cli(gateway, "sessions", "show", "phone", "--source", "web", "--url", url)
        assert (done.returncode, done.stdout) == (1, b"")
        assert told in done.stderr.decode()


def test_sessions_are_counted_for_each_partition(client: httpx.Client, gateway: Gateway) -> None:
    phone = new_client()
    (receipt,) = post(client, "/v1/events", said(1), **head(phone)).json()["receipts"]
    before = gateway.stats()["partitions"][receipt["partition"]]
    post(client, "/v1/events", said(3), **head(phone, Session_Epoch="2"))
    post(client, "/v1/events", said(1), **head(phone, KSUID_MAX, Session_Epoch="1"))
    after = gateway.stats()["partitions"][receipt["partition"]]
    grown = {name: after[name] - before[name] for name in after if name.startswith("sessions_")}
    assert grown == {
        "sessions_live": 1,  # the client's newest epoch
        "sessions_evicted": 0,
        "sessions_with_gaps": 1,
        "sessions_fenced": 1,
        "sessions_expired": 0,
    }
    assert 0 < after["session_oldest_use_ms"] <= time.time() * 1000
    metrics = httpx.get(f"{gateway.admin_url}/metrics").text
    labels = f'partition="{receipt["partition"]}",topic="events"'
    for line in (
        f'gateway_sessions{{partition="{receipt["partition"]}",state="live",topic="events"}} '
        f"{after['sessions_live']}.0",
        f"gateway_sessions_with_gaps{{{labels}}} {after['sessions_with_gaps']}.0",
        f"gateway_session_fenced_events_total{{{labels}}} {after['sessions_fenced']}.0",
        f"gateway_session_expired_events_total{{{labels}}} {after['sessions_expired']}.0",
        f"gateway_session_oldest_use_timestamp_seconds{{{labels}}} ",
    ):
        assert line in metrics


# ---- quotas and bounds


def test_session_events_use_up_the_index_share_once_each(own_gateway: Gateway) -> None:
    keys = own_gateway.folder.parent / "keys.yaml"
    keys.write_text("- {key: web, source: web, quotas: {index_share: 0.01, requests: null, events: null}}\n")
    settings = {"GATEWAY_WRITE_KEYS_FILE": str(keys), "GATEWAY_INDEX_KEYS_MAX": "10000"}
    with (
        Gateway(own_gateway.folder, settings) as gateway,
        httpx.Client(base_url=gateway.url, auth=AUTH) as client,
    ):
        phone = new_client()
        answers = [post(client, "/v1/events", said(1), **head(phone)) for _ in range(100)]
        assert {answer.status_code for answer in answers} == {200}
        answered = (
            post(client, "/v1/events", said(sequence), **head(phone)).status_code
            for sequence in range(2, 300)
        )
        assert next(status for status in answered if status != 200) == 429


def test_session_that_had_to_make_room_expires(own_gateway: Gateway) -> None:
    settings = {"GATEWAY_PARTITIONS": "32", "GATEWAY_SESSIONS_MAX": "1000"}  # 31 a partition
    with (
        Gateway(own_gateway.folder, settings) as gateway,
        httpx.Client(base_url=gateway.url, auth=AUTH) as client,
    ):
        phone = new_client()
        sessions = [f"{number:027}" for number in range(32)]
        for session in sessions:
            assert post(client, "/v1/events", said(1, 3), **head(phone, session)).status_code == 200
        oldest = head(phone, sessions[0])
        answer, again = (post(client, "/v1/events", said(2, 4), **oldest) for _ in range(2))
        assert codes_of(answer) == [(0, "session_expired"), (1, "session_expired")]
        assert answer.content == again.content
        known = post(client, "/v1/events", said(1), **oldest)
        assert known.headers["Gateway-Duplicates"] == "1"
        assert state_of(client, phone, sessions[0])["expired"] is True
        assert "expired" not in state_of(client, phone, sessions[1])
        stats = gateway.stats()["partitions"]
        assert [sum(one[f"sessions_{name}"] for one in stats) for name in ("live", "evicted", "expired")] == [
            31, 1, 4,
        ]  # fmt: skip


@pytest.mark.parametrize("says_in", ["head", "body"])
def test_session_that_its_client_has_ended_makes_room_before_older_ones(
    own_gateway: Gateway, says_in: str
) -> None:
    settings = {"GATEWAY_PARTITIONS": "32", "GATEWAY_SESSIONS_MAX": "1000"}  # 31 a partition
    with (
        Gateway(own_gateway.folder, settings) as gateway,
        httpx.Client(base_url=gateway.url, auth=AUTH) as client,
    ):
        phone = new_client()
        sessions = [f"{number:027}" for number in range(33)]
        for session in sessions[:31]:
            assert post(client, "/v1/events", said(1), **head(phone, session)).status_code == 200
        for session in sessions[7:9]:  # the end is said by a batch without events
            if says_in == "head":
                answer = post(client, "/v1/events", [], **head(phone, session, Session_Ended="true"))
            else:
                body = {"client": phone, "session": session, "ended": True, "batch": []}
                answer = post(client, "/v1/events", body)
            assert (answer.status_code, answer.headers["Gateway-Session-Watermark"]) == (200, "1")
        again = post(client, "/v1/events", said(2), **head(phone, sessions[7]))
        assert again.headers["Gateway-Accepted"] == "1"  # it is live again
        for session in sessions[31:]:
            assert post(client, "/v1/events", said(1), **head(phone, session)).status_code == 200
        expired = [s for s in sessions if "expired" in state_of(client, phone, s)]
        assert expired == [sessions[0], sessions[8]]
