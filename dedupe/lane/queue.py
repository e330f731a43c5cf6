"""
The bounded queue in front of a lane: whole submissions in, batches within the limits out.

It judges nothing. A submission larger than a batch is decided in several batches and answered once.
Sources share each batch, and the room in the queue: whoever sends much waits for himself. Order
between sources is free, since copies of one event always come from the same source.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from dedupe.admission import Admission
from dedupe.clock import Deadline
from dedupe.errors import LaneSaturatedError
from dedupe.types import Event, Offset

TURN_BYTES = 64 * 1024
"""What a source may take of a batch before the next one's turn; a larger event saves up several turns."""

EVENT_COST_BYTES = 1024
"""What an event counts in its source's turn beside its size: small ones cost CPU as well."""


class Outcomes(NamedTuple):
    """What became of some events, in their order, and where their originals are."""

    admissions: list[Admission]
    offsets: list[Offset]


@dataclass(slots=True, eq=False)
class Submission:
    """One request's events for one lane, n >= 1, and the future of its n outcomes."""

    events: Sequence[Event]
    received_ms: int
    deadline: Deadline
    answer: "asyncio.Future[Outcomes]"
    size_bytes: int
    queued_at: float = 0.0  # by the monotonic clock
    taken: int = 0
    outcomes: Outcomes = field(default_factory=lambda: Outcomes([], []))

    def decide(self, admissions: Sequence[Admission], offsets: Sequence[Offset]) -> None:
        """Add the outcomes of the next events; the answer is given once the last one is known."""
        self.outcomes.admissions.extend(admissions)
        self.outcomes.offsets.extend(offsets)
        if len(self.outcomes.offsets) == len(self.events) and not self.answer.done():
            self.answer.set_result(self.outcomes)

    def fail(self, err: Exception) -> None:
        """Answer with an error, unless answered already."""
        if not self.answer.done():
            self.answer.set_exception(err)


@dataclass(slots=True)
class Batch:
    """What one commit decides: events of several submissions, those of one source in arrival order."""

    events: list[Event] = field(default_factory=list)
    shares: list[tuple[Submission, int]] = field(default_factory=list)
    """Whose events these are, in order: a submission and how many of its next events; one may come again."""
    size_bytes: int = 0

    @property
    def has_sessions(self) -> bool:
        """Whether any event has a client session: all events of a submission have, or none has."""
        return any([submission.events[0].session is not None for submission, _ in self.shares])

    @property
    def received_ms(self) -> int:
        """Arrival time of the batch's newest submission."""
        return max(submission.received_ms for submission, _ in self.shares)

    @property
    def queued_at(self) -> float:
        """When its oldest submission was queued."""
        return min([submission.queued_at for submission, _ in self.shares])


BATCH_EVENTS_MAX = 1_000
"""Of one commit: what a lane decides before its event loop has another turn."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds of a lane's queue and of one batch."""

    queue_events_max: int = 20_000
    queue_bytes_max: int = 32 * 1024 * 1024
    batch_events_max: int = BATCH_EVENTS_MAX
    batch_bytes_max: int = 900 * 1024


class _Waiting:
    """What one source has in the queue, first in, first out."""

    __slots__ = ("bytes", "credit", "events", "submissions")

    def __init__(self) -> None:
        self.submissions: deque[Submission] = deque()
        self.events = 0
        self.bytes = 0
        self.credit = TURN_BYTES  # what it may still take in this turn


class LaneQueue:
    """Sources in turn, each of them first in, first out; used by one lane within one event loop."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._sources: OrderedDict[str, _Waiting] = OrderedDict()  # none empty; whose turn it is first
        self._bytes = 0
        self.events = 0

    @property
    def size_bytes(self) -> int:
        """What waits, in bytes."""
        return self._bytes

    def check_room(self, events: int, size_bytes: int, source: str) -> None:
        """
        Raise LaneSaturatedError (retriable, nothing was taken) if this would not fit.

        A source may have no more waiting than there is room left for the others, so that one alone
        fills half of the queue; one that has nothing waiting needs no more than to fit.
        """
        events_left = self._limits.queue_events_max - self.events - events
        bytes_left = self._limits.queue_bytes_max - self._bytes - size_bytes
        waiting = self._sources.get(source)
        if waiting is not None:
            events_left -= waiting.events + events
            bytes_left -= waiting.bytes + size_bytes
        if events_left < 0 or bytes_left < 0:
            raise LaneSaturatedError(f"{self.events} events of {self._bytes} bytes are waiting")

    def put(self, submission: Submission) -> None:
        """Append one submission, all of one source; `check_room` has passed."""
        source = submission.events[0].source
        waiting = self._sources.get(source)
        if waiting is None:
            waiting = self._sources[source] = _Waiting()
        waiting.submissions.append(submission)
        self._count(waiting, submission, 1)

    def take_expired(self) -> Iterator[Submission]:
        """
        Remove and yield submissions that nobody waits for and nobody has begun.

        Looked for where they are about to be taken: each source's oldest, of as many sources as a
        batch may have.
        """
        for source in list(islice(self._sources, self._limits.batch_events_max)):
            submissions = self._sources[source].submissions
            while submissions and not submissions[0].taken and submissions[0].deadline.is_over:
                yield self._remove_first(source)

    def take_batch(self) -> Batch:
        """Return the next events within the batch limits (at least one if any waits)."""
        batch = Batch()
        while self._sources:
            source, waiting = next(iter(self._sources.items()))
            submission = waiting.submissions[0]
            is_full = self._fill(batch, submission, waiting)
            if submission.taken == len(submission.events):
                self._remove_first(source)
            elif is_full:
                break
            else:
                waiting.credit += TURN_BYTES
                self._sources.move_to_end(source)
        return batch

    def take_all(self) -> list[Submission]:
        """Remove and return everything that waits."""
        return [
            self._remove_first(source)
            for source, waiting in list(self._sources.items())
            for _ in range(len(waiting.submissions))
        ]

    def _fill(self, batch: Batch, submission: Submission, waiting: _Waiting) -> bool:
        """Move a submission's next events; true if the batch ended it, not its source's turn."""
        events, before = batch.events, len(batch.events)
        events_left = self._limits.batch_events_max - len(events)
        bytes_left = self._limits.batch_bytes_max - batch.size_bytes
        credit = waiting.credit
        count = len(submission.events)
        cost = submission.size_bytes + count * EVENT_COST_BYTES
        if (
            not submission.taken
            and count <= events_left
            and submission.size_bytes <= bytes_left
            and cost <= credit
        ):
            self._take_whole(batch, submission, waiting, cost)
            return False
        is_full = False
        for event in islice(submission.events, submission.taken, None):
            size_bytes = event.size_bytes
            is_full = events_left == 0 or (size_bytes > bytes_left and bool(events))
            cost = size_bytes + EVENT_COST_BYTES
            if is_full or credit < cost:
                break
            events.append(event)
            credit -= cost
            events_left -= 1
            bytes_left -= size_bytes
        waiting.credit = credit
        batch.size_bytes = self._limits.batch_bytes_max - bytes_left
        if count := len(events) - before:
            submission.taken += count
            batch.shares.append((submission, count))
        return is_full

    @staticmethod
    def _take_whole(batch: Batch, submission: Submission, waiting: _Waiting, cost: int) -> None:
        """Move a submission that fits, without a look at each of its events."""
        batch.events += submission.events
        batch.size_bytes += submission.size_bytes
        batch.shares.append((submission, len(submission.events)))
        submission.taken = len(submission.events)
        waiting.credit -= cost

    def _remove_first(self, source: str) -> Submission:
        waiting = self._sources[source]
        submission = waiting.submissions.popleft()
        self._count(waiting, submission, -1)
        if not waiting.submissions:
            del self._sources[source]
        return submission

    def _count(self, waiting: _Waiting, submission: Submission, sign: int) -> None:
        events, size_bytes = sign * len(submission.events), sign * submission.size_bytes
        waiting.events += events
        waiting.bytes += size_bytes
        self.events += events
        self._bytes += size_bytes
