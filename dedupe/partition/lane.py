"""
Lane: decides the events of one partition, one batch strictly after another.

It serves only while its index is at the end of the log. After any error it answers all submissions with a
retriable error, and recovers from the log. docs/COMMIT.md has the seven steps of a commit.

routes.post_events -> Router.submit -> **Lane.submit** -> admit -> PartitionLog.append
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import structlog

from dedupe.cancellation import is_own_cancellation
from dedupe.decide.committed import Committed
from dedupe.decide.sessions import SessionKey, SessionState
from dedupe.model.clock import Deadline
from dedupe.model.errors import (
    FencedError,
    GatewayError,
    IdentityMismatchError,
    IndexCorruptError,
    IndexUnavailableError,
    LaneNotActiveError,
    OutcomeUnknownError,
)
from dedupe.model.types import Entry, EventKey, Offset
from dedupe.partition.committer import Committer
from dedupe.partition.context import LaneContext
from dedupe.partition.follower import Follower
from dedupe.partition.health import LaneHealth
from dedupe.partition.index_recovery import IndexRecovery
from dedupe.partition.maintenance import Maintenance
from dedupe.partition.metrics import LaneCounts, LaneMetrics
from dedupe.partition.partition_index import PartitionIndex
from dedupe.partition.queue import Batch, LaneQueue
from dedupe.partition.refusals import Refusals
from dedupe.partition.state import TRANSITIONS, WITH_INDEX, LaneState
from dedupe.partition.verifier import Verifier
from dedupe.storage.index import DedupeIndex
from dedupe.storage.log import PartitionLog
from dedupe.submission import Outcomes, Submission

PAUSE_S_MAX = 0.1
"""The longest pause after an append in which no deadline is looked at."""

Result = TypeVar("Result")


class Lane:
    """The only writer of a partition: create it, `run` it as a task, `submit` to it, `drain` it."""

    def __init__(self, partition: int, partition_log: PartitionLog, context: LaneContext) -> None:
        """Own nothing yet."""
        self.partition = partition
        self.topic = context.topic
        self.lineage = context.lineage_of(partition)
        self.state = LaneState.UNASSIGNED
        self.metrics = LaneMetrics()
        self.queue = LaneQueue(context.limits)
        self.recovery = IndexRecovery(partition, partition_log, context, self.metrics)
        self.counts = LaneCounts(self.metrics)
        self.restore_end_offset: Offset = 0
        self.has_served = False
        self.is_running = False
        self.between_batches = asyncio.Lock()
        """While it is held, no batch is committed."""
        self.health = LaneHealth(context.clock, context.times, context.rng)
        self.follower = Follower(partition_log, context, self.recovery)
        self._log = partition_log
        self.context = context
        """What all lanes of its topic share."""
        self._wake = asyncio.Event()
        self._is_draining = False
        self._maintenance = Maintenance(partition, partition_log, context, self.metrics, self._wake.set)
        self._committer = Committer(
            partition,
            partition_log,
            context,
            self.counts,
            confirm_topic=self._maintenance.confirm_topic,
            limit_batches=self.queue.limit_batches,
            prove=self._maintenance.proof.sample,
        )
        self._refusals = Refusals(f"partition {partition} of {context.topic}", self.queue, self.counts)
        self._logger = structlog.get_logger(__name__).bind(topic=context.topic, partition=partition)

    # ---- for callers

    def check_capacity(self, submission: Submission) -> None:
        """Raise LaneNotActiveError or LaneSaturatedError if `submit` would not accept this now."""
        if self.state is not LaneState.ACTIVE:
            raise self._not_active()
        self.queue.check_capacity(submission)

    def submit(self, submission: Submission) -> "asyncio.Future[Outcomes]":
        """Queue a submission of this partition; see SubmissionTarget."""
        queued = self.queue.put(submission, self.context.clock.monotonic())
        self._wake.set()
        return queued.answer

    def drain(self) -> None:
        """Refuse new events, finish the queue, then let `run` return."""
        self._is_draining = True
        if self.state is LaneState.ACTIVE:
            self._transition_to(LaneState.DRAINING)
        self._wake.set()

    def replicate_to(self, replicate: Callable[[Committed], None] | None) -> None:
        """Send each commit to the worker that follows this lane; None if none does. It must not raise."""
        self._committer.replicate = replicate

    def assign(self) -> None:
        """Allow `run` once more: the group has assigned the partition to this process."""
        self._is_draining = False
        self.health.note_assigned()

    async def follow(self) -> None:
        """
        Keep the index near the log's end until cancelled; `run` or `follow` continues with it.

        Raises:
            IdentityMismatchError: final; this process must not serve this log.
        """
        if self.state is not LaneState.FOLLOWING:
            self._transition_to(LaneState.FOLLOWING)
        await self.follower.run()

    def forget(self) -> None:
        """Close the index of a lane that neither runs nor follows."""
        self.recovery.close()
        if self.state is LaneState.FOLLOWING:
            self._transition_to(LaneState.UNASSIGNED)

    @property
    def throttled_s(self) -> float:
        """How long the log has made this lane pause, since a quota of it was used up."""
        return self._log.throttled_s

    @property
    def is_throttled(self) -> bool:
        """Whether the lane pauses now, since a quota of the log is used up."""
        return self._log.pause_after_append_s > PAUSE_S_MAX

    @property
    def log(self) -> PartitionLog:
        """The partition's log."""
        return self._log

    @property
    def appending_since(self) -> float | None:
        """Since when an append of this lane waits for the log, by the monotonic clock; None if none does."""
        return self._committer.appending_since

    @property
    def without_index_since(self) -> float | None:
        """Since when its index fails or is rebuilt, by the monotonic clock; None while it is whole."""
        rebuilding, failing = self.recovery.rebuilding_since, self.health.index_failing_since
        return failing if rebuilding is None else rebuilding

    @property
    def should_run(self) -> bool:
        """Whether `run` continues; its supervisor restarts a lane that ends although it should run."""
        return not self._is_draining and not self.health.is_lost

    async def run(self) -> None:
        """
        Recover and serve until drained, or until another gateway owns the partition.

        A cancellation that a library raises is a failure.

        Raises:
            IdentityMismatchError: final; this process must not serve this log.
        """
        self.is_running = True
        try:
            while self.should_run:
                pause_s = 0.0
                try:
                    await self._serve(await self._recover())
                except (Exception, asyncio.CancelledError) as err:
                    if is_own_cancellation(err):
                        raise
                    self._fail(err)
                    if isinstance(err, IdentityMismatchError):
                        raise
                    pause_s = self._pause_after(err)
                # After the except clause: the error's frames refer to the batch and its futures.
                await self._sleep(pause_s)
        finally:
            self.is_running = False
            await self._release()

    # ---- reading

    @property
    def is_serving(self) -> bool:
        """Whether the lane accepts events now."""
        return self.state is LaneState.ACTIVE

    @property
    def log_silent_since_ms(self) -> int | None:
        """Since when a lane that serves gets no answer of its log, by log time; None if it gets answers."""
        return self._maintenance.silent_since_ms if self.state is LaneState.ACTIVE else None

    async def wait(self, deadline: Deadline) -> bool:
        """Return False at once: no other process serves this partition, so the client retries."""
        return False

    def may_submit_again(self, err: Exception) -> bool:
        """Return False: the client submits again."""
        return False

    async def find(self, key: EventKey) -> Entry | None:
        """
        Return the entry of an event's key, None if an event of this key would be new.

        Raises LaneNotActiveError, IndexUnavailableError (retriable).
        """
        (entry,) = self._read(lambda index: index.lookup([key]))
        return entry if entry is not None and entry.offset >= self.partition_index.known_from else None

    async def session(self, key: SessionKey, *, is_ended: bool = False) -> SessionState | None:
        """See Route."""
        (state,) = self._read(lambda index: index.sessions([key]))
        if is_ended and state is not None:
            self._committer.note_ended(key, state.last_offset)
        return self.context.session_policy.visible_state(state, self.context.clock.now_ms())

    async def sessions_of(self, client_hash: bytes, count: int) -> list[tuple[SessionKey, SessionState]]:
        """Return at most `count` sessions of a client; raises as `session` does."""
        rows = self._read(lambda index: index.sessions_of(client_hash, count))
        now_ms, policy = self.context.clock.now_ms(), self.context.session_policy
        return [(key, state) for key, row in rows if (state := policy.visible_state(row, now_ms)) is not None]

    def _read(self, read: Callable[[DedupeIndex], Result]) -> Result:
        """Read for a query; the next commit rebuilds a damaged index."""
        if self.state is not LaneState.ACTIVE:
            raise self._not_active()
        try:
            return read(self.partition_index.index)
        except IndexCorruptError as err:
            raise IndexUnavailableError(f"{err}") from err

    def verifier(self, partition_log: PartitionLog) -> Verifier:
        """Return a comparison of the open index with a log. Raises LaneNotActiveError."""
        index = self.open_index
        if index is None:
            raise self._not_active()
        return Verifier(self.partition, partition_log, self.context, index)

    def disprove(self, why: str) -> None:
        """Have the index rebuilt from the log, if the lane serves with it."""
        self._maintenance.proof.disprove(why)

    @property
    def open_index(self) -> PartitionIndex | None:
        """The index, None in a state in which it may be closed."""
        return self.recovery.opened if self.state in WITH_INDEX else None

    @property
    def window_seconds(self) -> float:
        """For how long ids are remembered; the index must be open."""
        return self.partition_index.window_seconds(self.context.clock.now_ms())

    @property
    def partition_index(self) -> PartitionIndex:
        """The index, which must be open."""
        assert self.recovery.opened is not None
        return self.recovery.opened

    # ---- serving

    async def _serve(self, index: PartitionIndex) -> None:
        self._maintenance.begin(index)
        while (batch := await self._take()) is not None:
            try:
                async with self.between_batches:
                    committed = await self._committer.commit(batch, index)
            except BaseException as err:  # a cancellation, too: only this frame has the batch
                self._refusals.refuse_batch(batch, err)
                raise
            if committed is not None and self.health.failures:
                self.health.note_commit()
            if committed is not None and self._maintenance.unanswered:
                self._maintenance.note_answer()
            # A batch of duplicates has waited for nothing: a queue of them would block the event loop.
            pause_s = 0.0 if committed is None else self._log.pause_after_append_s
            if pause_s or self.queue.events:
                await asyncio.sleep(min(pause_s, PAUSE_S_MAX))
            if pause_s > PAUSE_S_MAX:
                await self._wait_for_log()

    async def _wait_for_log(self) -> None:
        """Wait until the log takes the next batch; meanwhile answer submissions whose deadline is over."""
        while (pause_s := self._log.pause_after_append_s) > PAUSE_S_MAX:
            self._refusals.refuse_expired()
            await asyncio.sleep(PAUSE_S_MAX)
        await asyncio.sleep(pause_s)

    async def _take(self) -> Batch | None:
        """Wait for the next batch; None once drained."""
        while True:
            if self._maintenance.is_due and not self._is_draining:
                self._maintenance.run()
            if self.queue.events:
                self._refusals.refuse_expired()
                if (batch := self.queue.take_batch()).events:
                    return batch
            if self._is_draining:
                return None
            self._wake.clear()
            await self._wake.wait()

    # ---- failing and recovering

    async def _recover(self) -> PartitionIndex:
        """Fence, check or rebuild the index, replay to the end, and only then serve."""
        self._transition_to(LaneState.FENCING)
        async with self.context.restore_slots:
            await self.recovery.check()
        end = self.restore_end_offset = await self._log.fence()
        if self.context.check_fence is not None:
            self.context.check_fence(self.partition, self._log)
        self._committer.reach("fenced")
        self._committer.begin()
        self._transition_to(LaneState.RESTORING)
        async with self.context.restore_slots:
            index = await self.recovery.replay(end, self.counts.resolve_doubt)
        self._committer.reach("restored")
        self.counts.begin(end, index.index.state.next_lane_seq)
        self.has_served = True
        self.health.note_active()
        self._transition_to(LaneState.ACTIVE)
        if self._is_draining:
            self._transition_to(LaneState.DRAINING)
        return index

    def _not_active(self) -> LaneNotActiveError:
        why = "is being stopped" if self._is_draining else self.health.why_not_active()
        return LaneNotActiveError(
            f"partition {self.partition} of {self.topic} {why}", detail=f"a partition {why}"
        )

    def _fail(self, err: BaseException) -> None:
        """Stop serving, answer all submissions, and log why."""
        self.health.note_failure(err)
        self.metrics.failures += 1
        self.metrics.unanswered += isinstance(err, OutcomeUnknownError) and err.is_unanswered
        if isinstance(err, GatewayError):
            self._logger.error("lane failed", error=self.health.last_error, state=self.state.value)
        else:
            self._logger.error("lane failed unexpectedly", state=self.state.value, exc_info=err)
        if self.state is not LaneState.FAILED:
            self._transition_to(LaneState.FAILED)
        self._refusals.refuse_queued()
        self._maintenance.end()
        self.context.note_failure(err)
        self.recovery.drop_after(err)

    def _pause_after(self, err: BaseException) -> float:
        """Return how many seconds to wait before the next recovery."""
        pause_s = self.health.pause_s(err)
        self.metrics.fenced += isinstance(err, FencedError)
        if self.health.is_lost:
            self._logger.error("another gateway owns this partition: it is not served until a restart")
        return pause_s

    async def _sleep(self, seconds: float) -> None:
        """Wait, at most until `drain`; asyncio.timeout would cost more CPU."""
        self._wake.clear()
        if not self.should_run:
            return
        alarm = asyncio.get_running_loop().call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            alarm.cancel()

    async def _release(self) -> None:
        """Release everything; steps without await come first, so that a cancellation skips none of them."""
        self._maintenance.end()
        self.recovery.close()
        if self.state is LaneState.ACTIVE:
            self._transition_to(LaneState.DRAINING)
        if self.state in (LaneState.FENCING, LaneState.RESTORING):
            self._transition_to(LaneState.FAILED)
        if self.state is not LaneState.UNASSIGNED:
            self._transition_to(LaneState.UNASSIGNED)
        self._refusals.refuse_queued()
        await self._log.close()

    def _transition_to(self, state: LaneState) -> None:
        assert state in TRANSITIONS[self.state], (self.state, state)
        report = self._logger.debug if state is LaneState.FAILED else self._logger.info  # its error is told
        report("lane state", old=self.state.value, new=state.value)
        self.state = state
