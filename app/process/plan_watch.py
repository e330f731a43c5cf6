"""Watches the plans of a topic: prepares for one that is open, and ends the round when it is due."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass

import structlog

from app.process.plan_progress import PlanProgress
from dedupe.decide.resharding import Routing
from dedupe.model.clock import Clock
from dedupe.model.errors import RetriableError
from dedupe.model.types import Topic
from dedupe.partition.preparation import Preparation
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

logger = structlog.get_logger(__name__)


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
    prepare: Callable[[Routing], AbstractAsyncContextManager[Preparation]]
    begun: Routing | None  # with a plan that was open when this round began
    progress: PlanProgress
    clock: Clock
    is_due: asyncio.Event  # set once, when the round is to end

    async def run(self) -> None:
        """Watch until the round is to end."""
        routing = self.begun
        while routing is None or not routing.undecided:
            await asyncio.sleep(PLAN_POLL_S)
            with _read_again():
                if await self.plans.has_new_plan():
                    routing, _ = await self.plans.routing(self.topic.partitions)
        await self._await_due(routing)
        self.is_due.set()

    async def _await_due(self, routing: Routing) -> None:
        """Prepare until the plan is due; the prepared indexes are closed then."""
        logger.info("a plan is open: new partitions are prepared", plan=routing.version.plan)
        async with self.prepare(routing) as preparation:
            preparing = asyncio.ensure_future(preparation.run())
            try:
                await self._look(routing, preparation, preparing)
            finally:
                self.progress.preparing = {}
                preparing.cancel()
                await asyncio.wait({preparing})

    async def _look(
        self, routing: Routing, preparation: Preparation, preparing: "asyncio.Future[None]"
    ) -> None:
        told: dict[int, tuple[Prepared, float]] = {}
        looked_at = self.clock.monotonic()
        while True:
            if preparing.done():
                preparing.result()
            self.progress.preparing = preparation.lags
            with _read_again():
                await self._tell(routing, preparation, told)
                if (await self.plans.signs(preparation.plan)).are_due(routing.undecided):
                    return
                if self.clock.monotonic() - looked_at >= LOOK_S:
                    looked_at = self.clock.monotonic()
                    now, _ = await self.plans.routing(self.topic.partitions)
                    if now.decisions or now.version.plan != preparation.plan:
                        return
            await asyncio.sleep(OPEN_POLL_S)

    async def _tell(
        self, routing: Routing, preparation: Preparation, told: dict[int, tuple[Prepared, float]]
    ) -> None:
        """Note of the partitions that this process serves how far their heirs are, when that is news."""
        now = self.clock.monotonic()
        for partition in routing.undecided.intersection(preparation.owned):
            said = Prepared(preparation.plan, preparation.lag_of(partition))
            before, at = told.get(partition, (None, now))
            is_news = before is None or (said.is_near and not before.is_near)
            if is_news or (now - at >= TELL_S and not said.is_near):
                await self.plans.note(Note(PREPARED, self.topic.name, partition, said.encoded()))
                told[partition] = said, now
