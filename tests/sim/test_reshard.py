"""
Claim: a clean topic that is divided answers every id as before, stores each once, and follows from its logs
alone: whoever dies, whatever the log does meanwhile, and however often it is divided.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from dedupe.decide.admission import Admission
from dedupe.decide.recovery import RecordCheck
from dedupe.decide.sessions import SessionState
from dedupe.decide.window import WindowPolicy
from dedupe.model.errors import IdentityMismatchError, RetriableError
from dedupe.model.inherited import place_of
from dedupe.model.record import build_record
from dedupe.model.types import Event, LogRecord
from dedupe.storage.dividing import decide
from dedupe.storage.pinning import SessionNotes
from tests.sim.reshard_world import ReshardWorld, begun, deliver
from tests.sim.seeds import each_seed
from tests.sim.session_world import DAY_MS
from tests.sim.world import CLEAN, Place
from tests.support.sim.faults import SimFaults

REQUESTS = 150  # of a history of sessions
PLANS = {40: 4, 80: 2, 110: 6}
"""Partitions, by the number of the request before which there are so many."""
STEPS = ("planned", "marked", "decide", "decided", "partition")


def judge(world: ReshardWorld) -> None:
    world.judge_log()
    judge_heirs(world)


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
    assert any(lane.lineage and len(lane.lineage.levels) == 2 for lane in world.router.lanes)
    assert sum(lane.metrics.sequence_gaps for lane in world.router.lanes) == 0


async def test_ids_stay_where_they_are_when_partitions_become_fewer_and_more_again() -> None:
    world = await begun()
    await deliver(world, range(200))
    sent = 200

    for partitions in (4, 2, 8, 4, 2, 4):
        before = dict(world.told)
        await world.divide(partitions)
        await world.restart(loses_disk=partitions == 8)
        assert world.router is not None
        assert len(world.router.lanes) == partitions
        assert {name: world.told[name] for name in before} == before
        sent += 50
        await deliver(world, range(sent))  # told the same places, or `deliver` fails
        judge(world)
        assert sum(lane.metrics.sequence_gaps for lane in world.router.lanes) == 0

    assert world.router is not None
    parents = {
        level.partition for lane in world.router.lanes if lane.lineage for level in lane.lineage.levels
    }
    assert parents > {0, 1, 2, 3}


async def test_one_partition_is_split_and_the_others_keep_their_indexes() -> None:
    world = await begun()
    await deliver(world, range(200))
    await world.divide(4)
    await world.restart()
    await deliver(world, range(250))
    assert world.router is not None
    kept = {lane.partition: lane.partition_index.index.lineage for lane in world.router.lanes}

    await world.divide(split=3)
    await world.restart()
    assert world.router is not None
    assert {n: world.router.lanes[n].partition_index.index.lineage for n in kept} == kept
    assert [world.layout.slots_of(n) > 0 for n in range(6)] == [True, True, True, True, False, True]
    await deliver(world, range(350))
    judge(world)
    for partitions in (4, 6):
        await world.divide(partitions)
        await world.restart(loses_disk=partitions == 6)
        await deliver(world, range(400))
        judge(world)


async def test_duplicate_of_a_deleted_piece_proves_nothing_against_the_index() -> None:
    world = await begun()
    for partitions in (4, 2):
        await world.divide(partitions)
        await world.restart()
        await deliver(world, range(200))
    world.log.trim(CLEAN.name, 2, world.log.partition(CLEAN.name, 2).end)  # read before the own one's end

    told = dict(world.told)
    for _ in range(20):
        await deliver(world, range(200))
        await asyncio.sleep(12)

    assert world.told == told
    assert world.router is not None
    proofs = [lane.metrics.proofs for lane in world.router.lanes]
    assert sum(each.unknown for each in proofs) > 0
    assert sum(each.disproved for each in proofs) == 0
    await world.restart(loses_disk=True)  # what is deleted is forgotten, and nothing else
    await deliver(world, (n for n in range(200) if told[str(n)].partition != 2))


@pytest.mark.regression(
    "A partition that had rested for longer than retention forgot what it inherited when it got slots again."
)
async def test_deleted_markers_of_a_partition_that_rested_say_nothing_of_what_it_inherits() -> None:
    world = await begun()
    await world.divide(4)
    await world.restart()
    await deliver(world, range(100))
    await world.divide(2)
    await world.restart()
    for partition in (2, 3):
        await world.log.another().deciding_log(CLEAN.name, partition).fence()  # behind its cut
        world.trim(partition, world.log.partition(CLEAN.name, partition).end)
    await deliver(world, range(100, 200))
    told = dict(world.told)

    await world.divide(4)
    assert any(world.event(name).partition != place.partition for name, place in told.items())
    for loses_disk in (False, True):
        await world.restart(loses_disk=loses_disk)
        await deliver(world, map(int, told))
        assert world.told == told
    judge(world)


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
    sent = 100
    await deliver(world, range(sent))

    for partitions in (4, 2):
        await world.divide_with_crash(partitions, step=step, number=number)
        await world.restart()
        sent += 100
        await deliver(world, range(sent))
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

    assert check.checked(LogRecord(cut.levels[0].end - 1, *written)).identity.key == moved.key
    with pytest.raises(IdentityMismatchError):
        check.checked(LogRecord(cut.levels[0].end, *written))
    heir = RecordCheck(world.identity, 2, CLEAN.partitions, world.layout)
    assert heir.checked(LogRecord(cut.own_start, *written)).identity.key == moved.key
    with pytest.raises(IdentityMismatchError):
        heir.checked(LogRecord(cut.own_start, cut.timestamp_ms - 1, *written[1:]))


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


@pytest.mark.parametrize("is_by_time", [True, False], ids=["time", "keys"])
async def test_partitions_that_become_fewer_forget_nothing_early(*, is_by_time: bool) -> None:
    hour = 3_600_000
    policy = WindowPolicy(
        window_ms=(6 if is_by_time else 10_000) * hour, keys_max=10**6 if is_by_time else 32
    )
    world = await begun(policy=policy)
    await world.divide(4)
    await world.restart()
    both = {0, 1}, {0, 1, 2, 3}, {0, 1}  # of each pair one has more records, and later ones
    for start, busy in zip((0, 300, 500), both, strict=True):
        await deliver(world, (n for n in range(start, start + 200) if world.event(str(n)).partition in busy))
        world.clock.ms += 4 * hour
    before = remembered(world)
    assert {place.partition for place in before.values()} == {0, 1, 2, 3}
    assert len(before) < len(world.told)

    await world.divide(2)
    world.policy = policy._replace(keys_max=2 * policy.keys_max)  # by the smallest number of partitions
    for loses_disk in (False, True):
        await world.restart(loses_disk=loses_disk)
        assert remembered(world).items() >= before.items()
        judge_heirs(world)
        await world.restart()
        assert world.router is not None
        assert sum(lane.metrics.rebuilds + lane.metrics.restored_records for lane in world.router.lanes) == 0
    for wanted in (4, 2):  # and the windows of all that follows are those of a replay
        world.clock.ms += 3 * hour
        await deliver(world, range(1000 * wanted, 1000 * wanted + 200))
        await world.divide(wanted)
        await world.restart(loses_disk=wanted == 2)
        judge_heirs(world)


def remembered(world: ReshardWorld) -> dict[str, Place]:
    """Return the ids that lanes know now, and where."""
    assert world.router is not None
    found = {}
    for name in world.told:
        event = world.event(name)
        index = world.router.lanes[event.partition].partition_index
        (entry,) = index.index.lookup([event.key])
        if entry is not None and entry.offset >= index.known_from:
            found[name] = Place(*place_of(event.partition, entry.offset))
    return found


def judge_heirs(world: ReshardWorld) -> None:
    assert world.router is not None
    for lane in world.router.lanes:
        if lane.lineage is not None:
            world.judge_heir(lane)


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
        if number in PLANS:
            await moved.divide(PLANS[number])
            await moved.restart(loses_disk=number == 80 and seed % 2 == 0)
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
    assert states[0].keys() == states[1].keys()
    for key, state in states[0].items():
        at = states[1][key].last_used_ms  # of a piece that is read behind another one it counts as later
        assert state == states[1][key]._replace(last_used_ms=max(at, state.last_used_ms))
    moved.judge_homes()


async def test_sessions_go_along_to_a_partition_that_never_had_any() -> None:
    world = await begun(policy=WindowPolicy(window_ms=30 * DAY_MS, keys_max=8))
    await deliver(world, range(20))
    await world.divide(4)
    await world.restart()
    clients = [name for name in map(str, range(40)) if world.sent(1, "s", name).partition >= 2]
    assert clients
    for client in clients:
        await world.admissions(world.sent(1, "s", client))
    await world.divide(2)
    await world.restart()
    await deliver(world, range(20, 80))

    await world.restart(loses_disk=True)

    notes = SessionNotes(world.log.another(), CLEAN.name)
    assert not any([await notes.may_have(partition) for partition in range(2)])
    told = [await world.admissions(world.sent(1, "s", client)) for client in clients]
    assert {admission for each in told for admission in each} <= {Admission.DUPLICATE, Admission.STALE}


@each_seed(one_in=3)
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
    sent = 0
    for _ in range(rng.randrange(3, 7)):
        more = rng.randrange(20, 80)
        again = rng.randrange(sent + 1)
        await deliver(world, range(again, sent + more))
        sent += more
        if rng.random() < 0.7:
            wanted, split = rng.choice((2, 4, 6, 8, 12)), None
            if rng.random() < 0.2:
                split = rng.choice(sorted(set(world.routing().homes)))
            if rng.random() < 0.2:
                await world.divide(wanted, split=split, keeps=True)
            elif rng.random() < 0.5:
                await world.divide_with_crash(
                    wanted, split=split, step=rng.choice(STEPS), number=rng.randrange(1, 4)
                )
            else:
                await world.divide(wanted, split=split)
        await world.restart(loses_disk=rng.random() < 0.3)
    await deliver(world, range(sent + 50))
    judge(world)
