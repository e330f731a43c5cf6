"""
LaneHealth: the failures of a lane, and the pause before its next recovery.

It decides when a fencing means that another gateway owns the partition.
"""

import random
from collections import deque
from datetime import UTC, datetime

from dedupe.model.clock import Clock
from dedupe.model.errors import (
    FencedError,
    IndexCorruptError,
    IndexUnavailableError,
    LogCorruptError,
    NotAppendedError,
    OutcomeUnknownError,
    RetriableError,
)
from dedupe.partition.context import LaneTimes

_CAUSES: dict[type[BaseException], str] = {
    RetriableError: "the log does not answer",
    NotAppendedError: "the log does not accept events",
    OutcomeUnknownError: "the log did not answer a commit",
    FencedError: "another gateway has fenced it",
    IndexUnavailableError: "its index cannot be opened",
    IndexCorruptError: "its index is being rebuilt",
    LogCorruptError: "an operator must check its log",
}
"""The reasons that clients receive."""


UNANSWERED_S = 60.0
UNANSWERED_KEPT = 10


def text_of(at_ms: int) -> str:
    """Return a log time as text, in UTC."""
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


class LaneHealth:
    """The failures of one lane."""

    def __init__(self, clock: Clock, times: LaneTimes, rng: random.Random) -> None:
        self._clock = clock
        self._times = times
        self._rng = rng
        self.failures = 0  # in a row
        self._fencings = 0  # in a row
        self._active_at: float | None = None
        self.cause = "it is starting"  # of the last failure, for clients
        self.last_error: str | None = None  # for operators; None while the lane serves
        self.failing_since_ms: int | None = None  # log time of the first failure since it served
        self.is_fenced = False  # by another gateway, in the last failure
        self.is_lost = False  # another gateway owns the partition
        self.failing_since: float | None = None  # as failing_since_ms, monotonic
        self.index_failing_since: float | None = (
            None  # monotonic; None unless the last failure was its index's
        )
        self._unanswered_at: deque[float] = deque(maxlen=UNANSWERED_KEPT)

    def unanswered_appends(self) -> int:
        """Return how many appends of the last UNANSWERED_S got no answer, at most UNANSWERED_KEPT."""
        since = self._clock.monotonic() - UNANSWERED_S
        return sum(at > since for at in self._unanswered_at)

    @property
    def is_failing(self) -> bool:
        """Whether the lane waits for its log or index, and is not fenced by another writer."""
        return self.failing_since_ms is not None and not self.is_lost and not self.is_fenced

    def note_active(self) -> None:
        """Note that the lane serves again."""
        self._active_at = self._clock.monotonic()
        self.last_error = self.failing_since_ms = self.failing_since = self.index_failing_since = None
        self.is_fenced = False

    def note_assigned(self) -> None:
        """Note that the group has assigned the partition to this process: earlier fencings do not count."""
        self._fencings = 0
        self.is_lost = False

    def note_commit(self) -> None:
        """Note that a commit has succeeded: the next pause is short."""
        self.failures = 0

    def note_failure(self, err: BaseException) -> None:
        """Note that the lane has stopped serving, or could not start."""
        self.last_error = f"{type(err).__name__}: {err}"
        self.is_fenced = isinstance(err, FencedError)
        self.cause = _CAUSES.get(type(err), "it is recovering from an error")
        if self.failing_since_ms is None:
            self.failing_since_ms = self._clock.now_ms()
            self.failing_since = self._clock.monotonic()
        if not isinstance(err, IndexUnavailableError | IndexCorruptError):
            self.index_failing_since = None
        elif self.index_failing_since is None:
            self.index_failing_since = self._clock.monotonic()
        if isinstance(err, OutcomeUnknownError) and err.is_unanswered:
            self._unanswered_at.append(self._clock.monotonic())

    def pause_s(self, err: BaseException) -> float:
        """Return the pause before the next recovery in seconds; sets `is_lost` if there should be none."""
        active_at, self._active_at = self._active_at, None
        served_s = 0.0 if active_at is None else self._clock.monotonic() - active_at
        if served_s >= self._times.fenced_again_s:
            self._fencings = 0
        if isinstance(err, FencedError):
            self._note_fencing()
            return self._rng.uniform(*self._times.refence_s)
        if served_s >= self._times.backoff_max_s:
            self.failures = 0
        self.failures += 1
        limit: float = min(self._times.backoff_max_s, self._times.backoff_s * 2 ** min(self.failures - 1, 16))
        return self._rng.uniform(limit / 2, limit)

    def why_not_active(self) -> str:
        """Return why the lane does not serve, for clients: no internal names or addresses."""
        if self.is_lost:
            return "is served by another gateway"
        if self.failing_since_ms is None:
            return "is starting"
        return f"has not been available since {text_of(self.failing_since_ms)}: {self.cause}"

    def _note_fencing(self) -> None:
        """
        Set `is_lost` if the lane was fenced again before it had served for `fenced_again_s`.

        The time of its recovery does not count.
        """
        self._fencings += 1
        self.is_lost = self._fencings > self._times.fencings_max
