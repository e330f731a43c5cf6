"""
What aiokafka's clients need around them, tried with 0.14.

- Whatever one is awaited for runs in a task of its own: aiokafka may never end, may raise what only
  its own bookkeeping knows, and may let a cancellation out that nobody asked for.
- None may have the broker create a topic: a deleted one would come back empty, with settings that
  nobody has checked.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from dedupe.errors import GatewayError

T = TypeVar("T")

READ_COMMITTED = 1
CANCELLATION_S = 1.0
"""How long a task that was given up may take to end."""
CLOSE_TIMEOUT_S = 10.0
"""Closing sockets of a dead broker; longer only leaks them for longer."""


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """How to reach the cluster and how long to wait for it."""

    bootstrap_servers: str
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = None
    ssl_ca_file: str | None = None
    ssl_cert_file: str | None = None
    ssl_key_file: str | None = None
    request_timeout_s: float = 8.0
    transaction_timeout_s: float = 30.0
    batch_bytes_max: int = 900 * 1024

    def admin(self) -> AIOKafkaAdminClient:
        """Return an admin client that is not connected yet."""
        admin = AIOKafkaAdminClient(**self._options())
        keep_from_creating_topics(admin._client)
        return admin

    @property
    def uses_sasl(self) -> bool:
        """Whether brokers want to know who asks."""
        return self.security_protocol.startswith("SASL")

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return what a connection is encrypted by, None if it is not. Raises OSError, ssl.SSLError."""
        if self.security_protocol not in ("SSL", "SASL_SSL"):
            return None
        context = ssl.create_default_context(cafile=self.ssl_ca_file)
        if self.ssl_cert_file:
            context.load_cert_chain(self.ssl_cert_file, self.ssl_key_file)
        return context

    def _options(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "request_timeout_ms": int(self.request_timeout_s * 1000),
            "security_protocol": self.security_protocol,
            "ssl_context": self.ssl_context(),
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": self.sasl_password,
        }


def keep_from_creating_topics(client: Any) -> None:
    """
    Have no Metadata request of an AIOKafkaClient create topics, which is the protocol's default.

    Some of them are sent on a connection directly, so each connection's `send` is wrapped.
    """
    get_conn: Callable[..., Awaitable[Any]] = client._get_conn

    async def get_guarded_conn(*args: Any, **more: Any) -> Any:
        conn = await get_conn(*args, **more)
        if conn is not None and "send" not in vars(conn):
            conn.send = _creating_nothing(conn.send)
        return conn

    client._get_conn = get_guarded_conn


def _creating_nothing(send: Callable[..., Any]) -> Callable[..., Any]:
    def guarded_send(request: Any, *args: Any, **more: Any) -> Any:
        if isinstance(request, MetadataRequest):
            request._allow_auto_topic_creation = False
        return send(request, *args, **more)

    return guarded_send


async def bounded(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """
    Await what aiokafka does, for at most `timeout_s` seconds and a moment to end it.

    Raises:
        TimeoutError: it was given up.
        KafkaError, OSError: it failed, also where aiokafka raised something else.
        GatewayError: as `work` did.
        CancelledError: the caller was cancelled, not `work`.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(mark_retrieved)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        is_late = not task.done()
        task.cancel()
    if is_late:
        await asyncio.wait({task}, timeout=CANCELLATION_S)
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    if task.cancelled():
        raise KafkaError("the client cancelled itself")
    try:
        return task.result()
    except (KafkaError, OSError, GatewayError):
        raise
    except Exception as err:
        raise KafkaError(f"the client failed: {err!r}") from err


async def close_client(client: Any) -> None:
    """Close the connections of an AIOKafkaClient in any state; bounded, raises nothing."""
    with suppress(KafkaError, OSError):
        await bounded(client.close(), CLOSE_TIMEOUT_S)


class Background:
    """What is being released while nobody waits for it."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work that is bounded and raises nothing."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait for all of it."""
        if self._tasks:
            await asyncio.wait(self._tasks)


def mark_retrieved(future: "asyncio.Future[Any]") -> None:
    """Keep asyncio from reporting an error that has been dealt with elsewhere."""
    if not future.cancelled():
        future.exception()
