"""Claim: readiness says what share of requests would be taken, and is false while none would."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from app.process.readiness import health_endpoint, readiness_of
from dedupe.partition.state import LaneState
from dedupe.router import Router
from tests.sim.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    world.boot()
    await world.wait_until_active()
    yield world
    await world.crash()


@pytest.fixture
def router(world: World) -> Router:
    assert world.router is not None
    return world.router


async def end(world: World, router: Router, *numbers: int) -> None:
    for number in numbers:
        world.end_lane(number)
    while any(router.all_lanes[number].state is LaneState.ACTIVE for number in numbers):
        await asyncio.sleep(0)


async def health_of(router: Router) -> httpx.Response:
    transport = httpx.ASGITransport(health_endpoint(router))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        return await client.get("/health")


async def test_all_lanes_take_all_requests(router: Router) -> None:
    assert readiness_of(router) == {
        "ready": True,
        "draining": False,
        "disk_has_room": True,
        "active_lanes": 2,
        "lanes": 2,
        "outage": None,
        "share": 1.0,
        "active_quarantine_lanes": 1,
        "quarantine_lanes": 1,
    }
    assert (await health_of(router)).content == b'{"ready":true}'


async def test_lost_lane_lowers_the_share_and_none_is_not_ready(world: World, router: Router) -> None:
    await end(world, router, 0)
    told = readiness_of(router)
    assert (told["ready"], told["active_lanes"], told["share"]) == (True, 1, 0.5)
    await end(world, router, 1)
    told = readiness_of(router)
    assert (told["ready"], told["active_lanes"], told["share"]) == (False, 0, 0.0)
    assert (await health_of(router)).status_code == 503


@pytest.mark.regression("A gateway with a full disk said that it was ready.")
async def test_full_disk_takes_nothing(router: Router) -> None:
    router.has_disk_room = False
    told = readiness_of(router)
    assert (told["ready"], told["disk_has_room"], told["active_lanes"], told["share"]) == (
        False,
        False,
        2,
        0.0,
    )
    health = await health_of(router)
    assert (health.status_code, health.content) == (503, b'{"ready":false}')


async def test_draining_takes_nothing(router: Router) -> None:
    router.is_draining = True
    told = readiness_of(router)
    assert (told["ready"], told["draining"], told["share"]) == (False, True, 0.0)


async def test_router_that_goes_on_does_not_wait_for_new_partitions(world: World, router: Router) -> None:
    await world.crash()
    world.log.partition("events", 1).outage_calls = 10**9
    world.boot()
    after = world.router
    assert after is not None
    while after.lanes[0].state is not LaneState.ACTIVE:
        await asyncio.sleep(0)

    assert not after.is_ready
    after.goes_on = True
    assert after.is_ready


async def test_router_stays_ready_while_requests_wait_for_the_next_one(router: Router) -> None:
    router.is_paused = True
    router.drain()

    assert router.is_ready
    router.is_leaving = True
    assert not router.is_ready
