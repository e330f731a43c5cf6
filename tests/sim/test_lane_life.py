"""Claim: no lane ends unseen, spins, or holds up what is not its own; what stops one lane stops no other."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from dedupe.model.clock import Deadline
from dedupe.model.errors import IdentityMismatchError, LaneNotActiveError, LogCorruptError, NotAppendedError
from dedupe.model.routing import partition_of
from dedupe.model.types import NewRecord, Offset, Session
from dedupe.partition.context import LaneTimes
from dedupe.partition.lane import Lane
from dedupe.partition.state import LaneState
from dedupe.storage.index import IndexIdentity
from dedupe.storage.log import PartitionLog
from tests.sim.world import CLEAN, LIMITS, QUICK, World
from tests.support.peers import deadline_of
from tests.support.sim.faults import SimFaults
from tests.support.sim.memory_index import MemoryIndex
from tests.support.sim.sim_log import SimLog
from tests.support.submissions import submission_of


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def event_of(world: World, partition: int, number: int = 0) -> str:
    """Return the id of an event of a partition."""
    ids = (f"{partition}-{number}-{i}" for i in range(100))
    return next(name for name in ids if world.event(name).partition == partition)


# ---- cancellation


@pytest.mark.regression("A cancellation out of a library ended a lane unseen.")
async def test_cancellation_out_of_a_library_is_a_failure_like_any_other() -> None:
    world = World(faults=SimFaults(seed=1, leak_cancel=0.2))
    router = await world.start()

    for number in range(60):
        await world.deliver([world.event(str(number))])
    world.log.rng.faults = SimFaults()
    await world.wait_until_active()

    assert sum(lane.metrics.failures for lane in router.all_lanes) > 5
    assert all(lane.is_running for lane in router.all_lanes)
    world.judge()


@pytest.mark.regression("A gateway that started with a wrong clock served again only after a restart.")
@pytest.mark.parametrize("off_ms", [7_200_000, -90_000_000])
async def test_log_time_that_brokers_refuse_follows_the_wall_clock_and_events_are_stored(
    off_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, append = World(), SimLog.append
    wall_ms = world.clock.ms
    corrections = 0

    async def append_within_an_hour(log: SimLog, records: Sequence[NewRecord]) -> Offset:
        if abs(records[0].timestamp_ms - wall_ms) > 3_600_000:
            log._epoch = None  # as after any refusal
            raise NotAppendedError("simulated: InvalidTimestamp", is_log_time_refused=True)
        return await append(log, records)

    def follow() -> None:
        nonlocal corrections
        corrections += 1
        world.clock.ms = wall_ms

    monkeypatch.setattr(SimLog, "append", append_within_an_hour)
    world.on_log_time_refused = follow
    world.clock.ms += off_ms
    router = await world.start()
    await world.deliver([world.event(event_of(world, 0))])

    assert corrections == 1
    assert router.lanes[0].metrics.failures == 1
    world.judge()


async def test_lane_says_that_it_fails_and_since_when_until_it_serves() -> None:
    world = World()
    router = await world.start()
    lane = router.lanes[0]
    world.log.rng.faults = SimFaults(leak_cancel=1.0)
    world.clock.ms += 5_000
    await world.send([world.event(event_of(world, 0))])
    await steps(50)
    failing_since_ms, world.clock.ms = world.clock.ms, world.clock.ms + 60_000
    await steps(50)

    assert lane.health.failing_since_ms == failing_since_ms
    assert lane.health.last_error == "CancelledError: "
    with pytest.raises(LaneNotActiveError, match="2023-11-14T22:13:25Z"):
        lane.check_capacity(submission_of([world.event("refused")]))

    world.log.rng.faults = SimFaults()
    await world.wait_until_active()
    assert lane.health.failing_since_ms is None
    assert lane.health.last_error is None


async def test_lane_that_ends_by_itself_is_started_again_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    router = await world.start()
    lane = router.lanes[0]

    def raises(_lane: Lane, err: BaseException) -> None:
        raise ZeroDivisionError(str(err))

    with capture_logs() as lines, monkeypatch.context() as broken:
        broken.setattr(Lane, "_fail", raises)
        world.log.rng.faults = SimFaults(refuse=1.0)
        await world.send([world.event(event_of(world, 0))])
        await steps(100)
        assert lane.metrics.restarts > 0
    world.log.rng.faults = SimFaults()
    await world.wait_until_active()

    assert "lane ended, restarting it" in [line["event"] for line in lines]
    await world.deliver([world.event(event_of(world, 0))])
    world.judge()


async def test_cancelled_lane_ends() -> None:
    world = World()
    router = await world.start()

    await world.crash()

    assert not any(lane.is_running for lane in router.all_lanes)


@pytest.mark.regression("A cancelled lane took events while its log was closing.")
async def test_cancelled_lane_takes_nothing_while_its_log_is_closed() -> None:
    world = World()
    lane = (await world.start()).lanes[0]
    stuck = asyncio.Event()
    lane._log.close = stuck.wait  # type: ignore[method-assign,assignment]

    world.end_lane(0)
    await steps(3)

    assert lane.is_running is False
    with pytest.raises(LaneNotActiveError):
        lane.check_capacity(submission_of([world.event("refused")]))
    world.disk.open(world.index_identity(0)).close()  # it is free already
    stuck.set()
    await world.crash()


async def test_indexes_are_opened_in_different_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    turn = 0
    opened_in: list[int] = []
    open_index = world.disk.open

    def noted(identity: IndexIdentity) -> MemoryIndex:
        opened_in.append(turn)
        return open_index(identity)

    monkeypatch.setattr(world.disk, "open", noted)
    router = world.boot()
    while not all(lane.has_served for lane in router.all_lanes):
        turn += 1
        await asyncio.sleep(0)

    assert len(set(opened_in)) == len(opened_in) == 3


# ---- fencing


class Fenced:
    """A world whose lane 0 is fenced whenever it appends, with a clock that moves on demand."""

    def __init__(self, times: LaneTimes) -> None:
        self.world = World(times=times)

    async def append_fenced(self, number: int) -> Lane:
        router = self.world.router
        assert router is not None
        self.world.log.rng.faults = SimFaults(rival=1.0)
        await self.world.send([self.world.event(event_of(self.world, 0, number))])
        self.world.log.rng.faults = SimFaults()
        return router.lanes[0]


async def test_partition_that_is_taken_again_at_once_is_another_gateways() -> None:
    fenced = Fenced(replace(QUICK, fenced_again_s=60.0))
    await fenced.world.start()
    lane = await fenced.append_fenced(0)
    await fenced.world.wait_until_active()

    fenced.world.clock.ms += 59_000
    await fenced.append_fenced(1)
    while lane.is_running:
        await asyncio.sleep(0)

    assert (lane.health.is_lost, lane.state) == (True, LaneState.UNASSIGNED)
    with pytest.raises(LaneNotActiveError, match="served by another gateway"):
        lane.check_capacity(submission_of([fenced.world.event("refused")]))


async def test_slow_takeover_counts_nothing_of_its_own_time() -> None:
    fenced = Fenced(replace(QUICK, fenced_again_s=60.0))
    world = fenced.world
    await world.start()
    lane = await fenced.append_fenced(0)
    world.log.partition(CLEAN.name, 0).outage_calls = 50  # the takeover has to wait for the log
    while lane.state is not LaneState.FAILED:
        await asyncio.sleep(0)
    world.clock.ms += 600_000
    world.log.partition(CLEAN.name, 0).outage_calls = 0
    await world.wait_until_active()

    await fenced.append_fenced(1)
    while lane.is_running:
        await asyncio.sleep(0)

    assert lane.health.is_lost


async def test_partition_that_served_long_in_between_is_taken_back() -> None:
    fenced = Fenced(replace(QUICK, fenced_again_s=60.0))
    await fenced.world.start()
    lane = await fenced.append_fenced(0)
    await fenced.world.wait_until_active()

    fenced.world.clock.ms += 61_000
    await fenced.append_fenced(1)
    await fenced.world.wait_until_active()

    assert not lane.health.is_lost


async def test_pauses_grow_while_every_recovery_ends_in_the_same_failure() -> None:
    world = World(times=LaneTimes(backoff_s=0.001, backoff_max_s=0.008))
    lane = (await world.start()).lanes[0]
    world.log.rng.faults = SimFaults(refuse=1.0)
    pauses: list[float] = []
    sleep = lane._sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(seconds)

    lane._sleep = noted  # type: ignore[method-assign]
    event = world.event(event_of(world, 0))
    while lane.metrics.failures < 6:
        await world.send([event])
        await asyncio.sleep(0)

    assert len(pauses) >= 5
    assert all(0.004 <= pause <= 0.008 for pause in pauses[4:])
    assert pauses[0] <= 0.001


@pytest.mark.regression("A batch whose commit failed was missing among waiting times.")
async def test_batch_whose_commit_fails_has_waited_too() -> None:
    world = World()
    lane = (await world.start()).lanes[0]
    world.log.rng.faults = SimFaults(refuse=1.0)

    await world.send([world.event(event_of(world, 0))])

    assert (sum(lane.metrics.batch_events.counts), sum(lane.metrics.queue_wait_s.counts)) == (1, 1)


async def test_gateway_that_takes_a_partition_back_counts_only_its_own_events() -> None:
    first = World(times=replace(QUICK, fenced_again_s=60.0))
    second = first.beside()
    await first.start()
    await first.deliver([first.event(event_of(first, 0))])
    await second.start()
    for number in range(1, 4):
        await second.deliver([first.event(event_of(first, 0, number))])
    await second.crash()

    await first.deliver([first.event(event_of(first, 0, 4))])

    first.judge()
    await first.crash()


# ---- waiting


async def test_queue_of_duplicates_lets_others_run() -> None:
    world = World()
    router = await world.start()
    copy = world.event("a")
    await world.deliver([copy])
    lane = router.lanes[copy.partition]
    deadline = Deadline(world.clock, 1e9)
    answer = lane.submit(
        submission_of([copy] * 700, size_bytes=1, received_ms=world.clock.now_ms(), deadline=deadline)
    )

    turns = 0
    while not answer.done():
        turns += 1
        await asyncio.sleep(0)

    assert turns >= 700 / LIMITS.batch_events_max


@pytest.mark.regression("Requests waited beyond their deadline while a quota made the log pause.")
async def test_log_that_asks_for_a_pause_is_left_alone_and_nobody_waits_beyond_a_deadline() -> None:
    """As where a quota of Kafka's brokers is used up: what waits is answered, and the rest follows later."""
    world = World()
    router = await world.start()
    first = world.event("a")
    lane = router.lanes[first.partition]
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + 20

    class Throttled:
        """The lane's log, which asks for a pause until then."""

        throttled_s = 20.0

        def __init__(self, log: PartitionLog) -> None:
            self._log = log

        def __getattr__(self, name: str) -> Any:
            return getattr(self._log, name)

        @property
        def pause_after_append_s(self) -> float:
            return max(ends_at - loop.time(), 0.0)

    lane._log = cast(PartitionLog, Throttled(lane._log))
    await world.deliver([first])
    await asyncio.sleep(0.01)
    assert lane.is_throttled
    impatient, patient = (
        lane.submit(
            submission_of(
                [world.event(event_of(world, first.partition, number))],
                received_ms=world.clock.now_ms(),
                deadline=deadline_of(seconds),
            )
        )
        for number, seconds in ((1, 1.0), (2, 100.0))
    )
    with pytest.raises(LaneNotActiveError):
        await impatient
    assert loop.time() < ends_at
    await patient
    assert loop.time() >= ends_at
    assert lane.metrics.failures == 0


async def test_maintenance_without_an_answer_holds_no_commit() -> None:
    world = World(times=replace(QUICK, maintenance_s=1.0))
    router = await world.start()
    lane = router.lanes[0]
    stuck = asyncio.Event()

    async def bounds() -> tuple[int, int]:
        await stuck.wait()
        return 0, 0

    lane._log.bounds = bounds  # type: ignore[method-assign]
    await asyncio.sleep(2)
    async with asyncio.timeout(60):
        for number in range(5):
            await world.deliver([world.event(event_of(world, 0, number))])

    assert lane.metrics.commits == 5
    await world.crash()


async def test_clock_that_runs_ahead_deletes_no_session() -> None:
    world = World(times=replace(QUICK, maintenance_s=1.0))
    lane = (await world.start()).lanes[0]
    plain, later = (world.event(event_of(world, 0, number)) for number in range(2))
    client_hash, session_hash = bytes(16), b"\x01" * 16
    assert partition_of(client_hash, CLEAN.partitions) == 0
    session = Session(client_hash, session_hash, sequence=1)
    key = world.identity.sequence_key(client_hash, session_hash, 1)
    await world.deliver([plain._replace(key=key, session=session)])

    world.clock.ms += 10 * world.sessions.remembered_ms
    await asyncio.sleep(3)
    assert lane.partition_index.index.session_counts.live == 1

    await world.deliver([later])
    await asyncio.sleep(3)
    assert lane.partition_index.index.session_counts.live == 0
    await world.crash()


@pytest.mark.regression("A copy of an event that the log had lost stayed a duplicate while nothing new came.")
async def test_copy_of_an_event_that_the_log_has_lost_is_soon_none_though_nothing_new_comes() -> None:
    world = World(times=replace(QUICK, maintenance_s=1.0))
    lane = (await world.start()).lanes[0]
    event = world.event(event_of(world, 0, 0))
    await world.deliver([event])
    world.lose_tail(0, 1)

    world.clock.ms += 2_000
    await asyncio.sleep(3)
    await world.wait_until_active()
    await world.deliver([event])

    assert lane.metrics.rebuilds == 1
    assert [len(records) for records in world.committed()] == [1, 0]
    world.judge()
    await world.crash()


@pytest.mark.regression("Bounds of the log from before a failure were believed after it.")
async def test_bounds_that_were_asked_for_before_a_failure_are_not_believed_after_it() -> None:
    world = World(times=replace(QUICK, maintenance_s=1.0))
    lane = (await world.start()).lanes[0]
    events = [world.event(event_of(world, 0, number)) for number in range(3)]
    answer: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
    bounds = lane._log.bounds
    lane._log.bounds = lambda: answer  # type: ignore[method-assign,assignment,return-value]
    await world.deliver(events[:1])
    await asyncio.sleep(2)  # the log is asked meanwhile
    await world.deliver(events[1:2])
    lane._log.bounds = bounds  # type: ignore[method-assign]
    world.log.rng.faults = SimFaults(refuse=1.0)
    assert not await world.send(events[2:])
    world.log.rng.faults = SimFaults()
    await world.wait_until_active()

    if not answer.done():
        answer.set_result((1_000, 1_001))  # of a topic that has been deleted, and begun anew since
    await steps(10)
    await world.deliver(events)

    world.judge()


# ---- somebody else's records


async def test_foreign_record_stops_its_lane_only_until_the_operator_lets_it_pass() -> None:
    world = World()
    router = await world.start()
    for number in range(10):
        await world.deliver([world.event(event_of(world, n, number)) for n in (0, 1)])
    offset = world.intrude(0)
    assert not await world.send([world.event(event_of(world, 0, 100))])
    while not isinstance(router.lanes[0].health.last_error, str) or "LogCorrupt" not in (
        router.lanes[0].health.last_error
    ):
        await asyncio.sleep(0)

    await world.deliver([world.event(event_of(world, 1, 100))])
    assert f"gateway partitions skip 0 {offset}" in (router.lanes[0].health.last_error or "")

    world.note_skips()
    await world.wait_until_active()
    for number in (0, 9, 100):
        await world.deliver([world.event(event_of(world, 0, number))])
    assert router.lanes[0].metrics.skipped_records > 0
    world.judge()


async def test_restart_beside_a_foreign_record_holds_no_other_lane() -> None:
    world = World()
    await world.start()
    await world.deliver([world.event(event_of(world, n)) for n in (0, 1)])
    world.intrude(0)
    await world.crash()
    world.disk.discard(world.index_identity(0))

    router = world.boot()
    while router.lanes[1].state is not LaneState.ACTIVE:
        await asyncio.sleep(0)

    await world.deliver([world.event(event_of(world, 1, 1))])
    assert router.lanes[0].state is not LaneState.ACTIVE


async def test_skipped_offset_of_our_own_record_is_not_passed_over() -> None:
    world = World()
    await world.start()
    events = [world.event(event_of(world, 0, number)) for number in range(20)]
    for event in events:
        await world.deliver([event])
    world.foreign.update(world.told.values())
    world.note_skips()
    world.foreign.clear()
    await world.crash()
    world.disk.discard(world.index_identity(0))

    await world.start()
    for event in events:
        await world.deliver([event])

    world.judge()


async def test_notes_of_another_log_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await world.start()
    world.intrude(0)
    await world.crash()

    async def not_ours(_name: str, _topic: str) -> dict[int, str]:
        raise IdentityMismatchError("written under another secret")

    world.boot()
    monkeypatch.setattr(world.connection, "notes", not_ours)
    with pytest.raises(IdentityMismatchError):
        await world.wait_until_active()


async def test_record_of_another_secret_in_a_pinned_log_stops_its_lane_not_the_process() -> None:
    world = World()
    router = await world.start()
    other = World()
    other.identity = type(world.identity)(b"another secret of the simulation")
    await other.start()
    stranger = next(event for event in map(other.event, "abcdefgh") if event.partition == 0)
    await other.deliver([stranger])
    world.log.partition(CLEAN.name, 0).intrude(other.committed()[0][0][1:])  # type: ignore[arg-type]

    await world.send([world.event(event_of(world, 0))])
    while LogCorruptError.__name__ not in (router.lanes[0].health.last_error or ""):
        await asyncio.sleep(0)

    await world.deliver([world.event(event_of(world, 1))])
