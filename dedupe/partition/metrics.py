"""
The metrics of one lane: outcomes of events, commits, histograms, and the ages of duplicates.

`accepted` always equals the number of events committed after `since_offset`: recovery counts an event that
was answered "unknown" if it is committed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dedupe.decide.admission import DUPLICATE, Admission, Verdicts
from dedupe.decide.committed import Committed
from dedupe.decide.evictions import Evictions
from dedupe.decide.window import Window
from dedupe.metrics import Tally
from dedupe.model.types import Entry, EventKey, Offset
from dedupe.partition.queue import Batch, QueuedSubmission
from dedupe.storage.snapshots.manifest import Manifest

LATENCY_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCH_EVENTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
AGE_S = (1, 10, 60, 600, 3_600, 21_600, 43_200, *(days * 86_400 for days in (1, 2, 3, 4, 5, 6, 7, 14, 30)))
"""Upper edges of histograms."""

MARK_MS = 1_000
MARKS_MAX = 3_600
SAMPLES_MAX = 2
"""The limit of duplicates of a batch whose age is looked up; each is counted for several."""


class Histogram:
    """Counts of values by their size."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        """`edges` are the upper edges, ascending; one more count is for values above the last edge."""
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self.counts[bisect_left(self.edges, value)] += times
        self.total += value * times

    def __add__(self, other: "Histogram") -> "Histogram":
        assert self.edges == other.edges
        both = Histogram(self.edges)
        both.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        both.total = self.total + other.total
        return both


@dataclass(slots=True)
class Proofs:
    """Duplicates whose originals were asked of the log while the lane served, by what it said."""

    proved: int = 0
    disproved: int = 0  # the index was wrong, and is rebuilt
    unknown: int = 0  # no answer


@dataclass(slots=True)
class LaneMetrics:
    """The metrics of one lane."""

    tally: Tally = field(default_factory=Tally)  # since since_offset
    earlier: Tally = field(default_factory=Tally)  # before it
    commits: int = 0
    commit_seconds: float = 0.0
    commit_s: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))  # append, commit and apply
    batch_events: Histogram = field(default_factory=lambda: Histogram(BATCH_EVENTS))
    queue_wait_s: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))  # of a batch's oldest event
    duplicate_age_s: Histogram = field(default_factory=lambda: Histogram(AGE_S))  # of their originals
    last_commit_ms: int | None = None  # log time of the newest commit of this process
    failures: int = 0
    restarts: int = 0  # after a bug
    unanswered: int = 0  # appends to which the log gave no answer
    fenced: int = 0
    rebuilds: int = 0
    begun_empty: int = 0  # without an index in a log with records: it was lost, or the standby is new
    sequence_gaps: int = 0
    sessions_fenced: int = 0  # events of client sessions: their client uses a newer epoch
    sessions_expired: int = 0  # events of client sessions that are over
    ended_sessions_evicted: int = 0  # by their clients
    other_sessions_evicted: int = 0
    restored_records: int = 0
    refused_batches: int = 0  # by the log for their records, at the first attempt
    skipped_records: int = 0  # by recovery, as an operator decided
    restore_lag: int = 0  # offsets still to replay
    proofs: Proofs = field(default_factory=Proofs)
    restored_snapshots: int = 0  # indexes that began with a snapshot
    snapshots_made: int = 0
    snapshots_failed: dict[str, int] = field(default_factory=dict)  # by reason, of making and restoring
    snapshot_bytes: int = 0  # sent
    snapshot: Manifest | None = None  # the newest that this process has made, or begun with


class LaneCounts:
    """Changes the metrics as a lane decides; the only writer of its tallies."""

    def __init__(self, metrics: LaneMetrics) -> None:
        self.since_offset: Offset | None = None
        self.ages = DuplicateAges(metrics.duplicate_age_s)
        self._metrics = metrics
        self._in_doubt: set[EventKey] = set()
        self._in_doubt_from: Offset = 0
        self._next_lane_seq = 0

    @property
    def in_doubt(self) -> int:
        """The number of events that may be committed; 0 once the lane has read its log again."""
        return len(self._in_doubt)

    def begin(self, end: Offset, next_lane_seq: int) -> None:
        """Clear the events in doubt; count from `end` on if other processes have written meanwhile."""
        self.ages.forget()
        self._in_doubt.clear()
        if self.since_offset is None or next_lane_seq != self._next_lane_seq:
            self.since_offset = end
            self._metrics.earlier += self._metrics.tally
            self._metrics.tally = Tally()
        self._next_lane_seq = next_lane_seq

    def note_taken(self, batch: Batch, now: float) -> None:
        """Count a batch that is taken to be decided, even if its commit fails; `now` is monotonic."""
        self._metrics.batch_events.observe(len(batch.events))
        self._metrics.queue_wait_s.observe(now - batch.queued_at)

    def note_commit(self, committed: Committed, evictions: Evictions, took_s: float) -> None:
        """Count new events that are committed and applied; `note_decided` follows."""
        metrics, timestamp_ms = self._metrics, committed.timestamp_ms
        self._next_lane_seq = committed.first_seq + len(committed.keys)
        metrics.commits += 1
        metrics.commit_seconds += took_s
        metrics.commit_s.observe(took_s)
        metrics.last_commit_ms = timestamp_ms
        self.ages.note_commit(committed.base, timestamp_ms)
        metrics.ended_sessions_evicted += evictions.ended
        metrics.other_sessions_evicted += len(evictions.keys) - evictions.ended

    def note_decided(self, batch: Batch, verdicts: Verdicts, window: Window) -> None:
        """Count the verdicts on a batch."""
        metrics, admissions = self._metrics, verdicts.admissions
        metrics.tally.note(admissions)
        if batch.has_sessions:
            metrics.sessions_fenced += admissions.count(Admission.FENCED)
            metrics.sessions_expired += admissions.count(Admission.EXPIRED)
        self.ages.note(admissions, verdicts.originals, window, batch.received_ms)

    def note_doubt(self, keys: Iterable[EventKey], applied_offset: Offset) -> None:
        """Remember events that may be committed from this offset on."""
        self._in_doubt, self._in_doubt_from = set(keys), applied_offset

    def note_refused(self) -> None:
        """Count a batch that the log has refused for its records, once."""
        self._metrics.refused_batches += 1

    def note_failed(self, batch: Batch, *, is_in_doubt: bool) -> None:
        """Count the events of a batch whose commit failed, and that have no outcome."""
        if is_in_doubt:
            self._metrics.tally.unknown += batch.undecided
        else:
            self._metrics.tally.refused += batch.undecided

    def note_untaken(self, queued: QueuedSubmission) -> None:
        """Count the events of a submission that were not decided."""
        self._metrics.tally.refused += len(queued.submission.events) - queued.taken

    def resolve_doubt(self, entries: Sequence[tuple[EventKey, Entry]]) -> None:
        """
        Count events that were answered "unknown" and are committed.

        A rebuild may also read older events of the same keys, from before the window.
        """
        if not self._in_doubt:
            return
        committed = {
            key for key, entry in entries if key in self._in_doubt and entry.offset >= self._in_doubt_from
        }
        self._in_doubt -= committed
        self._next_lane_seq += len(committed)
        self._metrics.tally.accepted += len(committed)
        self._metrics.tally.unknown -= len(committed)


class DuplicateAges:
    """
    Measures the age of duplicates on arrival, which shows how long ids must be remembered.

    The index has offsets, not times. Marks have the times of the last hour's records, exact to a second, and
    the window's steps those of older ones, exact to an hour; both are rounded to the older side.
    """

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._offsets: list[Offset] = []  # of commits about a second apart
        self._times_ms: list[int] = []

    def note_commit(self, base: Offset, timestamp_ms: int) -> None:
        """Remember the timestamp of an offset."""
        if not self._times_ms or timestamp_ms - self._times_ms[-1] >= MARK_MS:
            self._offsets.append(base)
            self._times_ms.append(timestamp_ms)
            if len(self._offsets) > 2 * MARKS_MAX:
                del self._offsets[:MARKS_MAX], self._times_ms[:MARKS_MAX]

    def forget(self) -> None:
        """Forget all offsets, which other records may have from now on."""
        self._offsets.clear()
        self._times_ms.clear()

    def note(
        self, admissions: Sequence[Admission], originals: Sequence[Offset], window: Window, now_ms: int
    ) -> None:
        """Count the ages of a batch's duplicates; `originals` are the offsets of their originals."""
        count = admissions.count(DUPLICATE)
        if not count:
            return
        if count < len(admissions):
            originals = [
                offset for offset, kind in zip(originals, admissions, strict=True) if kind is DUPLICATE
            ]
        every = -(-count // SAMPLES_MAX)
        for first in range(0, count, every):
            arrived_ms = self._time_of(originals[first], window)
            if arrived_ms is not None:
                self._histogram.observe(max(0, now_ms - arrived_ms) / 1000, min(every, count - first))

    def _time_of(self, offset: Offset, window: Window) -> int | None:
        mark = bisect_right(self._offsets, offset) - 1
        return self._times_ms[mark] if mark >= 0 else window.time_of(offset)
