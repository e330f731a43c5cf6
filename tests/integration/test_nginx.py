"""
Claim: the nginx example works as it stands in docs: TLS and HTTP/2 end there, connections to the gateway
are kept, the client's address arrives, and what nginx answers by itself suits SDKs.
"""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from tests.support.gateway import Gateway
from tests.support.http import AUTH, new_event, post
from tests.support.nginx import SERVER_NAME, Nginx
from tests.support.processes import HOST


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    settings = {
        "GATEWAY_TRUSTED_PROXIES": "127.0.0.1",
        "GATEWAY_CONNECTIONS_MAX": "128",
        "GATEWAY_PARTITIONS": "2",
    }
    with Gateway(tmp_path / "gateway", settings) as running:
        yield running


@pytest.fixture
def nginx(gateway: Gateway, tmp_path: Path) -> Iterator[Nginx]:
    with Nginx(tmp_path / "nginx", gateway.port) as running:
        yield running


@pytest.fixture
def client(nginx: Nginx) -> Iterator[httpx.Client]:
    context = ssl.create_default_context(cafile=str(nginx.certificate))
    with httpx.Client(base_url=f"https://{HOST}:{nginx.port}", auth=AUTH, verify=context) as client:
        yield client


def test_events_pass_and_connections_are_kept(client: httpx.Client, gateway: Gateway) -> None:
    event = new_event()
    answers = [post(client, "/v1/events", event) for _ in range(20)]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert answers[-1].headers["Idempotent-Replayed"] == "true"
    assert gateway.stats()["connections"]["open"] <= 2


def test_mobile_clients_are_offered_http2(nginx: Nginx) -> None:
    context = ssl.create_default_context(cafile=str(nginx.certificate))
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection((HOST, nginx.port)) as plain,
        context.wrap_socket(plain, server_hostname=SERVER_NAME) as secured,
    ):
        assert secured.selected_alpn_protocol() == "h2"


ORIGIN = "https://shop.example"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, x-retry-count",
}


@pytest.mark.parametrize("origin", [ORIGIN, "null", None])
def test_answers_of_nginx_itself_suit_sdks_and_pages(
    client: httpx.Client, gateway: Gateway, origin: str | None
) -> None:
    head = {"Origin": origin} if origin else {}
    too_large = client.post("/v1/batch", content=b"x" * 9_000_000, headers=head)
    assert (too_large.status_code, too_large.json()["code"]) == (400, "body_too_large")
    assert "Retry-After" not in too_large.headers
    malformed = client.request("TRACE", "/v1/batch", headers=head)
    assert (malformed.status_code, malformed.json()["code"]) == (400, "bad_request")
    gateway.stop()
    down = client.post("/v1/batch", content=orjson.dumps({"batch": [new_event()]}), headers=head)
    assert (down.status_code, down.json()["code"]) == (503, "unavailable")
    assert down.headers["Retry-After"] == "5"
    assert down.headers["Access-Control-Expose-Headers"] == "Retry-After"
    for answer in (too_large, malformed, down):
        assert answer.headers["Content-Type"] == "application/json"
        assert list(answer.json()) == ["code", "message"]
        assert answer.headers["Access-Control-Allow-Origin"] == (origin or "*")
        assert answer.headers.get("Access-Control-Allow-Credentials") == ("true" if origin else None)
        assert answer.headers.get("Vary") == ("Origin" if origin else None)
        assert "Access-Control-Allow-Methods" not in answer.headers
    preflight = client.options("/v1/batch", headers=head | PREFLIGHT)
    assert preflight.status_code == 204
    assert preflight.headers["Access-Control-Allow-Origin"] == (origin or "*")
    assert preflight.headers["Access-Control-Allow-Methods"] == "GET, HEAD, POST, OPTIONS"
    assert preflight.headers["Access-Control-Allow-Headers"] == "authorization, x-retry-count"


@pytest.mark.parametrize("origin", [ORIGIN, None])
def test_answers_of_the_gateway_pass_as_they_are(client: httpx.Client, origin: str | None) -> None:
    head = {"Origin": origin} if origin else {}
    event = new_event()
    taken = client.post("/v1/batch", content=orjson.dumps({"batch": [event, 5]}), headers=head)
    refused = client.post("/v1/events", content=b"", headers=head)
    strict = head | {"Prefer": "handling=strict"}
    large = client.post("/v1/batch", content=b"x" * 7_000_000, headers=strict)
    preflight = client.options("/v1/batch", headers=head | PREFLIGHT)
    statuses = [answer.status_code for answer in (taken, refused, large, preflight)]
    assert statuses == [200, 400, 400, 200]
    assert taken.headers["Gateway-Rejected"] == "1"
    for answer in (taken, refused, large, preflight):
        assert answer.headers.get_list("Access-Control-Allow-Origin") == [origin or "*"]
        assert len(answer.headers.get_list("Access-Control-Expose-Headers")) == 1
        assert "Retry-After" not in answer.headers
        assert answer.headers.get_list("Vary") == (["Origin"] if origin else [])


def test_throttled_clients_are_told_to_come_again(gateway: Gateway, tmp_path: Path) -> None:
    limit = "limit_req_zone $server_name zone=all:1m rate=1r/m;\n"
    rule = "    limit_req zone=all;\n    limit_req_status 429;\n    location / {"
    with Nginx(
        tmp_path / "limited",
        gateway.port,
        (("upstream gateway", limit + "upstream gateway"), ("    location / {", rule)),
    ) as nginx:
        context = ssl.create_default_context(cafile=str(nginx.certificate))
        with httpx.Client(base_url=f"https://{HOST}:{nginx.port}", auth=AUTH, verify=context) as client:
            answers = [client.post("/v1/events", content=b"[]", headers={"Origin": ORIGIN}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].json()["code"] == "overloaded"
    assert answers[1].headers["Retry-After"] == "5"
    assert answers[1].headers["Access-Control-Allow-Origin"] == ORIGIN
