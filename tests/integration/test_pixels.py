"""Claim: a pixel's event is taken as any other, and the answer is the image whatever becomes of it."""

import base64
from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest

from tests.support.gateway import Gateway
from tests.support.http import new_event, stored

GIF_SIZE = 43
ODD_TEXT = "ü ~~~ ~~? ~>~ ???"


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
    (value,) = [line["value"] for line in stored(gateway) if line["messageId"] == message_id]
    assert value["context"]["page"] == {"url": "https://shop.example/?a=b", "title": "Shop"}
    rest = {name: value[name] for name in value.keys() - {"context", "receivedAt"}}
    assert rest == {
        "messageId": message_id,
        "anonymousId": "a1",
        "event": "Opened",
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
        ("data=NQ", "batch_missing"),
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
