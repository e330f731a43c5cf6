"""
Claim: a crash of the process right after a commit step that leaves something in log or index loses no
acknowledged event, doubles none, and leaves every receipt as it was. docs/COMMIT.md says what each crash
leaves behind; tests/sim/test_crash_points.py has all seven steps.
"""

import asyncio
import signal

import pytest

from tests.fault.conftest import ClientFactory, LogUnderTest
from tests.support.gateway import Crash, Gateway
from tests.support.verdict import assert_exactly_once, assert_stats_agree

STEPS = ("append", "commit", "apply")
CLIENTS = 3
HITS = 25


@pytest.mark.parametrize("step", STEPS)
async def test_crash_right_after_step_keeps_every_promise(
    step: str, gateway: Gateway, log_under_test: LogUnderTest, client_for: ClientFactory
) -> None:
    await asyncio.to_thread(gateway.start, crash=Crash(step, HITS))
    clients = [client_for(gateway, seed=seed) for seed in range(CLIENTS)]
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as running:
        for client in clients:
            running.create_task(client.run(stop))
        assert await asyncio.to_thread(gateway.wait) == -signal.SIGKILL
        await asyncio.to_thread(gateway.start)
        stop.set()
    for client in clients:
        await client.deliver_again()

    committed = await log_under_test.read(gateway)
    assert {record.message_id for record in committed} == set().union(*(client.sent for client in clients))
    assert_exactly_once(committed, clients)
    assert_stats_agree(gateway.stats(), committed)
