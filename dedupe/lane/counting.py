"""
LaneCounts: what became of the events that one lane was given, counted once each.

`accepted` since `since_offset` always equals what is committed since then, whoever asked for it; so an
event that was answered "unknown" moves there when recovery finds it committed after all.
"""

from collections.abc import Iterable, Sequence

from dedupe.admission import Admission
from dedupe.lane.queue import Batch, QueuedSubmission
from dedupe.metrics import LaneMetrics, Tally
from dedupe.types import Entry, EventKey, Offset


class LaneCounts:
    """The only one to change a lane's tallies."""

    def __init__(self, metrics: LaneMetrics) -> None:
        self.since_offset: Offset | None = None
        self._metrics = metrics
        self._in_doubt: set[EventKey] = set()
        self._in_doubt_from: Offset = 0
        self._next_lane_seq = 0

    @property
    def in_doubt(self) -> int:
        """How many events may be committed or not; none once the lane has read its log again."""
        return len(self._in_doubt)

    def begin(self, end: Offset, next_lane_seq: int) -> None:
        """Forget what is in doubt, and begin anew where others have written meanwhile."""
        self._in_doubt.clear()
        if self.since_offset is None or next_lane_seq != self._next_lane_seq:
            self.since_offset = end
            self._metrics.earlier += self._metrics.tally
            self._metrics.tally = Tally()
        self._next_lane_seq = next_lane_seq

    def note_batch(self, batch: Batch, now: float) -> None:
        """A batch is taken to be decided; `now` by the monotonic clock."""
        self._metrics.batch_events.observe(len(batch.events))
        self._metrics.queue_wait_s.observe(now - batch.queued_at)

    def note_commit(self, next_lane_seq: int, timestamp_ms: int, took_s: float) -> None:
        """New events are committed, and in the index; their verdicts follow at once."""
        self._next_lane_seq = next_lane_seq
        self._metrics.commits += 1
        self._metrics.commit_seconds += took_s
        self._metrics.commit_s.observe(took_s)
        self._metrics.last_commit_ms = timestamp_ms

    def note_verdicts(self, batch: Batch, admissions: Sequence[Admission]) -> None:
        """Count what is answered."""
        self._metrics.tally.note(admissions)
        if batch.has_sessions:
            self._metrics.sessions_fenced += admissions.count(Admission.FENCED)
            self._metrics.sessions_expired += admissions.count(Admission.EXPIRED)

    def note_doubt(self, keys: Iterable[EventKey], applied_offset: Offset) -> None:
        """Events with these keys may be committed, or not, from this offset on."""
        self._in_doubt, self._in_doubt_from = set(keys), applied_offset

    def note_unknown(self, batch: Batch) -> None:
        """Nobody knows what became of a batch."""
        self._metrics.tally.unknown += len(batch.events)

    def note_untaken(self, queued: QueuedSubmission) -> None:
        """Count the events of a submission that is answered before they were decided."""
        self._metrics.tally.refused += len(queued.submission.events) - queued.taken

    def resolve_doubt(self, entries: Sequence[tuple[EventKey, Entry]]) -> None:
        """
        Count events that were answered "unknown" and are committed after all.

        A rebuild meets copies of them, too, that are older than the window.
        """
        if not self._in_doubt:
            return
        found = {
            key for key, entry in entries if key in self._in_doubt and entry.offset >= self._in_doubt_from
        }
        self._in_doubt -= found
        self._next_lane_seq += len(found)
        self._metrics.tally.accepted += len(found)
        self._metrics.tally.unknown -= len(found)
