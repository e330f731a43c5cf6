"""
The dedupe window: from which offset on an id is remembered. Pure.

It has two bounds, time and number of keys. Both depend on timestamps and lane sequences of records, not on
the local clock, so that every worker and every rebuild has the same window. The window moves in steps,
rounded to the older side; a step is the first record of a bucket of time or of lane sequence.

Some steps before the window remain in the table: for a longer window, and for the arrival time of the newest
forgotten id.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from dedupe.model.types import Offset

TIME_STEP_MS = 3_600_000
"""The window is up to an hour longer than configured. The step does not depend on the window, so that another
window has the same steps."""

STEPS_PER_KEYS = 64
"""The bound on keys is up to 1/64 more than configured."""

PAST_STEPS_MAX = 512
"""Steps before the window's start: three weeks of hours, 12 KB on disk."""


class WindowPolicy(NamedTuple):
    """How long one lane remembers: the tighter of the two bounds."""

    window_ms: int
    keys_max: int
    time_step_ms: int = TIME_STEP_MS

    def time_bucket(self, timestamp_ms: int) -> int:
        """Return the number of a record's time step."""
        return timestamp_ms // self.time_step_ms

    def bucket(self, timestamp_ms: int, lane_seq: int) -> tuple[int, int]:
        """Return the time and sequence bucket of a record; a step begins where either changes."""
        return self.time_bucket(timestamp_ms), lane_seq // self._seq_step

    def first_kept_ms(self, newest_ms: int) -> int:
        """Return the first timestamp inside the time bound, a step's beginning."""
        return self.time_bucket(newest_ms - self.window_ms) * self.time_step_ms

    def first_kept_seq(self, newest_seq: int) -> int:
        """Return the first lane sequence inside the bound on keys, a step's beginning."""
        return max(0, newest_seq - self.keys_max + 1) // self._seq_step * self._seq_step

    @property
    def _seq_step(self) -> int:
        return max(1, self.keys_max // STEPS_PER_KEYS)


class Step(NamedTuple):
    """The first record of a bucket: everything before it is older, in time and in sequence."""

    timestamp_ms: int
    offset: Offset
    lane_seq: int


class Window:
    """The step table of one lane, and the window's start."""

    def __init__(self, policy: WindowPolicy, steps: Iterable[Step] = (), newest: Step | None = None) -> None:
        """Continue from a stored table, oldest first; its policy may have been another one."""
        self._policy = policy
        self._steps = list(steps)
        self._first = 0  # place of the window's first step
        self.start: Offset = self._steps[0].offset if self._steps else 0
        """The window's first offset: entries below it are forgotten, even if still on disk."""
        self._newest = newest
        if newest is not None:
            self._move(newest)

    @property
    def keys(self) -> int:
        """The number of records in the window."""
        if self._newest is None or not self._steps:
            return 0
        return self._newest.lane_seq - self._steps[self._first].lane_seq + 1

    def time_of(self, offset: Offset) -> int | None:
        """Return a lower bound of a record's timestamp, exact to a step; None before all steps."""
        place = bisect_right(self._steps, offset, key=attrgetter("offset")) - 1
        return self._steps[place].timestamp_ms if place >= 0 else None

    def oldest_ms(self, *, log_start: Offset) -> int | None:
        """Return when the oldest remembered id arrived, exact to a step; None without any."""
        if self._newest is None or not self._steps:
            return None
        place = bisect_left(self._steps, max(self.start, log_start), key=attrgetter("offset"))
        return (self._steps[place] if place < len(self._steps) else self._newest).timestamp_ms

    @property
    def is_whole(self) -> bool:
        """Whether the table reaches back to the window's start."""
        if self._newest is None or not self._steps:
            return False
        first_kept_seq = self._policy.first_kept_seq(self._newest.lane_seq)
        return self._first > 0 or self._steps[0].lane_seq <= first_kept_seq

    @property
    def steps(self) -> list[Step]:
        """A copy of the table, oldest first."""
        return list(self._steps)

    def seconds(self, now_ms: int, *, log_start: Offset) -> float:
        """
        Return for how many seconds back every id is remembered.

        Args:
            now_ms: log time.
            log_start: ids of records below it are forgotten.
        """
        configured_s = self._policy.window_ms / 1000
        forgotten_ms = self._newest_forgotten_ms(log_start)
        if forgotten_ms is None:
            return configured_s
        return min(configured_s, max(0, now_ms - forgotten_ms) / 1000)

    def advance(self, newest: Step, records: Iterable[Step]) -> tuple[list[Step], list[Step]]:
        """
        Add the next records of the log, and move the window.

        Args:
            newest: the last of the records.
            records: all of them, oldest first; read only if `newest` is in another bucket than the last step.

        Returns:
            The steps added and the steps dropped, to be stored with the records' entries.
        """
        self._newest = newest
        last = self._steps[-1] if self._steps else None
        bucket = self._policy.bucket(last.timestamp_ms, last.lane_seq) if last else None
        added: list[Step] = []
        if bucket != self._policy.bucket(newest.timestamp_ms, newest.lane_seq):
            for record in records:
                record_bucket = self._policy.bucket(record.timestamp_ms, record.lane_seq)
                if record_bucket != bucket:
                    bucket = record_bucket
                    added.append(record)
            self._steps += added
        self._move(newest)
        return added, self._drop_past()

    def _move(self, newest: Step) -> None:
        """
        Skip every step whose records are all outside of a bound.

        They are in the step's own hour, and before the next step in sequence.
        """
        oldest_bucket = self._policy.time_bucket(newest.timestamp_ms - self._policy.window_ms)
        oldest_seq = newest.lane_seq - self._policy.keys_max + 1
        steps, first = self._steps, self._first
        while first + 1 < len(steps) and (
            steps[first + 1].lane_seq <= oldest_seq
            or self._policy.time_bucket(steps[first].timestamp_ms) < oldest_bucket
        ):
            first += 1
        self._first = first
        self.start = steps[first].offset if steps else 0

    def _drop_past(self) -> list[Step]:
        excess = self._first - PAST_STEPS_MAX
        if excess <= 0:
            return []
        dropped, self._steps = self._steps[:excess], self._steps[excess:]
        self._first = PAST_STEPS_MAX
        return dropped

    def _newest_forgotten_ms(self, log_start: Offset) -> int | None:
        """Return an upper bound of forgotten records' timestamps; None if only the time bound applies."""
        if self._newest is None:
            return None
        start = max(self.start, log_start)
        place = bisect_left(self._steps, start, key=attrgetter("offset"))  # steps before it are forgotten
        if place == 0:
            return self._steps[0].timestamp_ms if self.keys > self._policy.keys_max else None
        forgotten = self._steps[place - 1]
        hour_end_ms = (self._policy.time_bucket(forgotten.timestamp_ms) + 1) * self._policy.time_step_ms
        next_step = self._steps[place] if place < len(self._steps) else self._newest
        return min(hour_end_ms, next_step.timestamp_ms)
