"""
Preparation: reads, before an open plan is carried out, what partitions that get slots will inherit.

Whoever owns or follows such a partition now, or one of which it gets slots if it is new, keeps its index of
after the plan near the end of what can be read. The next round finds it on its disk, and proves it like any
other: what is wrong or missing here costs time, and nothing else.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import structlog

from dedupe.decide.layout import Layout
from dedupe.decide.planned import Heir, as_if_cut, heirs_of
from dedupe.decide.resharding import Routing
from dedupe.model.errors import IdentityMismatchError
from dedupe.partition.context import LaneContext
from dedupe.partition.follower import Follower
from dedupe.partition.index_recovery import IndexRecovery
from dedupe.partition.lane import Lane
from dedupe.partition.metrics import LaneMetrics
from dedupe.partition.state import LaneState
from dedupe.storage.growing_log import GrowingLog, Pace
from dedupe.storage.index import IndexStore
from dedupe.storage.inheriting_log import LogOf

RECORDS_PER_S = 30_000
"""What a process reads at most: a third of what one core can, so that it goes on serving."""
AT_ONCE_MAX = 2
"""Indexes that are read from the log at the same time; the others wait, and catch up later."""
TAIL_S = 0.5
"""Between two looks for new records of one that has caught up."""
WATCH_S = 0.25
RETRY_S = 5.0

logger = structlog.get_logger(__name__)


class Preparation:
    """Prepares the indexes of one open plan."""

    def __init__(
        self,
        routing: Routing,
        lanes: Sequence[Lane],
        log_of: LogOf,
        context: LaneContext,
        store: IndexStore,
        has_disk_room: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Prepare nothing until `run`.

        Args:
            routing: with the plan, of which nobody has decided yet.
            lanes: of the clean partitions that have slots now, by partition.
            log_of: returns the log of a partition.
            context: of these lanes.
            store: where the next round looks for its indexes.
            has_disk_room: whether this process may write indexes.
        """
        self.plan = routing.version.plan
        planned = Layout(routing.base, as_if_cut(routing))
        slots = asyncio.Semaphore(AT_ONCE_MAX)
        times = replace(context.times, follow_s=TAIL_S)
        context = replace(context, layout=planned, store=store, times=times, follow_slots=slots)
        pace = Pace(RECORDS_PER_S, context.clock)
        self._lanes = lanes
        self._heirs = [_Prepared(heir, log_of, context, pace) for heir in heirs_of(routing)]
        self._has_disk_room = has_disk_room

    async def run(self) -> None:
        """Prepare what this process is to, until cancelled; then all indexes are closed."""
        async with asyncio.TaskGroup() as running:
            for prepared in self._heirs:
                running.create_task(prepared.run(partial(self._is_wanted, prepared.heir)))

    def lag_of(self, host: int) -> int | None:
        """Return the most offsets that heirs of a host have to read; None if that is not known yet."""
        lags = [prepared.lag for prepared in self._heirs if prepared.heir.host == host]
        known = [lag for lag in lags if lag is not None]
        return None if len(known) < len(lags) else max(known, default=0)

    @property
    def lags(self) -> Mapping[int, int | None]:
        """The offsets that each partition with a new index has to read, of those that are prepared here."""
        return {each.heir.partition: each.lag for each in self._heirs if self._is_wanted(each.heir)}

    @property
    def owned(self) -> list[int]:
        """The partitions that this process serves, of which it can say how near their heirs are."""
        return [lane.partition for lane in self._lanes if lane.is_serving]

    def _is_wanted(self, heir: Heir) -> bool:
        return self._lanes[heir.host].state is not LaneState.UNASSIGNED and self._has_disk_room()


class _Prepared:
    """The index of one partition."""

    def __init__(self, heir: Heir, log_of: LogOf, context: LaneContext, pace: Pace) -> None:
        self.heir = heir
        self._log = GrowingLog(log_of(heir.partition), heir, log_of, pace)
        self._recovery = IndexRecovery(heir.partition, self._log, context, LaneMetrics())
        self._follower = Follower(self._log, context, self._recovery)

    @property
    def lag(self) -> int | None:
        """The offsets that it has to read; None if that is not known, as before its index is open."""
        opened = self._recovery.opened
        return None if opened is None else self._log.lag(opened.index.state.applied_offset)

    async def run(self, is_wanted: Callable[[], bool]) -> None:
        """Follow while that is wanted, until cancelled."""
        try:
            while True:
                if is_wanted():
                    await self._follow(is_wanted)
                await asyncio.sleep(WATCH_S)
        finally:
            await self._log.close()

    async def _follow(self, is_wanted: Callable[[], bool]) -> None:
        following = asyncio.ensure_future(self._follower.run())
        try:
            while is_wanted() and not following.done():
                await asyncio.wait({following}, timeout=WATCH_S)
        finally:
            following.cancel()
            await asyncio.wait({following})
            self._recovery.close()
        if not following.cancelled() and (err := following.exception()) is not None:
            await self._give_up(err)

    async def _give_up(self, err: BaseException) -> None:
        """Say why; nothing here may end the process, which serves."""
        foreseen = isinstance(err, IdentityMismatchError)
        logger.error(
            "a new partition cannot be prepared now: it will be read once the topic is divided",
            partition=self.heir.partition,
            error=f"{type(err).__name__}: {err}",
            exc_info=None if foreseen else err,
        )
        await asyncio.sleep(RETRY_S)
