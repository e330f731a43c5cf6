"""
One connection of a port: uvicorn's httptools protocol with the limits that it lacks.

It limits heads, bodies, pipelines, waits, and unread answers. A head that does not arrive in time ends the
connection, since no request exists yet; every complete head is answered, malformed requests included.
"""

import asyncio
import weakref
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.http.body_memory import MemoryReservation
from app.http.client_address import address_group
from app.http.errors import BodyTruncatedError, HeadTooLargeError, RequestError, TooManyConnectionsError
from app.http.head import HEADERS_MAX, check_head, size_of, without_offer
from app.http.port import Port
from app.http.request_context import CONTEXT, HeldConnection, RequestContext
from app.http.request_cycle import RequestTransport, closing_unless_continued, drop, reservation_of
from dedupe.model.errors import GatewayError, LaneSaturatedError

PIPELINE_MAX = 100
"""The limit of pipelined requests. SDKs and browsers send none."""

FRAMING_BYTES_MAX = 64 * 1024
"""The limit of chunk sizes and extensions, besides as many bytes as the body has."""

LINGER_S = 2.0
"""The time for a client that still sends to read the last answer."""

LAST_LOOK_S = 0.05
"""Enough time for one poll of all sockets."""


class EdgeProtocol(HttpToolsProtocol):
    """One connection; see the module."""

    def __init__(self, *, port: Port, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._port = port
        self._limits = port.limits
        self._deadline: asyncio.TimerHandle | None = None
        self._send_deadline: asyncio.TimerHandle | None = None
        self._client_app = self.app
        self._owner: str | None = None  # address group of the client, for memory
        self._is_refused = False  # the connection is beyond the limit
        self._is_waiting = False  # for the rest of a body
        self._is_proxied = self._discards_input = self._is_in_head = self._is_answering = False
        self._final_error: GatewayError | None = None  # sent once everything else is answered
        self._fault: GatewayError | None = None  # why a parser callback stopped the parser
        self._is_offer = False  # to upgrade to another protocol, which is ignored
        self._running: RequestResponseCycle | None = None  # the request that is answered
        self._held: asyncio.Future[None] | None = None  # what its answer waits for
        self._ref: weakref.ref[HeldConnection] = weakref.ref(self)
        self._lease = MemoryReservation(port.memory)  # of the newest request
        self._is_fresh = False  # the current read begins with a head
        self._read_bytes = self._wire_bytes = self._body_bytes = 0
        self._head_bytes = 0  # of all reads with a part of the head
        self._shared_bytes = 0  # of the first of these reads, if it does not begin with the head
        self._trailer_bytes = 0  # since the last byte of the body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection, or prepare to refuse its requests."""
        super().connection_made(transport)
        self._request_transport = RequestTransport(self)
        if self.client is not None:  # IPv4 on an IPv6 socket is IPv4
            self.client = (self.client[0].removeprefix("::ffff:"), self.client[1])
        peer = self.client[0] if self.client else ""
        self._is_proxied = self._port.proxies.are_trusted(peer)
        self._owner = address_group(peer) if peer else None
        self._is_refused = not self._port.connections.enter(self, None if self._is_proxied else peer)
        if self._is_refused:
            self.app = cast(Any, self._port.refuse)
        self._arm(self._limits.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the connection, and inform the request that is answered."""
        self._port.connections.leave(self)
        self._disarm()
        if self._send_deadline is not None:
            self._send_deadline.cancel()
        self._drop_pipeline()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)
        self._request_transport.release()
        self._running = self._fault = None

    def evict(self) -> None:
        """See Evictable."""
        if self._discards_input or self._is_refused or self.flow.write_paused:
            self.transport.abort()
        elif self._held is not None and self._running is not None:
            self._discards_input, self._running.keep_alive = True, False
            self._held.cancel()
        elif self._is_answering and self._is_reading_body:
            self._refuse(TooManyConnectionsError())
        else:
            self._end(LAST_LOOK_S)

    def hold(self, wait: asyncio.Future[None] | None) -> None:
        """See HeldConnection."""
        self._held = wait
        connections = self._port.connections
        (connections.busy if wait is None else connections.wait)(self)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection of a client that closed its side until its requests are answered."""
        if not self._is_answering:
            return False
        if not self._discards_input:
            self._discards_input = True
            if self.cycle.more_body:
                self._refuse(BodyTruncatedError())
        return True

    def pause_writing(self) -> None:
        """Begin the time limit of a client that does not read its answers."""
        super().pause_writing()
        self._port.connections.wait(self)
        self._send_deadline = self.loop.call_later(self._limits.send_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """End the time limit of pause_writing."""
        super().resume_writing()
        if self._is_answering:
            self._port.connections.busy(self)
        if self._send_deadline is not None:
            self._send_deadline.cancel()
            self._send_deadline = None

    def timeout_keep_alive_handler(self) -> None:
        """Override uvicorn's: abort the connection if the client does not read."""
        self._end(LINGER_S)

    def _end(self, within_s: float) -> None:
        """Close the connection once all written bytes are sent, at the latest after `within_s` seconds."""
        self._discards_input = True
        self._port.connections.close(self)
        self._disarm()
        self.transport.close()
        self._deadline = self.loop.call_later(within_s, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        """Parse data, and set the deadline of the rest."""
        self._unset_keepalive_if_required()
        if self._discards_input:
            return
        is_in_body = self._is_reading_body
        self._is_fresh = not (self._is_in_head or is_in_body)
        self._read_bytes = len(data)
        if self._is_in_head:
            self._head_bytes += len(data)
        else:
            self._wire_bytes += len(data)
        if is_in_body:
            self._trailer_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(self._fault or RequestError())
            return
        self._check_progress()

    def _check_progress(self) -> None:
        """Refuse requests with too many bytes; set the time limit of the rest of others."""
        if max(self._trailer_bytes, self._head_bytes_seen()) > self._limits.head_bytes_max:
            self._refuse(HeadTooLargeError())
        elif self._wire_bytes > 2 * self._body_bytes + FRAMING_BYTES_MAX:
            self._refuse(RequestError())
        elif self._is_answering:
            if self._is_reading_body:
                self._is_waiting = True
                self._port.connections.wait(self)
        elif self._deadline is None and self.timeout_keep_alive_task is None:
            self._await_rest()

    def _head_bytes_seen(self) -> int:
        """Return a lower bound of the size of an incomplete head."""
        if not self._is_in_head:
            return 0
        own_bytes = self._head_bytes - self._shared_bytes  # without its part in the first read
        return max(own_bytes, size_of(self.url, self.headers)) if self._shared_bytes else own_bytes

    def _await_rest(self) -> None:
        """Close the connection if the head, or the rest of an unread body, does not arrive in time."""
        self._arm(self._limits.rest_timeout_s if self._is_reading_body else self._limits.head_timeout_s)

    def _feed(self, data: bytes) -> None:
        """
        Parse data, and ignore offers to upgrade: some clients offer HTTP/2 with their first request.

        The parser treats the bytes after such a head as the other protocol, so the head is parsed again
        without the offer.
        """
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
                if self._is_offer:
                    method, version = self.parser.get_method(), self.parser.get_http_version()
                    data = without_offer(method, version, self.url, self.headers) + data
                    self._is_offer = False
                    self.parser = httptools.HttpRequestParser(self)
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._is_in_head = True
        self._head_bytes = self._read_bytes
        self._shared_bytes = 0 if self._is_fresh else self._read_bytes
        self._is_fresh = False
        self._wire_bytes = self._body_bytes = self._trailer_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Override uvicorn's: trailers are discarded."""
        if self._is_in_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = self.parser.get_http_version() != "1.0"
            self.headers.append((name, value))
            if len(self.headers) > HEADERS_MAX:  # at once, since each takes 20 times its bytes
                self._fault = HeadTooLargeError(detail=f"more than {HEADERS_MAX} fields")
                raise self._fault

    def on_headers_complete(self) -> None:
        """Check a complete head, and start its request."""
        self._check_head()
        self._is_offer = self.parser.should_upgrade()
        if self._is_offer:
            return
        self._is_in_head = False
        self._disarm()
        self._unset_keepalive_if_required()
        lease = self._lease = (
            self._proxied_lease() if self._is_proxied else MemoryReservation(self._port.memory, self._owner)
        )
        unknown_behind = self.client[0] if self.client and self.scope["client"] is None else None
        self.scope[CONTEXT] = RequestContext(lease, unknown_behind, self._ref)  # type: ignore[literal-required]
        self._port.connections.busy(self)
        try:
            super().on_headers_complete()
        except BaseException:
            lease.release()
            raise
        self._is_answering = True
        self.cycle.transport = self._request_transport  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Store a piece of the body if the memory budget has room for it."""
        self._body_bytes += len(body)
        self._trailer_bytes = 0
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
        """Inform the request that its body is complete; if it is answered, the connection is idle."""
        if self._is_offer:
            return
        cycle = self.cycle
        cycle.more_body = False
        cycle.message_event.set()
        self._lease.is_whole = True
        self._trailer_bytes = 0
        if self._is_waiting and self._is_answering and self._held is None:
            self._port.connections.busy(self)
        self._is_waiting = False
        if cycle.response_complete:
            self._disarm()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _check_head(self) -> None:
        """Raise an error, which stops the parser, if a head is not valid or the pipeline is full."""
        try:
            size_max = self._limits.head_bytes_max
            if self._head_bytes > size_max and size_of(self.url, self.headers) > size_max:
                raise HeadTooLargeError
            check_head(self.parser.get_method(), self.parser.get_http_version(), self.url, self.headers)
            if len(self.pipeline) >= PIPELINE_MAX:
                raise LaneSaturatedError("too many requests wait on one connection")
        except GatewayError as err:
            self._fault = err
            raise

    def _proxied_lease(self) -> MemoryReservation:
        """Return the lease of a request behind a trusted proxy, by the address of its client."""
        memory, connections = self._port.memory, self._port.connections
        address = self._port.proxies.client_of(self.headers)
        self.scope["client"] = None if address is None else (address, 0)
        is_served = connections.enter_request(address) and not self._is_refused
        self.app = self._client_app if is_served else cast(Any, self._port.refuse)
        owner = None if address is None else address_group(address)
        return MemoryReservation(memory, owner, lambda: connections.leave_request(address))

    @property
    def _newest(self) -> RequestResponseCycle | None:  # with the last head; None before the first
        return self.cycle

    @property
    def _is_reading_body(self) -> bool:
        return self._newest is not None and self._newest.more_body

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        self._request_transport.begin(cycle)
        if cycle.waiting_for_100_continue:
            app = closing_unless_continued(cycle, app)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Begin the next request, become idle, or send the final error."""
        self._request_transport.end()
        self._is_answering = bool(self.pipeline)
        if self._discards_input and not self.pipeline:
            self.server_state.total_requests += 1
            self._send_final_error()
            return
        super().on_response_complete()
        if not self.transport.is_closing() and not self._is_answering:
            self._port.connections.rest(self)
            if self._is_in_head or self._is_reading_body:
                self._unset_keepalive_if_required()
                self._await_rest()

    def _refuse(self, err: GatewayError) -> None:
        """Answer a request that cannot be parsed, after earlier ones; then end the connection."""
        self._discards_input = True
        self._disarm()
        cycle = self._newest
        if cycle is None or not cycle.more_body:
            self._final_error = err
        elif cycle.response_complete:
            self._final_error = None
        elif any(cycle is waiting for waiting, _ in self.pipeline):
            self.pipeline.popleft()
            reservation_of(cycle).release()
            self._final_error = err
        else:
            cycle.keep_alive = False
            reservation_of(cycle).fail(err)
            cycle.message_event.set()
            return
        if not self._is_answering:
            self._send_final_error()

    def _send_final_error(self) -> None:
        if (err := self._final_error) is not None:
            self.transport.write(self._port.final_answer(err, self.headers or (), self.server_state))
            self._final_error = None
        self.linger()

    def linger(self) -> None:
        """Close the connection after LINGER_S, in which a client that still sends can read its answer."""
        self._discards_input = True
        self._drop_pipeline()
        if self.transport.is_closing():
            return
        if self._newest is not None and not self._is_reading_body and not self._is_in_head:
            self._end(self._limits.send_timeout_s)
            return
        self._port.connections.close(self)
        self.transport.write_eof()
        self.flow.resume_reading()
        self._disarm()
        self._arm(LINGER_S)

    def _drop_pipeline(self) -> None:
        """Drop the requests that were never started, and release their memory."""
        while self.pipeline:
            drop(self.pipeline.pop()[0])

    def _arm(self, timeout_s: float) -> None:
        """Close the connection if nothing disarms it in time."""
        self._deadline = self.loop.call_later(timeout_s, self._on_deadline)

    def _on_deadline(self) -> None:
        """Poll once more: data that a busy process has not read yet may have arrived in time."""
        self._deadline = self.loop.call_later(LAST_LOOK_S, self.timeout_keep_alive_handler)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
