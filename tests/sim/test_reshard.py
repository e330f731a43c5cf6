"""
Claim: a clean topic that is divided answers every id as before, stores each once, and follows from its logs
alone: whoever dies, whatever the log does meanwhile, and however often it is divided.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from dedupe.decide.recovery import RecordCheck
from dedupe.decide.sessions import SessionState
from dedupe.decide.window import WindowPolicy
from dedupe.model.errors import IdentityMismatchError, RetriableError
from dedupe.model.record import build_record
from dedupe.model.types import Event, LogRecord
from dedupe.storage.dividing import decide
from tests.sim.reshard_world import ReshardWorld, begun, deliver
from tests.sim.world import CLEAN, Place
from tests.support.sim.faults import SimFaults

REQUESTS = 150  # of a history of sessions
STEPS = ("planned", "decide", "decided", "parent")


def judge(world: ReshardWorld) -> None:
    world.judge_homes()
    told: dict[int, int] = {}
    places = {}
    for partition, records in enumerate(world.committed()):
        for record in records:
            assert record.key not in places, "committed twice"
            places[record.key] = (partition, record.offset)
            told[partition] = told.get(partition, 0) + 1
    for message_id, place in world.told.items():
        assert places[message_id.encode()] == tuple(place)
    assert world.router is not None
    for lane in world.router.lanes:
        if lane.lineage is not None:
            world.judge_heir(lane)


async def test_ids_of_before_are_duplicates_at_the_same_place_after_two_divisions() -> None:
    world = await begun()
    await deliver(world, range(200))
    before = dict(world.told)

    for partitions in (4, 12):
        await world.divide(partitions)
        await world.restart()
        assert world.router is not None
        assert len(world.router.lanes) == partitions
        await deliver(world, range(100 * partitions))
        assert {name: world.told[name] for name in before} == before
        judge(world)

    assert world.router is not None
    assert {place.partition for place in world.told.values()} == set(range(12))
    assert any(lane.lineage and len(lane.lineage.ancestors) == 2 for lane in world.router.lanes)
    assert sum(lane.metrics.sequence_gaps for lane in world.router.lanes) == 0


async def test_process_of_before_is_fenced_and_ends() -> None:
    world = await begun()
    await deliver(world, range(50))

    await world.divide(4)

    layout, world.layout = world.layout, type(world.layout)(CLEAN.partitions)  # clients reach the old one

    async def send_until_it_ends() -> None:
        for number in range(50, 200):
            with suppress(RetriableError):
                await world.send([world.event(str(number))])
            await world.wait_until_active()

    with pytest.raises(IdentityMismatchError, match="divided anew"):
        await asyncio.wait_for(send_until_it_ends(), 60)
    world.layout = layout
    await world.restart()
    await deliver(world, range(200))
    judge(world)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("step", STEPS)
async def test_whoever_divides_may_end_anywhere(step: str, number: int) -> None:
    world = await begun()
    await deliver(world, range(100))

    await world.divide_with_crash(4, step, number)
    await world.restart()

    await deliver(world, range(200))
    judge(world)


async def test_plan_that_is_closed_changes_nothing() -> None:
    world = await begun()
    await deliver(world, range(50))

    await world.divide(4, keeps=True)
    assert world.layout.partitions == CLEAN.partitions
    await world.restart()
    await deliver(world, range(100))
    await world.divide(4)
    await world.restart()
    await deliver(world, range(200))

    judge(world)


async def test_clock_that_went_back_does_not_write_before_the_cut() -> None:
    world = await begun()
    await deliver(world, range(50))
    await world.divide(16)  # of a parent's seven heirs only one may have its last record
    world.clock.ms -= 3_600_000

    await world.restart()
    await deliver(world, range(150))

    judge(world)


async def test_what_is_decided_is_decided_once() -> None:
    world = await begun()
    await deliver(world, range(50))
    plan, log = world.plan(4), world.log.another().deciding_log(CLEAN.name, 0)

    first, second = [
        await decide(
            log, world.seal, plan, 0, world.layout, world.identity, keeps=keeps, now_ms=world.clock.ms
        )
        for keeps in (False, True)
    ]

    assert first == second
    assert first.is_cut
    await world.divide(4)
    await world.restart()
    await deliver(world, range(100))
    judge(world)


async def test_record_of_a_slot_behind_its_cut_stops_the_lane() -> None:
    world = await begun()
    await deliver(world, range(50))
    await world.divide(4)
    moved = next(event for event in map(world.event, map(str, range(50, 200))) if event.partition == 2)
    cut = world.layout.lineage_of(2)
    assert cut is not None
    check = RecordCheck(world.identity, 0, CLEAN.partitions, world.layout)
    written = build_record(moved, lane_seq=1, timestamp_ms=world.clock.ms)

    assert check.checked(LogRecord(cut.parent.end - 1, *written)).identity.key == moved.key
    with pytest.raises(IdentityMismatchError):
        check.checked(LogRecord(cut.parent.end, *written))
    heir = RecordCheck(world.identity, 2, CLEAN.partitions, world.layout)
    assert heir.checked(LogRecord(cut.own_start, *written)).identity.key == moved.key
    with pytest.raises(IdentityMismatchError):
        heir.checked(LogRecord(cut.own_start, cut.parent.timestamp_ms - 1, *written[1:]))


async def test_skipped_record_of_another_secret_is_not_where_a_partition_was_cut() -> None:
    world = await begun(policy=WindowPolicy(window_ms=6 * 3_600_000, keys_max=1_000_000))
    await deliver(world, range(60))
    other = next(event for event in map(world.event, map(str, range(60, 200))) if event.partition == 0)
    foreign = build_record(
        other._replace(key=bytes(16)), lane_seq=1_000_000, timestamp_ms=world.clock.ms + 10**10
    )
    world.foreign.add(Place(0, world.log.partition(CLEAN.name, 0).intrude(foreign)))
    world.note_skips()

    await world.divide(4)
    await world.restart()
    await deliver(world, range(60, 120))  # with log times of before
    await deliver(world, range(120))  # told the same places, or `deliver` fails


async def test_lost_index_of_an_heir_follows_from_the_logs_again() -> None:
    world = await begun()
    await deliver(world, range(200))
    await world.divide(4)
    await world.restart()
    await deliver(world, range(300))

    await world.restart(loses_disk=True)
    await deliver(world, range(400))

    judge(world)


async def test_window_of_an_heir_reaches_back_into_its_parent_by_time_and_by_keys() -> None:
    hour = 3_600_000
    for policy in (
        WindowPolicy(window_ms=6 * hour, keys_max=1_000_000),
        WindowPolicy(window_ms=10_000 * hour, keys_max=64),
    ):
        world = await begun(policy=policy)
        await deliver(world, range(100))
        world.clock.ms += 4 * hour
        await deliver(world, range(100, 200))
        await world.divide(4)
        await world.restart()
        world.clock.ms += 4 * hour
        await deliver(world, range(200, 500))
        assert world.router is not None
        for lane in world.router.lanes:
            known = lane.partition_index.known_from
            lost = [str(n) for n in range(100) if world.event(str(n)).partition == lane.partition]
            for name in lost:
                entry = lane.partition_index.index.lookup([world.event(name).key])[0]
                assert entry is None or entry.offset < known, "remembered beyond the window"
            if lane.lineage is not None:
                world.judge_heir(lane)
        known_before = {n: lane.partition_index.known_from for n, lane in enumerate(world.router.lanes)}
        await world.restart(loses_disk=True)
        assert world.router is not None
        for n, lane in enumerate(world.router.lanes):
            assert lane.partition_index.known_from == known_before[n]


async def test_parent_that_retention_trims_is_forgotten_by_its_heir() -> None:
    world = await begun()
    await deliver(world, range(200))
    await world.divide(4)
    await world.restart()
    await deliver(world, range(250))

    for partition in range(2):
        end = world.log.partition(CLEAN.name, partition).end
        world.trim(partition, end)
    await world.restart()
    await deliver(world, range(250, 300))
    await world.restart(loses_disk=True)
    await deliver(world, range(200, 350))

    world.judge_homes()


def requests_of(world: ReshardWorld, rng: Random) -> Iterator[list[Event]]:
    """Yield requests of client sessions: new ones, copies, gaps, acknowledgements, newer and older epochs."""
    for _ in range(REQUESTS):
        client, session = f"c{rng.randrange(12)}", rng.choice("st")
        epoch, first = rng.choice((0, 0, 0, 1, 2)), rng.randrange(1, 30)
        own_id = f"id-{rng.randrange(8)}" if rng.random() < 0.2 else None
        sequences = range(first, first + (1 if own_id else rng.randrange(1, 4)))
        yield [
            world.sent(
                sequence,
                session,
                client,
                own_id=own_id,
                epoch=epoch,
                acknowledged=max(0, first - rng.randrange(5, 40)),
            )
            for sequence in sequences
        ]


@pytest.mark.parametrize("seed", range(12))
async def test_sessions_go_on_as_if_nothing_had_moved(seed: int) -> None:
    worlds = await begun(), await begun()
    moved, _ = worlds
    requests = [requests_of(world, Random(seed)) for world in worlds]

    for number in range(REQUESTS):
        if number in (50, 100):
            await moved.divide(CLEAN.partitions * number // 25)
            await moved.restart(loses_disk=number == 100 and seed % 2 == 0)
        answers = []
        for world, own in zip(worlds, requests, strict=True):
            world.clock.ms += 10
            answers.append(await world.admissions(*next(own)))
        assert answers[0] == answers[1]

    states: list[dict[bytes, SessionState]] = [{}, {}]
    for found, world in zip(states, worlds, strict=True):
        for partition, known in enumerate(world.states()):
            for key, state in known.items():
                if world.layout.map.of(key) == partition:
                    found[key] = state._replace(last_offset=0)
    assert states[0] == states[1]
    moved.judge_homes()


@pytest.mark.parametrize("seed", range(40))
async def test_histories(seed: int) -> None:
    """Faults of the log at random, divisions, crashes, lost disks and closed plans in any order."""
    rng = Random(seed)
    faults = SimFaults(
        seed=seed,
        refuse=0.02,
        lose_reply=0.02,
        delay_append=0.02,
        delay_sight=0.05,
        unavailable=0.01,
        hang=0.01,
    )
    world = await begun(faults=faults)
    partitions, sent = CLEAN.partitions, 0
    for _ in range(rng.randrange(3, 6)):
        more = rng.randrange(20, 80)
        again = rng.randrange(sent + 1)
        await deliver(world, range(again, sent + more))
        sent += more
        if partitions < 16 and rng.random() < 0.6:
            wanted = partitions * rng.choice((2, 2, 3))
            if rng.random() < 0.2:
                await world.divide(wanted, keeps=True)
            elif rng.random() < 0.5:
                await world.divide_with_crash(wanted, rng.choice(STEPS), rng.randrange(1, 4))
                partitions = wanted
            else:
                await world.divide(wanted)
                partitions = wanted
        await world.restart(loses_disk=rng.random() < 0.3)
    await deliver(world, range(sent + 50))
    judge(world)
