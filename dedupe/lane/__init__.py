"""One partition's owner: its queue, states and health, how its index is restored, who keeps it running."""

from dedupe.lane.context import LaneContext, LaneTimes
from dedupe.lane.gate import IdentityGate
from dedupe.lane.lane import Lane
from dedupe.lane.queue import QueueLimits
from dedupe.lane.state import LaneState
from dedupe.lane.supervisor import LocalLanes, keep_running
from dedupe.lane.verifier import Difference, Verifier
from dedupe.submission import Outcomes

__all__ = [
    "Difference",
    "IdentityGate",
    "Lane",
    "LaneContext",
    "LaneState",
    "LaneTimes",
    "LocalLanes",
    "Outcomes",
    "QueueLimits",
    "Verifier",
    "keep_running",
]
