"""Claim: samples of duplicates say where the original is and who sent it again, within the source's quota."""

import asyncio
from typing import Any

import orjson
import pytest

from app.http.source_use import Cause
from app.ingest.duplicate_samples import DuplicateSamples
from app.ingest.side_topic import SideTopic
from dedupe.decide.admission import Admission
from dedupe.model.inherited import level_start
from dedupe.model.types import Offset
from dedupe.submission import Outcomes
from tests.sim.world import World
from tests.support.records import RecordMaker

TOPIC = "events.duplicates"
RETRY = {b"user-agent": b"analytics-python/2.3.4 extra", b"x-retry-count": b"1"}


def samples_in(world: World, *, per_minute: int = 100) -> DuplicateSamples:
    world.log.create_topic(TOPIC, 1)
    return DuplicateSamples(SideTopic(TOPIC, world.log.appender(TOPIC)), world.clock, per_minute=per_minute)


async def appended(world: World, samples: DuplicateSamples) -> list[dict[str, Any]]:
    """Return what is in the topic once all that waits is appended."""
    running = asyncio.ensure_future(samples.topic.run())
    await asyncio.sleep(1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return [orjson.loads(record.value) for record in world.log.partition(TOPIC, 0).records]


@pytest.mark.parametrize(
    ("admission", "original", "headers", "expected"),
    [
        (Admission.DUPLICATE, 7, RETRY, (0, 7, Cause.RETRY, "analytics-python", "2.3.4")),
        (Admission.DUPLICATE, level_start(1, 5) + 7, {}, (5, 7, Cause.OTHER, "other", "")),
        (Admission.REPEAT, 7, RETRY, (0, 7, Cause.SAME_REQUEST, "analytics-python", "2.3.4")),
        (Admission.STALE, -1, RETRY, (None, None, Cause.RETRY, "analytics-python", "2.3.4")),
        (Admission.DUPLICATE, 7, None, (0, 7, Cause.INPUT, "input topic", "")),
    ],
)
async def test_a_sample_says_where_the_original_is_why_it_came_again_and_from_what(
    admission: Admission,
    original: Offset,
    headers: dict[bytes, bytes] | None,
    expected: tuple[object, ...],
) -> None:
    world = World()
    samples, event = samples_in(world), RecordMaker(partitions=1).event("a")
    samples.note([event], Outcomes([admission], [original]), headers)
    arrived_ms = world.clock.now_ms()
    (sample,) = await appended(world, samples)
    names = ("original_partition", "original_offset", "cause", "library", "library_version")
    assert tuple(sample[name] for name in names) == expected
    assert (sample["source"], sample["message_id"]) == (event.source, "a")
    assert sample["arrived_ms"] == arrived_ms


async def test_new_events_and_conflicts_are_no_duplicates() -> None:
    world = World()
    samples, event = samples_in(world), RecordMaker(partitions=1).event("a")
    samples.note([event, event], Outcomes([Admission.NEW, Admission.CONFLICT], [1, 2]), {})
    assert await appended(world, samples) == []


async def test_each_source_has_its_own_quota_which_fills_up_again() -> None:
    world = World()
    samples, maker = samples_in(world, per_minute=3), RecordMaker(partitions=1)
    event = maker.event("a")
    other = event._replace(source="another")
    samples.note([event] * 5 + [other] * 2, Outcomes([Admission.DUPLICATE] * 7, [0] * 7), {})
    assert samples.left_out == 2
    await asyncio.sleep(60)
    samples.note([event], Outcomes([Admission.DUPLICATE], [0]), {})
    found = await appended(world, samples)
    assert [each["source"] for each in found].count("another") == 2
    assert len(found) == 3 + 2 + 1
    assert samples.left_out == 2
