"""
Divides the clean topic on Kafka into more partitions: a plan, and a cut of each partition of before.

Each step leaves a log that is served by nobody, or by gateways that know all of it: while partitions are
undecided no gateway starts, and one that ran before is fenced, finds the decision, and ends.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from app.settings.model import Settings
from dedupe.decide.layout import Layout
from dedupe.decide.resharding import Decision, Plan, Routing, growth_to, why_invalid, why_no_growth
from dedupe.model.clock import SystemClock
from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.model.identity import Identity
from dedupe.model.inherited import LEVELS_MAX
from dedupe.model.types import Topic
from dedupe.storage.dividing import decide
from dedupe.storage.log import DecidingLog, LogStore, PartitionLog
from dedupe.storage.pinning import check_pins
from dedupe.storage.routing_records import Seal

Tell = Callable[[str], None]
AddPartitions = Callable[[str, int], Awaitable[bool]]

PATIENCE_S = 120.0
"""How long a partition may refuse to be fenced, or gateways that run may fence it in between."""
PAUSE_S = 0.5


class Plans(Protocol):
    """The plans of a topic; see RoutingTopic."""

    async def routing(self, partitions: int) -> tuple[Routing, bool]: ...

    async def seal(self) -> Seal: ...

    async def write_plan(self, plan: Plan) -> None: ...

    async def close_plan(self, number: int) -> None: ...


class DividedStore(Protocol):
    """A log whose partitions can be divided; see KafkaStore."""

    @property
    def routing_topic(self) -> Plans: ...

    def partition_log(self, topic: str, partition: int) -> PartitionLog: ...

    def deciding_log(self, topic: str, partition: int) -> DecidingLog: ...


@dataclass(frozen=True, slots=True)
class Resharding:
    """One command on one topic."""

    store: DividedStore
    topic: Topic  # with the partitions that it began with
    identity: Identity
    routing_topic: str
    add_partitions: AddPartitions
    tell: Tell

    async def plan(self, partitions: int, *, notice_s: float, is_dry: bool) -> None:
        """
        Divide the topic, or go on with a plan that was begun.

        Args:
            partitions: how many it shall have.
            notice_s: how long consumers may take to see new partitions, before these get events.
            is_dry: whether to say what would happen, and do nothing.

        Raises:
            ConfigurationError: it cannot be divided like this, or Kafka does not allow it.
            RetriableError: the cluster does not answer; the same command goes on.
        """
        routing, is_closing = await self._routing()
        if routing.undecided:
            assert routing.plan is not None
            if is_closing and not routing.version.cut:
                raise ConfigurationError("a plan is being closed: `gateway reshard close` goes on with that")
            if routing.plan.partitions != partitions:
                raise ConfigurationError(
                    f"the topic is being divided into {routing.plan.partitions} partitions: end that first"
                )
            await self._decide_all(routing, keeps=False)
            return
        plan = self._plan_of(routing, partitions)
        for move in plan.moves:
            share = f"{move.last - move.first + 1} of {len(routing.homes)} slots"
            self.tell(f"partition {move.target} gets {share} of partition {move.source}")
        if is_dry:
            return
        await self._make_room(plan, notice_s)
        await self.store.routing_topic.write_plan(plan)
        await self._decide_all(await self._routing_with(plan), keeps=False)

    async def close(self) -> None:
        """Have partitions that are not divided yet keep all they have. Raises as `plan` does."""
        routing, _ = await self._routing()
        if routing.plan is None or not routing.undecided:
            self.tell("nothing to do: no plan is open")
            return
        if routing.version.cut:
            raise ConfigurationError(
                f"{len(routing.version.cut)} partitions are divided already: "
                f"`gateway reshard plan --partitions {routing.plan.partitions}` goes on with the others"
            )
        await self.store.routing_topic.close_plan(routing.plan.number)
        await self._decide_all(routing, keeps=True)

    async def status(self) -> list[dict[str, Any]]:
        """Return a row for each partition."""
        routing, is_closing = await self._routing()
        lineages = Layout(routing.base, _before(routing) if routing.undecided else routing)
        rows = []
        for partition in range(1 + max(routing.homes)):
            lineage = lineages.lineage_of(partition)
            line = [f"{each.partition} below {each.end}" for each in lineage.ancestors] if lineage else []
            state = "serves"
            if partition in routing.undecided:
                keeps = is_closing and not routing.version.cut
                state = "will keep its slots" if keeps else "will be divided"
            rows.append(
                {
                    "partition": partition,
                    "slots": routing.homes.count(partition),
                    "state": state,
                    "inherits": line,
                    "plan": routing.version.plan,
                }
            )
        return rows

    def _plan_of(self, routing: Routing, partitions: int) -> Plan:
        now = 1 + max(routing.homes)
        layout = Layout(routing.base, routing)
        lineages = [layout.lineage_of(partition) for partition in range(now)]
        if partitions <= now:
            raise ConfigurationError(f"the topic has {now} partitions: it can only get more")
        if max((len(each.ancestors) for each in lineages if each), default=0) + 2 > LEVELS_MAX:
            raise ConfigurationError("the topic was divided too often to be divided again")
        before = tuple(routing.decisions[parent] for parent in sorted(routing.decisions))
        plan = Plan(routing.version.plan + 1, partitions, growth_to(routing, partitions), before)
        if why := why_invalid(plan, routing.homes) or why_no_growth(plan, routing):
            raise ConfigurationError(
                f"{now} partitions cannot become {partitions}: {why}. A multiple of {now} is possible"
            )
        return plan

    async def _make_room(self, plan: Plan, notice_s: float) -> None:
        """Have both topics get their partitions, of which those that a plan gives slots must be empty."""
        await self.add_partitions(self.routing_topic, plan.partitions + 1)
        is_new = await self.add_partitions(self.topic.name, plan.partitions)
        for partition in sorted({move.target for move in plan.moves}):
            log = self.store.partition_log(self.topic.name, partition)
            start, end = await log.bounds()
            async with aclosing(log.read(start, end, records_max=1)) as batches:
                async for _ in batches:
                    start = 1
            if start:
                raise ConfigurationError(
                    f"partition {partition} of {self.topic.name} has, or had, records of somebody else"
                )
        if is_new and notice_s:
            self.tell(f"consumers may take {notice_s:g} s to see the new partitions while they are empty")
            await asyncio.sleep(notice_s)

    async def _decide_all(self, routing: Routing, *, keeps: bool) -> None:
        plan = routing.plan
        assert plan is not None
        seal = await self.store.routing_topic.seal()
        # What the parents had before the plan: its own decisions change none of their lineages.
        before = Layout(routing.base, _before(routing))
        for partition in sorted(routing.undecided):
            decided = await self._decide(plan, partition, before, seal, keeps=keeps)
            end = "keeps its slots" if decided.offset is None else f"is divided at offset {decided.offset}"
            self.tell(f"partition {partition} {end}")

    async def _decide(
        self, plan: Plan, partition: int, before: Layout, seal: Seal, *, keeps: bool
    ) -> Decision:
        """Decide of one partition; again while gateways that run take it over in between."""
        clock = SystemClock()
        give_up_at = clock.monotonic() + PATIENCE_S
        log = self.store.deciding_log(self.topic.name, partition)
        try:
            while True:
                try:
                    return await decide(
                        log, seal, plan, partition, before, self.identity, keeps=keeps, now_ms=clock.now_ms()
                    )
                except RetriableError as err:
                    if clock.monotonic() > give_up_at:
                        raise
                    self.tell(f"partition {partition} is tried again: {err}")
                await asyncio.sleep(PAUSE_S)
        finally:
            await log.close()

    async def _routing(self) -> tuple[Routing, bool]:
        routing, is_closing = await self.store.routing_topic.routing(self.topic.partitions)
        return routing, is_closing

    async def _routing_with(self, plan: Plan) -> Routing:
        """Return the routing once it has a plan that was written."""
        routing, _ = await self._routing()
        if routing.version.plan < plan.number:
            raise RetriableError("the plan was written and is not visible yet: try again")
        if routing.plan != plan:
            raise ConfigurationError("somebody else has planned meanwhile: see `gateway reshard status`")
        return routing


async def check_is_begun(store: LogStore, settings: Settings) -> None:
    """Raise ConfigurationError, IdentityMismatchError unless a gateway of these settings began the log."""
    if not await check_pins(store, settings.log.topics, Identity(settings.gateway.identity_key)):
        raise ConfigurationError("no gateway has served this log yet: set GATEWAY_PARTITIONS instead")


def _before(routing: Routing) -> Routing:
    """Return what was decided before the plan, as far as lineages of its parents go."""
    assert routing.plan is not None
    began = {
        slot: tuple(stay for stay in stays if stay.plan < routing.version.plan)
        for slot, stays in routing.earlier.items()
    }
    homes = list(routing.homes)
    for slot, stays in routing.earlier.items():
        if stays and stays[0].plan == routing.version.plan:
            homes[slot] = stays[0].partition
    earlier = {slot: stays for slot, stays in began.items() if stays}
    return Routing(routing.base, routing.partitions, tuple(homes), earlier)
