"""Claim: a CloudEvent is stored once in whichever mode it comes, whole, and what is none is kept whole."""

import gzip
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from app.ingest.cloudevents import header_text
from dedupe.model.identity import Identity
from dedupe.model.record import FLAG_CLOUDEVENT, is_identified_by, parse_identity
from tests.support.gateway_in_process import URL, GatewayInProcess

PATH = "/v1/cloudevents"
ATTRIBUTES = {
    "specversion": "1.0",
    "type": "com.example.someevent",
    "time": "2018-04-05T03:56:24Z",
    "id": "1234-1234-1234",
    "source": "/mycontext/subcontext",
}
EVENT = {**ATTRIBUTES, "datacontenttype": "application/json", "data": {"message": "Hello World!"}}
HEADERS = {f"ce-{name}": value for name, value in ATTRIBUTES.items()}
STRUCTURED = {"Content-Type": "application/cloudevents+json; charset=utf-8"}
BATCHED = {"Content-Type": "application/cloudevents-batch+json"}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayInProcess]:
    with GatewayInProcess(tmp_path) as running:
        yield running


@pytest.fixture
def client(gateway: GatewayInProcess) -> Iterator[httpx.Client]:
    with gateway.http() as running:
        yield running


def event(number: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a CloudEvent; None removes a field."""
    given = {**EVENT, "id": f"id-{number}", **fields}
    return {name: value for name, value in given.items() if value is not None}


def values(gateway: GatewayInProcess, name: str = "events") -> list[dict[str, Any]]:
    return [value for _, value in gateway.by_source(name)]


def kept(gateway: GatewayInProcess) -> list[tuple[str, Any]]:
    """Return reason and content of each quarantined event, its bytes if it is no JSON."""
    found = []
    for record in gateway.log.partition("events.quarantine", 0).records:
        assert dict(record.headers)["dialect"] == b"cloudevents"
        head, _, content = record.value.partition(b"\n")
        document = orjson.loads(head)
        found.append((document["reason"], document.get("event", content)))
    return found


def test_one_event_in_all_modes_is_one_event(gateway: GatewayInProcess, client: httpx.Client) -> None:
    answers = [
        client.post(PATH, content=orjson.dumps(EVENT), headers=STRUCTURED),
        client.post(PATH, content=orjson.dumps([EVENT, EVENT]), headers=BATCHED),
        client.post(
            PATH,
            content=b'{"message": "Hello World!"}',
            headers={**HEADERS, "Content-Type": "application/json"},
        ),
        client.post(PATH, content=gzip.compress(orjson.dumps(EVENT)), headers=STRUCTURED),
    ]
    (receipt,) = answers[0].json()["receipts"]
    assert receipt["messageId"] == "/mycontext/subcontext 1234-1234-1234"
    for answer, count in zip(answers, (1, 2, 1, 1), strict=True):
        assert answer.status_code == 200
        assert answer.json() == {"success": True, "receipts": [receipt] * count}
    assert [answer.headers["Gateway-Duplicates"] for answer in answers] == ["0", "2", "1", "1"]
    assert values(gateway) == [EVENT]


def test_modes_agree_on_what_is_equal(gateway: GatewayInProcess, client: httpx.Client) -> None:
    """What SDKs write in one mode and not in the other: content types, numbers, text, nulls."""
    extensions = {"extinteger": 10, "extboolean": True, "subject": None}
    headers = {**HEADERS, "ce-extinteger": "10", "ce-extboolean": "true"}
    pairs: list[tuple[dict[str, Any], bytes, dict[str, str]]] = [
        ({"data": {"a": 1}}, b'{"a":1}', {"Content-Type": "application/json; charset=utf-8"}),
        ({"data": {"a": 10.0, "b": 1e2}}, b'{"a":10,"b":100.0}', {"Content-Type": "application/json"}),
        ({"data": "Käse", "datacontenttype": "text/plain"}, "Käse".encode(), {"Content-Type": "text/plain"}),
        ({"data": None}, b"null", {"Content-Type": "Application/JSON;charset=UTF-8"}),
        ({}, b"", {}),
    ]
    for number, (fields, data, content) in enumerate(pairs):
        structured = {**ATTRIBUTES, **extensions, **fields, "id": f"{number}"}
        binary = {**headers, **content, "ce-id": f"{number}"}
        answers = [client.post(PATH, json=structured), client.post(PATH, content=data, headers=binary)]
        assert [answer.headers["Gateway-Accepted"] for answer in answers] == ["1", "0"], (
            fields,
            answers[1].text,
        )
        assert answers[1].content == answers[0].content
    assert values(gateway)[0].items() >= extensions.items()


@pytest.mark.parametrize(
    "fields",
    [
        {"data": "1"},
        {"data": 2},
        {"data_base64": "MQ=="},
        {"datacontenttype": "text/plain"},
        {"datacontenttype": "application/json; charset=utf-16"},
        {"subject": "none"},
        {"ext": 11},
    ],
)
def test_other_data_are_another_event(client: httpx.Client, fields: dict[str, Any]) -> None:
    first = event(data=1, ext=10)
    client.post(PATH, json=first)
    answer = client.post(PATH, json={**first, **fields})
    assert [each["code"] for each in answer.json()["rejected"]] == ["conflict"]


def test_record_tells_its_key_and_its_dialect(gateway: GatewayInProcess, client: httpx.Client) -> None:
    client.post(PATH, json=[event(1), event(2, id="x" * 300), event(3, source="a b")])
    client.post("/v1/track", json={"messageId": "1"})
    dialects = []
    for partition in (0, 1):
        for record in gateway.log.partition("events", partition).records:
            found = parse_identity(record)
            identity = Identity(b"a secret of the tests, long enough")
            assert is_identified_by(record, found, identity, partition=partition, partitions=2)
            dialects.append((found.flags & FLAG_CLOUDEVENT, dict(record.headers).get("dialect")))
    assert sorted(dialects, key=str) == [(0, None), *[(FLAG_CLOUDEVENT, b"cloudevents")] * 3]


@pytest.mark.parametrize(
    ("content_type", "data", "stored"),
    [
        ("application/json", b'{"a":1}', {"data": {"a": 1}}),
        ("application/vnd.a+json; charset=utf-8", b"[1.50]", {"data": [1.5]}),
        ("text/json", b' "x"', {"data": "x"}),
        ("application/json", b"null", {"data": None}),
        ("text/plain", b'{"a":1}', {"data_base64": "eyJhIjoxfQ=="}),
        ("application/json", b'{"a":', {"data_base64": "eyJhIjo="}),
        ("application/json", b'1,"id":"2"', {"data_base64": b64encode(b'1,"id":"2"').decode()}),
        ("application/json", b"1}", {"data_base64": "MX0="}),
        ("application/json", b'"\xff"', {"data_base64": "Iv8i"}),
        ("application/json", b"[" * 100_000, {"data_base64": b64encode(b"[" * 100_000).decode()}),
        ("application/octet-stream", b"\x00\xff", {"data_base64": "AP8="}),
        (
            "application/gzip",
            gzip.compress(b"x", mtime=0),
            {"data_base64": b64encode(gzip.compress(b"x", mtime=0)).decode()},
        ),
        ("application/xml", b"", {}),
        (None, b'{"a":1}', {"data": {"a": 1}}),
        (None, b"<a/>", {"data_base64": "PGEvPg=="}),
    ],
)
def test_data_in_binary_mode_are_kept(
    gateway: GatewayInProcess,
    client: httpx.Client,
    content_type: str | None,
    data: bytes,
    stored: dict[str, Any],
) -> None:
    content = {} if content_type is None else {"Content-Type": content_type}
    answer = client.post(PATH, content=data, headers={**HEADERS, **content})
    assert answer.headers["Gateway-Accepted"] == "1"
    declared = {} if content_type is None else {"datacontenttype": content_type}
    assert values(gateway) == [{**ATTRIBUTES, **declared, **stored}]


def test_attributes_in_headers_are_decoded(gateway: GatewayInProcess, client: httpx.Client) -> None:
    odd = {"ce-subject": "Euro%20%E2%82%AC%20%F0%9F%98%80", "CE-Quoted": '"a \\"b\\" %63"', "ce-data": "own"}
    headers = [(name.encode(), text.encode()) for name, text in (HEADERS | odd).items()]
    client.post(PATH, content=b"1", headers=[*headers, (b"ce-utf8", "é".encode()), (b"ce-latin1", b"\xe9")])
    assert values(gateway) == [
        {
            **ATTRIBUTES,
            "utf8": "é",
            "latin1": "é",
            "subject": "Euro € 😀",
            "quoted": 'a "b" c',
            "ce-data": "own",
            "data": 1,
        }
    ]


@pytest.mark.parametrize("value", [b"%C0%A0", b"%ff", b"\xff"])
def test_attribute_that_is_no_text_is_kept_apart(
    gateway: GatewayInProcess, client: httpx.Client, value: bytes
) -> None:
    with pytest.raises(ValueError, match="decode"):
        header_text(value, is_identity=True)
    headers = [(name.encode(), text.encode()) for name, text in HEADERS.items() if name != "ce-id"]
    answer = client.post(PATH, content=b"1", headers=[*headers, (b"ce-id", value)])
    assert answer.json() == {
        "success": True,
        "receipts": [],
        "rejected": [
            {
                "index": 0,
                "messageId": None,
                "code": "unreadable",
                "message": "this part of the body holds no complete event",
            }
        ],
    }
    ((reason, content),) = kept(gateway)
    assert (reason, content.endswith(b"ce-id: %b\r\n\r\n1" % value)) == ("unreadable", True)


@pytest.mark.parametrize(
    "fields",
    [
        {"specversion": None},
        {"specversion": "0.3"},
        {"id": None},
        {"id": ""},
        {"id": " "},
        {"id": {"xyz": "abc"}},
        {"source": ""},
        {"source": None},
        {"type": ""},
        {"type": None},
        {"type": 1},
    ],
)
def test_what_is_no_cloudevent_is_kept_whole(
    gateway: GatewayInProcess, client: httpx.Client, fields: dict[str, Any]
) -> None:
    body = [event(1), event(2, **fields), event(3)]
    for _ in range(2):
        answer = client.post(PATH, json=body)
        assert answer.status_code == 200
        assert [(each["index"], each["code"]) for each in answer.json()["rejected"]] == [
            (1, "cloudevent_invalid")
        ]
        assert len(answer.json()["receipts"]) == 2
    assert kept(gateway) == [("cloudevent_invalid", body[1])]
    assert sorted(value["id"] for value in values(gateway)) == ["id-1", "id-3"]


def test_other_content_is_a_conflict_and_can_be_found(
    gateway: GatewayInProcess, client: httpx.Client
) -> None:
    client.post(PATH, json=event(1))
    answer = client.post(PATH, json=event(1, data={"message": "other"}))
    (rejected,) = answer.json()["rejected"]
    assert (rejected["messageId"], rejected["code"]) == ("/mycontext/subcontext id-1", "conflict")
    assert kept(gateway) == [("conflict", event(1, data={"message": "other"}))]


def test_tracing_may_change_between_tries(gateway: GatewayInProcess, client: httpx.Client) -> None:
    first = event(1, traceparent="00-1", writeKey="own")
    client.post(PATH, json=first)
    assert client.post(PATH, json=event(1, traceparent="00-2")).headers["Gateway-Duplicates"] == "1"
    del first["writeKey"]
    assert values(gateway) == [first]


def test_same_id_of_another_source_is_another_event(gateway: GatewayInProcess, client: httpx.Client) -> None:
    pairs = [("a", "b c"), ("a b", "c"), ("a", "b"), ("ab", ""), ("a", "bc"), ("ab", "c")]
    answer = client.post(PATH, json=[event(source=source, id=own or "-") for source, own in pairs])
    assert answer.headers["Gateway-Accepted"] == str(len(pairs))


def test_events_before_a_cut_are_stored(gateway: GatewayInProcess, client: httpx.Client) -> None:
    body = orjson.dumps([event(1), event(2), event(3)])[:-30]
    answer = client.post(PATH, content=body, headers=BATCHED)
    assert answer.status_code == 200
    assert len(answer.json()["receipts"]) == 2
    ((reason, content),) = kept(gateway)
    assert (reason, content) == ("unreadable", orjson.dumps(event(3))[:-29])
    strict = client.post(PATH, content=body, headers={**BATCHED, "Prefer": "handling=strict"})
    assert (strict.status_code, strict.json()["code"]) == (400, "invalid_json")


@pytest.mark.parametrize(
    "content_type", ["application/cloudevents+avro", "application/cloudevents-batch+protobuf"]
)
def test_other_formats_are_kept_as_they_are(
    gateway: GatewayInProcess, client: httpx.Client, content_type: str
) -> None:
    body = b"\x00\x01" + orjson.dumps(event(1)) + b"\xff"
    answer = client.post(PATH, content=body, headers={"Content-Type": content_type})
    assert (answer.status_code, answer.headers["Gateway-Rejected"]) == (200, "1")
    assert kept(gateway) == [("unreadable", body)]


def test_damaged_data_are_not_taken_for_whole_ones(gateway: GatewayInProcess, client: httpx.Client) -> None:
    data = gzip.compress(b"all of it " * 1_000)
    headers = {**HEADERS, "Content-Type": "text/plain", "Content-Encoding": "gzip"}
    answer = client.post(PATH, content=data[:-12], headers=headers)
    assert (answer.status_code, answer.headers["Gateway-Rejected"]) == (200, "1")
    ((reason, content),) = kept(gateway)
    assert reason == "unreadable"
    assert b"ce-id: 1234-1234-1234\r\n" in content
    assert b"\r\n\r\nall of it all of it " in content
    assert values(gateway) == []


def test_attribute_named_batch_is_an_attribute(gateway: GatewayInProcess, client: httpx.Client) -> None:
    odd = event(1, batch='[{"type":"x","specversion":"1.0","id":"1","source":"/"}]')
    assert client.post(PATH, json=odd).headers["Gateway-Accepted"] == "1"
    assert values(gateway) == [odd]


def test_id_may_be_a_number(gateway: GatewayInProcess, client: httpx.Client) -> None:
    client.post(PATH, json=event(id=25))
    assert client.post(PATH, json=event(id="25")).headers["Gateway-Duplicates"] == "1"
    assert values(gateway) == [event(id="25")]


def test_large_data_are_stored_or_kept_whole(gateway: GatewayInProcess, client: httpx.Client) -> None:
    headers = {**HEADERS, "Content-Type": "application/octet-stream"}
    fits = client.post(PATH, content=b"\xfe" * 550_000, headers=headers)
    assert fits.headers["Gateway-Accepted"] == "1"
    large = client.post(PATH, content=b"\xfe" * 3_000_000, headers={**headers, "ce-id": "2"})
    assert large.json()["rejected"][0]["code"] == "event_too_large"
    too_large = client.post(PATH, content=b"\xfe" * 9_000_000, headers={**headers, "ce-id": "3"})
    assert (too_large.status_code, too_large.json()["code"]) == (400, "body_too_large")


def test_empty_batch_is_a_success(client: httpx.Client) -> None:
    assert client.post(PATH, content=b"[]", headers=BATCHED).json() == {"success": True, "receipts": []}


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"Authorization": "Bearer shop"}, ""),
        ({"Authorization": "bearer shop"}, "?access_token=other"),
        ({}, "?access_token=shop"),
        ({}, "?p=q&access_token=sho%70"),
        ({}, "?writeKey=shop"),
        ({"X-Write-Key": "shop"}, ""),
        ({"Authorization": "Bearer of another system", "X-Write-Key": "shop"}, ""),
        ({"Authorization": "Bearer of another system"}, "?writeKey=shop"),
    ],
)
def test_write_key_may_be_a_token(gateway: GatewayInProcess, headers: dict[str, str], query: str) -> None:
    with httpx.Client(transport=gateway.transport, base_url=URL) as client:
        answer = client.post(PATH + query, json=event(1), headers=headers)
    assert answer.status_code == 200
    assert [source for source, _ in gateway.by_source()] == ["shop"]


def test_no_write_key_is_told(gateway: GatewayInProcess) -> None:
    with httpx.Client(transport=gateway.transport, base_url=URL) as client:
        answer = client.post(PATH, json=event(1))
    assert (answer.status_code, answer.json()["code"]) == (400, "write_key_missing")


def test_webhook_gets_consent(client: httpx.Client) -> None:
    asked = {"WebHook-Request-Origin": "eventemitter.example.com", "WebHook-Request-Rate": "120"}
    answer = client.options(PATH, headers=asked)
    assert answer.status_code == 200
    assert "POST" in answer.headers["Allow"]
    assert answer.headers["WebHook-Allowed-Origin"] == "eventemitter.example.com"
    assert answer.headers["WebHook-Allowed-Rate"] == "*"
    elsewhere = client.options("/v1/batch", headers=asked)
    assert elsewhere.status_code == 405
    assert "WebHook-Allowed-Origin" not in elsewhere.headers


def test_preflight_is_no_handshake(client: httpx.Client) -> None:
    preflight = {
        "Origin": "https://a.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "ce-id,webhook-request-origin",
    }
    answer = client.options(PATH, headers=preflight)
    assert answer.headers["Access-Control-Allow-Headers"] == "ce-id,webhook-request-origin"
    assert "WebHook-Allowed-Origin" not in answer.headers
    both = client.options(PATH, headers={**preflight, "WebHook-Request-Origin": "a.example"})
    assert both.headers["Access-Control-Allow-Headers"] == "ce-id,webhook-request-origin"
    assert both.headers["WebHook-Allowed-Origin"] == "a.example"
    assert both.headers.get_list("Access-Control-Allow-Origin") == ["https://a.example"]


def test_id_that_is_no_text_is_not_mended(gateway: GatewayInProcess, client: httpx.Client) -> None:
    ids = [b"\xfe", b"\xff"]
    odd = [orjson.dumps(event(id="?")).replace(b'"?"', b'"%b"' % each) for each in ids]
    subject = orjson.dumps(event(subject="?")).replace(b'"?"', b'"\xff"')
    answer = client.post(PATH, content=b"[%b,%b,%b]" % (odd[0], subject, odd[1]), headers=BATCHED)
    assert [each["code"] for each in answer.json()["rejected"]] == ["unreadable"] * 2
    assert [one in content for one, (_, content) in zip(odd, kept(gateway), strict=True)] == [True, True]
    assert [value["subject"] for value in values(gateway)] == ["\ufffd"]


def test_webhook_is_told_the_quota_of_its_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {key: slow, source: slow, quotas: {requests: 2}}\n- {key: free, source: free}\n")
    asked = {"WebHook-Request-Origin": "eventemitter.example.com"}
    with (
        GatewayInProcess(tmp_path / "gateway", write_keys_file=keys) as gateway,
        httpx.Client(transport=gateway.transport, base_url=URL) as client,
    ):
        slow = client.options(f"{PATH}?access_token=slow", headers=asked)
        free = client.options(PATH, headers={**asked, "Authorization": "Bearer free"})
        wrong = client.options(f"{PATH}?access_token=wrong", headers=asked)
    assert slow.headers["WebHook-Allowed-Rate"] == "120"
    assert free.headers["WebHook-Allowed-Rate"] == "*"
    assert (wrong.status_code, wrong.json()["code"]) == (401, "invalid_write_key")
    assert "WebHook-Allowed-Origin" not in wrong.headers
