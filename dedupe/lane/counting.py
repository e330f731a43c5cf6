"""
LaneCounts: what became of the events that one lane was given, counted once each.

`accepted` since `since_offset` always equals what is committed since then, whoever asked for it; so an
event that was answered "unknown" moves there when recovery finds it committed after all.
"""

from collections.abc import Collection, Sequence

from dedupe.admission import NEW, NOT_TAKEN, REJECTED, Admission
from dedupe.lane.queue import Batch, Submission
from dedupe.metrics import LaneMetrics, Tally
from dedupe.types import Entry, EventKey, Offset


class LaneCounts:
    """The only one to change a lane's tallies."""

    def __init__(self, metrics: LaneMetrics) -> None:
        self.since_offset: Offset | None = None
        self._metrics = metrics
        self._in_doubt: dict[EventKey, bool] = {}  # and whether another worker asked
        self._in_doubt_from: Offset = 0
        self._next_lane_seq = 0

    def begin(self, end: Offset, next_lane_seq: int) -> None:
        """Forget what is in doubt, and begin anew where others have written meanwhile."""
        self._in_doubt.clear()
        if self.since_offset is None or next_lane_seq != self._next_lane_seq:
            self.since_offset = end
            self._metrics.earlier += self._metrics.tally
            self._metrics.tally = Tally()
        self._next_lane_seq = next_lane_seq

    def note_commit(self, count: int, next_lane_seq: int) -> None:
        """So many new events are committed, and in the index."""
        self._next_lane_seq = next_lane_seq
        self._metrics.tally.accepted += count
        self._metrics.commits += 1

    def note_verdicts(self, batch: Batch, admissions: Sequence[Admission]) -> None:
        """Count what is answered; the new ones are counted already."""
        tally = _tally_of(batch, admissions)
        if batch.has_sessions:
            self._metrics.sessions_fenced += admissions.count(Admission.FENCED)
            self._metrics.sessions_expired += admissions.count(Admission.EXPIRED)
        mine = self._metrics.tally
        mine.duplicates += tally.duplicates
        mine.conflicts += tally.conflicts
        mine.rejected += tally.rejected
        mine.refused += tally.refused
        if batch.has_forwarded:
            start = 0
            for submission, count in batch.shares:
                if submission.is_forwarded:
                    self._metrics.forwarded += _tally_of(batch, admissions[start : start + count])
                start += count

    def note_doubt(self, batch: Batch, keys: Collection[EventKey], applied_offset: Offset) -> None:
        """Events with these keys may be committed, or not, from this offset on."""
        forwarded = {
            event.key
            for submission, _ in batch.shares
            if submission.is_forwarded
            for event in submission.events
        }
        self._in_doubt = {key: key in forwarded for key in keys}
        self._in_doubt_from = applied_offset

    def note_unknown(self, batch: Batch) -> None:
        """Nobody knows what became of a batch."""
        self._metrics.tally.unknown += len(batch.events)
        self._metrics.forwarded.unknown += sum(
            count for submission, count in batch.shares if submission.is_forwarded
        )

    def note_untaken(self, submission: Submission) -> None:
        """The rest of a submission is given back unjudged."""
        count = len(submission.events) - submission.taken
        self._metrics.tally.refused += count
        if submission.is_forwarded:
            self._metrics.forwarded.refused += count

    def resolve_doubt(self, entries: Sequence[tuple[EventKey, Entry]]) -> None:
        """
        Count events that were answered "unknown" and are committed after all.

        A rebuild meets copies of them, too, that are older than the window.
        """
        found = {
            key for key, entry in entries if key in self._in_doubt and entry.offset >= self._in_doubt_from
        }
        forwarded = sum([self._in_doubt.pop(key) for key in found])
        self._next_lane_seq += len(found)
        for tally, count in ((self._metrics.tally, len(found)), (self._metrics.forwarded, forwarded)):
            tally.accepted += count
            tally.unknown -= count


def _tally_of(batch: Batch, admissions: Sequence[Admission]) -> Tally:
    conflicts = admissions.count(Admission.CONFLICT)
    not_taken = apart = 0
    if batch.has_sessions:
        not_taken = sum([admissions.count(kind) for kind in NOT_TAKEN])
        apart = sum([admissions.count(kind) for kind in REJECTED])
    new = admissions.count(NEW)
    return Tally(
        accepted=new,
        duplicates=len(admissions) - conflicts - not_taken - apart - new,
        conflicts=conflicts,
        rejected=apart,
        refused=not_taken,
    )
