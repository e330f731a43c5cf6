"""
Connections to brokers, for every request of the gateway.

A broker answers the requests of a connection in the order in which they were sent. Each request is sent once;
any error ends the connection, and with it all requests that are unanswered.
"""

import asyncio
import math
import ssl
import struct
from collections import defaultdict, deque
from typing import Any, Self

from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.admin import (
    ApiVersionRequest_v0,
    SaslAuthenticateRequest_v0,
    SaslAuthenticateRequest_v1,
    SaslHandShakeRequest_v1,
)
from aiokafka.protocol.api import RequestStruct

from dedupe.login.errors import LoginError
from dedupe.login.login import Login
from dedupe.login.tls import explain_tls
from dedupe.storage.kafka.config import Address, KafkaConfig
from dedupe.storage.kafka.sasl import authenticator_of, mechanism_of, refusal_of
from dedupe.storage.kafka.versions import BrokerVersions, read_versions
from dedupe.storage.kafka.wire import Request, request_of

RESPONSE_BYTES_MAX = 64 * 1024
"""The response to a producer, a challenge of SCRAM or an error's text takes 1 KiB."""

IDLE_S_MAX = 540.0
"""Brokers close a connection that is idle for 10 minutes (`connections.max.idle.ms`); a request that is sent
at that moment is lost. So a connection is not used after 9."""

SESSION_SHARE = 0.8
"""The part of a login's lifetime (`connections.max.reauth.ms`, or a token's) for which a connection is used:
the broker closes it at the first request after the end."""

SASL_AUTHENTICATE = {0: SaslAuthenticateRequest_v0, 1: SaslAuthenticateRequest_v1}
"""By version; the response of 0 does not tell the lifetime."""

HANDSHAKE_SHARE = 0.8
"""The part of a new connection's limit that TLS may take: less than all, so that the reason is told."""

TLS_ALERT = b"\x15\x03"
"""How a port with TLS answers who speaks without."""

_SIZE = 4
_REQUEST_HEAD = struct.Struct(">ihhi")  # size, key, version, correlation id
_RESPONSE_HEAD = struct.Struct(">ii")  # size, correlation id


class BrokerConnection(asyncio.Protocol):
    """A connection to one broker; made by `open`."""

    def __init__(self, config: KafkaConfig, place: str, response_bytes_max: int = RESPONSE_BYTES_MAX) -> None:
        client_id, self._login, self._place = config.client_id, config.login.settings, place
        self._client = struct.pack(">h", len(client_id)) + client_id.encode()
        self._response_bytes_max = response_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._received = bytearray()
        self._unanswered: deque[tuple[int, asyncio.Future[bytes]]] = deque()  # by correlation id
        self._correlation_id = -1
        self._error: BaseException | None = None
        self._used_at = self._loop.time()
        self._ends_at = math.inf
        self._throttled_until = 0.0
        self._is_retired = False
        self._versions = BrokerVersions(Address("", 0), {})

    @classmethod
    async def open(
        cls, config: KafkaConfig, address: Address, *, response_bytes_max: int = RESPONSE_BYTES_MAX
    ) -> Self:
        """
        Connect and learn the broker's versions, within `answer_s`; authenticate, unbounded.

        Args:
            config: how.
            address: where.
            response_bytes_max: a longer response ends the connection.

        Raises:
            KafkaError, OSError: no connection; nothing is left open.
            ConfigurationError: the broker does not speak a version of SASL's requests.
        """
        context, loop = await config.login.tls_context(), asyncio.get_running_loop()
        limit_s, began_at = config.answer_s, loop.time()
        try:
            async with asyncio.timeout(limit_s):
                connection = await cls._connected(config, address, response_bytes_max, context)
        except (KafkaError, OSError) as err:
            took_s = loop.time() - began_at
            if took_s >= HANDSHAKE_SHARE * limit_s:
                config.answers.note_silence(limit_s)
            if isinstance(err, TimeoutError) and took_s >= limit_s:
                raise KafkaConnectionError(f"no answer to a connection within {limit_s:.3g} s") from err
            raise
        config.answers.note_answer(loop.time() - began_at)
        try:
            if config.login.settings.uses_sasl:
                await connection._authenticate(config.login)
        except BaseException:
            connection.close()
            raise
        return connection

    @classmethod
    async def _connected(
        cls, config: KafkaConfig, address: Address, response_bytes_max: int, context: ssl.SSLContext | None
    ) -> Self:
        """Return a connection that has answered for its versions. Raises KafkaError, OSError."""
        place = f"{address.host}:{address.port}"
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: cls(config, place, response_bytes_max),
                *address,
                ssl=context,
                ssl_handshake_timeout=None if context is None else HANDSHAKE_SHARE * config.answer_s,
            )
        except UnicodeError as err:
            raise KafkaConnectionError(f"{address.host!r} is no name of a host: {err}") from err
        except OSError as err:
            variable = config.login.settings.variable
            said = None if context is None else explain_tls(err, place, variable)
            raise said or err from err
        try:
            response = await connection.send_encoded(request_of(ApiVersionRequest_v0()))
            connection._versions = read_versions(address, response)
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open, its login lasts, and it was in use recently enough to stay open."""
        if self._error is not None:
            return False
        now = self._loop.time()
        return now < self._ends_at and (bool(self._unanswered) or now - self._used_at < IDLE_S_MAX)

    def version_of(self, key: int, *spoken: int) -> int:
        """Return the highest version that both speak; see BrokerVersions.choose."""
        return self._versions.choose(key, *spoken)

    @property
    def throttled_s(self) -> float:
        """The rest of the time for which the broker does not read, since a quota is used up; or 0."""
        return max(self._throttled_until - self._loop.time(), 0.0) if self._throttled_until else 0.0

    def note_throttle(self, seconds: float) -> None:
        """Note the throttle time of a response."""
        if seconds > 0:
            self._throttled_until = max(self._throttled_until, self._loop.time() + seconds)

    async def rest(self) -> float:
        """Wait until the broker reads again, since a request would lie in its socket; return the time."""
        began_at = self._loop.time()
        while pause_s := self.throttled_s:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(pause_s)
        return self._loop.time() - began_at

    async def send(self, request: RequestStruct, *, timeout_s: float | None = None) -> Any:
        """
        Send one of aiokafka's requests, and return its response.

        Args:
            request: of a version that the broker speaks.
            timeout_s: from the moment on at which no quota holds the request back.

        Raises:
            KafkaError: the connection ended, or the response cannot be read, which ends it.
            TimeoutError: no response in time; the connection should be closed.
            ConfigurationError: the broker does not speak this version.
        """
        self._versions.choose(request.API_KEY, request.API_VERSION)
        if self._throttled_until:
            await self.rest()
        async with asyncio.timeout(timeout_s):
            body = await self.send_encoded(request_of(request))
        try:
            response = request.RESPONSE_TYPE.decode(body)
        except ValueError as err:
            self._fail(err)
            raise KafkaError(f"a broker's response cannot be read: {err}") from err
        self.note_throttle(getattr(response, "throttle_time_ms", 0) / 1000)
        return response

    def send_encoded(self, request: Request) -> "asyncio.Future[bytes]":
        """
        Send a request.

        Returns:
            The response behind its correlation id. KafkaConnectionError is set when the connection ends:
            the broker may or may not have seen the request.

        Raises:
            KafkaConnectionError: the connection has ended; nothing was sent.
        """
        key, version, parts = request
        if self._error is not None:
            raise KafkaConnectionError(f"no connection to the broker: {self._error}")
        self._correlation_id = correlation_id = (self._correlation_id + 1) % 2**31
        size = _REQUEST_HEAD.size - _SIZE + len(self._client) + sum(map(len, parts))
        head = _REQUEST_HEAD.pack(size, key, version, correlation_id)
        self._transport.write(b"".join((head, self._client, *parts)))
        response: asyncio.Future[bytes] = self._loop.create_future()
        self._unanswered.append((correlation_id, response))
        return response

    def close(self, why: str = "closed by the gateway") -> None:
        """End the connection now; unsent bytes are dropped, and unanswered requests fail with the reason."""
        self._fail(ConnectionAbortedError(why))

    def retire(self) -> None:
        """End the connection as soon as no request is unanswered."""
        self._is_retired = True
        if not self._unanswered:
            self.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        told = explain_tls(exc, self._place, self._login.variable) if isinstance(exc, ssl.SSLError) else exc
        self._fail(told or self._tls_alert() or ConnectionResetError("closed by the broker"))

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= _RESPONSE_HEAD.size and self._error is None:
            size, correlation_id = _RESPONSE_HEAD.unpack_from(received)
            is_expected = bool(self._unanswered) and self._unanswered[0][0] == correlation_id
            if not is_expected or not _SIZE <= size <= self._response_bytes_max:
                what = "the broker sent a response to no request"
                self._fail(self._tls_alert() or ConnectionAbortedError(what))
            elif len(received) < _SIZE + size:
                return
            else:
                _, response = self._unanswered.popleft()
                self._used_at = self._loop.time()
                body = bytes(memoryview(received)[_RESPONSE_HEAD.size : _SIZE + size])
                del received[: _SIZE + size]
                if not response.done():
                    response.set_result(body)
                if self._is_retired and not self._unanswered:
                    self.close()

    def _fail(self, err: BaseException) -> None:
        if self._error is None:
            self._error = err
            self._transport.abort()
            for _, response in self._unanswered:
                if not response.done():
                    told = type(err) if isinstance(err, LoginError) else None
                    text = f"the connection ended: {err}"
                    response.set_exception(told(str(err)) if told else KafkaConnectionError(text))
            self._unanswered.clear()

    def _tls_alert(self) -> LoginError | None:
        """Return the error of a client without TLS whom a port with TLS has answered; None for any other."""
        if self._login.uses_tls or not self._received.startswith(TLS_ALERT):
            return None
        protocol = f"{self._login.variable('security_protocol')}={self._login.security_protocol}"
        return LoginError(f"{self._place} speaks TLS, and {protocol} does not")

    async def _authenticate(self, login: Login) -> None:
        """Authenticate by SASL. Raises KafkaError if the broker refuses the credentials."""
        lifetime_ms = 0
        authenticate = SASL_AUTHENTICATE[self.version_of(SASL_AUTHENTICATE[0].API_KEY, *SASL_AUTHENTICATE)]
        response = await self.send(SaslHandShakeRequest_v1(mechanism_of(login)))
        if response.error_code != 0:
            raise refusal_of(login, response.error_code, response, None)
        authenticator, token = await authenticator_of(login), None
        while True:
            if response.error_code != 0:
                raise refusal_of(login, response.error_code, response, authenticator)
            try:
                step = await authenticator.step(token)
            except (AssertionError, LookupError, ValueError) as err:
                raise KafkaError(f"a broker's response to SASL cannot be read: {err!r}") from err
            if step is None:
                break
            response = await self.send(authenticate(step[0]))
            token, lifetime_ms = response.sasl_auth_bytes, getattr(response, "session_lifetime_ms", 0)
        if lifetime_ms > 0:
            self._ends_at = self._loop.time() + SESSION_SHARE * lifetime_ms / 1000


class ConnectionPool:
    """One connection to each broker."""

    def __init__(self, config: KafkaConfig, *, response_bytes_max: int = RESPONSE_BYTES_MAX) -> None:
        self._config = config
        self._response_bytes_max = response_bytes_max
        self._connections: dict[Address, BrokerConnection] = {}
        self._locks: defaultdict[Address, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._is_closed = False

    def get(self, address: Address) -> BrokerConnection | None:
        """Return the connection to a broker, None if there is none that is usable."""
        connection = self._connections.get(address)
        return connection if connection is not None and connection.is_usable else None

    async def connect(self, address: Address) -> BrokerConnection:
        """Return the connection to a broker, a new one if need be; unbounded. Raises KafkaError, OSError."""
        async with self._locks[address]:
            connection = self.get(address)
            if connection is None:
                if address in self._connections:
                    self._connections.pop(address).retire()
                connection = self._connections[address] = await BrokerConnection.open(
                    self._config, address, response_bytes_max=self._response_bytes_max
                )
        if self._is_closed:  # meanwhile
            connection.close()
            raise KafkaConnectionError("closed by the gateway")
        return connection

    def close(self) -> None:
        """Close all connections, those to come included."""
        self._is_closed = True
        for connection in self._connections.values():
            connection.close()
