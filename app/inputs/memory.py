"""
Bounds what the partitions of all inputs of a process hold in memory.

One half is for responses of brokers: it is divided among the partitions that are read. The other half is for
records that are parsed and wait for verdicts: what exceeds it waits its turn.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

SIZE_BYTES = 64 * 1024 * 1024

FETCH_BYTES_MIN, FETCH_BYTES_MAX = 64 * 1024, 1024 * 1024
"""Of one response; a larger record batch comes whole."""

PARSED_FACTOR = 8
"""What a record takes while it is parsed, by its bytes."""

DECIDED_FACTOR, DECIDED_EVENT_BYTES = 2, 1024
"""What an event takes while it is decided: its value, also within a record batch, and objects of its own."""


class Held:
    """Room for a batch, until it is released."""

    def __init__(self, memory: "InputMemory", size_bytes: int) -> None:
        self._memory = memory
        self._size_bytes = size_bytes

    def shrink(self, events: int, value_bytes: int) -> None:
        """Hold no more than events take that are parsed; `value_bytes` is the sum of their values."""
        size_bytes = DECIDED_FACTOR * value_bytes + DECIDED_EVENT_BYTES * events
        self._free(max(0, self._size_bytes - size_bytes))

    def release(self) -> None:
        """Hold nothing."""
        self._free(self._size_bytes)

    def release_after(self, task: "asyncio.Task[None]") -> None:
        """Hold nothing once a task is done, or was cancelled, even before it began."""
        task.add_done_callback(lambda _: self.release())

    def _free(self, size_bytes: int) -> None:
        self._size_bytes -= size_bytes
        self._memory.free(size_bytes)


class InputMemory:
    """The memory of all inputs."""

    def __init__(self, size_bytes: int = SIZE_BYTES) -> None:
        """`size_bytes`: of both halves."""
        self._half_bytes = size_bytes // 2
        self._readers = 0
        self._held_bytes = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Count a partition that is read."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    @property
    def fetch_bytes(self) -> int:
        """The part of one partition: what it asks a broker for at once."""
        share = self._half_bytes // max(1, self._readers)
        return min(FETCH_BYTES_MAX, max(FETCH_BYTES_MIN, share))

    @property
    def held_bytes(self) -> int:
        """What is admitted now takes."""
        return self._held_bytes

    async def hold(self, size_bytes: int) -> Held:
        """Wait until records of so many bytes have room, in the order of the calls, and hold it."""
        size_bytes = min(size_bytes * PARSED_FACTOR, self._half_bytes)
        async with self._turn:
            while self._held_bytes + size_bytes > self._half_bytes:
                self._freed.clear()
                await self._freed.wait()
            self._held_bytes += size_bytes
        return Held(self, size_bytes)

    def free(self, size_bytes: int) -> None:
        """Let others have so many bytes; for Held alone."""
        self._held_bytes -= size_bytes
        self._freed.set()
