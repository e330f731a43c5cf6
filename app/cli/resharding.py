"""
Divides the clean topic on Kafka into more partitions: a plan, and a cut of each partition of before.

Gateways that run see the plan, cut the partitions that they own, and go on with all of them (ADR 0048); the
command cuts those that nobody does. While partitions are undecided no gateway serves by a new layout, and one
that serves by the old one is fenced, and finds the decision.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from app.cli.sizing import FILTER_BYTES_A_KEY, GB, INDEX_BYTES_A_KEY, RESTORED_PER_S
from app.settings.model import Settings
from dedupe.decide.layout import Layout, distance
from dedupe.decide.resharding import Plan, Routing, growth_to, why_invalid, why_no_growth
from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.model.identity import Identity
from dedupe.model.inherited import LEVELS_MAX
from dedupe.storage.inheriting_log import inheriting
from dedupe.storage.log import LogStore
from dedupe.storage.pinning import check_pins
from dedupe.storage.settling import Plans, Settling, before_plan

AddPartitions: TypeAlias = Callable[[str, int], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Resharding:
    """One command on one topic."""

    settling: Settling
    routing_topic: str
    add_partitions: AddPartitions
    window_s: float  # for how long ids are remembered

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
            await self.settling.settle()
            return
        plan = self._plan_of(routing, partitions)
        for move in plan.moves:
            share = f"{move.last - move.first + 1} of {len(routing.homes)} slots"
            self.settling.tell(f"partition {move.target} gets {share} of partition {move.source}")
        self.settling.tell(await self._cost_of(plan, routing))
        if is_dry:
            return
        await self._make_room(plan, notice_s)
        await self._plans.write_plan(plan)
        await self._check_is_open(plan)
        await self.settling.settle()

    async def close(self) -> None:
        """Have partitions that are not divided yet keep all they have. Raises as `plan` does."""
        routing, _ = await self._routing()
        if routing.plan is None or not routing.undecided:
            self.settling.tell("nothing to do: no plan is open")
            return
        if routing.version.cut:
            raise ConfigurationError(
                f"{len(routing.version.cut)} partitions are divided already: "
                f"`gateway reshard plan --partitions {routing.plan.partitions}` goes on with the others"
            )
        await self._plans.close_plan(routing.plan.number)
        await self.settling.settle(routing.undecided)

    async def status(self) -> tuple[list[dict[str, Any]], str]:
        """Return a row for each partition, and a sentence on what happens next."""
        routing, is_closing = await self._routing()
        lineages = Layout(routing.base, before_plan(routing) if routing.undecided else routing)
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
                    "first_lane_seq": lineage.parent.lane_seq if lineage else 0,
                    "plan": routing.version.plan,
                }
            )
        return rows, _next_step(routing, is_closing=is_closing)

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

    async def _cost_of(self, plan: Plan, routing: Routing) -> str:
        """Return one sentence on what new partitions read, and on what their indexes take."""
        store, name = self.settling.store, self.settling.topic.name
        layout, log_of = Layout(routing.base, routing), partial(store.partition_log, name)
        since_ms = self.settling.clock.now_ms() - round(self.window_s * 1000)
        read, kept = 0, 0.0
        for parent in sorted(plan.parents):
            lineage = layout.lineage_of(parent)
            log = inheriting(log_of(parent), lineage, log_of)
            start, end = await log.bounds()
            records = distance(lineage, max(start, await log.offset_at(since_ms)), end)
            given = [move for move in plan.moves if move.source == parent]
            read += records * len({move.target for move in given})
            slots = sum(move.last - move.first + 1 for move in given)
            kept += records * slots / routing.homes.count(parent)
            await log.close()
        minutes = math.ceil(read / RESTORED_PER_S[False] / 60)
        disk, memory = kept * INDEX_BYTES_A_KEY / GB, kept * FILTER_BYTES_A_KEY / GB
        return (
            f"new partitions read {read:,} records before they serve, {minutes} minutes of one gateway at "
            f"most; {kept:,.0f} ids are kept twice for a window, {disk:.1f} GB of disk and {memory:.1f} "
            "GB of memory in each copy"
        )

    async def _make_room(self, plan: Plan, notice_s: float) -> None:
        """Have both topics get their partitions, of which those that a plan gives slots must be empty."""
        await self.add_partitions(self.routing_topic, plan.partitions + 1)
        topic = self.settling.topic.name
        is_new = await self.add_partitions(topic, plan.partitions)
        for partition in sorted({move.target for move in plan.moves}):
            log = self.settling.store.partition_log(topic, partition)
            start, end = await log.bounds()
            async with aclosing(log.read(start, end, records_max=1)) as batches:
                async for _ in batches:
                    start = 1
            if start:
                raise ConfigurationError(
                    f"partition {partition} of {topic} has, or had, records of somebody else"
                )
        if is_new and notice_s:
            self.settling.tell(
                f"consumers may take {notice_s:g} s to see the new partitions while they are empty"
            )
            await asyncio.sleep(notice_s)

    @property
    def _plans(self) -> Plans:
        return self.settling.store.routing_topic

    async def _routing(self) -> tuple[Routing, bool]:
        return await self._plans.routing(self.settling.topic.partitions)

    async def _check_is_open(self, plan: Plan) -> None:
        """Raise unless the routing has a plan that was written."""
        routing, _ = await self._routing()
        if routing.version.plan < plan.number:
            raise RetriableError("the plan was written and is not visible yet: try again")
        if routing.plan != plan:
            raise ConfigurationError("somebody else has planned meanwhile: see `gateway reshard status`")


async def check_is_begun(store: LogStore, settings: Settings) -> None:
    """Raise ConfigurationError, IdentityMismatchError unless a gateway of these settings began the log."""
    if not await check_pins(store, settings.log.topics, Identity(settings.gateway.identity_key)):
        raise ConfigurationError("no gateway has served this log yet: set GATEWAY_PARTITIONS instead")


def _next_step(routing: Routing, *, is_closing: bool) -> str:
    """Return a sentence on what becomes of the last plan."""
    plan, left = routing.plan, len(routing.undecided)
    if plan is None:
        return "the topic was never divided"
    of = f"of {len(plan.parents)} partitions"
    if not left:
        return f"plan {plan.number} has ended: {len(routing.version.cut)} {of} are divided"
    goes_on = f"`gateway reshard plan --partitions {plan.partitions}` goes on with it"
    if routing.version.cut:
        return f"plan {plan.number} is open: {left} {of} are yet to be divided; {goes_on}"
    if is_closing:
        return f"plan {plan.number} is being closed: `gateway reshard close` goes on with that"
    return (
        f"plan {plan.number} is open: no partition is divided yet; {goes_on}, and `gateway reshard close` "
        "ends it"
    )
