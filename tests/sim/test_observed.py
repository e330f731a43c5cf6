"""Claim: a trial appends every decided event through faults of the log, and counts what it leaves out."""

import asyncio
from random import Random

import pytest

from app.ingest import side_topic
from app.ingest.observed import HEADER_ORIGINAL, Observed
from app.ingest.side_topic import SideTopic
from dedupe.decide.admission import Admission
from dedupe.model.inherited import level_start
from dedupe.submission import Outcomes
from tests.sim.world import World
from tests.support.records import RecordMaker
from tests.support.sim.faults import SimFaults

TOPIC = "events.observed"


def trial_in(world: World) -> Observed:
    return Observed(SideTopic(TOPIC, world.log.appender(TOPIC)), world.clock)


@pytest.mark.parametrize("seed", range(3))
async def test_all_is_appended_through_faults_at_least_once(seed: int) -> None:
    world = World(faults=SimFaults(seed, unavailable=0.2, refuse=0.1, lose_reply=0.2))
    world.log.create_topic(TOPIC, 1)
    maker = RecordMaker(partitions=1)
    trial = trial_in(world)
    running = asyncio.ensure_future(trial.topic.run())
    events = [maker.event(f"{number}") for number in range(50)]
    for each in Random(seed).sample(events, k=50):
        trial.note([each], Outcomes([Admission.NEW], [0]), [])
        await asyncio.sleep(0.01)
    async with asyncio.timeout(600):
        while trial.topic.appended < 50:
            await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    keys = {record.key for record in world.log.partition(TOPIC, 0).records}
    assert keys == {each.message_id.encode() for each in events}


async def test_what_does_not_fit_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_topic, "WAITING_BYTES_MAX", 1_000)
    world = World()
    world.log.create_topic(TOPIC, 1)
    trial = trial_in(world)
    one = RecordMaker(partitions=1).event("a")
    for _ in range(100):
        trial.note([one], Outcomes([Admission.DUPLICATE], [7]), [])
    assert 0 < trial.topic.dropped < 100
    assert trial.verdicts == {"duplicate": 100}


@pytest.mark.regression("A trial named a copy's original in a divided topic by a number of the lane.")
async def test_original_in_an_ancestor_is_named_by_its_own_partition_and_offset() -> None:
    world = World()
    world.log.create_topic(TOPIC, 1)
    trial = trial_in(world)
    running = asyncio.ensure_future(trial.topic.run())
    one = RecordMaker(partitions=1).event("a")
    originals = [7, level_start(1, 5) + 7]
    trial.note([one, one], Outcomes([Admission.DUPLICATE] * 2, originals), [])
    async with asyncio.timeout(600):
        while trial.topic.appended < len(originals):
            await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    records = world.log.partition(TOPIC, 0).records
    assert [dict(record.headers)[HEADER_ORIGINAL] for record in records] == [b"0/7", b"5/7"]
