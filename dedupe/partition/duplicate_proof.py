"""
DuplicateProof: reads the originals of some duplicates from the log while the lane serves.

Commits do not wait for it. What the log does not answer proves nothing; a record that is not the original
disproves the index, which is then rebuilt from the log before the lane serves again.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from dedupe.decide.admission import DUPLICATE, Verdicts
from dedupe.decide.proof import Sample, sample_of, why_disproved
from dedupe.model.errors import GatewayError, IndexDisprovedError, LogCorruptError, RetriableError
from dedupe.model.types import Event
from dedupe.partition.context import LaneContext
from dedupe.partition.metrics import LaneMetrics
from dedupe.partition.partition_index import PartitionIndex
from dedupe.storage.log import PartitionLog

EVERY_S = 1.0
"""The shortest time between two proofs of a lane."""

EVERY = 250
"""Duplicates between two proofs: a proof costs as much as a few of them."""

OVERDUE_S = 10.0
"""After this time the next duplicate is proved, however few there were."""

UNANSWERED_S = 5.0
"""The pause after a proof without an answer: a log in trouble is left alone."""

LIMIT_S = 10.0
"""The time limit of a proof."""


class DuplicateProof:
    """The proofs of one lane, one at a time while an index is open."""

    def __init__(
        self,
        partition: int,
        partition_log: PartitionLog,
        context: LaneContext,
        metrics: LaneMetrics,
        on_disproved: Callable[[], None],
    ) -> None:
        """`on_disproved` is called when `check` begins to raise."""
        self._log = partition_log
        self._context = context
        self._identity = context.index_of(partition)
        self._metrics = metrics
        self._on_disproved = on_disproved
        self._check = context.record_check_of(partition)
        self._index: PartitionIndex | None = None
        self._running: asyncio.Task[None] | None = None
        self._due_at = self._overdue_at = 0.0  # by the loop's clock
        self._duplicates = 0  # when the last proof began
        self._logger = structlog.get_logger(__name__).bind(topic=context.topic, partition=partition)

    def begin(self, index: PartitionIndex) -> None:
        """Prove duplicates of an index from now on."""
        self._index = index
        if index.disproved is not None:
            self._on_disproved()
        self._wait(EVERY_S)

    def end(self) -> None:
        """Forget the index, and a proof that is not complete."""
        self._index = None
        if self._running is not None:
            self._running.cancel()
            self._running = None

    def sample(self, events: Sequence[Event], verdicts: Verdicts) -> None:
        """Begin to prove one of these verdicts, if there is a duplicate and a proof is due."""
        now = asyncio.get_running_loop().time()
        if now < self._due_at or self._running is not None:
            return
        if now < self._overdue_at and self._metrics.tally.duplicates - self._duplicates < EVERY:
            return
        places = [place for place, kind in enumerate(verdicts.admissions) if kind is DUPLICATE]
        if places:
            place = self._context.rng.choice(places)
            self._wait(EVERY_S)
            self._running = asyncio.ensure_future(
                self._prove(sample_of(events[place], verdicts.originals[place]))
            )
            self._running.add_done_callback(self._on_done)

    def check(self) -> None:
        """Raise IndexDisprovedError if the index is disproved."""
        if self._index is not None and self._index.disproved is not None:
            raise IndexDisprovedError(self._index.disproved)

    def disprove(self, why: str) -> None:
        """Have `check` raise; its copies are not used either, whatever becomes of the lane."""
        if self._index is None:
            return
        index, snapshots = self._index.index, self._context.store.snapshots
        self._index.disproved = why
        if snapshots is not None:
            snapshots.doubt(self._identity, index.lineage)
        try:
            index.note_disproved()
        except GatewayError as err:
            self._logger.warning("it cannot be noted that the index is wrong", error=f"{err}")
        self._on_disproved()

    def _wait(self, pause_s: float) -> None:
        now = asyncio.get_running_loop().time()
        self._due_at, self._overdue_at = now + pause_s, now + OVERDUE_S
        self._duplicates = self._metrics.tally.duplicates

    async def _prove(self, sample: Sample) -> None:
        proofs = self._metrics.proofs
        try:
            async with asyncio.timeout(LIMIT_S):
                why = await self._why_disproved(sample)
        except (GatewayError, TimeoutError) as err:
            proofs.unknown += 1
            self._wait(UNANSWERED_S)
            self._logger.info("the log does not answer whether it has a duplicate's original", error=f"{err}")
            return
        if why is None:
            proofs.proved += 1
            return
        proofs.disproved += 1
        self.disprove(f"a duplicate's original is not at offset {sample.offset}: {why}")

    async def _why_disproved(self, sample: Sample) -> str | None:
        """
        Return why the log disproves a verdict, None if it proves it.

        Raises:
            GatewayError: the log does not say.
        """
        try:
            record = await self._log.record_at(sample.offset)
        except LogCorruptError as err:
            return f"{err}"
        if record is None:
            start, end = await self._log.bounds()
            if not start <= sample.offset < end:
                raise RetriableError(f"offset {sample.offset} is not between {start} and {end}")
        return why_disproved(sample, record, self._check)

    def _on_done(self, running: "asyncio.Task[None]") -> None:
        if running is self._running:
            self._running = None
