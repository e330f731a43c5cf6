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


def test_answers_of_nginx_itself_suit_sdks(client: httpx.Client, gateway: Gateway) -> None:
    too_large = client.post("/v1/batch", content=b"x" * 9_000_000)
    assert (too_large.status_code, too_large.json()["code"]) == (400, "bad_request")
    assert too_large.headers["Access-Control-Allow-Origin"] == "*"
    gateway.stop()
    down = client.post("/v1/batch", content=orjson.dumps({"batch": [new_event()]}))
    assert (down.status_code, down.json()["code"]) == (503, "unavailable")
    assert down.headers["Retry-After"] == "5"
    assert down.headers["Access-Control-Allow-Origin"] == "*"
    assert down.headers["Content-Type"] == "application/json"
