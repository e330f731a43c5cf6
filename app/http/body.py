"""
Reads a request's body within its limits: bytes on the wire, bytes inflated, and time.

Memory is bounded: the declared length is checked before anything is read; a compressed body is inflated once
it is complete, so that a stalled one uses only the bytes that have arrived; inflating stops at the limit. Of
the content only the first bytes are looked at: they decide whether it is compressed.
"""

import asyncio
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from app.http.body_memory import MemoryReservation
from app.http.content_encoding import Encoding, declared_encoding, encoding_of
from app.http.errors import (
    BodyNotDecompressableError,
    BodyTimeoutError,
    BodyTooLargeError,
    BodyTruncatedError,
)
from app.http.fair_scheduler import YieldToOthers
from dedupe.model.errors import GatewayError

GZIP_MEMBERS_MAX = 100
"""Each member costs a decompressor; clients send one."""

SLICE_BYTES, PIECE_BYTES = 64 * 1024, 256 * 1024
"""Input and output of one step of inflating, below 1 ms; other requests run between two steps."""

STEP_WORK_BYTES = PIECE_BYTES // 8
"""The work of such a step, in parsed bytes."""

CALL_WORK_BYTES = 128
"""The work of a call besides the bytes that it returns."""

GRACE_S = 30.0
"""At any pace: 60 KB of a phone's events at the lowest rate, and a tunnel or a cell without signal."""

RATE_MIN = 2 * 1024
"""
Bytes a second on average once the grace is over: the least that 2G reaches. Slower senders do not get
through in an SDK's own 10 to 60 s either. A higher rate makes it dearer to hold memory by trickling.
"""

_JSON_BEGINS = b"{["
"""Nearly all bodies begin so, and are not looked at further."""

_GZIP = 16 + zlib.MAX_WBITS
_ZLIB_METHOD = 8  # low half of a zlib stream's first byte, and never of a raw deflate stream's


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bounds of one request body."""

    bytes_max: int
    compressed_bytes_max: int
    grace_s: float = GRACE_S
    rate_min: int = RATE_MIN
    is_as_declared: bool = False
    """Whether a body that is not declared to be compressed is taken as it is, whatever it looks like."""

    def patience_s(self, size: int) -> float:
        """
        Return the seconds since its start within which a body must exceed a size in bytes.

        There is no end whatever the size: a slow phone would never get a large body through, and its retry
        is as slow. What it holds meanwhile counts for its address, see app.http.body_memory.
        """
        return max(self.grace_s, size / self.rate_min)


async def read_body(
    receive: Receive,
    headers: Mapping[bytes, bytes],
    limits: BodyLimits,
    lease: MemoryReservation,
    yield_to_others: YieldToOthers,
    on_damage: Callable[[GatewayError], None] | None = None,
) -> bytes:
    """
    Return the whole body, inflated.

    Args:
        receive: the request's ASGI channel, unread.
        headers: by lower-case name.
        limits: bounds in bytes and seconds.
        lease: memory of the request; the connection charges received bytes, this function inflated bytes.
        yield_to_others: awaited before each step of inflating but the first.
        on_damage: called if the compressed data are damaged or end early, and what could be inflated is
            returned; None: this is an error.

    Raises:
        RequestError: the body is too large, or its encoding is not supported or broken.
        BodyTimeoutError, BodyTruncatedError, BodyMemoryFullError: it did not arrive in time or whole, or
            there is no memory for it now.
        ClientDisconnect: the client disconnected before the end.
    """
    header = headers.get(b"content-encoding")
    declared = declared_encoding(header) if header else Encoding.PLAIN
    declared_bytes = _declared_length(headers, limits.bytes_max)
    if declared_bytes > lease.held:
        lease.expect(declared_bytes)
    body = await _arrived(receive, declared, limits, lease)
    if body and body[0] in _JSON_BEGINS:
        return body
    encoding = _encoding_of(body, declared, limits)
    if encoding is Encoding.PLAIN:
        return body
    inflating = _Inflating(body, limits.bytes_max, lease, yield_to_others, is_gzip=encoding is Encoding.GZIP)
    return await inflating.read(on_damage)


async def _arrived(
    receive: Receive, declared: Encoding, limits: BodyLimits, lease: MemoryReservation
) -> bytes:
    """Return the body as received; see read_body."""
    chunks: list[bytes] = []
    size, more = 0, True
    bytes_max = min(limits.compressed_bytes_max, limits.bytes_max)  # until it proves to be plain
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with nullcontext() if lease.is_whole else asyncio.timeout(None) as patience:
            while more and lease.error is None:
                if patience is not None:
                    patience.reschedule(began + limits.patience_s(size))
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                more = message.get("more_body", False)
                chunk = message.get("body", b"")
                size += len(chunk)
                chunks.append(chunk)
                if size > bytes_max:
                    bytes_max = _wire_bytes_max(b"".join(chunks), declared, limits)
    except TimeoutError as err:
        raise BodyTimeoutError from err
    finally:
        lease.waited_s = loop.time() - began
    if lease.error is not None:
        raise lease.error
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class _Inflating:
    """Inflates one complete body in steps."""

    def __init__(
        self,
        body: bytes,
        bytes_max: int,
        lease: MemoryReservation,
        yield_to_others: YieldToOthers,
        *,
        is_gzip: bool,
    ) -> None:
        self._body = body
        self._bytes_max = bytes_max
        self._lease = lease
        self._yield_to_others = yield_to_others
        self._is_gzip = is_gzip
        self._charged = 0
        self._pieces: list[bytes] = []

    async def read(self, on_damage: Callable[[GatewayError], None] | None) -> bytes:
        """Return the inflated body, or, with `on_damage`, what precedes the damage, or all as received."""
        inflater = Inflater(is_gzip=self._is_gzip, bytes_max=self._bytes_max)
        self._charge(inflater.declared_size(self._body))
        try:
            await self._run(inflater)
        except BodyTruncatedError as err:
            if on_damage is None:
                raise BodyNotDecompressableError from err
            on_damage(err)
        except BodyNotDecompressableError as err:
            if on_damage is None:
                raise
            again = Inflater(is_gzip=self._is_gzip, bytes_max=self._bytes_max, bytewise_from=inflater.place)
            with suppress(BodyNotDecompressableError, BodyTruncatedError):
                await self._run(again)
            on_damage(err)
        else:
            return b"".join(self._pieces)
        if not self._body:
            raise BodyNotDecompressableError
        return b"".join(self._pieces) or self._body  # there is nothing else to keep

    async def _run(self, inflater: "Inflater") -> None:
        pieces = self._pieces = []
        size = work = 0
        for piece in inflater.inflate(self._body):
            if work >= PIECE_BYTES:
                await self._yield_to_others(STEP_WORK_BYTES)
                work = 0
            work += len(piece) + CALL_WORK_BYTES
            pieces.append(piece)
            size += len(piece)
            self._charge(size)

    def _charge(self, size: int) -> None:
        """Charge the lease up to a size. Raises its error."""
        if size > self._charged:
            self._lease.take(size - self._charged)
            self._charged = size
        self._lease.check()


class Inflater:
    """Inflates one complete body step by step; gzip bodies may consist of several members."""

    def __init__(self, *, is_gzip: bool, bytes_max: int, bytewise_from: int = sys.maxsize) -> None:
        """
        Begin a body.

        Args:
            is_gzip: else it is zlib, or raw deflate.
            bytes_max: the limit of the inflated body.
            bytewise_from: the place of a slice with an error: it is inflated up to the byte.
        """
        self._is_gzip = is_gzip
        self._bytes_left = bytes_max
        self._bytewise_from = bytewise_from
        self.place = 0
        """Of the slice that is inflated."""
        self._stream: zlib._Decompress | None = None
        self._members_left = GZIP_MEMBERS_MAX if is_gzip else 1

    def declared_size(self, body: bytes) -> int:
        """
        Return the inflated size in the trailer of a gzip body, at most the limit.

        It is charged before inflating, so that only bodies that fit are inflated.
        """
        return min(int.from_bytes(body[-4:], "little"), self._bytes_left) if self._is_gzip else 0

    def inflate(self, body: bytes) -> Iterator[bytes]:
        """
        Yield the inflated body, at most PIECE_BYTES in one step.

        Raises:
            BodyNotDecompressableError: the body is not in this format.
            BodyTruncatedError: it ends early.
            BodyTooLargeError: the inflated body exceeds the limit.
        """
        while self.place < len(body):
            slice_bytes = 1 if self.place >= self._bytewise_from else SLICE_BYTES
            data = body[self.place : self.place + slice_bytes]
            while data:
                if self._stream is None:
                    self._stream = self._begin(data)
                elif self._stream.eof:
                    data = data.lstrip(b"\0")  # padding after a member is allowed
                    if not data:
                        break
                    self._stream = self._begin(data)
                yield self._step(self._stream, data)
                data = self._stream.unused_data or self._stream.unconsumed_tail
            self.place += slice_bytes
        while self._stream is not None and (piece := self._step(self._stream, b"")):
            yield piece
        if self._stream is None:
            raise BodyNotDecompressableError
        if not self._stream.eof:
            raise BodyTruncatedError

    def _begin(self, data: bytes) -> "zlib._Decompress":
        if self._members_left == 0:
            raise BodyNotDecompressableError
        self._members_left -= 1
        if self._is_gzip:
            return zlib.decompressobj(_GZIP)
        return zlib.decompressobj(zlib.MAX_WBITS if data[0] & 0x0F == _ZLIB_METHOD else -zlib.MAX_WBITS)

    def _step(self, stream: "zlib._Decompress", data: bytes) -> bytes:
        try:
            piece = stream.decompress(data, min(PIECE_BYTES, self._bytes_left + 1))
        except zlib.error as err:
            raise BodyNotDecompressableError from err
        self._bytes_left -= len(piece)
        if self._bytes_left < 0:
            raise BodyTooLargeError
        return piece


def _wire_bytes_max(arrived: bytes, declared: Encoding, limits: BodyLimits) -> int:
    """Return how many bytes of a body may arrive. Raises BodyTooLargeError: it has more already."""
    bytes_max = limits.bytes_max
    if _encoding_of(arrived, declared, limits) is not Encoding.PLAIN:
        bytes_max = min(bytes_max, limits.compressed_bytes_max)
    if len(arrived) > bytes_max:
        raise BodyTooLargeError
    return bytes_max


def _encoding_of(body: bytes, declared: Encoding, limits: BodyLimits) -> Encoding:
    return declared if limits.is_as_declared and declared is Encoding.PLAIN else encoding_of(body, declared)


def _declared_length(headers: Mapping[bytes, bytes], bytes_max: int) -> int:
    """Return the Content-Length, 0 without one. Raises BodyTooLargeError."""
    declared = headers.get(b"content-length", b"")
    if not declared.isdigit():
        return 0
    if int(declared) > bytes_max:
        raise BodyTooLargeError
    return int(declared)
