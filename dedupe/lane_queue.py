"""
The bounded queue in front of a lane: whole submissions in, batches within the limits out.

It judges nothing. A submission larger than a batch is decided in several batches and answered once.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dedupe.admission import Admission
from dedupe.clock import Deadline
from dedupe.errors import LaneSaturatedError
from dedupe.types import Event, Offset


class Outcome(NamedTuple):
    """What became of one event, and where its original is."""

    admission: Admission
    offset: Offset


@dataclass(slots=True, eq=False)
class Submission:
    """One request's events for one lane, n >= 1, and the future of its n outcomes."""

    events: Sequence[Event]
    received_ms: int
    deadline: Deadline
    answer: "asyncio.Future[list[Outcome]]"
    size_bytes: int
    taken: int = 0
    outcomes: list[Outcome] = field(default_factory=list)

    def decide(self, outcomes: Sequence[Outcome]) -> None:
        """Add the next outcomes; the answer is given once the last one is known."""
        self.outcomes += outcomes
        if len(self.outcomes) == len(self.events) and not self.answer.done():
            self.answer.set_result(self.outcomes)

    def fail(self, err: Exception) -> None:
        """Answer with an error, unless answered already."""
        if not self.answer.done():
            self.answer.set_exception(err)


@dataclass(slots=True)
class Batch:
    """What one commit decides: events of several submissions, in arrival order."""

    events: list[Event] = field(default_factory=list)
    shares: list[tuple[Submission, int]] = field(default_factory=list)
    """Whose events these are, in order: each submission and how many of its events."""

    @property
    def received_ms(self) -> int:
        """Arrival time of the batch's newest submission."""
        return max(submission.received_ms for submission, _ in self.shares)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds of a lane's queue and of one batch; app.settings documents each."""

    queue_events_max: int = 20_000
    queue_bytes_max: int = 32 * 1024 * 1024
    batch_events_max: int = 1_000
    batch_bytes_max: int = 900 * 1024


class LaneQueue:
    """First in, first out; used by one lane within one event loop."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._submissions: deque[Submission] = deque()
        self._bytes = 0
        self.events = 0

    def check_room(self, events: int, size_bytes: int) -> None:
        """Raise LaneSaturatedError (retriable, nothing was taken) if this would not fit."""
        if (
            self.events + events > self._limits.queue_events_max
            or self._bytes + size_bytes > self._limits.queue_bytes_max
        ):
            raise LaneSaturatedError(f"{self.events} events of {self._bytes} bytes are waiting")

    def put(self, submission: Submission) -> None:
        """Append one submission; `check_room` has passed."""
        self._submissions.append(submission)
        self.events += len(submission.events)
        self._bytes += submission.size_bytes

    def take_expired(self) -> Iterator[Submission]:
        """Remove and yield submissions at the head that nobody waits for and nobody has begun."""
        while self._submissions and not self._submissions[0].taken and self._submissions[0].deadline.is_over:
            yield self._remove_first()

    def take_batch(self) -> Batch:
        """Return the next events within the batch limits (at least one if any waits)."""
        batch = Batch()
        bytes_left = self._limits.batch_bytes_max
        while self._submissions and len(batch.events) < self._limits.batch_events_max:
            submission = self._submissions[0]
            room = self._limits.batch_events_max - len(batch.events)
            count = 0
            for event in submission.events[submission.taken : submission.taken + room]:
                size_bytes = event.size_bytes
                if size_bytes > bytes_left and batch.events:
                    break
                bytes_left -= size_bytes
                batch.events.append(event)
                count += 1
            if count == 0:
                break
            batch.shares.append((submission, count))
            submission.taken += count
            if submission.taken < len(submission.events):
                break
            self._remove_first()
        return batch

    def take_all(self) -> list[Submission]:
        """Remove and return everything that waits."""
        return [self._remove_first() for _ in range(len(self._submissions))]

    def _remove_first(self) -> Submission:
        submission = self._submissions.popleft()
        self.events -= len(submission.events)
        self._bytes -= submission.size_bytes
        return submission
