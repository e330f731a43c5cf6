"""
Maintenance: compares an open index with the bounds of its log at intervals, and deletes old sessions.

Commits do not wait for the request to the log.
"""

import asyncio
from collections.abc import Callable

import structlog

from dedupe.model.errors import IndexCorruptError, RetriableError
from dedupe.model.types import Offset
from dedupe.partition.context import LaneContext
from dedupe.partition.partition_index import PartitionIndex
from dedupe.storage.log import PartitionLog

SESSIONS_DELETED_MAX = 1_000
"""The limit of one run, which takes 5 ms."""


class Maintenance:
    """The maintenance of one lane, with one request to the log at a time while an index is open."""

    def __init__(
        self, partition: int, partition_log: PartitionLog, context: LaneContext, wake: Callable[[], None]
    ) -> None:
        """`wake` is called when `run` is due."""
        self.is_due = False
        self._log = partition_log
        self._context = context
        self._wake = wake
        self._index: PartitionIndex | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._bounds: asyncio.Task[tuple[Offset, Offset]] | None = None
        self._known_end: Offset = 0  # of the log when its bounds were requested
        self._reported_start: Offset = 0
        self._logger = structlog.get_logger(__name__).bind(topic=context.topic, partition=partition)

    def begin(self, index: PartitionIndex) -> None:
        """Maintain an index from now on."""
        self._index = index
        self._report_short_window(index)
        self._schedule()

    def run(self) -> None:
        """
        Check that log and index have the whole window, and delete sessions that are too old.

        Raises:
            RetriableError: the log has lost its end, so copies of lost events are new.
            IndexCorruptError, IndexUnavailableError: the index must be rebuilt, or opened again.
        """
        index, bounds = self._index, self._bounds
        assert index is not None
        assert bounds is not None
        self.is_due, self._bounds = False, None
        log_start, end = bounds.result()
        if end < self._known_end:
            raise RetriableError(f"the log ends at {end}, and has ended at {self._known_end} before")
        self._schedule()
        index.log_start = max(index.log_start, log_start)
        self._report_short_window(index)
        if not index.index.covers(max(index.window.start, log_start)):
            raise IndexCorruptError("the index dropped entries inside the window")
        index.expire_sessions(SESSIONS_DELETED_MAX)

    def end(self) -> None:
        """Drop the index and the request, whose response may be of a topic that was created anew."""
        self.is_due, self._index = False, None
        if self._timer is not None:
            self._timer.cancel()
        if self._bounds is not None:
            self._bounds.cancel()
            self._bounds = None

    def _schedule(self) -> None:
        interval_s = self._context.times.maintenance_s
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._request_bounds)

    def _request_bounds(self) -> None:
        assert self._index is not None
        self._known_end = self._index.index.state.applied_offset
        self._bounds = asyncio.ensure_future(self._log.bounds())
        self._bounds.add_done_callback(self._on_bounds)

    def _on_bounds(self, bounds: "asyncio.Task[tuple[Offset, Offset]]") -> None:
        if bounds is not self._bounds:
            return  # requested for an index that is closed
        if not bounds.cancelled() and isinstance(bounds.exception(), RetriableError):
            self._schedule()  # the next append reports an outage of the log
            return
        self.is_due = True
        self._wake()

    def _report_short_window(self, index: PartitionIndex) -> None:
        """Log once for each log start that the log has deleted records inside the window."""
        window_s = index.window_seconds(self._context.clock.now_ms())
        is_short = window_s * 1000 < self._context.window_policy.window_ms
        if index.log_start > max(index.window.start, self._reported_start) and is_short:
            self._reported_start = index.log_start
            self._logger.error(
                "the log deleted events inside the window: ids are forgotten too early, check its retention",
                log_start=index.log_start,
                window_seconds=round(window_s),
            )
