"""
Claim: while the broker is frozen or stopped nothing is acknowledged that is not stored, clients are
told to retry, and everything recovers without a restart of the gateway. Long outages are simulated:
tests/sim/test_kafka_transactions.py.
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
from tests.support.waiting import until_in_thread

CLIENTS = 4
LOAD_S = 1.0  # the load, not a wait for a condition


def frozen(broker: KafkaBroker) -> tuple[Callable[[], None], Callable[[], None]]:
    return broker.freeze, broker.thaw


def stopped(broker: KafkaBroker) -> tuple[Callable[[], None], Callable[[], None]]:
    return broker.stop, broker.start


@pytest.mark.parametrize("outage", [frozen, stopped])
async def test_broker_outage_is_survived_without_restart(
    outage: Callable[[KafkaBroker], tuple[Callable[[], None], Callable[[], None]]],
    private_kafka_broker: KafkaBroker,
    tmp_path: Path,
    client_for: ClientFactory,
) -> None:
    begin, end = outage(private_kafka_broker)
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
            # A lane that is sent nothing does not notice, so some may stay active.
            await until_in_thread(lambda: _active_lanes(gateway) < 1)
            await until_in_thread(lambda: all(client.refusals for client in clients))
            await asyncio.to_thread(end)
            await until_in_thread(lambda: _active_lanes(gateway) == 1)
            await asyncio.sleep(LOAD_S)
            stop.set()
        await _deliver_again(clients)
        committed = await log.read(gateway)
        assert_exactly_once(committed, clients)
        assert_stats_agree(gateway.stats(), committed)
    finally:
        gateway.stop()


def _active_lanes(gateway: Gateway) -> float:
    """Return which part of the clean lanes serves."""
    lanes = gateway.stats()["partitions"]
    return sum(bool(lane["state"] == "active") for lane in lanes) / len(lanes)


async def _deliver_again(clients: list[Client]) -> None:
    for client in clients:
        await client.deliver_again()
