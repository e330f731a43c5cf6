"""A simulated cluster whose topic is an input: commits are late, lost or refused, and answers fail."""

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from random import Random
from typing import Self

from dedupe.model.errors import RetriableError
from dedupe.model.types import LogRecord, Offset
from dedupe.storage.input_log import CommittedOffset

WAIT_S = 0.5
LATE_S = 3.0
"""How long a commit may be under way after whoever sent it has given it up."""


class SimInputs:
    """One topic of one cluster; it outlives the gateways that read it."""

    def __init__(self, rng: Random, partitions: int, *, failing: float) -> None:
        """`failing`: how likely a request fails."""
        self.rng = rng
        self.failing = failing
        self.misdelivering = self.hanging = 0.0
        """How likely an answer has records that were delivered before, or never comes."""
        self.id: str | None = "1" * 32
        self.records: list[list[LogRecord]] = [[] for _ in range(partitions)]
        self.first: list[Offset] = [0] * partitions
        self.offsets: dict[int, CommittedOffset] = {}
        self.on_commit: Callable[[int, Offset], None] = lambda _partition, _offset: None
        """Called with each offset that a gateway wants to commit."""
        self.has_died: Callable[[], bool] = lambda: False
        """Whether the process that asks was killed."""

    def reached_by(self, has_died: Callable[[], bool]) -> Self:
        """Return the same cluster as another process sees it."""
        other = copy(self)
        other.has_died = has_died
        return other

    def append(self, partition: int, value: bytes, timestamp_ms: int) -> None:
        """Add a record."""
        self.records[partition].append(LogRecord(len(self.records[partition]), timestamp_ms, b"", value, []))

    async def fail_or_wait(self) -> None:
        """Let some time pass, and fail sometimes."""
        await asyncio.sleep(self.rng.random() * 0.01)
        if self.rng.random() < self.failing:
            raise RetriableError("no answer")

    async def cluster_id(self) -> str:
        await self.fail_or_wait()
        return "sim"

    async def topic_id(self, _topic: str) -> str | None:
        await self.fail_or_wait()
        return self.id

    async def partitions_of(self, _topic: str) -> int:
        await self.fail_or_wait()
        return len(self.records)

    async def bounds(self, _topic: str, partition: int) -> tuple[Offset, Offset]:
        await self.fail_or_wait()
        return self.first[partition], len(self.records[partition])

    async def first_since(self, _topic: str, partition: int, timestamp_ms: int) -> Offset:
        await self.fail_or_wait()
        newer = (each.offset for each in self.records[partition] if each.timestamp_ms >= timestamp_ms)
        return next(newer, len(self.records[partition]))

    async def committed(self, _group: str, _topic: str) -> dict[int, CommittedOffset]:
        await self.fail_or_wait()
        return dict(self.offsets)

    async def commit(self, _group: str, _topic: str, partition: int, committed: CommittedOffset) -> None:
        if self.has_died():
            raise RetriableError("no process, no commit")
        self.on_commit(partition, committed.offset)
        is_lost, is_late = self.rng.random() < self.failing, self.rng.random() < self.failing
        if is_late:
            late_s = self.rng.random() * LATE_S
            asyncio.get_running_loop().call_later(late_s, self.offsets.__setitem__, partition, committed)
            raise RetriableError("no answer")
        await self.fail_or_wait()
        if not is_lost:  # else it is, although the answer was good
            self.offsets[partition] = committed

    def reader(self, _topic: str, partition: int, start: Offset) -> "SimInputReader":
        return SimInputReader(self, partition, start)

    def close(self) -> None:
        """Nothing is open."""


class SimInputReader:
    """Reads one partition, in responses of random lengths."""

    def __init__(self, inputs: SimInputs, partition: int, start: Offset) -> None:
        self.position = start
        self.fetch_bytes = 0
        self._inputs = inputs
        self._partition = partition

    async def poll(self, records_max: int) -> Sequence[LogRecord]:
        await self._inputs.fail_or_wait()
        count = self._inputs.rng.randint(1, min(records_max, 9))
        if self._inputs.rng.random() < self._inputs.hanging:
            await asyncio.Event().wait()
        if self.position and self._inputs.rng.random() < self._inputs.misdelivering:
            return self._inputs.records[self._partition][self.position - 1 : self.position + count]
        records = self._inputs.records[self._partition][self.position : self.position + count]
        if not records:
            await asyncio.sleep(WAIT_S)
        self.position += len(records)
        return records

    def close(self) -> None:
        """Nothing is open."""
