"""Claim: statistics and metrics say how a topic is divided, and what partitions have yet to inherit."""

from types import SimpleNamespace
from typing import Any, cast

import jsonschema

from app.admin.reshard import ReshardCollector, inherited_lag, reshard_document
from app.process.plan_progress import PlanProgress
from dedupe.decide.layout import Layout
from dedupe.model.clock import Clock
from dedupe.partition.state import LaneState
from tests.sim.reshard_world import ReshardWorld
from tests.sim.world import CLEAN
from tests.unit.admin.admin_port import admin_of, client_of

EVENTS = 60


async def test_partitions_say_their_slots_what_they_inherit_and_how_far_they_are() -> None:
    world = ReshardWorld()
    world.prepare()
    await world.start()
    for number in range(EVENTS):
        world.clock.ms += 10
        await world.deliver([world.event(str(number))])
    await world.crash()
    await world.divide(2 * CLEAN.partitions)
    router, lags = world.boot(), []
    heir = router.lanes[CLEAN.partitions]

    async with client_of(admin_of(router)) as client:
        schema = (await client.get("/admin/v1/stats.schema.json")).json()
        while not router.is_ready:
            stats: dict[str, Any] = (await client.get("/admin/v1/stats")).json()
            jsonschema.validate(stats, schema)
            lags.append(inherited_lag(heir))
        stats = (await client.get("/admin/v1/stats")).json()

    end = heir.lineage.levels[0].end if heir.lineage else 0
    assert None in lags, "before its index is open"
    assert set(lags) <= {None, *range(end + 1)}
    assert heir.state is LaneState.ACTIVE
    parts, each = stats["partitions"], stats["reshard"]["slots"] // (2 * CLEAN.partitions)
    assert [part["slots"] for part in parts] == [each] * 2 * CLEAN.partitions
    assert [part["inherited_lag"] for part in parts] == [None] * CLEAN.partitions + [0] * CLEAN.partitions
    assert parts[0]["inherits"] == []
    assert parts[CLEAN.partitions]["inherits"] == [{"partition": 0, "start_offset": 0, "end_offset": end}]
    assert stats["quarantine"][0]["slots"] is None
    await world.crash()


def test_process_says_which_plan_it_follows_and_how_long_it_has_waited() -> None:
    now_s = 100.0
    progress = PlanProgress(cast("Clock", SimpleNamespace(monotonic=lambda: now_s)))

    def told() -> dict[str, float]:
        found = (each for each in ReshardCollector(progress).collect() if each.samples)
        return {each.name: each.samples[0].value for each in found}

    progress.follow(1)
    assert told() == {"gateway_reshard_plan": 1, "gateway_reshard_waiting_seconds": 0}
    progress.wait()
    now_s += 2.5
    progress.wait()  # the log could not be opened
    assert told() == {"gateway_reshard_plan": 1, "gateway_reshard_waiting_seconds": 2.5}
    progress.follow(2)
    assert told() == {"gateway_reshard_plan": 2, "gateway_reshard_waiting_seconds": 0}


def test_new_partitions_of_an_open_plan_say_how_far_they_are() -> None:
    progress = PlanProgress(cast("Clock", SimpleNamespace(monotonic=lambda: 0.0)))
    progress.preparing = {9: None, 8: 1200}

    document = reshard_document(progress, Layout(8))
    metrics = {each.name: each.samples for each in ReshardCollector(progress).collect()}

    assert document["preparing"] == [{"partition": 8, "lag": 1200}, {"partition": 9, "lag": None}]
    (lag,) = metrics["gateway_prepared_lag_records"]
    assert (lag.labels, lag.value) == ({"partition": "8"}, 1200)
