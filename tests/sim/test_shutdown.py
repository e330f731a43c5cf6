"""Claim: a gateway that is told to stop waits for lanes that have events to finish, and for no others."""

import asyncio
from types import SimpleNamespace

import pytest

from app.process.background_tasks import open_gate
from app.process.gate import Gate
from app.process.life import Server, Servers, Turn, bind, supervise
from dedupe.partition.state import LaneState
from dedupe.partition.supervisor import LocalLanes
from dedupe.storage.kept_fences import KeptFences
from tests.sim.world import World


async def application(scope: object, receive: object, send: object) -> None:
    """Answer nothing; nobody asks."""


@pytest.mark.regression("A shutdown waited for lanes that had nothing to finish.")
async def test_lanes_that_do_not_serve_yet_are_not_waited_for() -> None:
    world = World()
    world.log.partition("events", 0).outage_calls = 10**9
    router = world.build()
    stop = asyncio.Event()
    with bind("127.0.0.1", 0, send_timeout_s=5) as listener:
        server = Server(application, http="httptools", keep_alive_s=1, stop_timeout_s=1)
        servers = Servers([(server, listener)])
        serving = asyncio.ensure_future(servers.run())
        running = asyncio.ensure_future(
            supervise(
                router,
                LocalLanes(router.all_lanes),
                servers,
                [],
                stop=stop,
                turn=Turn(Gate(application, wait_s=0), KeptFences(), answer_s=0),
                drain_timeout_s=600,
                linger_s=0,
            )
        )
        while router.lanes[0].state is not LaneState.FENCING:
            await asyncio.sleep(0)
        stop.set()
        async with asyncio.timeout(10):
            await running
            await serving

    assert {lane.state for lane in router.all_lanes} == {LaneState.UNASSIGNED}


@pytest.mark.regression("A gate that a round had closed for a plan was opened by the same round's beginning.")
async def test_round_that_ends_before_all_have_served_lets_nobody_in_and_keeps_its_fences() -> None:
    world = World()
    world.log.partition("events", 0).outage_calls = 10**9
    router, is_due = world.build(), asyncio.Event()
    router.standing = SimpleNamespace(is_outdone=False, is_outage=False)  # as in a group
    gate, fences = Gate(application, wait_s=0), world.connection.fences
    lanes = LocalLanes(router.all_lanes)
    running = asyncio.ensure_future(lanes.run())
    opening = asyncio.ensure_future(open_gate(gate, router, fences, is_due))
    while not router.lanes[1].is_serving:
        await asyncio.sleep(0)

    is_due.set()
    turn = Turn(gate, fences, answer_s=0)
    await turn.leave_off(router, lanes, drain_timeout_s=1)
    await asyncio.wait({opening})

    assert not gate._opened.is_set()
    assert router.is_paused
    assert fences.take(("events", 1)) is not None
    running.cancel()
    await asyncio.wait({running})
