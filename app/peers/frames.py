"""
The frames of a connection between two workers: a head and a body of msgpack.

The head says how many bytes follow its first four, the version both sides have agreed on, what kind of
frame it is, and the number that ties an answer to its question; 0 where nothing is answered.
"""

import struct
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgpack

from app.peers.errors import FrameRefusedError, refuse

HEAD = struct.Struct(">IBBQ")  # bytes that follow these four, version, kind, number
LENGTH_BYTES = 4
BEFORE_PROOF_BYTES_MAX = 1024
BUFFER_BYTES = 1024 * 1024


class Kind:
    """What frames are for. A later version's are passed over; a known one out of turn ends the connection."""

    HELLO, CHALLENGE, PROOF, WELCOME = 1, 2, 3, 4
    STATUS, PING, SUBMIT, OUTCOMES, FAILED, ASK, ANSWER, TELL = 5, 6, 7, 8, 9, 10, 11, 12
    NEWEST = TELL


Frame: TypeAlias = tuple[int, int, int, memoryview]
"""Version, kind, number and body."""


def frame_of(version: int, kind: int, number: int, body: bytes = b"") -> bytes:
    """Return one frame's bytes."""
    return HEAD.pack(HEAD.size - LENGTH_BYTES + len(body), version, kind, number) + body


class Packer:
    """Packs with one buffer again and again; for one thread."""

    def __init__(self) -> None:
        self._packer: Any = msgpack.Packer(buf_size=BUFFER_BYTES)

    def pack(self, body: Any) -> bytes:
        """Return a body's bytes. Raises TypeError, ValueError, OverflowError: msgpack cannot say it."""
        told: bytes = self._packer.pack(body)
        if len(told) > BUFFER_BYTES:
            self._packer = msgpack.Packer(buf_size=BUFFER_BYTES)  # it keeps a buffer of the largest body
        return told


def unpacked(body: memoryview) -> Any:
    """Return what a body says. Raises FrameRefusedError."""
    try:
        return msgpack.unpackb(body)
    except Exception as err:  # whatever the bytes make of it
        raise FrameRefusedError("malformed") from err


packed = Packer().pack


class FrameReader:
    """Cuts what comes on a connection into frames; keeps no more than one of the largest and one read."""

    __slots__ = ("_needed", "_waiting", "message_bytes_max", "submission_bytes_max")

    def __init__(self) -> None:
        """Take small frames only, until the limits are raised."""
        self.message_bytes_max = self.submission_bytes_max = BEFORE_PROOF_BYTES_MAX
        self._waiting = bytearray()
        self._needed = HEAD.size

    def read(self, data: bytes) -> Iterator[Frame]:
        """
        Yield the frames that end in `data`, which are valid until the next one.

        Raises:
            FrameRefusedError: no frame, or too large a one.
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
