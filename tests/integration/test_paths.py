"""
Claim: every path that an SDK uses takes what that SDK sends and answers what it needs, whatever the
slashes; no path redirects, and no method or preflight is left without an answer.
"""

from typing import Any

import httpx
import orjson
import pytest

from app.ingest.routes.paths import PATHS, TYPES, Kind
from tests.support.gateway import Gateway
from tests.support.http import AUTH, new_event, post, stored

SUCCESS = b'{"success":true}'
BATCH_PATHS = [path.template for path in PATHS if path.kind is Kind.BATCH]
SINGLE_PATHS = [
    *((f"/v1/{letter}", kind) for letter, kind in zip("tpigas", TYPES, strict=True)),
    *((f"/v1/{kind}", kind) for kind in TYPES),
    *((f"/api/s/{kind}", kind) for kind in (*TYPES, "event")),
    ("/api/s/s2s/track", "track"),
    ("/api/s/s2s/page", "page"),
]


# ---- events in a body


def test_batch_paths_are_those_of_the_sdks() -> None:
    assert {
        "/v1/batch",
        "/v1/b",
        "/v1/import",
        "/v1/batch/b",
        "/b",
        "/batch",
        "/beacon/v1/batch",
        "/api/s/s2s/batch",
    } == set(BATCH_PATHS)


def test_event_is_one_event_whichever_batch_path_it_takes(client: httpx.Client) -> None:
    batch = {"batch": [new_event(), new_event()]}
    answers = [post(client, path, batch) for path in BATCH_PATHS]
    assert {answer.content for answer in answers} == {SUCCESS}
    counts = [answer.headers["Gateway-Accepted"] for answer in answers]
    assert counts == ["2"] + ["0"] * (len(BATCH_PATHS) - 1)


@pytest.mark.parametrize("path", BATCH_PATHS)
@pytest.mark.parametrize("document", [{}, {"sentAt": "now"}, {"batch": None, "messageId": "of the batch"}])
def test_batch_path_wants_a_batch_or_an_event(client: httpx.Client, path: str, document: Any) -> None:
    answer = post(client, path, document, Prefer="handling=strict")
    assert (answer.status_code, answer.json()["code"]) == (400, "batch_missing")
    lenient = post(client, path, document)
    assert (lenient.status_code, lenient.headers["Gateway-Accepted"]) == (200, "0")


@pytest.mark.regression("A batch on a path for single events was one event, and stored anew at each retry.")
@pytest.mark.parametrize("path", [*BATCH_PATHS, "/v1/events", "/v1/t", "/v1/identify", "/api/s/event"])
def test_form_of_the_body_decides_on_every_path(client: httpx.Client, gateway: Gateway, path: str) -> None:
    """And a retry of it in any other form is known, for its events are the same."""
    first, second = new_event(), new_event()
    envelope = {"batch": [first, second], "sentAt": "2026-11-21T20:00:00Z", "messageId": "of the batch"}
    forms = [
        envelope,
        [first, second],
        orjson.dumps(envelope).decode(),
        {"batch": orjson.dumps([first, second]).decode()},
        {"batch": [[first, second]]},
        {"batch": [orjson.dumps(event).decode() for event in (first, second)]},
        [{"batch": [first, second]}],
    ]
    answers = [post(client, path, form) for form in forms]
    assert [answer.headers["Gateway-Accepted"] for answer in answers] == ["2"] + ["0"] * (len(forms) - 1)
    assert {answer.headers["Gateway-Duplicates"] for answer in answers[1:]} == {"2"}
    assert post(client, path, second).headers["Gateway-Duplicates"] == "1"
    ids = [line["messageId"] for line in stored(gateway)]
    assert (ids.count(first["messageId"]), ids.count("of the batch")) == (1, 0)


@pytest.mark.parametrize(
    "path", ["/v1/import/", "/v1/batch/", "//v1/batch", "/v1//batch", "/b/", "//b", "/import/", "/batch/b"]
)
def test_slips_in_a_path_are_forgiven_without_a_redirect(gateway: Gateway, path: str) -> None:
    answer = httpx.post(f"{gateway.url}{path}", content=b'{"batch":[]}', auth=AUTH)
    assert (answer.status_code, answer.content) == (200, SUCCESS)


@pytest.mark.regression("A host configured with /v1 found no path.")
@pytest.mark.parametrize("path", [path.template for path in PATHS if "{" not in path.template])
def test_host_with_the_version_is_forgiven(client: httpx.Client, path: str) -> None:
    """As an SDK asks that was given https://host/v1 for its host."""
    send = httpx.Client.get if path in ("/sourceConfig", "/openapi.json") else httpx.Client.post
    assert send(client, f"/v1{path}").status_code != 404
    if path in BATCH_PATHS:
        assert post(client, f"/v1{path}/", {"batch": [new_event()]}).headers["Gateway-Accepted"] == "1"


def test_parameter_is_found_behind_a_host_with_the_version(client: httpx.Client) -> None:
    settings = client.get("/v1/v1/projects/key%2Fof/settings").json()
    assert settings["integrations"]["Segment.io"]["apiKey"] == "key/of"
    assert client.get("/v1/pixel/v1/page?event=seen").headers["Gateway-Accepted"] == "1"


@pytest.mark.parametrize(
    "path",
    ["/v1/v1/v1/batch", "/v1", "/v1/v1", "//", "/v2/batch", "/v1/batch/t", "/api/s", "/v1%20/t", "/v1/v1x/t"],
)
def test_no_other_slip_is_forgiven(client: httpx.Client, path: str) -> None:
    assert post(client, path, new_event()).status_code == 404


def test_path_gives_its_type_to_an_event_without_one(client: httpx.Client, gateway: Gateway) -> None:
    sent = [(path, kind, {**new_event(), "type": None}) for path, kind in SINGLE_PATHS]
    for event in (event for _, _, event in sent[::2]):
        del event["type"]
    sent += [
        ("/v1/track", "page", new_event(type="page")),
        (f"/api/s/{'x' * 5_000}", "x" * 100, {"messageId": "cut type"}),
    ]
    for path, _, event in sent:
        assert post(client, path, event).content == SUCCESS
    types = {line["messageId"]: line["value"]["type"] for line in stored(gateway)}
    assert [types[event["messageId"]] for _, _, event in sent] == [kind for _, kind, _ in sent]


@pytest.mark.parametrize("document", [5, None, "x", "5", '"[]"'])
def test_single_path_wants_an_event(client: httpx.Client, document: Any) -> None:
    answer = post(client, "/v1/t", document, Prefer="handling=strict")
    assert (answer.status_code, answer.json()["code"]) == (400, "batch_missing")


def test_rejected_single_event_is_said_to_be(client: httpx.Client) -> None:
    answer = post(client, "/v1/identify", {"messageId": True})
    assert (answer.status_code, answer.json()["rejected"][0]["code"]) == (200, "message_id_invalid")


def test_batch_level_fields_are_merged_and_the_event_wins(client: httpx.Client, gateway: Gateway) -> None:
    event = new_event(context={"ip": "1.2.3.4", "app": {"name": "own"}}, integrations=None)
    batch = {
        "batch": [event],
        "context": {"ip": "9.9.9.9", "library": {"name": "analytics-go"}, "app": {"name": "batch", "v": 1}},
        "integrations": {"All": True},
        "sentAt": "2026-11-21T20:00:00Z",
        "messageId": "that of the batch",
    }
    assert post(client, "/v1/batch", batch).content == SUCCESS
    (value,) = [line["value"] for line in stored(gateway) if line["messageId"] == event["messageId"]]
    assert value["context"] == {
        "ip": "1.2.3.4",
        "app": {"name": "own"},
        "library": {"name": "analytics-go"},
    }
    assert (value["integrations"], value["sentAt"]) == ({"All": True}, "2026-11-21T20:00:00Z")


def test_jitsu_and_beacons_bring_their_keys_in_places_of_their_own(gateway: Gateway) -> None:
    events = [new_event(), new_event()]
    jitsu = httpx.post(
        f"{gateway.url}/api/s/track",
        content=orjson.dumps(events[0]),
        headers={"X-Write-Key": "jitsu-id:secret"},
    )
    beacon = httpx.post(
        f"{gateway.url}/beacon/v1/batch",
        params={"writeKey": "beacon key"},
        content=orjson.dumps({"batch": [events[1]]}),
        headers={"Content-Type": "text/plain", "Cookie": "rl_session=x"},
    )
    assert jitsu.content == beacon.content == SUCCESS
    sources = {line["messageId"]: line["source"] for line in stored(gateway)}
    assert [sources[event["messageId"]] for event in events] == ["jitsu-id", "beacon key"]


def test_telemetry_is_swallowed(gateway: Gateway) -> None:
    before = gateway.stats()["totals"]
    with httpx.Client(base_url=gateway.url) as client:
        for content in (b'{"series":[{"type":"Counter"}]}', b"", b"not JSON", b"x" * 300_000):
            assert client.post("/v1/m", content=content).content == SUCCESS
        assert client.get("/openapi.json").status_code == 200  # the connection still lives
    assert gateway.stats()["totals"] == before


# ---- what the client prefers to get back


@pytest.mark.parametrize("path", ["/v1/batch", "/v1/events", "/v1/b"])
def test_preference_decides_whether_there_are_receipts(client: httpx.Client, path: str) -> None:
    batch = {"batch": [new_event()]}
    for value, has_receipts in (("representation", True), ("minimal", False)):
        answer = post(client, path, batch, Prefer=f"return={value}")
        assert ("receipts" in answer.json()) is has_receipts
        assert answer.headers["Preference-Applied"] == f"return={value}"
    assert "Preference-Applied" not in post(client, path, batch, Prefer="respond-async").headers


def test_several_prefer_headers_are_one(client: httpx.Client) -> None:
    headers = [("Prefer", "respond-async"), ("Prefer", "return=representation"), ("Prefer", "wait=1")]
    answer = client.post("/v1/t", content=orjson.dumps(new_event()), headers=headers)
    assert "receipts" in answer.json()


# ---- ids that the gateway assigns


@pytest.mark.parametrize("path", ["/v1/batch", "/v1/import", "/v1/events"])
def test_idempotency_key_gives_the_same_ids_on_every_path(client: httpx.Client, path: str) -> None:
    batch = {"batch": [{"event": "a", "timestamp": "2026-11-21T20:00:00.000Z"}, {"event": "b"}]}
    headers = {"Idempotency-Key": f"order {path}", "Prefer": "return=representation"}
    first = post(client, path, batch, **headers)
    again = post(client, "/v1/events", batch["batch"], **headers)
    assert first.json()["receipts"] == again.json()["receipts"]
    assert again.headers["Idempotent-Replayed"] == "true"
    assert all("idempotent" not in receipt for receipt in first.json()["receipts"])


def test_idempotency_key_counts_places_among_all_items(client: httpx.Client) -> None:
    def ids(items: list[Any]) -> list[str]:
        answer = post(client, "/v1/events", items, **{"Idempotency-Key": "places"})
        return [receipt["messageId"] for receipt in answer.json()["receipts"]]

    named = new_event()
    first, second, third = ids([{"event": "a"}, {"event": "b"}, {"event": "c"}])
    assert ids([{"event": "a"}, named, {"event": "c"}]) == [first, named["messageId"], third]
    assert ids([5, {"event": "b"}]) == [second]
    assert len({first, second, third}) == 3


def test_idempotency_key_with_other_content_is_a_conflict(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": "once"}
    assert post(client, "/v1/track", {"event": "a"}, **headers).content == SUCCESS
    (rejected,) = post(client, "/v1/track", {"event": "b"}, **headers).json()["rejected"]
    assert rejected["code"] == "conflict"


def test_idempotency_keys_of_two_sources_never_meet(gateway: Gateway) -> None:
    def ids(source: str) -> list[str]:
        answer = httpx.post(
            f"{gateway.url}/v1/events",
            content=b'{"event":"a"}',
            auth=(source, ""),
            headers={"Idempotency-Key": "shared"},
        )
        return [receipt["messageId"] for receipt in answer.json()["receipts"]]

    assert ids("shop") != ids("app")
    assert ids("shop") == ids("shop")


# ---- methods, preflights, redirects


def filled(template: str) -> str:
    return template.replace("{type}", "track").replace("{writeKey}", "web")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.template)
def test_other_methods_are_refused_in_json(client: httpx.Client, path: Any) -> None:
    for method in {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "TRACE"} - set(path.methods):
        answer = client.request(method, filled(path.template))
        assert answer.status_code == 405
        assert answer.headers["Allow"] == ", ".join(dict.fromkeys((*path.methods, "OPTIONS")))
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        if method != "HEAD":
            assert answer.json()["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.template)
def test_every_path_answers_preflights(client: httpx.Client, path: Any) -> None:
    asked = "authorization,content-type,x-retry-count,rsa-retry-attempt"
    answer = client.options(
        filled(path.template),
        headers={
            "Origin": "https://shop.example",
            "Access-Control-Request-Method": path.methods[0],
            "Access-Control-Request-Headers": asked,
        },
    )
    assert answer.status_code == 200
    assert answer.headers["Access-Control-Allow-Origin"] == "https://shop.example"
    assert answer.headers["Access-Control-Allow-Headers"] == asked
    assert path.methods[0] in answer.headers["Access-Control-Allow-Methods"]
    assert answer.headers["Access-Control-Max-Age"] == "86400"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.template)
def test_no_path_redirects(client: httpx.Client, path: Any) -> None:
    asked = [client.request(path.methods[0], filled(path.template) + slashes) for slashes in ("", "/", "//")]
    needs_more = path.kind in (Kind.EVENTS, Kind.SESSIONS, Kind.SESSION)
    assert [answer.status_code for answer in asked] == [400 if needs_more else 200] * 3
    assert len({answer.content for answer in asked}) == 1


def test_document_has_no_body_for_head(client: httpx.Client) -> None:
    answer = client.head("/v1/projects/web/settings")
    assert (answer.status_code, answer.content) == (200, b"")


def test_requests_are_counted_by_template(client: httpx.Client, gateway: Gateway) -> None:
    client.post("/api/s/anything-else", content=b"{}")
    metrics = httpx.get(f"{gateway.admin_url}/metrics").text
    assert 'route="/api/s/{type}"' in metrics
    assert "anything-else" not in metrics
