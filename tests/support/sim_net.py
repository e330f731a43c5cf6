"""
A network in memory between simulated workers, under the same protocols as real sockets, in the loop's time.

A worker listens under its name; an address is `name:1`. As with TCP, what is on its way on a connection
arrives in order, later, or never, because the connection is reset: it is not lost alone. So a direction that
drops everything holds it here, until it is released or the connection ends.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from random import Random
from typing import Any

from app.peers.network import Network

PORT = 1
WINDOW_BYTES = 64 * 1024
"""What the other side's system takes although nobody reads there."""
READ_BYTES_MAX = 64 * 1024

PACKET_BYTES = 500
"""The packets that a slow way passes one after the other."""
PACKET_BYTES_MAX = 9_000
"""The largest packet; what is written at once is sent in as large ones."""

EOF, RESET = "eof", "reset"


def address_of(worker: str) -> str:
    """Return where a worker is reached."""
    return f"{worker}:{PORT}"


class SimNet:
    """All connections between simulated workers, and what goes wrong with them."""

    def __init__(self, rng: Random, *, delay_s: float = 0.0002) -> None:
        """Take what decides on the pieces bytes arrive in, and how long they take unless told otherwise."""
        self.rng = rng
        self.delays_s: defaultdict[tuple[str, str], float] = defaultdict(lambda: delay_s)
        """By sender and receiver, of what is sent from now on."""
        self.listeners: dict[str, Callable[[], asyncio.Protocol]] = {}
        self.bound: set[str] = set()
        """Whose sockets stay bound while nobody accepts: who connects waits, until `end`."""
        self.attempts: list[tuple[str, str]] = []
        """Who has tried to connect to whom."""
        self.contexts: defaultdict[str, Context] = defaultdict(copy_context)
        """What each worker's side of a connection runs in."""
        self.size_max: dict[tuple[str, str], int] = {}
        """By sender and receiver: a larger packet vanishes, and all behind it waits for it."""
        self.swallowed_over: dict[tuple[str, str], int] = {}
        """By sender and receiver: more bytes written at once vanish, as if they had arrived."""
        self.bytes_per_s: dict[tuple[str, str], float] = {}
        """By sender and receiver: how many bytes of each connection arrive in a second."""
        self._held: set[tuple[str, str]] = set()
        self._cut: set[frozenset[str]] = set()
        self._pipes: set[Pipe] = set()
        self._released = asyncio.Event()

    def network(self, worker: str) -> Network:
        """Return the network as a worker uses it."""
        return SimNetwork(self, worker)

    def hold(self, sender: str, receiver: str) -> None:
        """Let nothing from the one arrive at the other, the end of a connection included."""
        self._held.add((sender, receiver))

    def release(self, sender: str, receiver: str) -> None:
        """Let arrive what was held, and what follows."""
        self._held.discard((sender, receiver))
        self._wake()

    def freeze(self, worker: str) -> None:
        """Let nothing arrive at a worker or leave it, as if its process stood still."""
        for other in {*self.listeners, *(name for pipe in self._pipes for name in pipe.way)} - {worker}:
            self._held |= {(worker, other), (other, worker)}

    def thaw(self, worker: str) -> None:
        """Undo `freeze`."""
        self._held = {way for way in self._held if worker not in way}
        self._wake()

    def accept(self, worker: str, make: Callable[[], asyncio.Protocol]) -> None:
        """Let a worker accept connections."""
        self.listeners[worker] = make
        self._wake()

    def end(self, worker: str) -> None:
        """Let nothing more be heard of a worker, whose process has ended: all its connections are reset."""
        self.listeners.pop(worker, None)
        self.bound.discard(worker)
        self._wake()
        for pipe in [pipe for pipe in self._pipes if worker in pipe.way]:
            pipe.break_off(ConnectionResetError("its process has ended"))

    def reset(self, one: str, other: str) -> None:
        """End all connections between two workers; what is on its way is lost."""
        for pipe in [pipe for pipe in self._pipes if set(pipe.way) == {one, other}]:
            pipe.break_off(ConnectionResetError("reset by the simulation"))

    def cut(self, one: str, other: str) -> None:
        """As `reset`, and no new connections until `mend`."""
        self._cut.add(frozenset((one, other)))
        self.reset(one, other)

    def mend(self, one: str, other: str) -> None:
        """Undo `cut`."""
        self._cut.discard(frozenset((one, other)))

    def mend_all(self) -> None:
        """Undo every `cut`, `hold`, `freeze`, `size_max` and `swallowed_over`, and be quick again."""
        self._cut.clear()
        self.size_max.clear()
        self.swallowed_over.clear()
        self.bytes_per_s.clear()
        self._held.clear()
        self.delays_s.clear()
        self._wake()

    def ways(self) -> set[tuple[str, str]]:
        """Return the directions of all connections."""
        return {pipe.way for pipe in self._pipes}

    def is_held(self, way: tuple[str, str]) -> bool:
        """Whether nothing arrives this way."""
        return way in self._held

    async def connect(self, caller: str, make: Callable[[], asyncio.Protocol], called: str) -> Any:
        """Connect two protocols. Raises ConnectionRefusedError; never returns while a way is held."""
        self.attempts.append((caller, called))
        ways = (caller, called), (called, caller)
        await asyncio.sleep(sum(self.delays_s[way] for way in ways))
        while any(way in self._held for way in ways) or called in self.bound - self.listeners.keys():
            self._released.clear()
            await self._released.wait()
        if called not in self.listeners or frozenset(ways[0]) in self._cut:
            raise ConnectionRefusedError(f"nobody listens as {called}")
        there = self.contexts[called].copy()
        return self._connected(ways, make(), there.run(self.listeners[called]))

    def _connected(
        self, ways: tuple[tuple[str, str], ...], calling: asyncio.Protocol, called: asyncio.Protocol
    ) -> Any:
        out, back = Pipe(self, ways[0], called), Pipe(self, ways[1], calling)
        near, far = SimTransport(out, back, calling), SimTransport(back, out, called)
        out.ends, back.ends = (near, far), (far, near)
        self._pipes |= {out, back}
        self.contexts[ways[0][1]].copy().run(called.connection_made, far)
        calling.connection_made(near)
        return near, calling

    def forget(self, pipe: "Pipe") -> None:
        """Drop an ended direction."""
        self._pipes.discard(pipe)

    def _wake(self) -> None:
        self._released.set()
        for pipe in list(self._pipes):
            pipe.pump()


class SimNetwork:
    """The network as one worker uses it."""

    def __init__(self, net: SimNet, worker: str) -> None:
        self._net, self._worker = net, worker

    async def connect(self, make: Callable[[], asyncio.Protocol], host: str, port: int) -> Any:
        """See Network."""
        assert port == PORT
        return await self._net.connect(self._worker, make, host)

    async def listen(self, make: Callable[[], asyncio.Protocol], listener: Any) -> Callable[[], object]:
        """Listen under the worker's name, whatever the listener."""
        self._net.accept(self._worker, make)
        return partial(self._net.listeners.pop, self._worker, None)


class Pipe:
    """One direction of a connection: what is on its way, and who gets it."""

    def __init__(self, net: SimNet, way: tuple[str, str], receiver: asyncio.Protocol) -> None:
        self.way = way
        self.ends: tuple[SimTransport, SimTransport]
        """The transports of the sender and of the receiver."""
        self.bytes = 0
        self.is_read = True
        self.largest = 0  # size of the largest packet on its way
        self._net, self._receiver = net, receiver
        self._pieces: deque[tuple[float, bytes | str]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def put(self, piece: bytes | str) -> None:
        """Send a piece after all others."""
        if piece == RESET and self.is_stuck:
            self.drop()
        if isinstance(piece, bytes):
            if len(piece) > self._net.swallowed_over.get(self.way, len(piece)):
                return
            self.largest = max(self.largest, min(len(piece), PACKET_BYTES_MAX))
        due = self._loop.time() + self._net.delays_s[self.way]
        if self._pieces:
            due = max(due, self._pieces[-1][0])
        rate = self._net.bytes_per_s.get(self.way)
        if isinstance(piece, str) or rate is None:
            self._pieces.append((due, piece))
        else:
            size = PACKET_BYTES
            packets = [piece[at : at + size] for at in range(0, len(piece), size)]
            self._pieces += [(due + size * count / rate, packet) for count, packet in enumerate(packets, 1)]
        self.bytes += len(piece) if isinstance(piece, bytes) else 0
        self.pump()

    def drop(self) -> None:
        """Lose what is on its way."""
        self._pieces.clear()
        self.bytes = self.largest = 0

    def pump(self) -> None:
        """Have what is due arrive in a moment, or when it is due."""
        if self._timer is not None:
            self._timer.cancel()
        if self._pieces and self.is_read and not self._net.is_held(self.way) and not self.is_stuck:
            context = self._net.contexts[self.way[1]]
            self._timer = self._loop.call_at(self._pieces[0][0], self._arrive, context=context)

    def break_off(self, err: Exception) -> None:
        """End both directions at both ends."""
        for end in self.ends:
            end.lose(err)

    def _arrive(self) -> None:
        sender, receiver = self.ends
        if not self._pieces or not self.is_read or self._net.is_held(self.way) or self.is_stuck:
            return
        _, piece = self._pieces.popleft()
        if isinstance(piece, bytes):
            size = min(len(piece), self._net.rng.randint(1, READ_BYTES_MAX))
            if size < len(piece):
                self._pieces.appendleft((0.0, piece[size:]))
            self.bytes -= size
            self._receiver.data_received(piece[:size])
            sender.note_room()
        elif piece == RESET:
            receiver.lose(ConnectionResetError("reset by the other side"))
        elif not self._receiver.eof_received():
            receiver.close()
        if not self._pieces:
            self.largest = 0
        self.pump()

    @property
    def is_stuck(self) -> bool:
        """Whether a packet on its way is larger than what passes."""
        return self.largest > self._net.size_max.get(self.way, PACKET_BYTES_MAX)


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, out: Pipe, back: Pipe, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._out, self._back, self._protocol = out, back, protocol
        self._high = self._low = WINDOW_BYTES
        self._is_paused = self._is_closing = self._is_lost = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = WINDOW_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return max(0, self._out.bytes - WINDOW_BYTES)

    def write(self, data: Any) -> None:
        if self._is_closing or not data:
            return
        self._out.put(bytes(data))
        if not self._is_paused and self.get_write_buffer_size() > self._high:
            self._is_paused = True
            self._protocol.pause_writing()

    def note_room(self) -> None:
        """Go on writing, if there is room again."""
        if self._is_paused and not self._is_lost and self.get_write_buffer_size() <= self._low:
            self._is_paused = False
            self._protocol.resume_writing()

    def pause_reading(self) -> None:
        self._back.is_read = False

    def resume_reading(self) -> None:
        self._back.is_read = True
        self._back.pump()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Send what was written, and the end."""
        if not self._is_closing:
            self._out.put(EOF)
            self.lose(None)

    def abort(self) -> None:
        """Send a reset; what was written may be lost."""
        if not self._is_closing:
            if self._out._net.rng.random() < 0.5:
                self._out.drop()
            self._out.put(RESET)
            self.lose(None)

    def lose(self, err: Exception | None) -> None:
        """Tell the protocol, once, that the connection is over, and take nothing any more."""
        self._is_closing = True
        self._back.drop()
        self._back.is_read = False
        if err is not None:
            self._out.drop()
        if not self._is_lost:
            self._is_lost = True
            self._out._net.forget(self._back)
            context = self._out._net.contexts[self._out.way[0]]
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, err, context=context)
