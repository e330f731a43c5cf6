"""
Claim: of two gateways on one topic the older one is fenced, answers 503 for the lanes it lost, and
nothing doubles; the two do not fence each other for ever.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from tests.fault.conftest import ClientFactory, kafka_log
from tests.support.gateway import Gateway
from tests.support.verdict import assert_exactly_once

SETTLED_S = 60.0


async def test_older_gateway_gives_way_and_nothing_doubles(
    kafka_bootstrap: str, tmp_path: Path, client_for: ClientFactory
) -> None:
    log = kafka_log(kafka_bootstrap)
    older, newer = Gateway(tmp_path / "older", log.env), Gateway(tmp_path / "newer", log.env)
    try:
        await asyncio.to_thread(older.start)
        clients = [client_for(older, seed=seed) for seed in range(2)]
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as running:
            for client in clients:
                running.create_task(client.run(stop))
            await asyncio.to_thread(newer.start)
            clients.append(client_for(newer, seed=9))
            running.create_task(clients[-1].run(stop))
            await asyncio.to_thread(_wait_until, lambda: _states(older) == {"unassigned"})
            await asyncio.to_thread(_wait_until, lambda: _states(newer) == {"active"})
            refused = await clients[0].try_once(clients[0].new_body())
            assert refused.status_code == 503
            assert "Retry-After" in refused.headers
            assert not older.is_ready()
            for client in clients:
                client.redirect(newer.url)
            stop.set()
        for client in clients:
            await client.deliver_again()
        assert_exactly_once(await log.read(newer), clients)
        assert _states(newer) == {"active"}
    finally:
        older.stop()
        newer.stop()


def _states(gateway: Gateway) -> set[str]:
    return {partition["state"] for partition in gateway.stats()["partitions"]}


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SETTLED_S
    while not condition():
        assert time.monotonic() < deadline, "not settled in time"
        time.sleep(0.2)
