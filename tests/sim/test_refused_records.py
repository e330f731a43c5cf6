"""
Claim: a log that refuses records for their size or content costs only those that fit nowhere, and these are
quarantined at once; a topic that was made anew is not taken for the old one.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupe.decide.admission import Admission
from dedupe.model.clock import Deadline
from dedupe.model.errors import NotAppendedError, OutcomeUnknownError, RetriableError
from dedupe.model.identity import fingerprint_of
from dedupe.model.quarantine import PIECE_BYTES, PIECE_BYTES_MIN, Quarantine
from dedupe.model.types import Event, NewRecord, Offset
from dedupe.partition.committer import CONFIRM_S
from dedupe.storage.quarantine_reader import Whole, parse_kept
from dedupe.submission import Outcomes
from tests.sim.world import CLEAN, QUARANTINE, SOURCE, World
from tests.support.sim.faults import SimFaults
from tests.support.sim.sim_log import SimLog, SimPartition
from tests.support.virtual_time import VirtualTimeLoop


def partitions_of(world: World) -> list[SimPartition]:
    return [world.log.partition(CLEAN.name, number) for number in range(CLEAN.partitions)]


def limit_records(world: World, size_bytes: int | None) -> None:
    """Lower `max.message.bytes` of the clean topic while the gateway runs."""
    for partition in partitions_of(world):
        partition.record_bytes_max = size_bytes


def small_ones(world: World, count: int) -> list[Event]:
    return [world.event(f"small-{number}", "x" * 50) for number in range(count)]


async def submit(world: World, events: Sequence[Event], rejected: Sequence[Event] = ()) -> Outcomes:
    assert world.router is not None
    received_ms, deadline = world.clock.now_ms(), Deadline(world.clock, 1e6)
    return await world.router.submit(events, rejected, received_ms=received_ms, deadline=deadline)


def failures(world: World) -> int:
    assert world.router is not None
    return sum(lane.metrics.failures for lane in world.router.all_lanes)


async def test_one_event_that_is_too_large_is_quarantined_and_all_others_are_stored() -> None:
    world = World()
    router = await world.start()
    limit_records(world, 2_000)
    events = small_ones(world, 30)
    events.insert(17, world.event("large", "x" * 3_000))

    for _ in range(3):
        assert await world.send(events)
        admissions = (await submit(world, events)).admissions
        assert [admission is Admission.TOO_LARGE for admission in admissions].index(True) == 17
        assert admissions.count(Admission.TOO_LARGE) == 1

    assert failures(world) == 0
    assert sum(map(len, world.committed())) == 30
    assert len(world.committed(QUARANTINE)[0]) == 1
    assert sum(lane.metrics.refused_batches for lane in router.lanes) > 0
    world.judge()


async def test_commits_become_smaller_until_they_fit_and_stay_so() -> None:
    world = World()
    router = await world.start()
    limit_records(world, 250)  # three events
    assert await world.send(small_ones(world, 40))
    for number in range(40):
        assert await world.send([world.event(f"later-{number}", "x" * 50)])
    refused = sum(lane.metrics.refused_batches for lane in router.lanes)
    assert await world.send([world.event(f"last-{number}", "x" * 50) for number in range(40)])

    assert failures(world) == 0
    assert sum(map(len, world.committed())) == 120
    assert sum(lane.metrics.refused_batches for lane in router.lanes) - refused <= 4
    router.lanes[0].queue.allow_batches(0)
    assert router.lanes[0].queue.batch_bytes_max == world.limits.batch_bytes_max
    world.judge()


async def test_record_that_is_refused_for_its_content_is_quarantined_as_such() -> None:
    world = World()
    await world.start()
    for partition in partitions_of(world):
        partition.refuses = lambda record: b"poison" in record.value
    events = [*small_ones(world, 5), world.event("bad", "poison")]

    assert await world.send(events)
    assert (await submit(world, events)).admissions[-1] is Admission.REFUSED
    assert failures(world) == 0
    world.judge()


def long_reject(world: World, length: int) -> tuple[bytes, Sequence[Event]]:
    content = bytes(number % 251 for number in range(length))
    quarantine = Quarantine(world.identity, QUARANTINE)
    return content, quarantine.events(
        source=SOURCE,
        message_id="",
        fingerprint=fingerprint_of(content),
        content=content,
        reason="unreadable",
        position=3,
        is_json=False,
    )


@pytest.mark.parametrize("length", [20_000, PIECE_BYTES, 2 * PIECE_BYTES + 5])
@pytest.mark.parametrize("limit", [4_000, 60_000])
async def test_quarantine_that_takes_no_such_record_gets_smaller_pieces(length: int, limit: int) -> None:
    world = World()
    await world.start()
    world.log.partition(QUARANTINE.name, 0).record_bytes_max = limit
    content, rejected = long_reject(world, length)

    for _ in range(2):
        assert (await submit(world, [world.event("good")], rejected)).admissions[0] in (
            Admission.NEW,
            Admission.DUPLICATE,
        )
    kept = [parse_kept(record, 0) for record in world.committed(QUARANTINE)[0]]
    wholes: dict[object, Whole] = {}
    for each in kept:
        assert each is not None
        wholes.setdefault(each.whole_id, Whole(each)).add(each)
    complete = [whole for whole in wholes.values() if whole.problem is None]
    assert [whole.content for whole in complete] == [content]
    assert len({each.key for each in kept if each}) == len(kept)  # the second try has added none
    assert failures(world) == 0


async def test_quarantine_that_takes_nothing_is_an_error_that_says_so() -> None:
    world = World()
    await world.start()
    world.log.partition(QUARANTINE.name, 0).record_bytes_max = PIECE_BYTES_MIN // 2
    _, rejected = long_reject(world, 9_000)

    with pytest.raises(NotAppendedError, match=QUARANTINE.name):
        await submit(world, [], rejected)
    with pytest.raises(OutcomeUnknownError):  # the good one is stored
        await submit(world, [world.event("good")], rejected)


async def test_refusal_is_told_as_not_appended_and_has_left_nothing() -> None:
    world = World()
    await world.start()
    world.log.rng.faults = SimFaults(refuse=1.0)
    with pytest.raises(NotAppendedError):
        await submit(world, [world.event("one")])
    world.log.rng.faults = SimFaults()
    await world.wait_until_active()
    assert world.router is not None
    assert (world.router.totals.refused, world.router.totals.unknown) == (1, 0)
    assert sum(map(len, world.committed())) == 0
    world.judge()


@given(
    sizes=st.lists(st.integers(0, 3_000), min_size=1, max_size=60),
    limits=st.lists(st.integers(80, 3_200), min_size=1, max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_refused_each_event_is_stored_or_quarantined_once(
    sizes: list[int], limits: list[int]
) -> None:
    async def history() -> None:
        world = World()
        await world.start()
        events = [world.event(f"id-{number}", "x" * size) for number, size in enumerate(sizes)]
        limit_records(world, limits[0])
        assert await world.send(events)
        for limit in limits[1:]:
            # A raised limit lets an event in that was quarantined before: then it is stored as well.
            limit_records(world, min(limit, limits[0]))
            assert await world.send(events)
        stored = {record.key.decode() for records in world.committed() for record in records}
        quarantined = {record.key.decode() for record in world.committed(QUARANTINE)[0]}
        assert stored | quarantined == {event.message_id for event in events}
        assert not stored & quarantined or len(limits) > 1
        assert failures(world) == 0
        world.judge_log()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(history())


async def test_topic_that_was_made_anew_answers_no_duplicate_of_the_old_one() -> None:
    world = World()
    await world.start()
    events = [world.event(str(number)) for number in range(10)]
    assert await world.send(events)
    await asyncio.sleep(10 * CONFIRM_S)
    for partition in partitions_of(world):
        partition.begin_anew()
    world._forget()

    admissions: list[Admission] = []
    async with asyncio.timeout(20):
        while not admissions:
            with suppress(RetriableError):
                admissions = (await submit(world, events)).admissions
            await asyncio.sleep(0.01)
    assert admissions == [Admission.NEW] * 10
    assert sum(map(len, world.committed())) == 10


async def test_duplicates_are_answered_while_the_log_does_not_answer() -> None:
    world = World()
    await world.start()
    events = [world.event(str(number)) for number in range(4)]
    assert await world.send(events)
    world.log.rng.faults = SimFaults(unavailable=1.0)
    for _ in range(5):
        await asyncio.sleep(2 * CONFIRM_S)
        assert (await submit(world, events)).admissions == [Admission.DUPLICATE] * 4
    assert failures(world) == 0


async def test_duplicates_are_answered_while_the_log_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(_log: SimLog) -> bool:
        await asyncio.sleep(1e9)
        return True

    world = World()
    await world.start()
    events = [world.event(str(number)) for number in range(4)]
    assert await world.send(events)
    monkeypatch.setattr(SimLog, "has_same_topic", hang)
    await asyncio.sleep(2 * CONFIRM_S)
    async with asyncio.timeout(5):
        assert (await submit(world, events)).admissions == [Admission.DUPLICATE] * 4
    assert failures(world) == 0
    await world.crash()


async def test_request_of_which_a_part_is_committed_is_not_called_untouched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    await world.start()
    events = [event for event in small_ones(world, 60) if event.partition == 0]
    assert len(events) > 2 * world.limits.batch_events_max
    appends, append = 0, SimLog.append

    async def refuse_the_second(log: SimLog, records: Sequence[NewRecord]) -> Offset:
        nonlocal appends
        appends += 1
        world.log.partition(CLEAN.name, 0).refused_appends = int(appends == 2)
        return await append(log, records)

    monkeypatch.setattr(SimLog, "append", refuse_the_second)
    with pytest.raises(OutcomeUnknownError):
        await submit(world, events)
    assert sum(map(len, world.committed())) == world.limits.batch_events_max
