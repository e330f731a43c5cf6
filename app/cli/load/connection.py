"""
A keep-alive HTTP/1.1 connection with one request at a time, for load.

Requests are built as bytes before, so that a load generator needs little CPU.
"""

import asyncio
from base64 import b64encode
from typing import Self, cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

from dedupe.model.errors import ConfigurationError

_HEAD = (
    b"POST %b HTTP/1.1\r\nHost: %b\r\nAuthorization: Basic %b\r\n"
    b"Content-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
)


def request(
    body: bytes, *, path: bytes = b"/v1/batch", key: str = "bench", headers: bytes = b"", host: str = "bench"
) -> bytes:
    """Return a whole HTTP request; `headers` are lines, each with its line end."""
    authorization = b64encode(f"{key}:".encode())
    return _HEAD % (path, host.encode(), authorization, headers, len(body)) + body


class Answer:
    """Status, headers by lower-case name, and body of one answer."""

    __slots__ = ("body", "headers", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""


class Connection(asyncio.Protocol):
    """One connection; created by `open`."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._answer = Answer()
        self._waiter: asyncio.Future[Answer] | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, url: str) -> Self:
        """
        Connect to the host of a URL.

        Raises:
            ConfigurationError: it is no URL of HTTP.
            OSError: the host does not accept a connection.
        """
        host, port, is_tls = address_of(url)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, host, port, ssl=True if is_tls else None)
        return connection

    async def exchange(self, request: bytes) -> Answer:
        """Send a whole request and return its answer. Raises ConnectionError without one."""
        if self.closed.done():
            raise ConnectionResetError("the connection was closed")
        waiter: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiter = waiter
        self._transport.write(request)
        return await waiter

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserError as err:
            self._fail(f"the answer is no HTTP: {err}")
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)
        self._fail("the connection was closed")

    # ---- called by httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self._answer.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._answer.body += body

    def on_message_complete(self) -> None:
        answer, self._answer = self._answer, Answer()
        answer.status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self._transport.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(answer)

    def _fail(self, why: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionResetError(why))


def address_of(url: str) -> tuple[str, int, bool]:
    """Return host, port, and whether TLS is used. Raises ConfigurationError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as err:
        raise ConfigurationError(f"{url} is no URL of a gateway: {err}") from err
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError(f"{url} is no URL of a gateway: it must begin with http:// or https://")
    is_tls = parts.scheme == "https"
    return host, port or (443 if is_tls else 80), is_tls
