"""
The states of a lane and their transitions. Only Lane._transition_to uses the table.

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
    """The state of a lane. It serves only in ACTIVE."""

    UNASSIGNED = "unassigned"  # this process does not run it
    FOLLOWING = "following"  # another worker's; the index is kept near the log's end
    FENCING = "fencing"  # becoming the only writer
    RESTORING = "restoring"  # replaying the log into the index
    ACTIVE = "active"  # serving
    DRAINING = "draining"  # finishing the queue, refusing new events
    FAILED = "failed"  # waiting for the next recovery


WITH_INDEX = frozenset({LaneState.FOLLOWING, LaneState.RESTORING, LaneState.ACTIVE, LaneState.DRAINING})
"""The states in which a lane's index may be open."""

TRANSITIONS: dict[LaneState, frozenset[LaneState]] = {
    LaneState.UNASSIGNED: frozenset({LaneState.FOLLOWING, LaneState.FENCING, LaneState.FAILED}),
    LaneState.FOLLOWING: frozenset({LaneState.FENCING, LaneState.UNASSIGNED, LaneState.FAILED}),
    LaneState.FENCING: frozenset({LaneState.RESTORING, LaneState.FAILED}),
    LaneState.RESTORING: frozenset({LaneState.ACTIVE, LaneState.FAILED}),
    LaneState.ACTIVE: frozenset({LaneState.DRAINING, LaneState.FAILED}),
    LaneState.DRAINING: frozenset({LaneState.UNASSIGNED, LaneState.FAILED}),
    LaneState.FAILED: frozenset({LaneState.FENCING, LaneState.UNASSIGNED}),
}
