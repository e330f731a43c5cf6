"""
Claim: every path that an SDK uses takes what that SDK sends and answers what it needs, whatever the
slashes; no path redirects, and no method or preflight is left without an answer.
"""

import base64
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import orjson
import pytest

from app.routes.paths import PATHS, TYPES, Kind
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
GIF_SIZE = 43
ODD_TEXT = "ü ~~~ ~~? ~>~ ???"


def stored_value(gateway: Gateway, message_id: str) -> dict[str, Any]:
    """Return the value of the one record with this id."""
    (line,) = [line for line in stored(gateway) if line["messageId"] == message_id]
    value: dict[str, Any] = line["value"]
    return value


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
def test_batch_path_wants_a_batch(client: httpx.Client, path: str) -> None:
    answer = post(client, path, new_event())
    assert (answer.status_code, answer.json()["code"]) == (400, "batch_missing")


@pytest.mark.parametrize(
    "path", ["/v1/import/", "/v1/batch/", "//v1/batch", "/v1//batch", "/b/", "//b", "/import/", "/batch/b"]
)
def test_slips_in_a_path_are_forgiven_without_a_redirect(gateway: Gateway, path: str) -> None:
    answer = httpx.post(f"{gateway.url}{path}", content=b'{"batch":[]}', auth=AUTH)
    assert (answer.status_code, answer.content) == (200, SUCCESS)


@pytest.mark.parametrize(
    "path",
    [
        "/t",
        "/pixel/track",
        "/v1/v1/batch",
        "/v1",
        "/",
        "//",
        "/v2/batch",
        "/v1/batch/t",
        "/api/s",
        "/v1%20/t",
    ],
)
def test_only_those_slips_are_forgiven(client: httpx.Client, path: str) -> None:
    status = {"/t": 200, "/pixel/track": 405}.get(path, 404)
    assert post(client, path, new_event()).status_code == status


def test_event_without_a_type_gets_that_of_its_path(client: httpx.Client, gateway: Gateway) -> None:
    expected = {}
    for number, (path, kind) in enumerate(SINGLE_PATHS):
        event = {"messageId": f"typeless-{number}"} | ({"type": None} if number % 2 else {})
        assert post(client, path, event).content == SUCCESS
        expected[event["messageId"]] = kind
    lines = {line["messageId"]: line["value"]["type"] for line in stored(gateway)}
    assert {message_id: lines[str(message_id)] for message_id in expected} == expected


def test_own_type_of_an_event_stays(client: httpx.Client, gateway: Gateway) -> None:
    event = new_event(type="page")
    assert post(client, "/v1/track", event).content == SUCCESS
    assert stored_value(gateway, event["messageId"])["type"] == "page"


@pytest.mark.parametrize("document", [[], [{}], 5, None, "x"])
def test_single_path_wants_one_event(client: httpx.Client, document: Any) -> None:
    answer = post(client, "/v1/t", document)
    assert (answer.status_code, answer.json()["code"]) == (400, "batch_missing")


def test_rejected_single_event_is_said_to_be(client: httpx.Client) -> None:
    answer = post(client, "/v1/identify", {"messageId": 5})
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
    value = stored_value(gateway, event["messageId"])
    assert value["context"] == {
        "ip": "1.2.3.4",
        "app": {"name": "own"},
        "library": {"name": "analytics-go"},
    }
    assert (value["integrations"], value["sentAt"]) == ({"All": True}, "2026-11-21T20:00:00Z")


def test_jitsu_sends_its_key_with_a_secret(gateway: Gateway) -> None:
    event = new_event()
    url, key = f"{gateway.url}/api/s/track", {"X-Write-Key": "jitsu-id:secret"}
    assert httpx.post(url, content=orjson.dumps(event), headers=key).content == SUCCESS
    (line,) = [line for line in stored(gateway) if line["messageId"] == event["messageId"]]
    assert line["source"] == "jitsu-id"


def test_beacon_is_known_by_its_query(gateway: Gateway) -> None:
    event = new_event()
    answer = httpx.post(
        f"{gateway.url}/beacon/v1/batch",
        params={"writeKey": "beacon key"},
        content=orjson.dumps({"batch": [event]}),
        headers={"Content-Type": "text/plain", "Cookie": "rl_session=x"},
    )
    assert answer.content == SUCCESS
    (line,) = [line for line in stored(gateway) if line["messageId"] == event["messageId"]]
    assert line["source"] == "beacon key"


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


# ---- pixels


def encoded(event: dict[str, Any]) -> str:
    return base64.b64encode(orjson.dumps(event)).decode()


PIXEL_SPELLINGS: list[Callable[[str], str]] = [
    lambda data: data.replace("+", "%2B"),
    lambda data: data.replace("/", "%2F").rstrip("="),
    lambda data: data.replace("+", "-").replace("/", "_"),
    lambda data: data.replace("+", "-").replace("/", "_").rstrip("="),
]


def test_pixel_stores_its_event_in_every_spelling_of_base64(gateway: Gateway) -> None:
    expected = {}
    for path in ("/v1/pixel/track", "/pixel/v1/page", "/v1/pixel/identify"):
        for spell in PIXEL_SPELLINGS:
            event = {**new_event(), "type": None, "userId": ODD_TEXT, "writeKey": "mail"}
            assert {"+", "/"} <= set(encoded(event))
            answer = httpx.get(f"{gateway.url}{path}?data={spell(encoded(event))}")
            assert (answer.status_code, answer.headers["Content-Type"]) == (200, "image/gif")
            assert (answer.content[:6], len(answer.content)) == (b"GIF89a", GIF_SIZE)
            assert (answer.headers["Gateway-Accepted"], answer.headers["Cache-Control"]) == ("1", "no-store")
            expected[event["messageId"]] = ("mail", path.rpartition("/")[2], ODD_TEXT)
    lines = {line["messageId"]: line for line in stored(gateway)}
    found = {key: (lines[key]["source"], lines[key]["value"]) for key in expected}
    assert {
        key: (source, value["type"], value["userId"]) for key, (source, value) in found.items()
    } == expected
    assert all("writeKey" not in value for _, value in found.values())


def test_pixel_stores_the_fields_of_its_query(gateway: Gateway) -> None:
    message_id = new_event()["messageId"]
    query = (
        f"writeKey=amp&messageId={message_id}&anonymousId=a1&event=Opened&name="
        "&context.page.url=https%3A%2F%2Fshop.example%2F%3Fa%3Db&context.page.title=Shop&properties.n=1"
        "&event.odd=x"
    )
    answers = [httpx.get(f"{gateway.url}/pixel/v1/track?{query}") for _ in range(2)]
    assert [answer.headers["Gateway-Duplicates"] for answer in answers] == ["0", "1"]
    value = stored_value(gateway, message_id)
    del value["receivedAt"]
    assert value == {
        "messageId": message_id,
        "anonymousId": "a1",
        "event": "Opened",
        "context": {"page": {"url": "https://shop.example/?a=b", "title": "Shop"}},
        "properties": {"n": "1"},
        "event.odd": "x",
        "type": "track",
    }


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "batch_missing"),
        ("writeKey=k", "batch_missing"),
        ("data=%21%21%21", "invalid_json"),
        ("data=bm90IEpTT04", "invalid_json"),
        ("data=W10", "batch_missing"),
        ("data=e30", "write_key_missing"),
        ("event=x", "write_key_missing"),
        ("&".join(f"a{number}=1" for number in range(1001)), "batch_missing"),
    ],
)
def test_pixel_that_cannot_be_read_is_counted_and_goes_nowhere(
    gateway: Gateway, query: str, reason: str
) -> None:
    def counted() -> int:
        label = f'gateway_http_discarded_total{{reason="{reason}",route="/v1/pixel/{{type}}"}} '
        lines = httpx.get(f"{gateway.admin_url}/metrics").text.splitlines()
        return sum(int(float(line.removeprefix(label))) for line in lines if line.startswith(label))

    before, total = counted(), gateway.stats()["totals"]["received"]
    answer = httpx.get(f"{gateway.url}/v1/pixel/track?{query}")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "image/gif")
    assert (counted(), gateway.stats()["totals"]["received"]) == (before + 1, total)


def test_pixel_nested_too_deep_is_kept_apart(gateway: Gateway) -> None:
    before = gateway.stats()["totals"]["rejected"]
    answer = httpx.get(f"{gateway.url}/v1/pixel/track?writeKey=k&{'a.' * 5_000}b=1")
    assert (answer.status_code, answer.headers["Gateway-Accepted"]) == (200, "0")
    assert gateway.stats()["totals"]["rejected"] == before + 1


# ---- settings documents


@pytest.fixture(scope="module")
def keyed_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway in production, with a public host."""
    folder = tmp_path_factory.mktemp("keyed")
    keys = folder / "keys.yaml"
    keys.write_text("- {key: good, source: web}\n- {key: switched-off, source: web, enabled: false}\n")
    with Gateway(
        folder,
        {
            "GATEWAY_PARTITIONS": "2",
            "GATEWAY_MODE": "production",
            "GATEWAY_IDENTITY_SECRET": "a secret for production",
            "GATEWAY_WRITE_KEYS_FILE": str(keys),
            "GATEWAY_PUBLIC_HOST": "events.shop.example:8443",
        },
    ) as running:
        yield running


@pytest.mark.parametrize("key", ["good", "switched-off", "unknown"])
@pytest.mark.parametrize("prefix", ["/v1/projects", "/v1/projects/projects", "/projects"])
def test_segment_settings_are_there_for_every_key(keyed_gateway: Gateway, prefix: str, key: str) -> None:
    answer = httpx.get(f"{keyed_gateway.url}{prefix}/{key}/settings", headers={"Origin": "https://a.example"})
    assert answer.status_code == 200
    assert answer.headers["Access-Control-Allow-Origin"] == "https://a.example"
    document = answer.json()
    destination = document["integrations"]["Segment.io"]
    assert (destination["apiKey"], destination["apiHost"]) == (key, "events.shop.example:8443/v1")
    assert destination["httpConfig"]["rateLimitConfig"] == {"enabled": True}
    assert document["metrics"] == {"sampleRate": 0}


def test_segment_settings_name_no_host_unless_told(client: httpx.Client) -> None:
    document = client.get("/v1/projects/any%20k%2Fey/settings", headers={"Host": "evil.example"}).json()
    assert set(document["integrations"]["Segment.io"]) == {"apiKey", "httpConfig"}
    assert document["integrations"]["Segment.io"]["apiKey"] == "any k/ey"


@pytest.mark.parametrize("path", ["/sourceConfig", "/sourceConfig/"])
@pytest.mark.parametrize("place", ["authorization", "query"])
def test_rudderstack_settings_are_there_for_known_keys(keyed_gateway: Gateway, path: str, place: str) -> None:
    def get(key: str) -> httpx.Response:
        if place == "query":
            return httpx.get(f"{keyed_gateway.url}{path}", params={"p": "npm", "writeKey": key})
        return httpx.get(f"{keyed_gateway.url}{path}", auth=(key, ""))

    source = get("good").json()["source"]
    assert (source["writeKey"], source["enabled"]) == ("good", True)
    assert source["config"]["statsCollection"]["errors"] == {"enabled": False}
    assert get("switched-off").json()["source"]["enabled"] is False
    answer = get("unknown")
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_write_key")


def test_rudderstack_settings_need_a_key(keyed_gateway: Gateway) -> None:
    answer = httpx.get(f"{keyed_gateway.url}/sourceConfig")
    assert (answer.status_code, answer.json()["code"]) == (400, "write_key_missing")


# ---- methods, preflights, redirects


def filled(template: str) -> str:
    return template.replace("{type}", "track").replace("{writeKey}", "web")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.template)
def test_other_methods_are_refused_in_json(client: httpx.Client, path: Any) -> None:
    for method in {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "TRACE"} - set(path.methods):
        answer = client.request(method, filled(path.template))
        assert answer.status_code == 405
        assert answer.headers["Allow"] == ", ".join((*path.methods, "OPTIONS"))
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
    for suffix in ("", "/", "//"):
        answer = client.request(path.methods[0], filled(path.template) + suffix, auth=AUTH)
        assert answer.status_code in (200, 400)


def test_document_has_no_body_for_head(client: httpx.Client) -> None:
    answer = client.head("/v1/projects/web/settings")
    assert (answer.status_code, answer.content) == (200, b"")


def test_requests_are_counted_by_template(client: httpx.Client, gateway: Gateway) -> None:
    client.post("/api/s/anything-else", content=b"{}")
    metrics = httpx.get(f"{gateway.admin_url}/metrics").text
    assert 'route="/api/s/{type}"' in metrics
    assert "anything-else" not in metrics


def test_type_in_a_path_is_cut_at_its_bound(client: httpx.Client, gateway: Gateway) -> None:
    event = {"messageId": new_event()["messageId"]}
    assert post(client, f"/api/s/{'x' * 5_000}", event).content == SUCCESS
    assert stored_value(gateway, event["messageId"])["type"] == "x" * 100
