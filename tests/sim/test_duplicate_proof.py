"""
Claim: an index that answers "duplicate" for what the log does not have is found out while it serves, and
thrown away before its lane serves again; what the log does not answer moves nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from dedupe.decide.admission import Admission
from dedupe.model.clock import Deadline
from dedupe.model.errors import RetriableError
from dedupe.model.types import Entry, Event, LogRecord, Offset
from dedupe.partition.duplicate_proof import EVERY, EVERY_S, LIMIT_S, OVERDUE_S
from dedupe.partition.lane import Lane
from dedupe.partition.metrics import Proofs
from dedupe.storage.notes import SKIPS, Skips
from tests.sim.session_world import SessionWorld
from tests.sim.world import CLEAN, QUARANTINE, QUICK, World
from tests.support.sim.snapshots import Reliable, SimSnapshots

TIMES = replace(QUICK, maintenance_s=1e6)  # what is found here is found by a proof
STORED = 12


async def world_with(events: list[Event]) -> tuple[World, Lane]:
    """Return a world whose first lane has stored events, and whose proofs are due."""
    world = World(times=TIMES)
    lane = (await world.start()).lanes[0]
    for event in events:
        await world.deliver([event])
    await asyncio.sleep(OVERDUE_S)
    return world, lane


def events_of(world: World, count: int, name: str = "") -> list[Event]:
    """Return events of the first partition."""
    events = (world.event(f"{name}{number}") for number in range(100))
    return [event for event in events if event.partition == 0][:count]


async def proved(lane: Lane) -> Proofs:
    """Wait until no proof runs, and return what proofs have said."""
    async with asyncio.timeout(2 * LIMIT_S):
        while lane._maintenance.proof._running is not None:
            await asyncio.sleep(0.01)
    return lane.metrics.proofs


async def test_duplicates_are_proved_at_most_once_a_second_and_no_new_event_is() -> None:
    world, lane = await world_with(events := events_of(World(), 8))
    for _ in range(3):
        await world.deliver(events[:1])
    assert (await proved(lane)) == Proofs(proved=1)

    for _ in range(20):
        await asyncio.sleep(EVERY_S / 2)
        for _ in range(EVERY // len(events) + 1):
            await world.deliver(events)

    assert 9 <= (await proved(lane)).proved <= 11
    assert lane.metrics.proofs.unknown == lane.metrics.failures == 0
    await world.crash()


async def test_few_duplicates_are_proved_too_and_many_after_a_second() -> None:
    world, lane = await world_with(events := events_of(World(), 8))
    await world.deliver(events[:1])
    await asyncio.sleep(OVERDUE_S / 2)
    await world.deliver(events[:1])
    assert (await proved(lane)).proved == 1

    await asyncio.sleep(OVERDUE_S / 2)
    await world.deliver(events[:1])
    assert (await proved(lane)).proved == 2
    await world.crash()


async def verdict_of(world: World, event: Event) -> Admission:
    assert world.router is not None
    deadline = Deadline(world.clock, 60)
    outcomes = await world.router.submit([event], [], received_ms=world.clock.now_ms(), deadline=deadline)
    return outcomes.admissions[0]


async def stopped(lane: Lane) -> None:
    """Wait until a lane has been stopped."""
    async with asyncio.timeout(2 * LIMIT_S):
        while not lane.metrics.failures:
            await asyncio.sleep(1e-4)


def invented(world: World, victim: LogRecord) -> Event:
    event = events_of(world, 1, "never-sent")[0]
    world.disk.replace_entry(world.index_identity(0), event.key, Entry(victim.offset, event.fingerprint))
    return event


def elsewhere(world: World, victim: LogRecord) -> Event:
    event = world.event(victim.key.decode())
    world.disk.replace_entry(world.index_identity(0), event.key, Entry(victim.offset + 2, event.fingerprint))
    return event


def other_content(world: World, victim: LogRecord) -> Event:
    event = world.event(victim.key.decode(), "other content")
    world.disk.replace_entry(world.index_identity(0), event.key, Entry(victim.offset, event.fingerprint))
    return event


def lost(world: World, victim: LogRecord) -> Event:
    world.log.partition(CLEAN.name, 0).records.remove(victim)
    return world.event(victim.key.decode())


@pytest.mark.parametrize(
    ("harm", "truth"),
    [
        (invented, Admission.NEW),
        (elsewhere, Admission.DUPLICATE),
        (other_content, Admission.CONFLICT),
        (lost, Admission.NEW),
    ],
)
async def test_wrong_entry_stops_its_lane_until_the_index_is_rebuilt(
    harm: Callable[[World, LogRecord], Event], truth: Admission
) -> None:
    world, lane = await world_with(events_of(World(), STORED))
    event = harm(world, world.committed()[0][3])

    assert await verdict_of(world, event) is Admission.DUPLICATE
    await stopped(lane)
    assert lane.metrics.proofs == Proofs(disproved=1)
    await world.wait_until_active()

    assert lane.metrics.rebuilds == 1
    assert await verdict_of(world, event) is truth
    await asyncio.sleep(OVERDUE_S)
    await world.deliver([world.event(world.committed()[0][5].key.decode())])
    assert await proved(lane) == Proofs(disproved=1, proved=1)
    assert lane.metrics.failures == 1
    await world.crash()


async def test_changed_record_is_an_outage_that_names_it_until_an_operator_skips_it() -> None:
    world, lane = await world_with(events_of(World(), STORED))
    partition, victim = world.log.partition(CLEAN.name, 0), world.committed()[0][3]
    partition.records = [
        record._replace(value=b"{}") if record is victim else record for record in partition.records
    ]
    event = world.event(victim.key.decode())

    assert await verdict_of(world, event) is Admission.DUPLICATE
    await stopped(lane)
    await asyncio.sleep(30)
    assert not lane.is_serving
    assert lane.metrics.proofs == Proofs(disproved=1)
    assert f"offset {victim.offset} of partition 0" in (lane.health.last_error or "")
    assert "differs from its checksum" in (lane.health.last_error or "")

    world.log.noted(SKIPS, CLEAN.name)[0] = Skips([(victim.offset, victim.offset)]).encoded()
    await world.wait_until_active()
    assert await verdict_of(world, event) is Admission.NEW
    await world.crash()


async def test_quarantine_and_client_sessions_are_proved_too() -> None:
    world = SessionWorld(times=TIMES)
    router = await world.start()
    first, again = (
        world.sent(number, own_id="an id", session=session) for number, session in ((1, "s"), (1, "t"))
    )
    rejected = world.rejected("bad")
    for event in (first, first, again):
        await world.deliver([event])
        assert await world.send([], [rejected])
        await asyncio.sleep(OVERDUE_S)

    lanes = [router.lanes[first.partition], router.quarantine_lanes[0]]
    assert [await proved(lane) for lane in lanes] == [Proofs(proved=2), Proofs(proved=2)]

    partition = world.log.partition(QUARANTINE.name, 0)
    partition.records.clear()
    assert await world.send([], [rejected])
    await stopped(lanes[1])
    assert lanes[1].metrics.proofs == Proofs(proved=2, disproved=1)
    await world.crash()


async def record_that_never_comes(_offset: Offset) -> LogRecord | None:
    await asyncio.sleep(1e6)
    return None


async def record_refused(_offset: Offset) -> LogRecord | None:
    raise RetriableError("simulated: a quota is used up")


@pytest.mark.parametrize("answer", [record_that_never_comes, record_refused])
async def test_log_that_does_not_answer_disproves_nothing_and_holds_nobody_up(
    answer: Callable[[Offset], Awaitable[LogRecord | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, lane = await world_with(events := events_of(World(), STORED))
    monkeypatch.setattr(lane.log, "record_at", answer)

    for _ in range(2):
        async with asyncio.timeout(1):
            for event in [*events, *events_of(world, 5, "new")]:
                await world.deliver([event])
        await proved(lane)
        await asyncio.sleep(OVERDUE_S)

    assert lane.metrics.proofs == Proofs(unknown=2)
    assert lane.metrics.failures == 0
    world.judge()
    await world.crash()


async def test_record_that_retention_has_deleted_disproves_nothing() -> None:
    world, lane = await world_with(events := events_of(World(), STORED))
    world.log.trim(CLEAN.name, 0, world.told[events[-1].message_id].offset)

    assert await verdict_of(world, events[0]) is Admission.DUPLICATE

    assert await proved(lane) == Proofs(unknown=1)
    assert lane.is_serving
    await world.crash()


@pytest.mark.parametrize("end", ["crash", "drain"])
async def test_disproved_index_is_not_opened_again_whatever_ends_its_lane_first(end: str) -> None:
    world, lane = await world_with(events_of(World(), STORED))
    world.use_snapshots(Reliable())
    snapshots = [disk.snapshots for disk in (world.disk, world.spare_disk)]
    assert isinstance(snapshots[0], SimSnapshots)
    assert isinstance(snapshots[1], SimSnapshots)
    event = invented(world, world.committed()[0][3])
    lane._maintenance.proof._on_disproved = lambda: None  # the lane does not get to it
    lineage, identity = lane.partition_index.index.lineage, world.index_identity(0)
    snapshots[0].take(identity)

    assert await verdict_of(world, event) is Admission.DUPLICATE
    assert await proved(lane) == Proofs(disproved=1)
    await snapshots[0].withdraw_doubted()  # as its process does, whatever became of the lane
    assert [each async for each in snapshots[1].candidates(identity)] == []
    assert await snapshots[1].is_doubted(identity, lineage)
    if end == "drain":
        assert world.router is not None
        world.router.drain()
        await asyncio.sleep(1)
    await world.crash()
    await world.start()

    assert await verdict_of(world, event) is Admission.NEW
    await world.crash()
