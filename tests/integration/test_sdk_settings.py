"""Claim: SDKs find their settings here, so that none of them falls back to its vendor."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.gateway import Gateway


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
