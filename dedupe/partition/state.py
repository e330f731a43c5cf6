"""
The states of a lane and every legal move between them. Only Lane._transition_to uses the table.

    UNASSIGNED -> FENCING -> RESTORING -> ACTIVE -> DRAINING -> UNASSIGNED <-> FOLLOWING -> FENCING
                     ^           |           |
                     |           v           v
                     +-------- FAILED <------+      (any state may fail)
                                 |
                                 v
                             UNASSIGNED             (fenced twice: another gateway owns it)
"""

from enum import Enum


class LaneState(Enum):
    """Where a lane is in its life. It serves in ACTIVE and nowhere else."""

    UNASSIGNED = "unassigned"  # not ours, or no longer
    FOLLOWING = "following"  # another worker's; the index is kept near the log's end
    FENCING = "fencing"  # becoming the only writer
    RESTORING = "restoring"  # replaying the log into the index
    ACTIVE = "active"  # serving
    DRAINING = "draining"  # finishing what was taken, refusing the rest
    FAILED = "failed"  # something is in doubt; only the log can tell


WITH_INDEX = frozenset({LaneState.FOLLOWING, LaneState.RESTORING, LaneState.ACTIVE, LaneState.DRAINING})
"""In these a lane's index may be open; in all others it is surely closed, or about to be."""

TRANSITIONS: dict[LaneState, frozenset[LaneState]] = {
    LaneState.UNASSIGNED: frozenset({LaneState.FOLLOWING, LaneState.FENCING, LaneState.FAILED}),
    LaneState.FOLLOWING: frozenset({LaneState.FENCING, LaneState.UNASSIGNED, LaneState.FAILED}),
    LaneState.FENCING: frozenset({LaneState.RESTORING, LaneState.FAILED}),
    LaneState.RESTORING: frozenset({LaneState.ACTIVE, LaneState.FAILED}),
    LaneState.ACTIVE: frozenset({LaneState.DRAINING, LaneState.FAILED}),
    LaneState.DRAINING: frozenset({LaneState.UNASSIGNED, LaneState.FAILED}),
    LaneState.FAILED: frozenset({LaneState.FENCING, LaneState.UNASSIGNED}),
}
