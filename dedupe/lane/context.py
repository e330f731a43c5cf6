"""What the lanes of one stream share: configuration, collaborators, and the gate before the first serve."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from dedupe.clock import Clock
from dedupe.identity import Identity
from dedupe.index import IndexStore
from dedupe.lane.queue import QueueLimits
from dedupe.log import Crashpoint, no_crashpoint
from dedupe.notes import Skips
from dedupe.pinning import SessionNotes
from dedupe.sessions import SessionPolicy
from dedupe.window import WindowPolicy

Pin: TypeAlias = Callable[[], Awaitable[None]]
"""Notes with the log which rules it follows. Raises RetriableError."""

LoadSkips: TypeAlias = Callable[[int], Awaitable[Skips]]
"""Asks the log where records of a partition may be passed over. Raises RetriableError."""


PROOF_RECORDS = 64
"""Records that prove a log's secret and partition count: each of another count passes at best every
second time, so the chance that none of so many tells is 1 in 2**64."""


async def no_skips(_partition: int) -> Skips:
    """What a log says of which no operator has said anything."""
    return Skips()


class IdentityGate:
    """
    Keeps every lane from serving until each has checked records of its log, or found it empty.

    With a wrong secret or a raised partition count an empty lane would look healthy, and let
    copies of another lane's events in. Once all have passed, the log is pinned: the gate of the next
    process is open from the start, and no lane waits for another any more. Lanes that cannot read
    their records are waited for so long only, if the others have proved enough.
    """

    def __init__(self, lanes: int, pin: Pin | None = None) -> None:
        """
        Close the gate for so many lanes; without `pin` it is open, for the log is pinned already.

        `pin` is called when the last lane has passed. It may raise, and is called again then.
        """
        self._missing = set(range(lanes)) if pin else set()
        self._pin = pin
        self._proved = 0
        self._open = asyncio.Event()
        if pin is None:
            self._open.set()

    @property
    def is_open(self) -> bool:
        """Whether this log is known to be of our secret and partition count."""
        return self._open.is_set()

    async def pass_lane(self, number: int, *, proved: int) -> None:
        """
        Report one lane's log as checked; again is harmless. Raises what `pin` raises.

        Args:
            number: the lane's.
            proved: how many records proved it, 0 if it is empty.
        """
        if number in self._missing:
            self._missing.discard(number)
            self._proved += proved
        if self._pin is not None and not self._missing:
            await self._pin()
            self._pin = None
            self._open.set()

    async def wait(self, limit_s: float) -> None:
        """Wait until all lanes have passed, or for the last ones so long only."""
        while not self.is_open:
            try:
                async with asyncio.timeout(limit_s):
                    await self._open.wait()
            except TimeoutError:
                if self._proved >= PROOF_RECORDS:
                    self._open.set()


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """Every wait of a lane, in seconds."""

    backoff_s: float = 0.2  # first wait after a failure; doubles up to backoff_max_s
    backoff_max_s: float = 5.0  # longer would be felt as an outage after the cause is gone
    refence_s: tuple[float, float] = (1.0, 5.0)  # jittered, so that two gateways do not fence in step
    fenced_again_s: float = 60.0  # fenced twice within it: another gateway owns the partition
    unseen_s: float = 30.0  # what was committed and is not to be read after it is lost
    housekeeping_s: float = 30.0
    follow_s: float = 5.0  # a follower that hears nothing so long asks the log
    fencings_max: int = 1  # more in a row mean another gateway; 0 in a group, which says who owns a partition
    gate_s: float = 60.0  # how long lanes that have proved their log wait for those that cannot read theirs


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
    sessions: SessionPolicy
    gate: IdentityGate
    restore_slots: asyncio.Semaphore
    open_turn: asyncio.Lock  # of all lanes: opening an index holds the loop, and two must not follow at once
    session_notes: SessionNotes
    load_skips: LoadSkips = no_skips
    follow_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Of lanes that follow: however long they read, no lane that shall serve waits for them."""
    limits: QueueLimits = field(default_factory=QueueLimits)
    times: LaneTimes = field(default_factory=LaneTimes)
    dice: random.Random = field(default_factory=random.Random)
    crashpoint: Crashpoint = no_crashpoint
