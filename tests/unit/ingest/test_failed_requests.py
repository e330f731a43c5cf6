"""
Claim: a request that fails leaves nothing behind, neither for a lane nor for the garbage collector, which
comes too seldom to bound memory.

An error that is known to a frame of its own traceback keeps the frame, and with it all events.
"""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from dedupe.model.types import Event
from tests.support.gateway_in_process import GatewayInProcess
from tests.support.sim.faults import NO_FAULTS, SimFaults

MARK = b"an event of a request that failed"

STEPS = 10
"""Of the event loop, in which whoever has answered is done, too."""


@contextmanager
def without_collector() -> Iterator[None]:
    """Let nothing go but what nobody knows any more."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def post(client: httpx.Client, name: str) -> str:
    """Send a batch of events for all partitions; return the error's code."""
    event = {"type": "track", "event": MARK.decode()}
    events = [event | {"messageId": f"{name}-{number}"} for number in range(20)]
    answer = client.post("/v1/batch", json={"batch": events})
    assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
    return str(answer.json()["code"])


async def steps() -> None:
    for _ in range(STEPS):
        await asyncio.sleep(0)


@pytest.mark.regression("A request that failed kept its events in memory.")
@pytest.mark.parametrize(
    ("faults", "code"),
    [(SimFaults(unavailable=1.0), "not_appended"), (SimFaults(lose_reply=1.0), "outcome_unknown")],
)
def test_events_of_a_failed_request_are_gone_with_its_answer(
    tmp_path: Path, faults: SimFaults, code: str
) -> None:
    with GatewayInProcess(tmp_path) as gateway, gateway.http() as client:
        gateway.log.rng.faults = faults
        with without_collector():
            codes = [post(client, "taken"), post(client, "refused")]
            gateway.run(steps())
            left = [found for found in gc.get_objects() if isinstance(found, Event) and MARK in found.value]
        gateway.log.rng.faults = NO_FAULTS

    assert codes == [code, "lane_not_active"]
    assert left == []
