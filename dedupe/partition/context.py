"""The configuration and collaborators that all lanes of one topic share."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from dedupe.decide.layout import Layout
from dedupe.decide.lineage import Lineage
from dedupe.decide.recovery import RecordCheck
from dedupe.decide.sessions import SessionPolicy
from dedupe.decide.window import WindowPolicy
from dedupe.model.clock import Clock
from dedupe.model.errors import NotAppendedError, OutcomeUnknownError
from dedupe.model.identity import Identity
from dedupe.partition.queue import QueueLimits
from dedupe.storage.index import IndexIdentity, IndexStore
from dedupe.storage.log import Crashpoint, PartitionLog
from dedupe.storage.notes import Skips
from dedupe.storage.pinning import SessionNotes

LoadSkips: TypeAlias = Callable[[int], Awaitable[Skips]]
"""Reads from the log which records of a partition recovery skips. Raises RetriableError."""


CheckFence: TypeAlias = Callable[[int, PartitionLog], None]
"""Raises IdentityMismatchError if owners of a partition have decided what this process does not know."""


async def no_skips(_partition: int) -> Skips:
    """Skip no record."""
    return Skips()


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """Every wait of a lane, in seconds."""

    backoff_s: float = 0.2  # first wait after a failure; doubles up to backoff_max_s
    backoff_max_s: float = 5.0  # a longer one would prolong an outage after its cause has ended
    refence_s: tuple[float, float] = (1.0, 5.0)  # jittered, so that two gateways do not fence in step
    fenced_again_s: float = 60.0  # fenced twice within it: another gateway owns the partition
    unseen_s: float = 30.0  # replicated commits that are not visible in the log after it are lost
    maintenance_s: float = 30.0
    maintenance_again_s: float = 5.0  # after a request without an answer
    follow_s: float = 5.0  # a follower without a replicated commit for this long reads the log
    fencings_max: int = 1  # more in a row mean another gateway; 0 in a group, which assigns partitions


@dataclass(frozen=True, slots=True)
class LaneContext:
    """Everything a lane needs besides its own partition's log."""

    topic: str
    partitions: int  # that the topic began with
    log_id: str
    identity: Identity
    clock: Clock
    store: IndexStore
    window_policy: WindowPolicy
    session_policy: SessionPolicy
    restore_slots: asyncio.Semaphore
    open_turn: asyncio.Lock  # opening an index, or a step of its warming, blocks the event loop: one by one
    session_notes: SessionNotes
    limits: QueueLimits
    layout: Layout | None = None
    """How the topic was divided since; None: never."""
    check_fence: CheckFence | None = None
    """Called after each fence; None: nothing is decided beside these partitions."""
    load_skips: LoadSkips = no_skips
    on_log_time_refused: Callable[[], None] = lambda: None
    """Called after the log has refused a record for its log time."""
    on_settings_doubted: Callable[[], None] = lambda: None
    """Called after the log has refused records, or left a commit in doubt: its settings may have changed."""
    follow_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Limits lanes that follow and read the log; lanes that will serve do not wait for them."""
    times: LaneTimes = field(default_factory=LaneTimes)
    rng: random.Random = field(default_factory=random.Random)
    crashpoint: Crashpoint | None = None  # tests end the process in it

    def index_of(self, partition: int) -> IndexIdentity:
        """Return which index a partition has."""
        return IndexIdentity(
            log_id=self.log_id,
            topic=self.topic,
            partition=partition,
            partitions=self.partitions,
            key_check=self.identity.check_value,
            plan=0 if self.layout is None else self.layout.index_plan_of(partition),
            lineage="" if self.layout is None else self.layout.index_digest_of(partition),
        )

    def record_check_of(self, partition: int) -> RecordCheck:
        """Return the check of the records of a partition's lane."""
        return RecordCheck(self.identity, partition, self.partitions, self.layout)

    def lineage_of(self, partition: int) -> Lineage | None:
        """Return from which logs the index of a partition follows; None: from its own alone."""
        return None if self.layout is None else self.layout.lineage_of(partition)

    def note_failure(self, err: BaseException) -> None:
        """Tell of a failure that the settings of the log or a clock may have caused."""
        if isinstance(err, NotAppendedError | OutcomeUnknownError):
            self.on_settings_doubted()
        if isinstance(err, NotAppendedError) and err.is_log_time_refused:
            self.on_log_time_refused()
