"""
A simulated deployment whose clean topic is divided: by the product's own plan, fences and decisions.

`divide` does what `gateway reshard plan` does, one partition after the other, and may end between any two of
its steps; the processes that run meanwhile are fenced as they are on Kafka. The routing topic is a list of
plans, and the partitions beside the clean ones.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from dedupe.decide.layout import Layout
from dedupe.decide.lineage import Mark
from dedupe.decide.recovery import CheckedRecord, RecordCheck
from dedupe.decide.resharding import (
    Marking,
    Move,
    Plan,
    Routing,
    is_growth,
    split_of,
    spread_over,
    why_invalid,
)
from dedupe.model.errors import RetriableError
from dedupe.model.record import parse_identity, routing_key_of
from dedupe.partition.lane import Lane
from dedupe.partition.partition_index import PartitionIndex
from dedupe.storage.dividing import Division, decide, marks_of
from dedupe.storage.log import no_crashpoint
from dedupe.storage.routing_records import Note, Notes, Seal, mac_key_of
from dedupe.storage.signs import CUT_NOW, PREPARED, Signs, signs_of
from tests.sim.crashes import SimulatedCrashError
from tests.sim.session_world import DAY_MS, SessionWorld
from tests.sim.world import CLEAN, Place
from tests.support.sim.memory_index import MemoryStore

TRIES = 200


async def begun(**options: Any) -> "ReshardWorld":
    """Return a world without a plan, whose gateway has started; `options` are those of World."""
    world = ReshardWorld(**options)
    world.prepare()
    await world.start()
    return world


async def deliver(world: "ReshardWorld", numbers: Iterable[int]) -> None:
    """Send an event of each number, one after the other."""
    for number in numbers:
        world.clock.ms += 10
        await world.deliver([world.event(str(number))])


class RoutingTopic:
    """The plans of a simulated deployment, and what is said of them; see Plans."""

    def __init__(self, world: "ReshardWorld") -> None:
        self.world = world
        self.closed: set[int] = set()
        self.told: list[str] = []
        self.notes = Notes()
        self.before_plan: Callable[[], object] = lambda: None
        self._known = 0

    def another(self) -> "RoutingTopic":
        """Return what another process knows it as: it reads for itself."""
        other = RoutingTopic(self.world)
        other.closed, other.told, other.notes = self.closed, self.told, self.notes
        return other

    async def routing(self, partitions: int) -> tuple[Routing, bool]:
        assert partitions == CLEAN.partitions
        await self._ask()
        self._known = len(self.world.plans)
        routing = self.world.routing()
        return routing, routing.version.plan in self.closed

    async def signs(self, plan: int) -> Signs:
        await self._ask()
        told, cut_now = (self.notes.of(name, CLEAN.name) for name in (PREPARED, CUT_NOW))
        return signs_of(plan, told, cut_now, is_closing=plan in self.closed)

    async def has_new_plan(self) -> bool:
        await self._ask()
        return len(self.world.plans) > self._known

    async def seal(self) -> Seal:
        return self.world.seal

    async def note(self, note: Note) -> None:
        await self._write()
        self.notes.add(note)

    async def write_plan(self, plan: Plan) -> None:
        await self._write()
        self.before_plan()
        self.world.plans.append(plan)

    async def write_marking(self, marking: Marking) -> None:
        await self._write()
        self.world.plans.append(marking)

    async def close_plan(self, number: int) -> None:
        await self._write()
        self.closed.add(number)

    async def _ask(self) -> None:
        await self.world.log.pass_time(self.world.log.times.ask)

    async def _write(self) -> None:
        await self.world.log.pass_time(self.world.log.times.produce)


class ReshardWorld(SessionWorld):
    """A SessionWorld on a log with a routing topic."""

    plans: list[Plan | Marking]  # as they are in partition 0
    _read: tuple[Any, Routing] | None = None
    """What was written when the routing topic was read last, and what followed."""

    def prepare(self) -> None:
        """Begin without a plan."""
        self.plans = []

    @property
    def seal(self) -> Seal:
        """How decisions are proved."""
        return Seal(self.log.log_id, (b"topic",), mac_key_of(self.identity))

    def division(self) -> Division:
        return Division(self.layout, self.seal)

    def routing(self) -> Routing:
        """Return what a process that reads the routing topic now knows."""
        written = [*self.plans], {place: [*beside.records] for place, beside in self.log.decisions.items()}
        if self._read is None or self._read[0] != written:
            self._read = written, self._routing()
        return self._read[1]

    def _routing(self) -> Routing:
        routing = Routing.begun_with(CLEAN.partitions)
        for said in self.plans:
            routing = routing.with_plan(said) if isinstance(said, Plan) else routing.with_marking(said)
        for partition in range(routing.partitions):
            beside = self.log.decisions.get((CLEAN.name, partition))
            for decision in self.seal.decisions_in(partition, beside.records if beside else []):
                routing = routing.with_decision(decision)
        return routing

    def moves(self, partitions: int = 0, *, split: int | None = None) -> tuple[Move, ...]:
        """Return the moves to so many partitions, or those that divide one in two."""
        routing = self.routing()
        return spread_over(routing, partitions) if split is None else split_of(routing, split)

    def plan(self, partitions: int = 0, *, split: int | None = None, marks: Sequence[Mark] = ()) -> Plan:
        """Write a plan for so many partitions, or to split one; return the one that is open."""
        routing = self.routing()
        if routing.undecided:
            assert routing.plan is not None
            return routing.plan
        moves = self.moves(partitions, split=split)
        before = tuple(routing.decisions[each] for each in sorted(routing.decisions))
        needed = max(routing.partitions, *(1 + move.target for move in moves))
        plan = Plan(routing.version.plan + 1, needed, moves, before)
        if not is_growth(plan, routing):
            remembered_ms = max(self.policy.window_ms, self.sessions.lease_ms) + DAY_MS
            read_from_ms = max(1, self.clock.ms - remembered_ms)
            plan = plan._replace(read_from_ms=read_from_ms, marks=tuple(marks))
        assert why_invalid(plan, routing.homes) is None
        self.log.add_partitions(CLEAN.name, needed)
        resting = {move.target for move in moves} - set(routing.homes)
        ends = {each: self.log.partition(CLEAN.name, each).high_watermark for each in sorted(resting)}
        plan = plan._replace(empty_until=tuple((each, end) for each, end in ends.items() if end))
        self.plans.append(plan)
        return plan

    async def marks(self) -> tuple[Mark, ...]:
        """Return marks behind the newest records; tries until the log answers."""
        log_of = partial(self.log.another().partition_log, CLEAN.name)
        for _ in range(TRIES):
            with suppress(RetriableError):
                return await marks_of(log_of, self.routing(), self.identity)
        raise AssertionError("the log does not answer")

    async def divide(
        self,
        partitions: int = 0,
        *,
        split: int | None = None,
        keeps: bool = False,
        crashpoint: Callable[[str], None] = no_crashpoint,
    ) -> None:
        """Have the topic divided like this, unless it is so, or an open plan end; tries until it is done."""
        self.layout = Layout(CLEAN.partitions, self.routing())
        if not (self.routing().undecided or self.moves(partitions, split=split)):
            return
        plan = self.plan(partitions, split=split, marks=await self.marks())
        crashpoint("planned")
        if self.routing().takes_marks:
            self.plans.append(Marking(plan.number, await self.marks(), is_last=True))
            crashpoint("marked")
        store = self.log.another(crashpoint=crashpoint)
        for _ in range(TRIES):
            undecided = sorted(self.routing().undecided)
            if not undecided:
                break
            log = store.deciding_log(CLEAN.name, undecided[0])
            with suppress(RetriableError):
                await decide(
                    log,
                    self.seal,
                    plan,
                    undecided[0],
                    self.layout,
                    self.identity,
                    keeps=keeps,
                    now_ms=self.clock.ms,
                )
                crashpoint("partition")
        else:
            raise AssertionError("the topic was not divided")
        self.layout = Layout(CLEAN.partitions, self.routing())

    async def divide_with_crash(
        self, partitions: int = 0, *, step: str, number: int, split: int | None = None
    ) -> None:
        """Have whoever divides end at the n-th time it comes to a step, then have it done again."""
        left = number

        def crash(reached: str) -> None:
            nonlocal left
            left -= reached == step
            if not left and reached == step:
                raise SimulatedCrashError(step)

        with suppress(SimulatedCrashError):
            await self.divide(partitions, split=split, crashpoint=crash)
        await self.divide(partitions, split=split)

    async def restart(self, *, loses_disk: bool = False) -> None:
        """End the process and start one that knows how the topic is divided now."""
        await self.crash()
        if loses_disk:
            self.disk = MemoryStore(self.log.rng)
        await self.start()

    def judge_log(self) -> None:
        """Judge all but the indexes and counters of a process."""
        self.judge_homes()
        places: dict[str, Place] = {}
        for partition, records in enumerate(self.committed()):
            for record in records:
                name = record.key.decode()
                assert name not in places, f"{name} is committed twice"
                places[name] = Place(partition, record.offset)
        for name, place in self.told.items():
            assert places.get(name) == place, f"{name} was acknowledged at {place}"

    def judge_index(self, lane: Lane) -> None:
        """As World; that of an heir only where it serves, at the end of what it inherits."""
        if lane.lineage is None:
            super().judge_index(lane)
        elif lane.is_serving:
            self.judge_heir(lane)

    def judge_homes(self) -> None:
        """Every record is at home; numbers go on within each part of a log, and time from part to part."""
        routing = self.routing()
        for partition, records in enumerate(self.committed()):
            check = RecordCheck(self.identity, partition, CLEAN.partitions, Layout(CLEAN.partitions, routing))
            lineage = routing.lineages.get(partition)
            base = lineage.own_base if lineage else 0
            newest_ms, starts = 0, routing.starts_of(partition)
            ends = [start.offset for start in starts[1:]] + [self.log.partition(CLEAN.name, partition).end]
            for start, end in zip(starts, ends, strict=True):
                part = [record for record in records if start.offset <= record.offset < end]
                for number, record in enumerate(part):
                    check.checked(record._replace(offset=base + record.offset))
                    if self.log.partition(CLEAN.name, partition).log_start <= start.offset:
                        assert parse_identity(record).lane_seq == start.lane_seq + number
                    assert record.timestamp_ms >= newest_ms
                    newest_ms = record.timestamp_ms
                    if lineage is not None and start is starts[-1]:
                        assert record.timestamp_ms >= lineage.timestamp_ms

    def inherited(self, lane: Lane) -> list[CheckedRecord]:
        """Return what a lane with a lineage has, all of it, as its records count there."""
        lineage = lane.lineage
        assert lineage is not None
        check = RecordCheck(self.identity, lane.partition, CLEAN.partitions, self.layout)
        found = []
        for base, level in zip(lineage.bases, lineage.levels, strict=True):
            for record in self.log.partition(CLEAN.name, level.partition).records:
                key = routing_key_of(parse_identity(record))
                if not (level.start <= record.offset < level.end and level.has(key)):
                    continue
                if record.timestamp_ms < lineage.read_from_ms and level is not lineage.levels[0]:
                    continue
                known = check.checked(record._replace(offset=base + record.offset))
                seq = max(known.identity.lane_seq + level.shift, level.lane_seq_min)
                evicted = tuple(each for each in known.identity.evicted if level.has(each))
                found.append(
                    known._replace(
                        timestamp_ms=max(known.timestamp_ms, level.timestamp_min_ms),
                        identity=known.identity._replace(lane_seq=seq, evicted=evicted),
                    )
                )
        own = self.log.partition(CLEAN.name, lane.partition).records
        return found + [
            check.checked(record._replace(offset=lineage.own_base + record.offset))
            for record in own
            if record.offset >= lineage.own_from
        ]

    def judge_heir(self, lane: Lane) -> None:
        """The index of an heir is that of a replay of all that it inherits, and of its own log."""
        live, records = lane.partition_index, self.inherited(lane)
        if not records:
            return
        replayed = PartitionIndex(
            MemoryStore().open(lane.recovery.identity),
            self.policy,
            self.sessions,
            log_start=live.log_start,
            lineage=lane.lineage,
        )
        entries = replayed.replay(records)
        assert live.known_from == replayed.known_from
        kept = {key: entry for key, entry in entries if entry.offset >= replayed.known_from}
        assert live.index.lookup(list(kept)) == list(kept.values())
        state = replayed.index.state._replace(applied_offset=live.index.state.applied_offset)
        assert live.index.state == state
