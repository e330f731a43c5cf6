"""
One connection to one broker for requests of our own, one at a time.

aiokafka's connection does the same for any request, at three times the CPU: request objects, structures
of structures, a stream reader and a task that waits on it. Here a request is bytes, its answer a future.
Whatever goes wrong ends the connection, and nothing is sent again.
"""

import asyncio
import struct
from typing import Any, Self

from aiokafka.conn import BaseSaslAuthenticator, SaslPlainAuthenticator, ScramAuthenticator
from aiokafka.errors import KafkaConnectionError, KafkaError, for_code
from aiokafka.protocol.admin import SaslAuthenticateRequest_v0, SaslHandShakeRequest_v1
from aiokafka.protocol.api import RequestStruct

from dedupe.adapters.kafka_client import KafkaConfig
from dedupe.adapters.kafka_wire import Request, request_of

ANSWER_BYTES_MAX = 64 * 1024
"""What a producer is answered, a challenge of SCRAM or an error's text takes 1 KiB."""

IDLE_S_MAX = 540.0
"""Brokers close a connection that was idle for 10 minutes (`connections.max.idle.ms`), which may just then
meet a request; so one is not used after 9."""

_SIZE = 4
_HEAD = struct.Struct(">ihhi")  # size, key, version, correlation id
_ANSWER_HEAD = struct.Struct(">ii")  # size, correlation id


class Connection(asyncio.Protocol):
    """Bytes to a broker and back; made by `open`."""

    def __init__(self, answer_bytes_max: int = ANSWER_BYTES_MAX) -> None:
        """Wait for asyncio to connect it."""
        self._answer_bytes_max = answer_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._received = bytearray()  # of an answer that is not here whole
        self._answer: asyncio.Future[bytes] | None = None
        self._correlation_id = 0
        self._error: BaseException | None = None
        self._used_at = self._loop.time()

    @classmethod
    async def open(
        cls, config: KafkaConfig, host: str, port: int, *, answer_bytes_max: int = ANSWER_BYTES_MAX
    ) -> Self:
        """
        Connect and authenticate; unbounded.

        An answer longer than `answer_bytes_max` ends the connection.

        Raises:
            KafkaError, OSError: nothing is left open.
        """
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: cls(answer_bytes_max), host, port, ssl=config.ssl_context()
        )
        try:
            if config.uses_sasl:
                await connection._authenticate(config)
        except BaseException as err:
            connection.close()
            if isinstance(err, ValueError | struct.error | AssertionError):
                raise KafkaError(f"a broker's answer cannot be read: {err!r}") from err
            raise
        return connection

    @property
    def is_usable(self) -> bool:
        """Whether it is open and will be so for a while."""
        return self._error is None and self._loop.time() - self._used_at < IDLE_S_MAX

    def ask(self, request: Request) -> "asyncio.Future[bytes]":
        """
        Send a request, once, when the one before is answered.

        Returns:
            What follows the correlation id in the answer. It fails with KafkaConnectionError when the
            connection ends; whether the broker has seen the request is unknown then.

        Raises:
            KafkaConnectionError: the connection has ended; nothing was sent.
        """
        key, version, parts = request
        if self._error is not None or self._answer is not None:
            raise KafkaConnectionError(f"no connection to the broker: {self._error or 'it is in use'}")
        self._correlation_id = correlation_id = (self._correlation_id + 1) % 2**31
        size = _HEAD.size - _SIZE + sum(map(len, parts))
        self._transport.write(b"".join((_HEAD.pack(size, key, version, correlation_id), *parts)))
        self._answer = self._loop.create_future()
        return self._answer

    def close(self) -> None:
        """End it now; what is still to be sent is dropped."""
        self._fail(ConnectionAbortedError("closed by the gateway"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._fail(exc or ConnectionResetError("closed by the broker"))

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        received = self._received
        received += data
        if len(received) < _ANSWER_HEAD.size:
            return
        size, correlation_id = _ANSWER_HEAD.unpack_from(received)
        is_asked = self._answer is not None and correlation_id == self._correlation_id
        if not is_asked or size > self._answer_bytes_max or len(received) > _SIZE + size:
            self._fail(ConnectionAbortedError("the broker answers what was not asked"))
        elif len(received) == _SIZE + size:
            answer, self._answer, self._received = self._answer, None, bytearray()
            self._used_at = self._loop.time()
            if answer is not None and not answer.done():
                answer.set_result(bytes(memoryview(received)[_ANSWER_HEAD.size :]))

    def _fail(self, err: BaseException) -> None:
        if self._error is None:
            self._error = err
            self._transport.abort()
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(KafkaConnectionError(f"the connection ended: {err}"))

    async def _ask(self, request: RequestStruct) -> Any:
        """Return the answer to one of aiokafka's structures, not a flexible one."""
        return request.RESPONSE_TYPE.decode(await self.ask(request_of(request)))

    async def _authenticate(self, config: KafkaConfig) -> None:
        """Prove who asks. Raises KafkaError if the broker does not believe it."""
        answer = await self._ask(SaslHandShakeRequest_v1(config.sasl_mechanism))
        authenticator, token = _authenticator(config), None
        while True:
            if answer.error_code != 0:
                raise for_code(answer.error_code)(f"{config.sasl_mechanism} as {config.sasl_username}")
            step = await authenticator.step(token)
            if step is None:
                return
            answer = await self._ask(SaslAuthenticateRequest_v0(step[0]))
            token = answer.sasl_auth_bytes


def _authenticator(config: KafkaConfig) -> BaseSaslAuthenticator:
    who = {
        "loop": asyncio.get_running_loop(),
        "sasl_plain_username": config.sasl_username,
        "sasl_plain_password": config.sasl_password,
    }
    if config.sasl_mechanism == "PLAIN":
        return SaslPlainAuthenticator(**who)
    return ScramAuthenticator(**who, sasl_mechanism=config.sasl_mechanism)
