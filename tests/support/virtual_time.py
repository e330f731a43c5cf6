"""Virtual time for simulated histories: whoever sleeps is woken at once, in order, and no test waits."""

import asyncio
import selectors
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

PROCESS: ContextVar[str] = ContextVar("process", default="")
"""The simulated process that a task or a timer belongs to, if it does to one."""

IO_WAIT_S = 0.01
"""How long to wait for sockets and threads, of which a few tests have some, where nobody sleeps."""

STEP_S = 1e-5
"""What one turn of the loop takes: those who poll would else keep those who sleep from waking."""


class VirtualSelector(selectors.DefaultSelector):
    """Passes the time that a real one would wait for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(IO_WAIT_S if timeout is None else 0)
        self.passed_s += STEP_S
        if not ready and timeout is not None:
            self.passed_s += timeout
        return ready


class Ready(deque[asyncio.Handle]):
    """What the loop runs next, without what belongs to a frozen process."""

    def __init__(self, handles: deque[asyncio.Handle], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(handles)
        self.held: dict[str, list[asyncio.Handle]] = {}
        """By process."""
        self._nothing = asyncio.Handle(lambda: None, (), loop)
        self._nothing.cancel()

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        context: Any = handle._context  # type: ignore[attr-defined] # there is no other way to stop a process
        held = self.held.get(context.get(PROCESS, ""))
        if held is None:
            return handle
        held.append(handle)
        return self._nothing


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is moved by its own sleepers."""

    def __init__(self) -> None:
        self._virtual = VirtualSelector()
        self._ready: deque[asyncio.Handle]
        super().__init__(self._virtual)
        self.listeners: dict[tuple[str, int], Callable[[Any], asyncio.Transport]] = {}
        """Simulated hosts and ports, and who accepts a protocol that connects to them."""

    def time(self) -> float:
        return self._virtual.passed_s

    def freeze(self, process: str) -> None:
        """Let nothing of a process run until `thaw`, as if it had been stopped; its timers fire then."""
        if not isinstance(self._ready, Ready):
            self._ready = Ready(self._ready, self)
        self._ready.held.setdefault(process, [])

    def thaw(self, process: str) -> None:
        """Undo `freeze`."""
        if isinstance(self._ready, Ready):
            self._ready.extend(self._ready.held.pop(process, ()))

    async def create_connection(self, protocol_factory: Any, *args: Any, **more: Any) -> Any:
        """Connect to a simulated host in memory, to others as usual."""
        if args[:2] not in self.listeners:
            return await super().create_connection(protocol_factory, *args, **more)
        protocol = protocol_factory()
        transport = self.listeners[args[:2]](protocol)
        protocol.connection_made(transport)
        return transport, protocol
