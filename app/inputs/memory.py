"""
Bounds what the partitions of all inputs of a process hold in memory.

One half is for responses of brokers: it is divided among the partitions that are read. The other half is for
records that are parsed and wait for verdicts: what exceeds it waits its turn.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

SIZE_BYTES = 64 * 1024 * 1024

FETCH_BYTES_MIN, FETCH_BYTES_MAX = 64 * 1024, 1024 * 1024
"""Of one response; a larger record batch comes whole."""

PARSED_FACTOR = 8
"""What a parsed event takes, by the bytes of its record."""


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

    @asynccontextmanager
    async def admitting(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait until records of so many bytes have room, in the order of the calls, and hold it."""
        size_bytes = min(size_bytes * PARSED_FACTOR, self._half_bytes)
        async with self._turn:
            while self._held_bytes + size_bytes > self._half_bytes:
                self._freed.clear()
                await self._freed.wait()
            self._held_bytes += size_bytes
        try:
            yield
        finally:
            self._held_bytes -= size_bytes
            self._freed.set()
