"""
What both sides of a connection between workers share: frames in and out, liveness, and one way to end.

All frames of one turn of the event loop are written at once. While the other side does not read, frames wait
here and not in the transport: what was never handed over is known to be not sent.
"""

import asyncio
import random
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import structlog

from app.peers.errors import FrameRefusedError, refuse
from app.peers.frames import FrameReader, Kind, frame_of, packed
from app.peers.handshake import NONCE_BYTES
from app.peers.limits import PeerLimits, PeerMetrics, PeerTimes, Versions
from dedupe.clock import Clock

TICKS = 16
"""
So often within `dead_s` a connection looks whether it has heard anything. It is dead after so many looks in
a row, not by the clock: a process that was held up has heard nothing meanwhile.
"""

SILENT = "silent"

UNKNOWN_KIND = packed(("unknown_kind", "", "no such kind of frame in this version"))

Handler: TypeAlias = Callable[[int, memoryview], None]
"""Takes a frame's number and body. May raise FrameRefusedError."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Shared:
    """What all connections of a worker share."""

    worker: str
    key: bytes
    clock: Clock
    limits: PeerLimits = field(default_factory=PeerLimits)
    times: PeerTimes = field(default_factory=PeerTimes)
    metrics: PeerMetrics = field(default_factory=PeerMetrics)
    dice: random.Random = field(default_factory=random.SystemRandom)

    @property
    def versions(self) -> Versions:
        """What this worker speaks."""
        return self.limits.versions

    def nonce(self) -> bytes:
        """Return bytes that were never used before."""
        return self.dice.randbytes(NONCE_BYTES)


class Connection(asyncio.Protocol):
    """One side of one connection; nothing that comes on it makes it raise."""

    def __init__(self, shared: Shared) -> None:
        """Wait for the transport."""
        self.shared = shared
        self.version = shared.versions.newest
        self.is_proved = False
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

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        if self.end_reason is not None:
            return self._transport.abort()
        self._made_at = self._sent_at = self.loop.time()
        self._transport.set_write_buffer_limits(high=self.shared.limits.unread_bytes_max)
        self._look_again()
        return self._guard(self.on_made)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._silent_ticks = 0
        self._guard(self._read, data)

    def eof_received(self) -> bool:
        """See asyncio.Protocol."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.end("lost" if exc else "closed")

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._is_paused = True
        self._guard(self.on_paused, True)

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._is_paused = False
        self._guard(self.on_paused, False)
        self._flush()

    # What the two sides use and provide.

    @property
    def is_open(self) -> bool:
        """Whether anything can be sent."""
        return self.end_reason is None and self._transport is not None

    @property
    def unsent_bytes(self) -> int:
        """What waits for the other side to read."""
        return self._unsent_bytes

    def send(self, kind: int, number: int = 0, body: bytes = b"") -> None:
        """Write a frame with all others of this turn of the loop; none once the connection has ended."""
        if self.end_reason is not None:
            return
        frame = frame_of(self.version, kind, number, body)
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Have `on_flush` called, and everything written, once in this turn of the loop."""
        if not self._is_flush_due and not self._is_paused:
            self._is_flush_due = True
            self.loop.call_soon(self._flush)

    def end(self, reason: str) -> None:
        """End the connection now, once; what is still to be sent is dropped."""
        if self.end_reason is not None:
            return
        self.end_reason = reason
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._tick is not None:
            self._tick.cancel()
        if self._transport is not None:
            self._transport.abort()
        self.on_end()

    def refuse(self, reason: str, why: str = "") -> None:
        """End the connection for what came on it, and count it, once."""
        if self.end_reason is None:
            self.shared.metrics.frames_refused[reason] += 1
            self.end(f"refused: {reason} {why}".rstrip())

    def pause_reading(self, is_paused: bool) -> None:
        """Take nothing from the other side, or go on."""
        if self._transport is not None and self.end_reason is None:
            (self._transport.pause_reading if is_paused else self._transport.resume_reading)()

    def prove(self, version: int) -> None:
        """Take the other side for who it says it is, and its large frames."""
        self.is_proved = True
        self.version = version
        self._reader.message_bytes_max = self.shared.limits.message_bytes_max
        self._reader.submission_bytes_max = self.shared.limits.frame_bytes_max

    def handle(self, handlers: dict[int, Handler]) -> None:
        """Take these kinds of frames as well."""
        self._handlers.update(handlers)

    def on_made(self) -> None:
        """Speak: the transport is there."""

    @abstractmethod
    def on_end(self) -> None:
        """Tell whoever still waits; must not raise."""

    def on_flush(self) -> None:
        """Send what waits for the end of the turn; the transport gets it all then. Must not raise."""

    def on_paused(self, is_paused: bool) -> None:
        """Note that the other side does not read, or does again."""

    def _guard(self, call: Callable[..., None], *args: object) -> None:
        """Call, and end the connection for whatever it raises."""
        try:
            call(*args)
        except FrameRefusedError as err:
            self.refuse(err.reason)
        except Exception:
            log.exception("a connection between workers failed")
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
                self._pass_over(number)

    def _pass_over(self, number: int) -> None:
        """Say that a later version's kind of frame is unknown here, where an answer is waited for."""
        self.shared.metrics.frames_refused["unknown_kind"] += 1
        if number:
            self.send(Kind.FAILED, number, UNKNOWN_KIND)

    def _flush(self) -> None:
        self._is_flush_due = False
        transport = self._transport
        if self._is_paused or transport is None or transport.is_closing():
            return
        self._is_flush_due = True  # what `on_flush` sends is written below
        self.on_flush()
        self._is_flush_due = False
        if not self._unsent:
            return
        frames, self._unsent, self._unsent_bytes = self._unsent, [], 0
        self._sent_at = self.loop.time()
        transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def _look_again(self) -> None:
        self._tick = self.loop.call_later(self.shared.times.dead_s / TICKS, self._look)

    def _look(self) -> None:
        """End what is silent or does not prove itself; say that we are there."""
        times, now = self.shared.times, self.loop.time()
        self._silent_ticks += 1
        if self._silent_ticks > TICKS:
            return self.end(SILENT)
        if not self.is_proved and now - self._made_at >= times.handshake_s:
            return self.refuse("late_handshake")
        if self.is_proved and now - self._sent_at >= times.ping_s and not self._is_paused:
            self.send(Kind.PING)
        return self._look_again()

    def _on_ping(self, _number: int, _body: memoryview) -> None:
        if not self.is_proved:
            refuse("wrong_state")
