"""What the lanes of one stream share: configuration, collaborators, and the gate before the first serve."""

import asyncio
import random
from dataclasses import dataclass, field

from dedupe.clock import Clock
from dedupe.identity import Identity
from dedupe.index import IndexStore
from dedupe.lane_queue import QueueLimits
from dedupe.log import Crashpoint, no_crashpoint
from dedupe.window import WindowPolicy


class IdentityGate:
    """
    Keeps every lane from serving until each has checked a record of its log, or found it empty.

    With a wrong secret or a raised partition count an empty lane would look healthy, and let
    copies of another lane's events in.
    """

    def __init__(self, lanes: int) -> None:
        self._missing = set(range(lanes))
        self._open = asyncio.Event()

    def pass_lane(self, number: int) -> None:
        """Report one lane's log as checked; again is harmless."""
        self._missing.discard(number)
        if not self._missing:
            self._open.set()

    async def wait(self) -> None:
        """Wait until all lanes have passed."""
        await self._open.wait()


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """Every wait of a lane, in seconds."""

    backoff_s: float = 0.2  # first wait after a failure; doubles up to backoff_max_s
    backoff_max_s: float = 5.0  # longer would be felt as an outage after the cause is gone
    refence_s: tuple[float, float] = (1.0, 5.0)  # jittered, so that two gateways do not fence in step
    fenced_again_s: float = 60.0  # fenced twice within it: another gateway owns the partition
    transaction_timeout_s: float = 30.0  # a transaction older than this was fenced by the log itself
    housekeeping_s: float = 30.0


@dataclass(frozen=True, slots=True)
class LaneContext:
    """Everything a lane needs besides its own partition's log."""

    topic: str
    partitions: int
    log_id: str
    identity: Identity
    clock: Clock
    store: IndexStore
    policy: WindowPolicy
    gate: IdentityGate
    restore_slots: asyncio.Semaphore
    limits: QueueLimits = field(default_factory=QueueLimits)
    times: LaneTimes = field(default_factory=LaneTimes)
    dice: random.Random = field(default_factory=random.Random)
    crashpoint: Crashpoint = no_crashpoint
