"""
The bounded queue of a lane: it accepts submissions, and returns batches.

Sources share batches and the queue's capacity by deficit round robin; the submissions of one source are first
in, first out. A submission larger than a batch is decided in several batches, and answered once. Copies of an
event have the same source, so the order between sources does not matter.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from dedupe.decide.admission import Admission
from dedupe.model.errors import LaneSaturatedError
from dedupe.model.types import Event, Offset, size_of
from dedupe.submission import Outcomes, Submission

QUANTUM_BYTES = 64 * 1024
"""A source's share of a batch in one round; a larger event needs the quanta of several rounds."""

EVENT_COST_BYTES = 1024
"""The cost of an event besides its size, for the CPU."""


class QueuedSubmission:
    """A submission in a lane's queue, and the future of its outcomes."""

    __slots__ = ("admissions", "answer", "offsets", "queued_at", "submission", "taken")

    def __init__(self, submission: Submission, queued_at: float) -> None:
        self.submission = submission
        self.queued_at = queued_at  # by the monotonic clock
        self.answer: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
        self.taken = 0  # its events that are in batches
        self.admissions: list[Admission] = []
        self.offsets: list[Offset] = []

    def decide(self, admissions: Sequence[Admission], offsets: Sequence[Offset]) -> None:
        """Add the outcomes of the next events; answer after the last one."""
        self.admissions.extend(admissions)
        self.offsets.extend(offsets)
        if len(self.offsets) == len(self.submission.events) and not self.answer.done():
            self.answer.set_result(Outcomes(self.admissions, self.offsets))

    def fail(self, err: Exception) -> None:
        """Answer with an error, unless it is answered."""
        if not self.answer.done():
            self.answer.set_exception(err)


@dataclass(slots=True)
class Batch:
    """The events of one commit, those of one source in arrival order."""

    events: list[Event] = field(default_factory=list)
    shares: list[tuple[QueuedSubmission, int]] = field(default_factory=list)
    """The submissions of these events in order, each with a number of events; one may occur repeatedly."""
    size_bytes: int = 0
    has_sessions: bool = False  # all events of a submission have a client session, or none
    received_ms: int = 0  # of the newest submission
    queued_at: float = float("inf")  # of the oldest submission

    def add(self, queued: QueuedSubmission, count: int) -> None:
        """Note that the last `count` events of `events` are of this submission."""
        submission = queued.submission
        queued.taken += count
        self.shares.append((queued, count))
        self.has_sessions = self.has_sessions or submission.events[0].session is not None
        self.received_ms = max(self.received_ms, submission.received_ms)
        self.queued_at = min(self.queued_at, queued.queued_at)

    @property
    def undecided(self) -> int:
        """The number of its events without an outcome; the lane has taken no later batch."""
        taken = {id(queued): queued.taken - len(queued.offsets) for queued, _ in self.shares}
        return sum(taken.values())

    def halves(self) -> "tuple[Batch, Batch]":
        """Return its events as two batches, in order; it has at least two."""
        middle = left = len(self.events) // 2
        first, second = replace(self, shares=[]), replace(self, shares=[])
        first.events, second.events = self.events[:middle], self.events[middle:]
        for queued, count in self.shares:
            own = min(count, left)
            left -= own
            first.shares += [(queued, own)] if own else []
            second.shares += [(queued, count - own)] if count > own else []
        for half in (first, second):
            half.size_bytes = size_of(half.events)
        return first, second


BATCH_EVENTS_MAX = 1_000
"""The limit of one commit, which blocks the event loop."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds of a lane's queue and of one batch."""

    queue_events_max: int
    queue_bytes_max: int
    batch_bytes_max: int
    batch_events_max: int = BATCH_EVENTS_MAX


class _SourceQueue:
    """The submissions of one source, first in, first out."""

    __slots__ = ("bytes", "credit", "events", "submissions")

    def __init__(self) -> None:
        self.submissions: deque[QueuedSubmission] = deque()
        self.events = 0
        self.bytes = 0
        self.credit = QUANTUM_BYTES  # the rest of the source's share in this round


class LaneQueue:
    """The submissions of all sources; used by one lane within one event loop."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._batch_bytes_max = limits.batch_bytes_max
        self._sources: OrderedDict[str, _SourceQueue] = OrderedDict()  # none empty, the next one first
        self.events = 0
        self.size_bytes = 0

    def limit_batches(self, size_bytes: int) -> None:
        """Make batches of at most so many bytes from now on, and of no more than the limits say."""
        self._batch_bytes_max = min(size_bytes, self._limits.batch_bytes_max)

    def allow_batches(self, size_bytes: int) -> None:
        """Make batches as large as the log is known to take; 0: that is not known, but may be all."""
        self._batch_bytes_max = self._limits.batch_bytes_max
        if size_bytes:
            self.limit_batches(size_bytes)

    @property
    def batch_bytes_max(self) -> int:
        """The limit of a batch of several events, in bytes."""
        return self._batch_bytes_max

    def check_capacity(self, submission: Submission) -> None:
        """
        Raise LaneSaturatedError (retriable, nothing was accepted) if this submission does not fit.

        A source that has events in the queue must leave as much free as it has, so that one source fills at
        most half of the queue. An empty queue has room for a submission of any size in bytes: it would be
        refused for ever.
        """
        events, size_bytes = len(submission.events), submission.size_bytes
        events_left = self._limits.queue_events_max - self.events - events
        bytes_left = self._limits.queue_bytes_max - self.size_bytes - size_bytes if self.events else 0
        own = self._sources.get(submission.events[0].source)
        if own is not None:
            events_left -= own.events + events
            bytes_left -= own.bytes + size_bytes
        if events_left < 0 or bytes_left < 0:
            raise LaneSaturatedError(f"{self.events} events of {self.size_bytes} bytes are queued")

    def put(self, submission: Submission, now: float) -> QueuedSubmission:
        """Append a submission; `check_capacity` has passed. `now` is by the monotonic clock."""
        source = submission.events[0].source
        own = self._sources.get(source)
        if own is None:
            own = self._sources[source] = _SourceQueue()
        queued = QueuedSubmission(submission, now)
        own.submissions.append(queued)
        self._count(own, submission, 1)
        return queued

    def take_expired(self) -> Iterator[QueuedSubmission]:
        """
        Remove and yield submissions whose deadline is over, and of which no event is in a batch.

        Checks the oldest submissions of the next `batch_events_max` sources.
        """
        for source in list(islice(self._sources, self._limits.batch_events_max)):
            submissions = self._sources[source].submissions
            while submissions and not submissions[0].taken and submissions[0].submission.deadline.is_over:
                yield self._remove_first(source)

    def take_batch(self) -> Batch:
        """Return the next events within the batch limits, at least one if any is queued."""
        batch = Batch()
        while self._sources:
            source, own = next(iter(self._sources.items()))
            queued = own.submissions[0]
            is_full = self._fill(batch, queued, own)
            if queued.taken == len(queued.submission.events):
                self._remove_first(source)
            elif is_full:
                break
            else:
                own.credit += QUANTUM_BYTES
                self._sources.move_to_end(source)
        return batch

    def take_all(self) -> list[QueuedSubmission]:
        """Remove and return all submissions."""
        return [
            self._remove_first(source)
            for source, own in list(self._sources.items())
            for _ in range(len(own.submissions))
        ]

    def _fill(self, batch: Batch, queued: QueuedSubmission, own: _SourceQueue) -> bool:
        """Move the next events of a submission; return whether the batch, not the round, has ended it."""
        submission, before = queued.submission, len(batch.events)
        events_left = self._limits.batch_events_max - before
        bytes_left = self._batch_bytes_max - batch.size_bytes
        count, size_bytes = len(submission.events), submission.size_bytes
        cost = size_bytes + count * EVENT_COST_BYTES
        is_alone = len(self._sources) == 1  # its rounds would follow one another
        has_turn = is_alone or cost <= own.credit
        if not queued.taken and count <= events_left and size_bytes <= bytes_left and has_turn:
            batch.events += submission.events
            batch.size_bytes += size_bytes
            batch.add(queued, count)
            own.credit -= 0 if is_alone else cost
            return False
        is_full, credit = False, own.credit
        for event in islice(submission.events, queued.taken, None):
            size_bytes = event.size_bytes
            is_full = events_left == 0 or (size_bytes > bytes_left and bool(batch.events))
            cost = size_bytes + EVENT_COST_BYTES
            if is_full or credit < cost:
                break
            batch.events.append(event)
            credit -= cost
            events_left -= 1
            bytes_left -= size_bytes
        own.credit = credit
        batch.size_bytes = self._batch_bytes_max - bytes_left
        if count := len(batch.events) - before:
            batch.add(queued, count)
        return is_full

    def _remove_first(self, source: str) -> QueuedSubmission:
        own = self._sources[source]
        queued = own.submissions.popleft()
        self._count(own, queued.submission, -1)
        if not own.submissions:
            del self._sources[source]
        return queued

    def _count(self, own: _SourceQueue, submission: Submission, sign: int) -> None:
        events, size_bytes = sign * len(submission.events), sign * submission.size_bytes
        own.events += events
        own.bytes += size_bytes
        self.events += events
        self.size_bytes += size_bytes
