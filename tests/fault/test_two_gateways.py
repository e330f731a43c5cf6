"""
Claim: of two gateways on one topic the older one is fenced, answers 503 for the lanes it lost, and
nothing doubles; the two do not fence each other for ever.
"""

import asyncio
from pathlib import Path

from tests.fault.conftest import ClientFactory, kafka_log
from tests.support.client import Client
from tests.support.gateway import Gateway
from tests.support.verdict import assert_exactly_once
from tests.support.waiting import until_in_thread

TRIES_AFTER = 20


async def test_older_gateway_gives_way_and_nothing_doubles(
    kafka_bootstrap: str, tmp_path: Path, client_for: ClientFactory
) -> None:
    log = kafka_log(kafka_bootstrap)
    older, newer = Gateway(tmp_path / "older", log.env), Gateway(tmp_path / "newer", log.env)
    try:
        await asyncio.to_thread(older.start)
        clients = [client_for(older, seed=1, events_per_batch=1)]
        unanswered: list[tuple[Client, bytes]] = []
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as running:
            running.create_task(_send_single_events(clients[0], stop, unanswered))
            await asyncio.to_thread(newer.start)
            clients.append(client_for(newer, seed=2, events_per_batch=1))
            running.create_task(_send_single_events(clients[1], stop, unanswered))
            await until_in_thread(lambda: _states(older) == {"unassigned"})
            await until_in_thread(lambda: _states(newer) == {"active"})
            stop.set()
        assert not older.is_ready()
        for _ in range(TRIES_AFTER):
            body = clients[0].new_body()
            assert not await clients[0].attempt(body)
            unanswered.append((clients[0], body))
        clients[0].redirect(newer.url)
        for client, body in unanswered:
            await client.deliver(body)
        for client in clients:
            await client.deliver_again()
        assert_exactly_once(await log.read(newer), clients)
        assert _states(newer) == {"active"}
    finally:
        older.stop()
        newer.stop()


async def _send_single_events(
    client: Client, stop: asyncio.Event, unanswered: list[tuple[Client, bytes]]
) -> None:
    """Try each new event once, so that a lane that refuses keeps no other lane from its traffic."""
    while not stop.is_set():
        body = client.new_body()
        if not await client.attempt(body):
            unanswered.append((client, body))
            await asyncio.sleep(0.01)  # a client's pause after a refusal


def _states(gateway: Gateway) -> set[str]:
    return {partition["state"] for partition in gateway.stats()["partitions"]}
