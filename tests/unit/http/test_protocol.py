"""
Claim: a connection that ended is freed at once, whatever happened on it, and so is every request on it;
no crowd piles up as garbage, and nothing that a client sends beside its bodies is kept. An answer is
written in one piece.
"""

import asyncio
import gc
import random
import weakref
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from app.http.body_memory import BodyMemory
from app.http.client_address import TrustedProxies
from app.http.connections import Connections
from app.http.errors import HeadTooLargeError, QuotaExceededError
from app.http.head import HEADERS_MAX
from app.http.penalties import Penalties
from app.http.port import ConnectionLimits, Port
from app.http.problems import Problems
from app.http.protocol import EdgeProtocol
from app.http.request_context import CONTEXT, MemoryReservationMiddleware
from app.http.request_metrics import RequestMetrics
from app.settings.networks import parse_networks

POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport whose other side takes everything."""

    def __init__(self, peer: str = "192.0.2.1") -> None:
        super().__init__({"peername": (peer, 1), "sockname": ("192.0.2.2", 2)})
        self.writes: list[bytes] = []
        self.is_closed = False

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.writes.append(data)

    def write_eof(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def echo(_scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def port_over(connections: Connections, memory: BodyMemory, proxies: str = "") -> Port:
    return Port(
        limits=ConnectionLimits(head_bytes_max=1_000, head_timeout_s=9, rest_timeout_s=9, send_timeout_s=9),
        connections=connections,
        memory=memory,
        proxies=TrustedProxies(parse_networks(proxies)),
        problems=Problems(retry_after_max=1, rng=random.Random()),
        metrics=RequestMetrics(),
        refuse=MemoryReservationMiddleware(refuse, memory),
    )


def connect(port: Port, wire: Wire, app: ASGIApp = echo) -> EdgeProtocol:
    config = uvicorn.Config(
        MemoryReservationMiddleware(app, port.memory),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
    )
    config.load()
    connection = EdgeProtocol(port=port, config=config, server_state=ServerState(), app_state={})
    connection.connection_made(wire)
    return connection


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.regression("Ended connections stayed in memory until the collector ran.")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        POST + b"{}",
        POST + b"{",
        (POST + b"{}") * 3 + POST,
        b"garbage\r\n\r\n",
        b"GET /" + b"x" * 5_000 + b" HTTP/1.1\r\n\r\n",
        POST.replace(b"Host: x", b"Host: x\r\nConnection: Upgrade\r\nUpgrade: h2c") + b"{}",
        POST.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"),
    ],
)
async def test_connection_is_freed_without_the_cycle_collector(data: bytes) -> None:
    memory, connections = BodyMemory(1_000), Connections(connections_max=9)
    gc.disable()
    try:
        connection = connect(port_over(connections, memory), Wire())
        if data:
            connection.data_received(data)
        await settle()
        connection.connection_lost(None)
        is_left = weakref.ref(connection)
        del connection
        await settle()
        assert is_left() is None
    finally:
        gc.enable()
    assert (memory.used, connections.open, connections.idle) == (0, 0, 0)


async def test_lost_connection_ends_every_request_on_it(caplog: pytest.LogCaptureFixture) -> None:
    memory, connections = BodyMemory(1_000), Connections(connections_max=9)
    ended: list[str] = []

    async def wait(_scope: Scope, receive: Receive, _send: Send) -> None:
        await receive()  # the body
        ended.append((await receive())["type"])

    wire = Wire()
    connection = connect(port_over(connections, memory), wire, wait)
    connection.data_received((POST + b"{}") * 3)
    await settle()
    wire.close()
    connection.connection_lost(None)
    await settle()
    assert ended == ["http.disconnect"]
    assert (memory.used, caplog.records) == (0, [])


@pytest.mark.regression("Refusals that were held back kept other clients out where connections ran short.")
async def test_delayed_answer_is_sent_at_once_where_room_is_needed() -> None:
    memory, connections, penalties = BodyMemory(1_000), Connections(connections_max=2), Penalties(3_600)

    async def delay(scope: Scope, receive: Receive, send: Send) -> None:
        await penalties.hold_back(QuotaExceededError("events"), scope)
        await echo(scope, receive, send)

    port, wires = port_over(connections, memory), [Wire(), Wire()]
    crowd = [connect(port, wire, delay) for wire in wires]
    for connection in crowd:
        connection.data_received((POST + b"{}") * 2)
    await settle()
    assert not any(wire.written for wire in wires)
    other = Wire("198.51.100.1")
    served = connect(port, other)
    served.data_received(POST + b"{}")
    await settle()
    assert other.written.startswith(b"HTTP/1.1 200")
    assert wires[0].written.count(b"HTTP/1.1 200") == 1
    assert b"connection: close" in wires[0].written
    assert not wires[1].written
    assert (connections.evicted, connections.refused) == (1, 0)
    for connection in (*crowd, served):
        connection.connection_lost(None)
    await settle()


async def test_fields_are_counted_as_they_come() -> None:
    wire = Wire()
    connections = Connections(connections_max=9)
    connection = connect(port_over(connections, BodyMemory(1_000)), wire)
    connection.data_received(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 200)
    assert not wire.written
    connection.data_received(b"a:\r\n" * 40_000)
    assert wire.written.startswith(b"HTTP/1.1 400")
    assert b"head_too_large" in wire.written
    assert b"more than 256 fields" in wire.written
    assert len(connection.headers) == HEADERS_MAX + 1


async def test_trailers_are_not_kept() -> None:
    memory, connections = BodyMemory(1_000), Connections(connections_max=9)
    wire = Wire()
    connection = connect(port_over(connections, memory), wire)
    connection.data_received(
        POST.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n"
    )
    headers = len(connection.headers)
    connection.data_received(b"X: y\r\n" * 100)
    assert len(connection.headers) == headers
    connection.data_received(b"X: y\r\n" * 100)
    await settle()
    assert isinstance(connection._lease.error, HeadTooLargeError)  # 1,200 bytes: more than a head has
    connection.connection_lost(None)
    await settle()


@pytest.mark.regression("Clients that a trusted proxy did not name shared one limit of requests.")
async def test_requests_without_an_address_of_a_client_are_not_one_client_behind_a_trusted_proxy() -> None:
    memory, connections = BodyMemory(1_000), Connections(connections_max=16)  # a share of one request
    port, wires = port_over(connections, memory, "10.0.0.0/8"), [Wire("10.0.0.1") for _ in range(3)]
    connected = [connect(port, wire) for wire in wires]
    for connection in connected:
        connection.data_received(POST + b"{")
    await settle()
    for connection in connected:
        connection.data_received(b"}")
    await settle()
    assert [wire.written[:12] for wire in wires] == [b"HTTP/1.1 200"] * 3
    for connection in connected:
        connection.connection_lost(None)
    await settle()
    assert (connections.refused, connections._requests, memory.used) == (0, {}, 0)


async def test_address_behind_a_trusted_proxy_is_refused_beyond_the_limit_as_it_is_counted() -> None:
    memory, connections = BodyMemory(1_000), Connections(connections_max=1)
    port = port_over(connections, memory, "10.0.0.0/8")
    first, second = Wire("10.0.0.1"), Wire("10.0.0.1")
    connected = [connect(port, first)]
    connected[0].data_received(POST)
    connected.append(connect(port, second))
    connected[1].data_received(POST.replace(b"Host: x", b"Host: x\r\nX-Forwarded-For: 203.0.113.7") + b"{}")
    await settle()
    assert second.written.startswith(b"HTTP/1.1 503")
    assert connections.refused == 1
    for connection in connected:
        connection.connection_lost(None)
    await settle()


@pytest.mark.parametrize(
    "forwarded", [b"", b"X-Forwarded-For: unknown\r\n", b"X-Forwarded-For: 1.1.1.1,\r\n"]
)
async def test_unknown_clients_behind_a_proxy_do_not_share_the_memory_of_one_address(
    forwarded: bytes,
) -> None:
    memory, connections = BodyMemory(1_000), Connections(connections_max=64)
    port = port_over(connections, memory, "10.0.0.0/8")
    seen: list[Scope] = []

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await echo(scope, receive, send)

    connection = connect(port, Wire("10.0.0.1"), note)
    connection.data_received(POST.replace(b"Host: x\r\n", b"Host: x\r\n" + forwarded) + b"{")
    await settle()
    assert (memory.used, memory._by_owner) == (1, {})
    assert seen[0]["client"] is None
    assert seen[0][CONTEXT].unknown_behind == "10.0.0.1"
    connection.data_received(b"}")
    await settle()
    assert (memory.used, connections.refused, connections._requests_now) == (0, 0, 0)
    connection.connection_lost(None)


async def test_offer_of_another_protocol_does_not_widen_the_limit_of_a_head() -> None:
    memory, connections = BodyMemory(1_000), Connections(connections_max=9)
    wire = Wire()
    connection = connect(port_over(connections, memory), wire)
    connection.data_received(POST[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\nX-Large: " + b"x" * 800)
    connection.data_received(b"x" * 200 + b"\r\n\r\n{}")
    await settle()
    assert wire.written.startswith(b"HTTP/1.1 400")
    connection.connection_lost(None)


async def tell(_scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b"told"})


@pytest.mark.parametrize(
    ("data", "writes"),
    [
        (POST + b"{}", [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntold"]),
        ((POST + b"{}") * 2, [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntold"] * 2),
        (POST.replace(b"POST", b"HEAD") + b"{}", [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"]),
        (POST.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"), [b"HTTP/1.1 100 Continue\r\n\r\n"]),
        (POST.replace(b"1.1\r\nHost: x", b"1.0\r\nExpect: 100-continue"), []),  # RFC 9110, 10.1.1
    ],
)
async def test_head_of_an_answer_is_written_with_its_body(data: bytes, writes: list[bytes]) -> None:
    wire = Wire()
    connections = Connections(connections_max=9)
    connection = connect(port_over(connections, BodyMemory(1_000)), wire, tell)
    connection.data_received(data)
    await settle()
    assert [write for write in wire.writes if write] == writes
    connection.connection_lost(None)
    await settle()


async def test_head_of_an_answer_that_breaks_off_is_written_before_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def break_off(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        raise RuntimeError("broken")

    wire = Wire()
    connections = Connections(connections_max=9)
    connection = connect(port_over(connections, BodyMemory(1_000)), wire, break_off)
    connection.data_received(POST + b"{}")
    await settle()
    assert wire.written == b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"
    assert wire.is_closed
    assert "broken" in caplog.text
    connection.connection_lost(None)
    await settle()
