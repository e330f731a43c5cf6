"""The state that all connections of a port share, and the answer to a request that cannot be parsed."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from app.http.body_memory import BodyMemory
from app.http.client_address import TrustedProxies
from app.http.connections import Connections
from app.http.cors import origin_headers
from app.http.problems import Problems
from app.http.request_metrics import RequestMetrics
from dedupe.model.errors import GatewayError

MALFORMED = "malformed"
"""The route of requests that could not be parsed, in metrics."""


HEAD_BYTES_MAX = 64 * 1024
"""The limit of a request line and its headers: four times the default limit of common proxies."""

HEAD_TIMEOUT_S = 10.0
"""The time limit of a head, from the connection or the head's first byte: a phone on 2G needs two seconds."""

REST_TIMEOUT_S = 30.0
"""For the rest of a body that is not read, since its request was answered before."""

SEND_TIMEOUT_S = 30.0
"""A client that does not read its answers for this time loses the connection."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection."""

    head_bytes_max: int = HEAD_BYTES_MAX
    head_timeout_s: float = HEAD_TIMEOUT_S
    send_timeout_s: float = SEND_TIMEOUT_S
    rest_timeout_s: float = REST_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Port:
    """The state that all connections of a port share."""

    limits: ConnectionLimits
    connections: Connections
    memory: BodyMemory
    proxies: TrustedProxies
    problems: Problems
    metrics: RequestMetrics
    refuse: ASGIApp
    """Answers the requests of a connection beyond the limit."""

    def final_answer(
        self, err: GatewayError, headers: Iterable[tuple[bytes, bytes]], state: ServerState
    ) -> bytes:
        """
        Return the whole answer to a request that could not be parsed, and count it.

        Args:
            err: why it cannot be parsed.
            headers: the parsed headers.
            state: the server's state, with the headers of all its answers.
        """
        answer = self.problems.answer(err)
        self.metrics.observe(MALFORMED, answer.status_code, 0.0)
        origin = next((value for name, value in headers if name == b"origin"), b"")
        answered = [
            *state.default_headers,
            *answer.raw_headers,
            *origin_headers(origin),
            (b"gateway-request-id", secrets.token_hex(8).encode()),
            (b"connection", b"close"),
        ]
        lines = [b"%b: %b\r\n" % header for header in answered]
        return b"".join([STATUS_LINE[answer.status_code], *lines, b"\r\n", bytes(answer.body)])
