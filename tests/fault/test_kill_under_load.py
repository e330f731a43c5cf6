"""
Claim: through kill -9 of the gateway under load, also with the loss of the index, every event is stored
exactly once and every retry gets the same bytes. What may befall a lane at each moment is simulated
(tests/sim/test_histories.py); here it is real processes, sockets and files.
"""

import asyncio
import random

from tests.fault.conftest import ClientFactory, LogUnderTest
from tests.support.gateway import Gateway
from tests.support.verdict import assert_exactly_once, assert_stats_agree

KILLS = 5
INDEX_LOST_AT = {2}
CLIENTS = 4
LOAD_S = (0.2, 1.0)


async def test_kill_9_under_load_loses_nothing_and_doubles_nothing(
    gateway: Gateway, log_under_test: LogUnderTest, client_for: ClientFactory
) -> None:
    rng = random.Random(20)
    await asyncio.to_thread(gateway.start)
    clients = [client_for(gateway, seed=seed) for seed in range(CLIENTS)]
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as running:
        for client in clients:
            running.create_task(client.run(stop))
        for kill in range(KILLS):
            await asyncio.sleep(rng.uniform(*LOAD_S))  # the load, not a wait for a condition
            gateway.kill()
            if kill in INDEX_LOST_AT:
                gateway.delete_index()
            await asyncio.to_thread(gateway.start)
        stop.set()
    for client in clients:
        await client.deliver_again()

    committed = await log_under_test.read(gateway)
    assert len(committed) > KILLS * CLIENTS
    assert {record.message_id for record in committed} == set().union(*(client.sent for client in clients))
    assert_exactly_once(committed, clients)
    assert_stats_agree(gateway.stats(), committed)
