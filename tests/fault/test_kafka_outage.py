"""
Claim: while the broker is frozen or stopped nothing is acknowledged that is not stored, clients are
told to retry, and everything recovers without a restart of the gateway.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fault.conftest import ClientFactory, kafka_log
from tests.support.client import Client
from tests.support.gateway import Gateway
from tests.support.kafka import KafkaBroker
from tests.support.verdict import assert_exactly_once, assert_stats_agree

CLIENTS = 4
LOAD_S = 1.0
RECOVERY_S = 30.0


def frozen(broker: KafkaBroker) -> tuple[Callable[[], None], Callable[[], None], float]:
    return broker.freeze, broker.thaw, 20.0


def stopped(broker: KafkaBroker) -> tuple[Callable[[], None], Callable[[], None], float]:
    return broker.stop, broker.start, 30.0


@pytest.mark.parametrize("outage", [frozen, stopped])
async def test_broker_outage_is_survived_without_restart(
    outage: Callable[[KafkaBroker], tuple[Callable[[], None], Callable[[], None], float]],
    private_kafka_broker: KafkaBroker,
    tmp_path: Path,
    client_for: ClientFactory,
) -> None:
    begin, end, outage_s = outage(private_kafka_broker)
    log = kafka_log(private_kafka_broker.bootstrap_servers)
    gateway = Gateway(tmp_path / "gateway", log.env)
    try:
        await asyncio.to_thread(gateway.start)
        clients = [client_for(gateway, seed=seed) for seed in range(CLIENTS)]
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as running:
            for client in clients:
                running.create_task(client.run(stop))
            await asyncio.sleep(LOAD_S)
            await asyncio.to_thread(begin)
            await asyncio.sleep(outage_s)
            refusals = sum(client.refusals for client in clients)
            await asyncio.to_thread(end)
            await asyncio.to_thread(gateway.wait_until_ready, RECOVERY_S)
            await asyncio.sleep(LOAD_S)
            stop.set()
        assert refusals > 0
        await _deliver_again(clients)
        committed = await log.read(gateway)
        assert_exactly_once(committed, clients)
        assert_stats_agree(gateway.stats(), committed)
    finally:
        gateway.stop()


async def _deliver_again(clients: list[Client]) -> None:
    for client in clients:
        await client.deliver_again()
