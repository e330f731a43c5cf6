"""Watches the plans of a topic: prepares for one that is open, and ends the round when it is due."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass

import structlog

from app.process.plan_progress import PlanProgress
from dedupe.decide.planned import hosts_of
from dedupe.decide.resharding import Routing
from dedupe.model.clock import Clock
from dedupe.model.errors import RetriableError
from dedupe.model.types import Topic
from dedupe.partition.preparation import Preparation
from dedupe.storage.log import Crashpoint, no_crashpoint
from dedupe.storage.routing_records import Note
from dedupe.storage.settling import Plans
from dedupe.storage.signs import PREPARED, Prepared

PLAN_POLL_S = 0.25
OPEN_POLL_S = 0.05
"""While a plan is open: all gateways end their rounds within this time of each other."""
TELL_S = 15.0
"""Between two notes on how far the heirs of a partition are."""
LOOK_S = 5.0
"""Between two looks whether somebody has begun to cut, who did not say so."""
ALONE_S = 30.0
"""How long all may be near the last marks before gateways go on without the command, which has ended."""

logger = structlog.get_logger(__name__)


def _tell_end(preparing: "asyncio.Future[None]") -> None:
    """Tell that a preparation has failed: the process serves on, and the plan waits for an operator."""
    if not preparing.cancelled() and (err := preparing.exception()) is not None:
        logger.error("new partitions are not prepared any more", exc_info=err)


@contextmanager
def _read_again() -> Iterator[None]:
    """Pass over what is to be tried again."""
    try:
        yield
    except RetriableError as err:
        logger.debug("plans not read, trying again", error=str(err))


@dataclass(slots=True)
class PlanWatch:
    """The watch of one round."""

    plans: Plans
    topic: Topic  # with the partitions that it began with
    prepare: Callable[[Routing], AbstractAsyncContextManager[Preparation | None]]
    """Returns a preparation; None if this process cannot prepare."""
    plan: int  # the last one that this round knows to be carried out
    begun: Routing | None  # with a plan that was open when this round began
    progress: PlanProgress
    clock: Clock
    is_due: asyncio.Event  # set once, when the round is to end
    crashpoint: Crashpoint = no_crashpoint

    async def run(self) -> None:
        """
        Watch until the round is to end.

        Others may have carried a plan out before this process has seen it, while it started or was frozen.
        """
        routing = self.begun
        while routing is None or routing.version.plan <= self.plan:
            await asyncio.sleep(PLAN_POLL_S)
            with _read_again():
                if await self.plans.has_new_plan():
                    routing, _ = await self.plans.routing(self.topic.partitions)
        if routing.undecided:
            await self._await_due(routing)
        self.is_due.set()

    async def _await_due(self, routing: Routing) -> None:
        """Prepare until the plan is due; the prepared indexes are closed then."""
        logger.info("a plan is open: partitions that get slots are prepared", plan=routing.version.plan)
        self.crashpoint("seen")
        marked: Routing | None = routing
        while marked is not None:
            async with self.prepare(marked) as preparation:
                if preparation is None:
                    marked = await self._look(marked, None)
                    continue
                preparing = asyncio.ensure_future(preparation.run())
                preparing.add_done_callback(_tell_end)
                try:
                    marked = await self._look(marked, preparation)
                finally:
                    self.progress.preparing = {}
                    preparing.cancel()
                    await asyncio.wait({preparing})

    async def _look(self, routing: Routing, preparation: Preparation | None) -> Routing | None:
        """
        Look at what is said of the plan, and say how far this process is.

        Returns:
            The routing with more marks, up to which to prepare now; None once the plan is due.
        """
        told: dict[int, tuple[Prepared, float]] = {}
        looked_at, plan = self.clock.monotonic(), routing.version.plan
        near_at: float | None = None
        hosts = hosts_of(routing)
        while True:
            with _read_again():
                if preparation is not None:
                    self.progress.preparing = preparation.lags
                    await self._tell(routing, hosts, preparation, told)
                signs = await self.plans.signs(plan)
                now = self.clock.monotonic()
                near_at = (near_at or now) if signs.are_near(routing, hosts) else None
                if signs.are_due(routing, hosts) or (near_at is not None and now - near_at >= ALONE_S):
                    return None
                has_new, is_time = await self.plans.has_new_plan(), now - looked_at >= LOOK_S
                if has_new or is_time:
                    looked_at = now
                    newer, _ = await self.plans.routing(self.topic.partitions)
                    if newer.decisions or newer.version.plan != plan:
                        return None
                    if newer.takes_marks != routing.takes_marks or newer.marks != routing.marks:
                        return newer
            await asyncio.sleep(OPEN_POLL_S)

    async def _tell(
        self,
        routing: Routing,
        hosts: Collection[int],
        preparation: Preparation,
        told: dict[int, tuple[Prepared, float]],
    ) -> None:
        """Note of the partitions that this process serves how far their heirs are, when that is news."""
        now = self.clock.monotonic()
        for partition in sorted({*hosts}.intersection(preparation.owned)):
            said = Prepared(preparation.plan, preparation.lag_of(partition), len(routing.marks))
            before, at = told.get(partition, (None, now))
            is_news = before is None or (said.is_near and not before.is_near)
            if is_news or (now - at >= TELL_S and not said.is_near):
                await self.plans.note(Note(PREPARED, self.topic.name, partition, said.encoded()))
                told[partition] = said, now
