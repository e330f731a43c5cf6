"""
Claim: a member of a group outlives lost requests and answers, a broker that is frozen, killed or refuses
it, and a group that Kafka has forgotten; it says so once, and tells how long it has heard nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka.protocol.admin import ListGroupsRequest_v1
from structlog.testing import capture_logs

from dedupe.storage.kafka.group import GroupTimes
from tests.support.group import ENDLESS, LANES, Group, Worker, group_at
from tests.support.kafka import KafkaBroker
from tests.support.kafka_acls import AUTHORIZED, DESCRIBE, READ, allow
from tests.support.kafka_proxy import Api, Fault, KafkaProxy
from tests.support.processes import HOST
from tests.support.waiting import PATIENCE_S, until_async

pytestmark = pytest.mark.kafka

TIMES = GroupTimes()


@pytest.fixture
async def own_group(private_kafka_broker: KafkaBroker) -> AsyncIterator[Group]:
    async with group_at(private_kafka_broker.bootstrap_servers) as group:
        yield group


@pytest.fixture
async def proxied_group(proxy: KafkaProxy) -> AsyncIterator[Group]:
    async with group_at(f"{HOST}:{proxy.port}") as group:
        yield group


def has_heard(*workers: Worker) -> bool:
    return all(worker.membership.silence_s < TIMES.heartbeat_s + 0.25 for worker in workers)


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER], ids=["request", "answer"])
@pytest.mark.parametrize("api", [Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT], ids=lambda api: api.name)
async def test_group_agrees_after_a_loss(
    proxy: KafkaProxy, proxied_group: Group, api: Api, fault: Fault
) -> None:
    a, b = await proxied_group.of("a", "b")
    proxy.inject(api, fault)
    c = proxied_group.worker("c")

    await proxied_group.agree(a, b, c)
    assert not proxy._faults


async def test_connection_that_breaks_costs_no_rebalance(proxy: KafkaProxy) -> None:
    async with group_at(f"{HOST}:{proxy.port}", times=ENDLESS) as group:
        a, b = await group.of("a", "b")
        generation, proxy.seen = a.generation, []
        for _ in range(2):
            proxy.inject(Api.HEARTBEAT, Fault.LOSE_REQUEST)
            await until_async(lambda: not proxy._faults)
        proxy.seen = []
        await until_async(lambda: proxy.seen.count(Api.HEARTBEAT) > 4 and has_heard(a, b))

        assert Api.JOIN_GROUP not in proxy.seen
        assert {a.generation, b.generation} == {generation}


async def test_worker_whose_leave_is_lost_ends_in_time(proxy: KafkaProxy, proxied_group: Group) -> None:
    (a,) = await proxied_group.of("a")
    await a.cut_off()
    proxy.inject(Api.LEAVE_GROUP, Fault.LOSE_REQUEST)

    async with asyncio.timeout(PATIENCE_S):
        await a.membership.leave()
    assert not proxy._faults


async def test_killed_broker_finds_its_group_again(
    private_kafka_broker: KafkaBroker, own_group: Group
) -> None:
    workers = await own_group.of("a", "b")

    await asyncio.to_thread(private_kafka_broker.kill)
    with capture_logs() as logs:
        await until_async(lambda: all(worker.membership.silence_s > 1 for worker in workers))
        await asyncio.to_thread(private_kafka_broker.start)
        await until_async(lambda: has_heard(*workers))

    await own_group.agree(*workers)
    kinds = [entry["problem"].split("(")[0] for entry in logs if "not a member" in entry["event"]]
    assert 0 < len(kinds) <= 2 * len(set(kinds))  # each worker says each thing once


async def test_frozen_broker_is_silence_and_then_the_group_again(
    private_kafka_broker: KafkaBroker, own_group: Group
) -> None:
    workers = await own_group.of("a", "b")

    private_kafka_broker.freeze()
    try:
        await until_async(lambda: all(worker.membership.silence_s > TIMES.session_s for worker in workers))
    finally:
        private_kafka_broker.thaw()

    await until_async(lambda: has_heard(*workers))
    await own_group.agree(*workers)


async def test_generations_go_on_where_kafka_begins_anew(tmp_path: Path) -> None:
    properties = {"offsets.retention.check.interval.ms": "200"}
    with KafkaBroker(tmp_path / "kafka", properties=properties) as broker:
        async with group_at(broker.bootstrap_servers) as group:
            a, b = await group.of("a", "b")
            for worker in (a, b):
                await worker.cut_off()
                await worker.membership.leave()
            await forgotten(group)
            before = a.generation
            a.start()
            await until_async(lambda: a.generation > before)
            assert a.membership._generation < a.generation
            b.start()
            await group.agree(a, b)


async def forgotten(group: Group) -> None:
    """Wait until the cluster does not know the group any more."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            listed = await group.store.cluster.send_to_any(ListGroupsRequest_v1())
            if group.name not in {name for name, *_ in listed.groups}:
                return
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("granted", [None, DESCRIBE], ids=["nothing", "Describe"])
async def test_missing_right_is_named_and_waited_for(tmp_path: Path, granted: int | None) -> None:
    with KafkaBroker(tmp_path / "kafka", properties=AUTHORIZED) as broker:
        async with group_at(broker.bootstrap_servers) as group:
            await allow(group.store, group.name, "User:somebody-else", READ)
            if granted is not None:
                await allow(group.store, group.name, "User:ANONYMOUS", granted)
            missing = (
                f"Kafka does not let the gateway use the consumer group {group.name}: "
                "it needs the ACL that allows Read on this group"
            )
            with capture_logs() as logs:
                worker = group.worker("a")
                await until_async(lambda: missing in [entry["problem"] for entry in logs])
                await asyncio.sleep(3 * TIMES.retry_s)
            assert [entry["problem"] for entry in logs].count(missing) == 1

            await allow(group.store, group.name, "User:ANONYMOUS", READ)

            await until_async(lambda: worker.lanes == set(range(LANES)))
