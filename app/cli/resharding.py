"""
Divides the clean topic on Kafka anew: a plan, and a cut of each partition that has slots.

Gateways that run see the plan, cut the partitions that they own, and go on by the new layout (ADR 0048); the
command cuts those that nobody does. While partitions are undecided no gateway serves by a new layout, and one
that serves by the old one is fenced, and finds the decision.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from app.cli.levels import has_levels, steps_to
from app.cli.sizing import FILTER_BYTES_A_KEY, GB, INDEX_BYTES_A_KEY, RESTORED_PER_S
from app.cli.waiting import Waiting, progress_of
from app.settings.model import Settings
from dedupe.decide.layout import Layout
from dedupe.decide.lineage import Level, Lineage, Mark
from dedupe.decide.planned import as_if_cut
from dedupe.decide.resharding import (
    Decision,
    Marking,
    Move,
    Plan,
    Routing,
    is_growth,
    split_of,
    spread_over,
    why_invalid,
)
from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.model.identity import Identity
from dedupe.model.inherited import LEVELS_MAX
from dedupe.model.types import Offset
from dedupe.storage import signs
from dedupe.storage.dividing import marks_of
from dedupe.storage.log import LogStore
from dedupe.storage.pinning import check_pins
from dedupe.storage.routing_records import Note
from dedupe.storage.settling import Plans, Settling
from dedupe.storage.signs import CUT_NOW

MARKS_MAX = 4
"""Of one plan: each time less was written since the last ones."""

AddPartitions: TypeAlias = Callable[[str, int], Awaitable[bool]]


class Wanted(NamedTuple):
    """What shall become of the partitions: so many, or one divided in two."""

    partitions: int | None = None
    split: int | None = None

    def moves(self, routing: Routing) -> tuple[Move, ...]:
        """Return the moves by which it becomes so; none if it is. Raises ConfigurationError."""
        if (self.partitions is None) == (self.split is None):
            raise ConfigurationError("say either --partitions or --split")
        if self.partitions is not None:
            if self.partitions % routing.base:
                raise ConfigurationError(f"the number of partitions must be a multiple of {routing.base}")
            return spread_over(routing, self.partitions)
        assert self.split is not None
        if self.split not in routing.homes:
            raise ConfigurationError(f"partition {self.split} has no slots")
        return split_of(routing, self.split)


@dataclass(frozen=True, slots=True)
class Resharding:
    """One command on one topic."""

    settling: Settling
    routing_topic: str
    add_partitions: AddPartitions
    window_s: float  # for how long ids are remembered
    remembered_s: float  # for how long anything is
    check_fits: Callable[[Layout], None]
    """Raises ConfigurationError if gateways of these settings cannot run with a layout."""
    check_gateways: Callable[[], None]
    """Raises ConfigurationError if those that run cannot follow a new plan now."""

    async def plan(self, wanted: Wanted, *, notice_s: float, is_dry: bool, is_now: bool = False) -> None:
        """
        Divide the topic, or go on with the same plan.

        Args:
            wanted: what shall become of its partitions.
            notice_s: how long consumers may take to see new partitions, before these get events.
            is_dry: whether to say what would happen, and do nothing.
            is_now: whether not to wait until new indexes are prepared.

        Raises:
            ConfigurationError: it cannot be divided like this, or Kafka does not allow it.
            RetriableError: the cluster does not answer; the same command goes on.
        """
        routing, is_closing = await self._routing()
        moves = wanted.moves(routing)
        if routing.undecided:
            assert routing.plan is not None
            if is_closing and not routing.version.cut:
                raise ConfigurationError("a plan is being closed: `gateway reshard close` goes on with that")
            if routing.plan.moves != moves:
                raise ConfigurationError("another plan is open: the command that began it ends it")
            await self._carry_out(routing.plan, is_now=is_now)
            return
        plan = self._plan_of(routing, moves)
        self.check_fits(Layout(routing.base, as_if_cut(routing.with_plan(plan))))
        if not is_dry:
            await asyncio.to_thread(self.check_gateways)
        for (source, target), slots in sorted(_shares(plan).items()):
            share = f"{slots} of {len(routing.homes)} slots"
            self.settling.tell(f"partition {target} gets {share} of partition {source}")
        self.settling.tell(await self._cost_of(plan, routing))
        if why := await self._why_unprepared(wanted, plan, routing):
            if not is_dry and not is_now:
                raise ConfigurationError(why)
            self.settling.tell(why)
        if is_dry:
            return
        empty_until = await self._make_room(plan, routing, notice_s)
        plan = await self._marked(plan._replace(empty_until=empty_until), routing)
        await self._plans.write_plan(plan)
        await self._check_is_open(plan)
        await self._carry_out(plan, is_now=is_now)

    async def _carry_out(self, plan: Plan, *, is_now: bool) -> None:
        """Settle a plan once gateways have prepared it, or none of them does, or at once."""
        waiting = Waiting(self.settling, plan.number)
        is_prepared = not is_now and await waiting.until_near()
        while is_prepared and await self._marks_more():
            is_prepared = await waiting.until_near()
        if not is_prepared:
            await self._plans.note(Note(CUT_NOW, self.settling.topic.name, 0, str(plan.number)))
        if not await self.settling.settle():
            self.settling.tell_decisions((await self._routing())[0])  # gateways have carried it out

    async def close(self) -> None:
        """Have partitions that are not divided yet keep all they have. Raises as `plan` does."""
        routing, _ = await self._routing()
        if routing.plan is None or not routing.undecided:
            self.settling.tell("nothing to do: no plan is open")
            return
        if routing.version.cut:
            raise ConfigurationError(
                f"{len(routing.version.cut)} partitions are divided already: "
                "the `gateway reshard plan` that began it goes on with the others"
            )
        await self._plans.close_plan(routing.plan.number)
        await self.settling.settle(routing.undecided)

    async def status(self) -> tuple[list[dict[str, Any]], str]:
        """Return a row for each partition that has, or had, slots, and a sentence on what happens next."""
        routing, is_closing = await self._routing()
        rows = []
        for partition in sorted({*routing.homes, *routing.pieces}):
            lineage, slots = routing.lineages.get(partition), routing.homes.count(partition)
            state = "serves" if slots else "rests"
            if partition in routing.undecided:
                keeps = is_closing and not routing.version.cut
                state = "will keep its slots" if keeps else "will be divided"
            rows.append(
                {
                    "partition": partition,
                    "slots": slots,
                    "state": state,
                    "inherits": [said(level) for level in lineage.levels] if lineage else [],
                    "begins": [start._asdict() for start in routing.starts_of(partition)],
                    "lineage": lineage and _told(lineage),
                    "counts": [count._asdict() for count in routing.counts],
                    "begun_with": routing.base,
                    "plan": routing.version.plan,
                }
            )
        step = _next_step(routing, is_closing=is_closing)
        if routing.undecided and (signs := await self._plans.signs(routing.version.plan)).told:
            step += f"; {progress_of(signs)}"
        return rows, step

    def _plan_of(self, routing: Routing, moves: tuple[Move, ...]) -> Plan:
        """Return the next plan, of these moves. Raises ConfigurationError."""
        if not moves:
            raise ConfigurationError("nothing to do: no slots would move")
        before = tuple(routing.decisions[each] for each in sorted(routing.decisions))
        partitions = max(routing.partitions, *(1 + move.target for move in moves))
        plan = Plan(routing.version.plan + 1, partitions, moves, before)
        if not is_growth(plan, routing):
            plan = plan._replace(read_from_ms=self.settling.clock.now_ms() - round(self.remembered_s * 1000))
        why = why_invalid(plan, routing.homes)
        assert why is None, why
        _check_levels(plan, routing)
        return plan

    async def _why_unprepared(self, wanted: Wanted, plan: Plan, routing: Routing) -> str | None:
        """Return a sentence if a plan's indexes follow from too many logs to be prepared; else None."""
        if is_growth(plan, routing) or (await self._marked(plan, routing)).marks:
            return None
        steps = wanted.partitions and steps_to(routing, wanted.partitions)
        instead = "plan again once the window and the session lease have passed"
        if steps:
            instead = f"plan --partitions {steps[0]} first, and --partitions {steps[1]} when that has ended"
        return (
            "these indexes follow from too many logs to be prepared, and are read after the cut: events of "
            f"these partitions get 503 for as many minutes; {instead}, or say --now"
        )

    async def _marked(self, plan: Plan, routing: Routing) -> Plan:
        """Return a plan with marks, up to which partitions with records of their own can be prepared."""
        if is_growth(plan, routing):
            return plan
        marks = await self._marks_of(routing)
        # Log time decides what is forgotten, and the clock of this machine may be ahead of it.
        newest_ms = max(mark.timestamp_ms for mark in marks)
        forgotten_ms = max(1, newest_ms - round(self.remembered_s * 1000))
        plan = plan._replace(read_from_ms=min(plan.read_from_ms, forgotten_ms))
        _check_levels(plan, routing)
        marked = plan._replace(marks=marks)
        return marked if has_levels(routing.with_plan(marked)) else plan

    async def _marks_more(self) -> bool:
        """Mark an open plan anew, unless little was written since, which ends that; whether it was marked."""
        routing, is_closing = await self._routing()
        if not routing.takes_marks or is_closing:
            return False
        marks = await self._marks_of(routing)
        ends = {mark.partition: mark.offset for mark in routing.marks[-1]}
        more = max(mark.offset - ends[mark.partition] for mark in marks)
        marked = replace(routing, marks=(*routing.marks, marks))
        is_last = more <= signs.NEAR or len(routing.marks) >= MARKS_MAX or not has_levels(marked)
        marking = Marking(routing.version.plan, () if is_last else marks, is_last, len(routing.marks))
        await self._plans.write_marking(marking)
        return not is_last

    async def _marks_of(self, routing: Routing) -> tuple[Mark, ...]:
        log_of = partial(self.settling.store.partition_log, self.settling.topic.name)
        return await marks_of(log_of, routing, self.settling.identity)

    async def _cost_of(self, plan: Plan, routing: Routing) -> str:
        """Return one sentence on what partitions with more slots read, and on what their indexes take."""
        store, name = self.settling.store, self.settling.topic.name
        logs = {partition: store.partition_log(name, partition) for partition in set(routing.homes)}
        ends = {partition: (await log.bounds())[1] for partition, log in logs.items()}
        since_ms = self.settling.clock.now_ms() - round(self.window_s * 1000)
        after = _behind(plan, routing, ends)
        read, kept = 0, 0.0
        for target in sorted({move.target for move in plan.moves}):
            lineage = after.lineages[target]
            for level in lineage.levels:
                log = logs.setdefault(level.partition, store.partition_log(name, level.partition))
                records = max(0, level.end - max(level.start, await log.offset_at(since_ms)))
                read += records
                piece = next(each for each in after.pieces[level.partition] if each.start == level.start)
                kept += records * len(level.slots) / len(piece.slots)
        for log in logs.values():
            await log.close()
        minutes = math.ceil(read / RESTORED_PER_S[False] / 60)
        disk, memory = kept * INDEX_BYTES_A_KEY / GB, kept * FILTER_BYTES_A_KEY / GB
        return (
            f"partitions with new slots read {read:,} records, while they serve by the old ones if gateways "
            f"prepare them, or else afterwards, {minutes} minutes of one gateway at most; "
            f"{kept:,.0f} ids are kept twice for a window, {disk:.1f} GB of disk and {memory:.1f} GB of "
            "memory in each copy"
        )

    async def _make_room(
        self, plan: Plan, routing: Routing, notice_s: float
    ) -> tuple[tuple[int, Offset], ...]:
        """Have topics get partitions; those without slots must have no records. Returns Plan.empty_until."""
        await self.add_partitions(self.routing_topic, plan.partitions + 1)
        topic = self.settling.topic.name
        is_new = await self.add_partitions(topic, plan.partitions)
        ends: list[tuple[int, Offset]] = []
        for partition in sorted({move.target for move in plan.moves} - set(routing.homes)):
            log, is_used = self.settling.store.partition_log(topic, partition), False
            own_from = routing.starts_of(partition)[-1].offset
            start, end = await log.bounds()
            async with aclosing(log.read(max(start, own_from), end, records_max=1)) as batches:
                async for _ in batches:
                    is_used = True
            await log.close()
            if is_used:
                raise ConfigurationError(f"partition {partition} of {topic} has records of somebody else")
            if end > own_from:
                ends.append((partition, end))
        if is_new and notice_s:
            self.settling.tell(
                f"consumers may take {notice_s:g} s to see the new partitions while they are empty"
            )
            await asyncio.sleep(notice_s)
        return tuple(ends)

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


def said(level: Level) -> str:
    """Return a level in words."""
    since = f" from {level.start}" if level.start else ""
    return f"{level.partition}{since} below {level.end}"


def _told(lineage: Lineage) -> dict[str, Any]:
    """Return what an audit takes of a lineage: how it counts the records of each level."""
    names = ("partition", "start", "end", "shift", "lane_seq_min")
    levels = [{name: getattr(level, name) for name in names} for level in lineage.levels]
    return {"begins_at": lineage.own_from, "levels": levels}


def _shares(plan: Plan) -> Counter[tuple[int, int]]:
    """Return how many slots a plan moves, by source and target."""
    shares: Counter[tuple[int, int]] = Counter()
    for first, last, source, target in plan.moves:
        shares[source, target] += last - first + 1
    return shares


def _check_levels(plan: Plan, routing: Routing) -> None:
    """Raise ConfigurationError if a partition would inherit more pieces than offsets can tell apart."""
    if not has_levels(routing.with_plan(plan)):
        raise ConfigurationError(
            f"a partition would inherit more than {LEVELS_MAX - 1} pieces of logs: plan again once the "
            "window and the session lease have passed"
        )


def _behind(plan: Plan, routing: Routing, ends: Mapping[int, Offset]) -> Routing:
    """Return the routing as it will be when all partitions are cut, at such offsets."""
    planned = routing.with_plan(plan)
    now_ms = plan.read_from_ms
    return planned.with_all(
        Decision(plan.number, partition, ends.get(partition, 0), now_ms)
        for partition in sorted(planned.undecided)
    )


def _next_step(routing: Routing, *, is_closing: bool) -> str:
    """Return a sentence on what becomes of the last plan."""
    plan, left = routing.plan, len(routing.undecided)
    if plan is None:
        return "the topic was never divided"
    of = f"of {left + len(routing.decisions)} partitions"
    if not left:
        return f"plan {plan.number} has ended: {len(routing.version.cut)} {of} are divided"
    goes_on = "the `gateway reshard plan` that began it goes on with it"
    if routing.version.cut:
        return f"plan {plan.number} is open: {left} {of} are yet to be divided; {goes_on}"
    if is_closing:
        return f"plan {plan.number} is being closed: `gateway reshard close` goes on with that"
    return (
        f"plan {plan.number} is open: no partition is divided yet; {goes_on}, and `gateway reshard close` "
        "ends it"
    )
