"""One request at a time to the gateway, ended by a deadline whatever the server does."""

import gzip
import socket
import threading
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import httpx

from .answers import Answer
from .model import VERSION, DeliveryError, logger

CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S = 5.0, 15.0
"""The gateway answers within 5 s; what is between may take its time."""

UPLOAD_BYTES_PER_S = 10_000
"""So slow may a network be: large bodies get more time."""

ANSWER_BYTES_MAX = 1 << 20
GZIP_BYTES_MIN = 1_000
GZIP_LEVEL = 5


class Sender:
    """
    Posts to the gateway.

    Attributes:
        compresses: whether bodies go compressed.
    """

    def __init__(self, url: str, write_key: str, transport: httpx.BaseTransport | None) -> None:
        """
        Connect to nothing yet.

        Raises:
            ValueError: the url or the key cannot be one.
        """
        _check(url, write_key)
        self.compresses = True
        self._is_aborted = False
        self._socket: socket.socket | None = None
        options: dict[str, Any] = {
            "base_url": url,
            "auth": (write_key, ""),
            "timeout": httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            "headers": {
                "User-Agent": f"gateway-client-python/{VERSION}",
                "Accept-Encoding": "identity",  # what is inflated has no bound
            },
            "limits": httpx.Limits(max_connections=1),
            "transport": transport,
        }
        try:
            self._http = httpx.Client(**options)
        except Exception as err:  # a proxy that httpx cannot use, certificates that are not there
            logger.warning("the environment's proxies and certificates are ignored: %s", err)
            self._http = httpx.Client(**options, trust_env=False)

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """
        Send one request and read its answer.

        Raises:
            DeliveryError: the answer is too long, or did not come in time.
            httpx.RequestError: there is none. Others may come from below, too.
        """
        head = {**headers, "Content-Type": "application/json"}
        if self.compresses and len(body) >= GZIP_BYTES_MIN:
            body, head["Content-Encoding"] = gzip.compress(body, GZIP_LEVEL, mtime=0), "gzip"
        self._is_aborted = False
        self._http.cookies.clear()  # those of a portal would make requests too large for the gateway
        deadline = threading.Timer(ANSWER_TIMEOUT_S + len(body) / UPLOAD_BYTES_PER_S, self.abort)
        deadline.daemon = True
        deadline.start()
        try:
            with self._http.stream(
                "POST", "/v1/events", content=body, headers=head, extensions={"trace": self._trace}
            ) as answer:
                return Answer(answer.status_code, answer.headers, _content_of(answer))
        except Exception as err:
            if self._is_aborted:
                raise DeliveryError("no answer in time") from err
            raise
        finally:
            deadline.cancel()

    def abort(self) -> None:
        """End the request that is under way; called from another thread."""
        self._is_aborted = True
        if self._socket is not None:
            with suppress(OSError):
                # That of the plain socket wakes who reads from it, also through TLS.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Note the socket of a new connection."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            if self._is_aborted:
                info["return_value"].close()
                raise DeliveryError("no connection in time")


def _check(url: str, write_key: str) -> None:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as err:
        raise ValueError(f"{url!r} is no URL: {err}") from err
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"{url!r} is no URL of a gateway: https://events.example.com is one")
    if not write_key or not isinstance(write_key, str):
        raise ValueError("the write key is missing")


def _content_of(answer: httpx.Response) -> bytes:
    """Read an answer up to a bound. Raises DeliveryError, zlib.error."""
    is_read = answer.is_stream_consumed  # by a transport that has it in memory
    content = bytearray()
    for chunk in answer.iter_bytes() if is_read else answer.iter_raw():
        content += chunk
        if len(content) > ANSWER_BYTES_MAX:
            raise DeliveryError(f"{answer.status_code}, and more than {ANSWER_BYTES_MAX:,} bytes")
    if is_read or answer.headers.get("Content-Encoding", "identity").lower() == "identity":
        return bytes(content)
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(bytes(content), ANSWER_BYTES_MAX)
