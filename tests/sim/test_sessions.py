"""Claim: what a lane knows of client sessions follows from its log alone; all their events are counted."""

import asyncio

import pytest

from dedupe.decide.admission import Admission
from dedupe.decide.sessions import SessionPolicy
from dedupe.decide.window import WindowPolicy
from dedupe.model.errors import OutcomeUnknownError, RetriableError
from dedupe.storage.notes import BEGUN_EMPTY, SESSIONS
from tests.sim.session_world import DAY_MS, SessionWorld
from tests.sim.world import CLEAN

NEW, DUPLICATE, STALE = Admission.NEW, Admission.DUPLICATE, Admission.STALE
FENCED, EXPIRED, TOO_FAR = Admission.FENCED, Admission.EXPIRED, Admission.TOO_FAR


# ---- counts


@pytest.mark.regression("Events kept apart were not counted when their request failed.")
async def test_events_kept_apart_are_counted_though_their_request_fails() -> None:
    world = SessionWorld()
    router = await world.start()
    here, there = world.client_of(0), world.client_of(1)
    await world.ask(world.sent(1, client=here, epoch=2))
    world.log.partition(CLEAN.name, 1).refused_appends = 1

    with pytest.raises(OutcomeUnknownError):
        await world.ask(world.sent(2, client=here, epoch=1), world.sent(1, client=there))

    here_tally, there_tally = (lane.metrics.tally for lane in router.lanes)
    assert (here_tally.accepted, here_tally.rejected, there_tally.refused) == (1, 1, 1)
    assert (router.totals.accepted, router.totals.unknown, router.totals.received) == (1, 2, 3)


@pytest.mark.regression("Damage of an index that was found by a look-up was answered as unknown session.")
async def test_damage_found_by_who_only_looks_is_no_answer() -> None:
    """The request whose session is told of has been committed, and must not fail for good."""
    world = SessionWorld()
    router = await world.start()
    await world.ask(world.sent(1))
    partition = world.sent(1).partition
    world.disk.damage(world.index_identity(partition))

    with pytest.raises(RetriableError):
        await world.state_of(world.sent(1))

    assert await world.tries([world.sent(2)]) is None  # the lane finds it, and rebuilds
    await world.wait_until_active()
    assert router.lanes[partition].metrics.rebuilds == 1
    assert await world.admissions(world.sent(1), world.sent(2)) == [DUPLICATE, NEW]


# ---- time


@pytest.mark.regression("A clock far ahead forgot sessions.")
async def test_clock_that_is_far_ahead_for_a_while_forgets_no_session() -> None:
    world = SessionWorld()
    await world.start()
    await world.ask(world.sent(1))
    world.clock.ms += 90 * DAY_MS
    await asyncio.sleep(2 * world.times.maintenance_s)
    await world.crash()

    world.clock.ms -= 90 * DAY_MS
    router = await world.start()

    assert await world.state_of(world.sent(1))
    assert sum(lane.metrics.rebuilds for lane in router.lanes) == 0


async def used_for_months(world: SessionWorld) -> None:
    """Have a client that acknowledges nothing send ten events a day, and leave one out."""
    await world.start()
    for day in range(70):
        world.clock.ms += DAY_MS
        sequences = range(10 * day + 1, 10 * day + 11)
        await world.ask(*(world.sent(sequence) for sequence in sequences if sequence != 300))


@pytest.mark.regression("A rebuilt index knew less of a session than the one it replaced.")
@pytest.mark.parametrize("is_trimmed", [False, True])
async def test_session_that_is_older_than_its_lease_is_the_same_after_a_rebuild(is_trimmed: bool) -> None:
    world = SessionWorld()
    await used_for_months(world)
    before, state = world.states(), await world.state_of(world.sent(1))
    assert state is not None
    assert (state.watermark, state.missing(), state.highest) == (299, [(300, 300)], 700)
    await world.lose_indexes()
    if is_trimmed:
        partition = world.log.partition(CLEAN.name, world.sent(1).partition)
        world.trim(world.sent(1).partition, partition.records[-15].offset)

    await world.start()

    assert world.states() == before
    assert await world.admissions(*map(world.sent, (5, 301, 380, 701, 300))) == [STALE] * 3 + [NEW] * 2


@pytest.mark.regression("A longer lease did not hold for sessions that an index had already forgotten.")
@pytest.mark.parametrize("is_rebuilt", [False, True])
async def test_lease_that_is_made_longer_is_kept_for_sessions_of_before(is_rebuilt: bool) -> None:
    world = SessionWorld(sessions=SessionPolicy(lease_ms=10 * DAY_MS, sessions_max=100))
    await world.start()
    await world.ask(world.sent(1), world.sent(2))
    world.clock.ms += 15 * DAY_MS
    await world.ask(world.sent(1, "other"))
    await asyncio.sleep(2 * world.times.maintenance_s)
    if is_rebuilt:
        await world.lose_indexes()
        await world.start()
    await world.crash()
    world.sessions = world.sessions._replace(lease_ms=30 * DAY_MS)
    await world.start()
    assert await world.admissions(world.sent(2)) == [STALE]
    await world.crash()

    router = await world.start()

    assert await world.admissions(world.sent(2)) == [STALE]
    assert sum(lane.metrics.rebuilds for lane in router.lanes) == 0


# ---- where a rebuild begins

SHORT = WindowPolicy(window_ms=20_000, keys_max=1_000_000, time_step_ms=1_000)


async def with_old_records(world: SessionWorld, *, has_sessions: bool) -> None:
    """Have 200 records beyond the window, and 20 in it, in the lane of client "c"."""
    await world.start()
    partition = world.sent(1).partition
    if has_sessions:
        await world.ask(world.sent(1))
    plain = (event for event in map(world.event, map(str, range(10_000))) if event.partition == partition)
    for _ in range(220):
        world.clock.ms += 1_000
        await world.deliver([next(plain)])
    await world.lose_indexes()


async def restored(world: SessionWorld) -> int:
    router = await world.start()
    return router.lanes[world.sent(1).partition].metrics.restored_records


async def test_rebuild_of_a_log_without_sessions_reads_the_window_alone() -> None:
    world = SessionWorld(policy=SHORT)
    await with_old_records(world, has_sessions=False)

    assert await restored(world) < 30


async def test_rebuild_reads_as_far_back_as_sessions_are_known() -> None:
    world = SessionWorld(policy=SHORT)
    await with_old_records(world, has_sessions=True)

    assert await restored(world) == 221
    assert await world.admissions(world.sent(1)) == [STALE]


async def test_rebuild_reads_no_further_than_sessions_are_known() -> None:
    lease = SessionPolicy(lease_ms=50_000, sessions_max=100, expired_ms=20_000)
    world = SessionWorld(policy=SHORT, sessions=lease)
    await with_old_records(world, has_sessions=True)

    assert 65 < await restored(world) < 80


async def test_rebuild_of_a_log_that_was_adopted_looks_for_sessions() -> None:
    world = SessionWorld(policy=SHORT)
    await with_old_records(world, has_sessions=True)
    world.log.forget_sessions(CLEAN.name)

    assert await restored(world) == 221
    assert await world.admissions(world.sent(1)) == [STALE]


@pytest.mark.regression("Sessions in a log that was made again were forgotten by a rebuild.")
async def test_session_in_a_log_that_was_made_again_is_noted_again() -> None:
    world = SessionWorld(policy=SHORT)
    await world.start()
    await world.ask(world.sent(1))
    number = world.sent(1).partition
    world.lose_tail(number, 1)
    world.log.forget_sessions(CLEAN.name)
    world.log.partition(CLEAN.name, number).refused_appends = 1
    assert await world.tries([world.sent(2)]) is None
    await world.wait_until_active()

    await world.ask(world.sent(1))

    assert number in world.log.noted(BEGUN_EMPTY, CLEAN.name)
    assert number in world.log.noted(SESSIONS, CLEAN.name)
