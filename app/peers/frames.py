"""
Frames of a connection between two workers: a head, and a body in msgpack.

The head has the number of bytes after its first four, the agreed version, the kind, and a number that relates
an answer to its submission or request; 0 in frames without answer.
"""

import struct
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgpack

from app.peers.errors import FrameRefusedError, refuse

HEAD = struct.Struct(">IBBQ")  # bytes after these four, version, kind, number
LENGTH_BYTES = 4
BEFORE_PROOF_BYTES_MAX = 1024
BUFFER_BYTES = 1024 * 1024


class Kind:
    """Kinds of frames. Those of later versions are ignored; a known one in a wrong state is refused."""

    HELLO, CHALLENGE, PROOF, WELCOME = 1, 2, 3, 4
    STATUS, PING, SUBMIT, OUTCOMES, FAILED, REQUEST, RESPONSE, NOTIFY = 5, 6, 7, 8, 9, 10, 11, 12
    NEWEST = NOTIFY


PATH = "path"
"""
Kind of a request whose only purpose is its size: the acceptor responds with as many bytes, and one that does
not know it with an error, which proves the way there.
"""

Frame: TypeAlias = tuple[int, int, int, memoryview]
"""Version, kind, number and body."""


def frame_of(version: int, kind: int, number: int, body: bytes = b"") -> bytes:
    return HEAD.pack(HEAD.size - LENGTH_BYTES + len(body), version, kind, number) + body


class Packer:
    """Encodes msgpack with one reused buffer; for one thread."""

    def __init__(self) -> None:
        self._packer: Any = msgpack.Packer(buf_size=BUFFER_BYTES)

    def pack(self, body: Any) -> bytes:
        """Encode a body. Raises TypeError, ValueError, OverflowError: msgpack has no encoding of it."""
        encoded: bytes = self._packer.pack(body)
        if len(encoded) > BUFFER_BYTES:
            self._packer = msgpack.Packer(buf_size=BUFFER_BYTES)  # it would keep a buffer of the largest body
        return encoded


def unpacked(body: memoryview) -> Any:
    """Decode a body. Raises FrameRefusedError."""
    try:
        return msgpack.unpackb(body)
    except Exception as err:  # of many kinds, depending on the bytes
        raise FrameRefusedError("malformed") from err


packed = Packer().pack


class FrameReader:
    """Cuts received bytes into frames; buffers at most one frame of the largest size and one read."""

    __slots__ = ("_needed", "_waiting", "message_bytes_max", "submission_bytes_max")

    def __init__(self) -> None:
        """Accept small frames only, until the limits are raised."""
        self.message_bytes_max = self.submission_bytes_max = BEFORE_PROOF_BYTES_MAX
        self._waiting = bytearray()
        self._needed = HEAD.size

    def read(self, data: bytes) -> Iterator[Frame]:
        """
        Yield the frames that end in `data`, which are valid until the next one.

        Raises:
            FrameRefusedError: malformed or too large.
        """
        received: bytes | bytearray = data
        if self._waiting:
            self._waiting += data
            if len(self._waiting) < self._needed:
                return
            received, self._waiting = self._waiting, bytearray()
        view, place, end = memoryview(received), 0, len(received)
        self._needed = HEAD.size
        while end - place >= HEAD.size:
            length, version, kind, number = HEAD.unpack_from(view, place)
            after = place + LENGTH_BYTES + length
            if length < HEAD.size - LENGTH_BYTES:
                refuse("malformed")
            if length > (self.submission_bytes_max if kind == Kind.SUBMIT else self.message_bytes_max):
                refuse("too_large")
            if after > end:
                self._needed = after - place
                break
            yield version, kind, number, view[place + HEAD.size : after]
            place = after
        if place < end:
            self._waiting += view[place:]
