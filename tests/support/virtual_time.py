"""Virtual time for simulated histories: whoever sleeps is woken at once, in order, and no test waits."""

import asyncio
import selectors

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

    def time(self) -> float:
        return self._virtual.passed_s
