"""Claim: a connection that ended is freed at once, whatever happened on it; no crowd piles up as garbage."""

import asyncio
import gc
import random
import weakref
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from app.body_memory import BodyMemory, Leased
from app.client_address import TrustedProxies
from app.connections import Connections
from app.metrics import RequestMetrics
from app.problems import Problems
from app.protocol import ConnectionLimits, EdgeProtocol, Port

POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport whose other side takes everything."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1), "sockname": ("192.0.2.2", 2)})

    def write(self, data: Any) -> None:
        pass

    def write_eof(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def echo(_scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        POST + b"{}",
        POST + b"{",
        (POST + b"{}") * 3 + POST,
        b"garbage\r\n\r\n",
        b"GET /" + b"x" * 5_000 + b" HTTP/1.1\r\n\r\n",
        POST.replace(b"Host: x", b"Connection: Upgrade\r\nUpgrade: h2c") + b"{}",
    ],
)
async def test_connection_is_freed_without_the_cycle_collector(data: bytes) -> None:
    memory, connections = BodyMemory(1_000), Connections(connections_max=9, per_address_max=9)
    app = Leased(echo, memory)
    port = Port(
        limits=ConnectionLimits(head_bytes_max=1_000, head_timeout_s=9, body_timeout_s=9, send_timeout_s=9),
        connections=connections,
        memory=memory,
        proxies=TrustedProxies(()),
        problems=Problems(retry_after_max=1, dice=random.Random()),
        metrics=RequestMetrics(),
        refuse=app,
    )
    config = uvicorn.Config(app, http="httptools", ws="none", lifespan="off", log_config=None)
    config.load()
    gc.disable()
    try:
        connection = EdgeProtocol(port=port, config=config, server_state=ServerState(), app_state={})
        connection.connection_made(Wire())
        if data:
            connection.data_received(data)
        for _ in range(20):
            await asyncio.sleep(0)
        connection.connection_lost(None)
        is_left = weakref.ref(connection)
        del connection
        for _ in range(20):
            await asyncio.sleep(0)
        assert is_left() is None
    finally:
        gc.enable()
    assert (memory.used, connections.open, connections.idle) == (0, 0, 0)
