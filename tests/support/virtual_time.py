"""Virtual time for simulated histories: whoever sleeps is woken at once, in order, and no test waits."""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

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


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is moved by its own sleepers."""

    def __init__(self) -> None:
        self._virtual = VirtualSelector()
        super().__init__(self._virtual)
        self.listeners: dict[tuple[str, int], Callable[[Any], asyncio.Transport]] = {}
        """Simulated hosts and ports, and who accepts a protocol that connects to them."""

    def time(self) -> float:
        return self._virtual.passed_s

    async def create_connection(self, protocol_factory: Any, *args: Any, **more: Any) -> Any:
        """Connect to a simulated host in memory, to others as usual."""
        if args[:2] not in self.listeners:
            return await super().create_connection(protocol_factory, *args, **more)
        protocol = protocol_factory()
        transport = self.listeners[args[:2]](protocol)
        protocol.connection_made(transport)
        return transport, protocol
