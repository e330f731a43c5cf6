"""
A simulated deployment whose clean topic is divided: by the product's own plan, fences and decisions.

`divide` does what `gateway reshard plan` does, one parent after the other, and may end between any two of its
steps; the processes that run meanwhile are fenced as they are on Kafka. The routing topic is a list of plans,
and the partitions beside the clean ones.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dedupe.decide.layout import Layout
from dedupe.decide.recovery import RecordCheck
from dedupe.decide.resharding import Plan, Routing, growth_to, why_invalid, why_no_growth
from dedupe.model.errors import RetriableError
from dedupe.model.record import parse_identity
from dedupe.partition.lane import Lane
from dedupe.partition.partition_index import PartitionIndex
from dedupe.storage.dividing import Division, decide
from dedupe.storage.log import no_crashpoint
from dedupe.storage.routing_records import Seal, mac_key_of
from tests.sim.crashes import SimulatedCrashError
from tests.sim.session_world import SessionWorld
from tests.sim.world import CLEAN
from tests.support.sim.memory_index import MemoryStore

TRIES = 200


async def begun(**options: Any) -> "ReshardWorld":
    """Return a world without a plan, whose gateway has started; `options` are those of World."""
    world = ReshardWorld(**options)
    world.prepare()
    await world.start()
    return world


async def deliver(world: "ReshardWorld", numbers: range) -> None:
    """Send an event of each number, one after the other."""
    for number in numbers:
        world.clock.ms += 10
        await world.deliver([world.event(str(number))])


class ReshardWorld(SessionWorld):
    """A SessionWorld on a log with a routing topic."""

    plans: list[Plan]

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
        routing = Routing.begun_with(CLEAN.partitions)
        for plan in self.plans:
            routing = routing.with_plan(plan)
        for partition in range(routing.partitions):
            beside = self.log.decisions.get((CLEAN.name, partition))
            for decision in self.seal.decisions_in(partition, beside.records if beside else []):
                routing = routing.with_decision(decision)
        return routing

    def plan(self, partitions: int) -> Plan:
        """Write a plan for so many partitions, unless one is open."""
        routing = self.routing()
        if routing.undecided or not growth_to(routing, partitions):
            return self.plans[-1]
        before = tuple(routing.decisions[parent] for parent in sorted(routing.decisions))
        plan = Plan(routing.version.plan + 1, partitions, growth_to(routing, partitions), before)
        assert why_invalid(plan, routing.homes) is None
        assert why_no_growth(plan, routing) is None
        self.log.add_partitions(CLEAN.name, partitions)
        self.plans.append(plan)
        return plan

    async def divide(
        self, partitions: int, *, keeps: bool = False, crashpoint: Callable[[str], None] = no_crashpoint
    ) -> None:
        """Have the topic divided into so many partitions, or an open plan end; tries until it is done."""
        plan = self.plan(partitions)
        crashpoint("planned")
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
                crashpoint("parent")
        else:
            raise AssertionError("the topic was not divided")
        self.layout = Layout(CLEAN.partitions, self.routing())

    async def divide_with_crash(self, partitions: int, step: str, number: int) -> None:
        """Have whoever divides end at the n-th time it comes to a step, then have it done again."""
        left = number

        def crash(reached: str) -> None:
            nonlocal left
            left -= reached == step
            if not left and reached == step:
                raise SimulatedCrashError(step)

        with suppress(SimulatedCrashError):
            await self.divide(partitions, crashpoint=crash)
        await self.divide(partitions)

    async def restart(self, *, loses_disk: bool = False) -> None:
        """End the process and start one that knows how the topic is divided now."""
        await self.crash()
        if loses_disk:
            self.disk = MemoryStore(self.log.rng)
        await self.start()

    def judge_homes(self) -> None:
        """Every record is at home; time and sequence go on from log to log; an heir knows what it should."""
        routing = self.routing()
        for partition, records in enumerate(self.committed()):
            check = RecordCheck(self.identity, partition, CLEAN.partitions, Layout(CLEAN.partitions, routing))
            lineage = self.layout.lineage_of(partition)
            for number, record in enumerate(records):
                if lineage is None:
                    check.checked(record)
                    continue
                check.checked(record._replace(offset=lineage.own_start + record.offset))
                assert parse_identity(record).lane_seq == lineage.parent.lane_seq + number
                assert record.timestamp_ms >= lineage.parent.timestamp_ms

    def judge_heir(self, lane: Lane) -> None:
        """The index of an heir is that of a replay of its ancestors' logs and of its own."""
        lineage, live = lane.lineage, lane.partition_index
        assert lineage is not None
        check = RecordCheck(self.identity, lane.partition, CLEAN.partitions, self.layout)
        logs = [*((a.partition, a.end) for a in lineage.ancestors), (lane.partition, None)]
        records = [
            check.checked(record._replace(offset=start + record.offset))
            for start, (partition, end) in zip(lineage.starts, logs, strict=True)
            for record in self.log.partition(CLEAN.name, partition).records
            if (end is None or record.offset < end) and lineage.has(parse_identity(record).key)
        ]
        if not records:
            return
        replayed = PartitionIndex(
            MemoryStore().open(lane.recovery.identity),
            self.policy,
            self.sessions,
            log_start=live.log_start,
            lineage=lineage,
        )
        entries = replayed.replay(records)
        kept = {key: entry for key, entry in entries if entry.offset >= replayed.known_from}
        assert live.index.lookup(list(kept)) == list(kept.values())
        state = replayed.index.state._replace(applied_offset=live.index.state.applied_offset)
        assert live.index.state == state
