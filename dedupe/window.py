"""
The dedupe window: from which offset on an id is remembered. Pure.

Two bounds, time and number of keys, both read off the log alone (its record timestamps and lane
sequence numbers), never off the local clock or disk: so every worker, and every rebuild, reaches
the same verdict. The window moves in coarse steps, rounded to the older side; a step is the first
record of each bucket of time or of lane sequence.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from dedupe.types import Offset

STEPS_PER_WINDOW = 64
"""The window is exact to 1/64 (2.6 h of 7 days), always longer than asked for. More steps cost
bytes in the index, fewer make it remember longer than configured."""


class WindowPolicy(NamedTuple):
    """How long one lane remembers: the tighter of the two bounds."""

    window_ms: int
    keys_max: int

    def bucket(self, timestamp_ms: int, lane_seq: int) -> tuple[int, int]:
        """Return the time and sequence bucket of a record; a step begins where either changes."""
        time_step = max(1, self.window_ms // STEPS_PER_WINDOW)
        seq_step = max(1, self.keys_max // STEPS_PER_WINDOW)
        return timestamp_ms // time_step, lane_seq // seq_step


class Step(NamedTuple):
    """The first record of a bucket: everything before it is older, in time and in sequence."""

    timestamp_ms: int
    offset: Offset
    lane_seq: int


class Window:
    """The step table of one lane and the window start that follows from it."""

    def __init__(self, policy: WindowPolicy, steps: Iterable[Step] = ()) -> None:
        self._policy = policy
        self._steps = list(steps)

    @property
    def start(self) -> Offset:
        """The window's first offset: an entry below it is forgotten, even if still on disk."""
        return self._steps[0].offset if self._steps else 0

    @property
    def steps(self) -> list[Step]:
        """A copy of the table, oldest first; the first one is the window's start."""
        return list(self._steps)

    def seconds(self, newest_timestamp_ms: int) -> float:
        """How far back ids are remembered now: the configured time, or less where keys bind."""
        if not self._steps or self._steps[0].lane_seq == 0:
            return self._policy.window_ms / 1000
        reach_ms = max(0, newest_timestamp_ms - self._steps[0].timestamp_ms)
        return min(self._policy.window_ms, reach_ms) / 1000

    def advance(self, newest: Step, records: Callable[[], Iterable[Step]]) -> tuple[list[Step], list[Step]]:
        """
        Take in the next records of the log and move the window.

        Args:
            newest: the last of the records. Timestamps and sequences never decrease, so if it lies
                in the current bucket they all do.
            records: all of them, oldest first; called only when a bucket begins among them.

        Returns:
            The steps added and the steps dropped, to be stored with the records' entries.
        """
        last = self._steps[-1] if self._steps else None
        bucket = self._policy.bucket(last.timestamp_ms, last.lane_seq) if last else None
        if bucket == self._policy.bucket(newest.timestamp_ms, newest.lane_seq):
            return [], self._drop_before(newest)
        added: list[Step] = []
        for record in records():
            record_bucket = self._policy.bucket(record.timestamp_ms, record.lane_seq)
            if record_bucket != bucket:
                bucket = record_bucket
                added.append(record)
        self._steps += added
        return added, self._drop_before(newest)

    def _drop_before(self, newest: Step) -> list[Step]:
        """Drop every step whose successor still lies before a cutoff, so that no cutoff is passed."""
        oldest_ms = newest.timestamp_ms - self._policy.window_ms
        oldest_seq = newest.lane_seq - self._policy.keys_max + 1
        kept_from = 0
        while kept_from + 1 < len(self._steps):
            successor = self._steps[kept_from + 1]
            if successor.timestamp_ms >= oldest_ms and successor.lane_seq > oldest_seq:
                break
            kept_from += 1
        dropped, self._steps = self._steps[:kept_from], self._steps[kept_from:]
        return dropped
