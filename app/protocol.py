"""
One connection of the ingest port: uvicorn's httptools protocol with the limits that it lacks.

It is the one place that sees a connection before its requests. It bounds heads, bodies as they
arrive, pipelines and waits, and sees to it that whatever begins like a request is answered as the
contract says: a head that does not come in time ends the connection, since no request exists yet;
everything after a complete head gets an answer, malformed requests included.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import httptools
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.body_memory import LEASE, BodyMemory, Lease
from app.client_address import TrustedProxies
from app.connections import Connections
from app.cors import origin_headers
from app.errors import BodyIncompleteError, HeadTooLargeError, RequestError
from app.metrics import RequestMetrics
from app.problems import Problems
from dedupe.errors import GatewayError, LaneSaturatedError

HEADERS_MAX = 256
"""Header fields of one request. SDKs send about ten; each takes some hundred bytes once parsed."""

PIPELINE_MAX = 100
"""Requests that may wait behind the one that is answered. SDKs and browsers send none."""

FRAMING_BYTES_MAX = 64 * 1024
"""
What chunk sizes, extensions and trailers may take on the wire beyond as many bytes as the body.
Without a bound, a trailer would grow in the parser, and chunks of one byte would cost 6 times their
bytes and thousands of callbacks a read.
"""

LINGER_S = 2.0
"""How long a client that still sends has to read the last answer before it loses the connection."""

LAST_LOOK_S = 0.05
"""Long enough for one look at all sockets; timers that are due come before it."""

MALFORMED = "malformed"
"""The route of requests that could not be parsed, in metrics."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection; app.settings documents each."""

    head_bytes_max: int
    head_timeout_s: float
    body_timeout_s: float
    send_timeout_s: float


@dataclass(frozen=True, slots=True)
class Port:
    """What all connections of the ingest port share."""

    limits: ConnectionLimits
    connections: Connections
    memory: BodyMemory
    proxies: TrustedProxies
    problems: Problems
    metrics: RequestMetrics
    refuse: ASGIApp
    """Answers the requests of a connection that is one too many."""


class EdgeProtocol(HttpToolsProtocol):
    """See the module."""

    def __init__(self, *, port: Port, **of_uvicorn: Any) -> None:
        """Take what the connections share, and what uvicorn gives to each."""
        super().__init__(**of_uvicorn)
        self._port = port
        self._limits = port.limits
        self._deadline: asyncio.TimerHandle | None = None
        self._send_deadline: asyncio.TimerHandle | None = None
        self._client_app = self.app
        self._crowd: str | None = None  # the address that this connection counts for
        self._is_proxied = False
        self._is_deaf = False  # what still arrives is thrown away
        self._last_words: GatewayError | None = None  # to be said once everything else is answered
        self._fault: GatewayError | None = None  # why a parser callback stopped the parser
        self._is_in_head = False
        self._is_offer = False  # of another protocol, which is passed over
        self._is_answering = False
        self._lease = Lease(port.memory)  # of the newest request
        self._read_bytes = self._head_bytes = self._wire_bytes = self._body_bytes = 0

    # ---- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection, or prepare to refuse its requests."""
        super().connection_made(transport)
        self._request_transport = _Transport(self)
        connections = self._port.connections
        has_room = connections.enter(self)
        if connections.is_overrun:
            transport.abort()
            return
        if self.client is not None:  # IPv4 on an IPv6 socket is IPv4
            self.client = (self.client[0].removeprefix("::ffff:"), self.client[1])
        peer = self.client[0] if self.client else ""
        self._is_proxied = self._port.proxies.are_trusted(peer)
        if not self._is_proxied:
            self._crowd = peer
            has_room = connections.enter_crowd(peer) and has_room
        if not has_room:
            self.app = cast(Any, self._port.refuse)
        self._arm(self._limits.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        connections = self._port.connections
        connections.leave(self)
        if self._crowd is not None:
            connections.leave_crowd(self._crowd)
        self._disarm()
        if self._send_deadline is not None:
            self._send_deadline.cancel()
        self._drop_pipeline()
        super().connection_lost(exc)
        self._request_transport.release()
        self._fault = None

    def evict(self) -> None:
        """Close the connection: nothing is asked on it."""
        self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection of a client that ended its side until what it asked is answered."""
        if self._is_deaf or not self._is_answering:
            return False
        self._is_deaf = True
        if self.cycle.more_body:
            self._refuse(BodyIncompleteError())
        return True

    def pause_writing(self) -> None:
        """Give a client that does not read its answers some time, and no more."""
        super().pause_writing()
        self._send_deadline = self.loop.call_later(self._limits.send_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """See pause_writing."""
        super().resume_writing()
        if self._send_deadline is not None:
            self._send_deadline.cancel()
            self._send_deadline = None

    # ---- reading

    def data_received(self, data: bytes) -> None:
        """Parse what came; see to it that something is due by some time."""
        self._unset_keepalive_if_required()
        if self._is_deaf:
            return
        self._read_bytes = len(data)
        if self._is_in_head:
            self._head_bytes += len(data)
        else:
            self._wire_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(self._fault or RequestError())
            return
        if self._is_in_head and self._head_bytes > self._limits.head_bytes_max:
            self._refuse(HeadTooLargeError())
        elif self._wire_bytes > 2 * self._body_bytes + FRAMING_BYTES_MAX:
            self._refuse(RequestError())
        elif self._deadline is None and self.timeout_keep_alive_task is None and not self._is_answering:
            is_reading_on = self._is_reading_body
            self._arm(self._limits.body_timeout_s if is_reading_on else self._limits.head_timeout_s)

    def _feed(self, data: bytes) -> None:
        """
        Parse; a request that offers another protocol is an ordinary one, and so is what follows it.

        The parser would take the body of such a request for the other protocol's first bytes. Some
        clients offer HTTP/2 with each first request, so it is parsed again without the offer.
        """
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
                if self._is_offer:
                    data = self._head_without_offer() + data
                    self._is_offer = False
                    self.parser = httptools.HttpRequestParser(self)
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _head_without_offer(self) -> bytes:
        lines = [b"%b: %b\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        head = b"%b %b HTTP/%b\r\n%b\r\n"
        version = self.parser.get_http_version().encode()
        return head % (self.parser.get_method(), self.url, version, b"".join(lines))

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._is_in_head = True
        self._head_bytes = self._read_bytes
        self._wire_bytes = self._body_bytes = 0

    def on_headers_complete(self) -> None:
        """Check a complete head, and hand it to the application."""
        self._is_offer = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._is_offer:
            return
        self._is_in_head = False
        self._disarm()
        self._unset_keepalive_if_required()
        self._check_head()
        lease = self._lease = Lease(self._port.memory)
        if self._is_proxied:
            self._find_client(lease)
        self.scope[LEASE] = lease  # type: ignore[literal-required]
        self._port.connections.busy(self)
        try:
            super().on_headers_complete()
        except BaseException:
            lease.release()
            raise
        self._is_answering = True
        self.cycle.transport = cast(asyncio.Transport, self._request_transport)
        self.headers = []  # trailers are not headers

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body if the budget has room for it."""
        self._body_bytes += len(body)
        cycle = self.cycle
        if cycle.response_complete:
            return
        if self._lease.take(len(body)):
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
        else:
            cycle.body = bytearray()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Tell the request that its body is whole; if it was answered before, rest."""
        if self._is_offer:
            return
        cycle = self.cycle
        cycle.more_body = False
        cycle.message_event.set()
        if cycle.response_complete:
            self._disarm()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _check_head(self) -> None:
        """Raise what stops the parser if a head is larger than allowed, or one too many."""
        if len(self.headers) > HEADERS_MAX or (
            self._head_bytes > self._limits.head_bytes_max
            and len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            > self._limits.head_bytes_max
        ):
            self._fault = HeadTooLargeError()
            raise self._fault
        if len(self.pipeline) >= PIPELINE_MAX:
            self._fault = LaneSaturatedError("too many requests wait on one connection")
            raise self._fault

    def _find_client(self, lease: Lease) -> None:
        """Set whose a request behind a trusted proxy is, and refuse it where that is one too many."""
        assert self.client is not None
        address = self._port.proxies.client_of(self.client[0], self.headers)
        self.scope["client"] = (address, 0)
        connections = self._port.connections
        has_room = connections.enter_crowd(address)
        lease.on_release = lambda: connections.leave_crowd(address)
        self.app = self._client_app if has_room else cast(Any, self._port.refuse)

    @property
    def _newest(self) -> RequestResponseCycle | None:
        """The request whose head came last, None before the first."""
        return self.cycle

    @property
    def _is_reading_body(self) -> bool:
        newest = self._newest
        return newest is not None and newest.more_body

    # ---- answering

    def on_response_complete(self) -> None:
        """Go on with the next request, or rest, or say the last words."""
        self._is_answering = bool(self.pipeline)
        if self._is_deaf and not self.pipeline:
            self.server_state.total_requests += 1
            self._say_last_words()
            return
        super().on_response_complete()
        if not self.transport.is_closing() and not self._is_answering:
            self._port.connections.rest(self)

    def _refuse(self, err: GatewayError) -> None:
        """Answer a request that cannot be parsed, after those before it; then end the connection."""
        self._is_deaf = True
        self._disarm()
        cycle = self._newest
        if cycle is None or not cycle.more_body:
            self._last_words = err
        elif cycle.response_complete:
            self._last_words = None
        elif any(cycle is waiting for waiting, _ in self.pipeline):
            self.pipeline.popleft()
            _lease_of(cycle).release()
            self._last_words = err
        else:
            cycle.keep_alive = False
            _lease_of(cycle).fail(err)
            cycle.message_event.set()
            return
        if not self._is_answering:
            self._say_last_words()

    def _say_last_words(self) -> None:
        if self._last_words is not None:
            answer = self._port.problems.answer(self._last_words)
            self._port.metrics.observe(MALFORMED, answer.status_code, 0.0)
            origin = next((value for name, value in self.headers or () if name == b"origin"), b"")
            headers = [
                *self.server_state.default_headers,
                *answer.raw_headers,
                *origin_headers(origin),
                (b"gateway-request-id", secrets.token_hex(8).encode()),
                (b"connection", b"close"),
            ]
            lines = [b"%b: %b\r\n" % header for header in headers]
            self.transport.write(
                b"".join([STATUS_LINE[answer.status_code], *lines, b"\r\n", bytes(answer.body)])
            )
            self._last_words = None
        self.linger()

    def linger(self) -> None:
        """Close the connection, but not before a client that still sends could read its answer."""
        self._is_deaf = True
        self._drop_pipeline()
        if self.transport.is_closing():
            return
        if self._newest is not None and not self._is_reading_body and not self._is_in_head:
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self._disarm()
        self._arm(LINGER_S)

    def _drop_pipeline(self) -> None:
        """Forget the requests that were never started, and give back what they hold."""
        for cycle, _ in self.pipeline:
            _lease_of(cycle).release()
        self.pipeline.clear()

    # ---- waiting

    def _arm(self, timeout_s: float) -> None:
        """Close the connection if nothing disarms it in time."""
        self._deadline = self.loop.call_later(timeout_s, self._on_deadline)

    def _on_deadline(self) -> None:
        """Look once more: what a busy process has not read yet has come in time."""
        self._deadline = self.loop.call_later(LAST_LOOK_S, self.timeout_keep_alive_handler)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Transport:
    """The connection as a request sees it: to close it is to linger."""

    __slots__ = ("_connection", "is_closing", "write")

    def __init__(self, connection: EdgeProtocol) -> None:
        self._connection: EdgeProtocol | None = connection
        self.write: Callable[[bytes], None] = connection.transport.write
        self.is_closing: Callable[[], bool] = connection.transport.is_closing

    def close(self) -> None:
        if self._connection is not None:
            self._connection.linger()

    def release(self) -> None:
        """Hold the connection no longer: the cycle collector would come late, and find thousands."""
        self._connection = None


def _lease_of(cycle: RequestResponseCycle) -> Lease:
    lease: Lease = cycle.scope[LEASE]  # type: ignore[literal-required]
    return lease
