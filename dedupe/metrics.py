"""
What lanes and router count. Plain integers on the hot path; app.admin.application renders them.

Each event ends in exactly one of accepted, duplicates, conflicts, rejected, unknown or refused. The router
counts what clients were answered, once for each event they sent, by the worker that answered. A lane
counts what it decided, whichever worker asked: if recovery finds an event of unknown outcome committed
after all, it moves to `accepted` there, so accepted since `since_offset` always equals committed since then.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dedupe.admission import NEW, NOT_TAKEN, REJECTED, Admission


@dataclass(slots=True)
class Tally:
    """Verdicts on events, counted once each."""

    accepted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    rejected: int = 0
    unknown: int = 0
    refused: int = 0

    @property
    def received(self) -> int:
        """How many events have found their verdict."""
        return self.accepted + self.duplicates + self.conflicts + self.rejected + self.unknown + self.refused

    def note(self, admissions: Sequence[Admission]) -> None:
        """Count what a client is answered."""
        new = admissions.count(NEW)
        self.accepted += new
        if new == len(admissions):
            return
        conflicts = admissions.count(Admission.CONFLICT)
        refused = sum([admissions.count(kind) for kind in NOT_TAKEN])
        rejected = sum([admissions.count(kind) for kind in REJECTED])
        self.conflicts += conflicts
        self.refused += refused
        self.rejected += rejected
        self.duplicates += len(admissions) - new - conflicts - refused - rejected

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(slots=True)
class LaneMetrics:
    """What one lane counts besides verdicts."""

    tally: Tally = field(default_factory=Tally)  # since since_offset
    earlier: Tally = field(default_factory=Tally)  # before it
    commits: int = 0
    commit_seconds: float = 0.0
    failures: int = 0
    restarts: int = 0  # of a lane that ended by itself, which is a bug
    fenced: int = 0
    rebuilds: int = 0
    sequence_gaps: int = 0
    sessions_fenced: int = 0  # events of client sessions: their client uses a newer epoch
    sessions_expired: int = 0  # events of client sessions that nobody remembers well enough
    restored_records: int = 0
    skipped_records: int = 0  # passed over while restoring, as an operator decided
    restore_lag: int = 0  # offsets still to replay
