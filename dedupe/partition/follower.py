"""
Follower: keeps the index of a lane near the log's end while another worker owns the lane.

The owner replicates its commits, which costs less than reading the log. After a gap, a reconnect or a change
of owner, the follower reads the log instead, so the index remains a function of the log; recovery checks it
before it serves, like any other.
"""

import asyncio
from collections import deque

import structlog

from dedupe.decide.committed import Committed, LastRecord
from dedupe.model.errors import (
    GatewayError,
    IdentityMismatchError,
    LogCorruptError,
    RetriableError,
)
from dedupe.model.types import Offset
from dedupe.partition.context import LaneContext
from dedupe.partition.index_recovery import IndexRecovery
from dedupe.partition.partition_index import PartitionIndex
from dedupe.partition.warming import Warming
from dedupe.storage.log import PartitionLog

REPLICATED_EVENTS_MAX = 20_000
"""The limit of queued replicated events, about 2 MiB; the oldest are dropped, and read from the log."""


class Follower:
    """Follows one lane's log; nothing here fences, writes to the log or decides."""

    def __init__(self, partition_log: PartitionLog, context: LaneContext, recovery: IndexRecovery) -> None:
        """Use the recovery of the lane, which continues with the same index."""
        self.is_caught_up = False
        """Whether the index has been at the end of the log, and has missed no commit after it."""
        self._log = partition_log
        self._context = context
        self._recovery = recovery
        self._replicated: deque[Committed] = deque()
        self._replicated_events = 0
        self._ahead_since: float | None = None  # when the index began to be ahead of the visible log
        self._arrived = asyncio.Event()
        self._warming = Warming(context.open_turn)
        self._logger = structlog.get_logger(__name__).bind(topic=context.topic, partition=recovery.partition)

    def receive(self, committed: Committed) -> None:
        """Queue a commit of the owner."""
        self._replicated.append(committed)
        self._replicated_events += len(committed.keys)
        while self._replicated_events > REPLICATED_EVENTS_MAX:
            self._next_replicated()
        self._arrived.set()

    async def run(self) -> None:
        """
        Follow until cancelled; the index stays open.

        Raises:
            IdentityMismatchError: final; this process must not serve this log.
        """
        times = self._context.times
        pause_s = times.backoff_s
        try:
            while True:
                try:
                    await self._follow()
                except IdentityMismatchError:
                    raise
                except LogCorruptError as err:
                    self._report(err)
                    pause_s = times.backoff_max_s
                except GatewayError as err:
                    self._report(err)
                    self._warming.end()
                    self._recovery.drop_after(err)
                    pause_s = min(2 * pause_s, times.backoff_max_s)
                else:
                    pause_s = times.backoff_s
                self.is_caught_up = False
                await asyncio.sleep(pause_s)
        finally:
            self.is_caught_up = False
            self._warming.end()
            self._replicated.clear()
            self._replicated_events = 0

    async def _follow(self) -> None:
        """Read the log to its end, then apply replicated commits; return when it must be read again."""
        async with self._context.follow_slots:
            await self._recovery.check()
            _, end = await self._log.bounds()
            self._check_visible(end)
            index = await self._recovery.replay(end, lambda _entries: None)
        self.is_caught_up = True
        self._warming.begin(index.index)
        while True:
            self._arrived.clear()
            while self._replicated:
                if not _apply(self._next_replicated(), index):
                    return
            if not await self._wait_for_update(index):
                return

    def _check_visible(self, end: Offset) -> None:
        """
        Raise RetriableError while replicated commits may still become visible in the log.

        A record is visible once all replicas have it; one that is not visible after `unseen_s` is lost.
        """
        now = self._context.clock.monotonic()
        index = self._recovery.opened
        if index is None or index.index.state.applied_offset <= end:
            self._ahead_since = None
            return
        self._ahead_since = now if self._ahead_since is None else self._ahead_since
        if now - self._ahead_since < self._context.times.unseen_s:
            raise RetriableError("replicated commits are not visible in the log yet")

    def _next_replicated(self) -> Committed:
        committed = self._replicated.popleft()
        self._replicated_events -= len(committed.keys)
        return committed

    async def _wait_for_update(self, index: PartitionIndex) -> bool:
        """Wait for a replicated commit; return False if the log has grown without one."""
        try:
            async with asyncio.timeout(self._context.times.follow_s):
                await self._arrived.wait()
        except TimeoutError:
            self._warming.begin(index.index)
            _, end = await self._log.bounds()
            return end <= index.index.state.applied_offset
        return True

    def _report(self, err: GatewayError) -> None:
        self._logger.warning("partition cannot be followed now", error=f"{type(err).__name__}: {err}")


def _apply(committed: Committed, index: PartitionIndex) -> bool:
    """Apply a replicated commit unless the index has it; return False if a commit between them is missing."""
    state = index.index.state
    if committed.first_seq + len(committed.keys) <= state.next_lane_seq:
        entries = index.index.lookup(committed.keys)
        return [entry and entry.offset for entry in entries] == [
            committed.base + i for i in range(len(committed.keys))
        ]  # else the log has lost records that this index has
    if committed.sessions and not committed.source_hashes:
        return False  # from a worker of an earlier version
    if committed.first_seq != state.next_lane_seq or committed.after != LastRecord.of(state):
        return False
    if committed.base < state.applied_offset or committed.timestamp_ms < state.newest_timestamp_ms:
        return False
    index.apply(committed)
    return True
