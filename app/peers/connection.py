"""
Connection: the common part of both sides of a connection between workers: frames, liveness, and its end.

All frames of one turn of the event loop are written at once. While the other side does not read, frames wait
here and not in the transport, so that it is known which frames are unsent.
"""

import asyncio
import random
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import structlog

from app.peers.errors import FrameRefusedError, refuse
from app.peers.frames import FrameReader, Kind, frame_of, packed
from app.peers.handshake import NONCE_BYTES
from app.peers.limits import (
    CHECK_S,
    HANDSHAKE_S,
    PING_BYTES,
    PING_S,
    TICKS,
    PeerLimits,
    PeerMetrics,
    Versions,
)
from dedupe.model.clock import Clock

SILENT = "silent"
UNANSWERED = "no answer to what was submitted"

TOLD_S = 1.0
"""The time for the other side to read why it is refused."""

PADDING = bytes(PING_BYTES)

UNKNOWN_KIND = packed(("unknown_kind", "", "no such kind of frame in this version"))

Handler: TypeAlias = Callable[[int, memoryview], None]
"""Handles a frame's number and body. May raise FrameRefusedError."""

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Shared:
    """The state that all connections of a worker share."""

    worker: str
    key: bytes
    clock: Clock
    limits: PeerLimits = field(default_factory=PeerLimits)
    metrics: PeerMetrics = field(default_factory=PeerMetrics)
    rng: random.Random = field(default_factory=random.SystemRandom)
    plan: int = 0
    """By which this worker's lanes are divided; workers of other plans are refused."""

    @property
    def versions(self) -> Versions:
        """The protocol versions of this worker."""
        return self.limits.versions

    def nonce(self) -> bytes:
        """Return a new nonce."""
        return self.rng.randbytes(NONCE_BYTES)


class Connection(asyncio.Protocol):
    """One side of one connection. It never raises because of received bytes."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.version = shared.versions.newest
        self.is_proved = self.is_made = False
        self.end_reason: str | None = None
        self.loop = asyncio.get_running_loop()
        self._made_at = self._sent_at = self.loop.time()
        self._handlers: dict[int, Handler] = {Kind.PING: self._on_ping}
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_flush_due = self._is_paused = False
        self._silent_ticks = 0
        self._tick: asyncio.TimerHandle | None = None

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast(asyncio.Transport, transport)
        if self.end_reason is not None:
            return made.abort()
        if self._transport is None:
            self.begin(made)
        self._transport, self.is_made = made, True
        made.set_write_buffer_limits(high=self.shared.limits.unread_bytes_max)
        return self._run(self.on_made)

    def data_received(self, data: bytes) -> None:
        self._silent_ticks = 0
        self._run(self._read, data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(self.reason_of_loss(exc) if exc else "closed")

    def pause_writing(self) -> None:
        self._is_paused = True
        self._run(self.on_paused, True)

    def resume_writing(self) -> None:
        self._is_paused = False
        self._run(self.on_paused, False)
        self._flush()

    def begin(self, transport: Any) -> None:
        """Count the connection and its time to prove itself; all it needs of a transport yet is `abort`."""
        self._transport = transport
        self._made_at = self._sent_at = self.loop.time()
        self._schedule_check()
        self._run(self.on_begin)

    # ---- for the two sides

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self.end_reason is None and self._transport is not None

    @property
    def unsent_bytes(self) -> int:
        """Size of the frames that wait for the other side to read."""
        return self._unsent_bytes

    def send(self, kind: int, number: int = 0, body: bytes = b"") -> None:
        """Send a frame at the end of this turn of the loop; do nothing if the connection has ended."""
        if self.end_reason is not None:
            return
        frame = frame_of(self.version, kind, number, body)
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Call `on_flush` and write all frames at the end of this turn of the loop."""
        if not self._is_flush_due and not self._is_paused:
            self._is_flush_due = True
            self.loop.call_soon(self._flush)

    def end(self, reason: str, *, told: bytes = b"") -> None:
        """End the connection now, with a last frame, and drop unsent ones; do nothing if it has ended."""
        if self.end_reason is not None:
            return
        self.end_reason = reason
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._tick is not None:
            self._tick.cancel()
        transport = self._transport
        if told and transport is not None and self.is_made:
            transport.write(told)
            transport.close()
            # A TLS connection would stay open until the other side, which is not proved, agrees to its end.
            self.loop.call_later(TOLD_S, transport.abort)
        elif transport is not None:
            transport.abort()
        self.on_end()

    def refuse(self, reason: str) -> None:
        """End the connection because of what was received, and count it."""
        if self.end_reason is None:
            self.shared.metrics.frames_refused[reason] += 1
            told = b"" if self.is_proved else self.refusal(reason)
            self.end(f"refused: {reason}", told=told)

    def pause_reading(self, is_paused: bool) -> None:
        """Stop reading from the other side, or resume."""
        if self._transport is not None and self.end_reason is None:
            (self._transport.pause_reading if is_paused else self._transport.resume_reading)()

    def prove(self, version: int) -> None:
        """Trust the other side's identity, and accept its large frames of the agreed version."""
        self.is_proved = True
        self.version = version
        self._reader.message_bytes_max = self.shared.limits.message_bytes_max
        self._reader.submission_bytes_max = self.shared.limits.frame_bytes_max

    def handle(self, handlers: dict[int, Handler]) -> None:
        """Add handlers by kind of frame."""
        self._handlers.update(handlers)

    def refusal(self, reason: str) -> bytes:
        """Return the frame that tells the other side why it is refused before its proof; none if empty."""
        return b""

    def reason_of_loss(self, _err: Exception) -> str:
        """Return why the connection was lost."""
        return "lost"

    def on_begin(self) -> None:
        """Handle the connection from its first moment, before TLS."""

    def on_made(self) -> None:
        """Handle the established connection."""

    @abstractmethod
    def on_end(self) -> None:
        """Fail all open requests. Must not raise."""

    def on_flush(self) -> None:
        """Send messages that were collected in this turn of the loop. Must not raise."""

    def on_check(self, now: float) -> None:
        """Look after the connection, each CHECK_S; may end it."""

    def on_paused(self, is_paused: bool) -> None:
        """Handle that the other side has stopped or resumed reading."""

    def _run(self, call: Callable[..., None], *args: object) -> None:
        """Call, and end the connection on any exception."""
        try:
            call(*args)
        except FrameRefusedError as err:
            self.refuse(err.reason)
        except Exception:
            logger.exception("a connection between workers failed")
            self.refuse("internal")

    def _read(self, data: bytes) -> None:
        for version, kind, number, body in self._reader.read(data):
            if self.end_reason is not None:
                return
            if self.is_proved and version != self.version:
                refuse("version")
            handler = self._handlers.get(kind)
            if handler is not None:
                handler(number, body)
            elif not self.is_proved or kind <= Kind.NEWEST:
                refuse("wrong_state")
            else:
                self._ignore(number)

    def _ignore(self, number: int) -> None:
        """Ignore a frame of a later version's kind; answer a numbered one that its kind is unknown."""
        self.shared.metrics.frames_refused["unknown_kind"] += 1
        if number:
            self.send(Kind.FAILED, number, UNKNOWN_KIND)

    def _flush(self) -> None:
        self._is_flush_due = False
        transport = self._transport
        if self._is_paused or transport is None or transport.is_closing():
            return
        self._is_flush_due = True  # frames that `on_flush` sends are written below
        self.on_flush()
        self._is_flush_due = False
        if not self._unsent:
            return
        frames, self._unsent, self._unsent_bytes = self._unsent, [], 0
        self._sent_at = self.loop.time()
        transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def _schedule_check(self) -> None:
        self._tick = self.loop.call_later(CHECK_S, self._check)

    def _check(self) -> None:
        """End a connection that is silent or not proved in time; send a ping if it is due."""
        now = self.loop.time()
        self._silent_ticks += 1
        if self._silent_ticks > TICKS:
            return self.end(SILENT)
        if not self.is_proved and now - self._made_at >= HANDSHAKE_S:
            return self.refuse("late_handshake")
        if self.is_proved and now - self._sent_at >= PING_S and not self._is_paused:
            self.send(Kind.PING, 0, PADDING)
        self.on_check(now)
        return None if self.end_reason is not None else self._schedule_check()

    def _on_ping(self, _number: int, _body: memoryview) -> None:
        if not self.is_proved:
            refuse("wrong_state")
