"""
Maintenance: compares an open index with its log at intervals, and deletes old sessions.

Commits do not wait for the request to the log.
"""

import asyncio
from collections.abc import Callable

import structlog

from dedupe.model.errors import IndexCorruptError, NotAppendedError, RetriableError
from dedupe.model.types import Offset
from dedupe.partition.context import LaneContext
from dedupe.partition.duplicate_proof import DuplicateProof
from dedupe.partition.metrics import LaneMetrics
from dedupe.partition.partition_index import PartitionIndex
from dedupe.partition.warming import Warming
from dedupe.storage.log import PartitionLog

SESSIONS_DELETED_MAX = 1_000
"""The limit of one run, which takes 5 ms."""

CONFIRM_WAIT_S = 0.25
"""The longest that a batch of duplicates waits for the log; one that does not answer is no other log."""

SILENT_ROUNDS = 2
"""So many requests in a row without an answer mean a log that stores nothing; one may be a restart."""


class Maintenance:
    """The maintenance of one lane, with one request to the log at a time while an index is open."""

    def __init__(
        self,
        partition: int,
        partition_log: PartitionLog,
        context: LaneContext,
        metrics: LaneMetrics,
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called when `run` is due."""
        self.is_due = False
        self.proof = DuplicateProof(partition, partition_log, context, metrics, self._make_due)
        self._log = partition_log
        self._context = context
        self._wake = wake
        self._index: PartitionIndex | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._warming = Warming(context.open_turn)
        self._bounds: asyncio.Task[tuple[Offset, Offset]] | None = None
        self._asked: asyncio.Task[bool] | None = None  # whether the topic is the same
        self._is_anew = False  # the topic, since the index was opened
        self._known_end: Offset = 0  # of the log when its bounds were requested
        self._reported_start: Offset = 0
        self.unanswered = 0  # requests in a row
        self._silent_since_ms: int | None = None  # log time of the first of them
        self._logger = structlog.get_logger(__name__).bind(topic=context.topic, partition=partition)

    def begin(self, index: PartitionIndex) -> None:
        """Maintain an index from now on."""
        self._index = index
        self.note_answer()
        self._report_short_window(index)
        self._schedule(self._context.times.maintenance_s)
        self._warming.begin(index.index)
        self.proof.begin(index)

    @property
    def silent_since_ms(self) -> int | None:
        """Since when the log does not answer, by log time; None while it does, as far as is known."""
        return self._silent_since_ms if self.unanswered >= SILENT_ROUNDS else None

    def note_answer(self) -> None:
        """Note that the log has answered, to whatever request."""
        self.unanswered, self._silent_since_ms = 0, None

    async def confirm_topic(self) -> None:
        """
        Ask the log whether its topic is still the one of the index.

        Waits for CONFIRM_WAIT_S, and not at all while the log is silent; a later answer makes `run` due.

        Raises:
            NotAppendedError: the topic was made anew, so the index is not its.
        """
        if self._asked is None:
            self._asked = asyncio.ensure_future(self._log.has_same_topic())
            self._asked.add_done_callback(self._on_topic)
        if not self.unanswered:
            await asyncio.wait({self._asked}, timeout=CONFIRM_WAIT_S)
            await asyncio.sleep(0)  # for `_on_topic`
        self._check_topic()

    def run(self) -> None:
        """
        Check that log and index have the whole window, and delete sessions that are too old.

        Raises:
            RetriableError: the log has lost its end, or its topic was made anew: copies of lost events are
                new.
            IndexCorruptError, IndexUnavailableError: the index must be rebuilt, or opened again.
        """
        self._check_topic()
        self.proof.check()
        index, bounds = self._index, self._bounds
        assert index is not None
        assert bounds is not None
        self.is_due, self._bounds = False, None
        log_start, end = bounds.result()
        if end < self._known_end:
            raise RetriableError(f"the log ends at {end}, and has ended at {self._known_end} before")
        self._schedule(self._context.times.maintenance_s)
        index.log_start = max(index.log_start, log_start)
        self._report_short_window(index)
        if not index.index.covers(max(index.window.start, log_start)):
            raise IndexCorruptError("the index dropped entries inside the window")
        index.expire_sessions(SESSIONS_DELETED_MAX)
        self._warming.begin(index.index)

    def end(self) -> None:
        """Drop the index and the request, whose response may be of a topic that was created anew."""
        self.is_due, self._index = False, None
        self._warming.end()
        if self._timer is not None:
            self._timer.cancel()
        if self._bounds is not None:
            self._bounds.cancel()
            self._bounds = None
        if self._asked is not None:
            self._asked.cancel()
            self._asked = None
        self._is_anew = False
        self.proof.end()

    def _make_due(self) -> None:
        self.is_due = True
        self._wake()

    def _check_topic(self) -> None:
        if self._is_anew:
            raise NotAppendedError(f"topic {self._context.topic} was deleted, and perhaps made anew")

    def _on_topic(self, asked: "asyncio.Task[bool]") -> None:
        if asked is not self._asked:
            return  # for an index that is closed
        self._asked = None
        if not asked.cancelled() and asked.exception() is None and not asked.result():
            self._is_anew = True
            self._make_due()

    def _schedule(self, pause_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._request_bounds)

    def _request_bounds(self) -> None:
        assert self._index is not None
        self._known_end = self._index.index.state.applied_offset
        self._bounds = asyncio.ensure_future(self._look())
        self._bounds.add_done_callback(self._on_bounds)

    async def _look(self) -> tuple[Offset, Offset]:
        """Return the bounds of the log. Raises RetriableError."""
        if not await self._log.has_same_topic():
            self._is_anew = True
        return await self._log.bounds()

    def _on_bounds(self, bounds: "asyncio.Task[tuple[Offset, Offset]]") -> None:
        if bounds is not self._bounds:
            return  # requested for an index that is closed
        if not bounds.cancelled() and isinstance(bounds.exception(), RetriableError):
            self._note_silence()
            self._schedule(self._context.times.maintenance_again_s)
            return
        self.note_answer()
        self._make_due()

    def _note_silence(self) -> None:
        """Count a request without an answer; the lane serves on, as the next append may succeed."""
        self.unanswered += 1
        if self._silent_since_ms is None:
            self._silent_since_ms = self._context.clock.now_ms()

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
