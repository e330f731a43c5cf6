"""
Claim: a broker that stands still with its connections open keeps an owner from appending for seconds: little
more than the cluster needs for a new leader or coordinator.
"""

import asyncio

import pytest

from dedupe.model.errors import OutcomeUnknownError, RetriableError
from dedupe.model.types import NewRecord
from dedupe.storage.kafka.late_append import LATE_S
from dedupe.storage.kafka.log import KafkaLog
from dedupe.storage.kafka.store import KafkaStore
from tests.support.sim_kafka_net import METADATA, SimKafkaNet

RECORD = NewRecord(1_700_000_000_000, b"id", b"{}", [("source", b"web")])
ELECTION_S = 3.0
"""The least `broker.session.timeout.ms`; the default is 9 s."""
GAP_S = 6.0
RETRY_S = 0.2
"""A lane's first pause."""


def now() -> float:
    return asyncio.get_running_loop().time()


async def appended(log: KafkaLog, *, is_fenced: bool = True) -> float:
    """Append behind as many fences as it takes, as a lane does; return how long it took."""
    began_at = now()
    while True:
        try:
            if not is_fenced:
                await log.fence()
                is_fenced = True
            await log.append([RECORD])
            return now() - began_at
        except (RetriableError, OutcomeUnknownError):
            is_fenced = False
            await asyncio.sleep(RETRY_S)


async def begin(net: SimKafkaNet, store: KafkaStore, *, leader: int, coordinator: int) -> KafkaLog:
    """Return the log of an owner whose brokers are these, and let node 0 stand still from now on."""
    net.kafka.leader, net.kafka.coordinator = leader, coordinator
    log = store.partition_log("events", 0)
    await appended(log, is_fenced=False)
    net.freeze(0)
    return log


def elect(net: SimKafkaNet) -> None:
    net.kafka.leader = net.kafka.coordinator = 1


@pytest.mark.parametrize("coordinator", [0, 1])
@pytest.mark.parametrize("is_fenced", [True, False])
async def test_frozen_leader_costs_little_more_than_an_election(
    net: SimKafkaNet, store: KafkaStore, coordinator: int, is_fenced: bool
) -> None:
    log = await begin(net, store, leader=0, coordinator=coordinator)
    asyncio.get_running_loop().call_later(ELECTION_S, elect, net)
    assert ELECTION_S < await appended(log, is_fenced=is_fenced) < GAP_S
    assert await appended(log) < 0.1
    net.thaw(0)
    await log.close()


async def test_frozen_coordinator_costs_little_more_than_an_election(
    net: SimKafkaNet, store: KafkaStore
) -> None:
    log = await begin(net, store, leader=1, coordinator=0)
    assert await appended(log) < 0.1, "an owner needs no coordinator"
    asyncio.get_running_loop().call_later(ELECTION_S, elect, net)
    assert ELECTION_S < await appended(log, is_fenced=False) < GAP_S
    net.thaw(0)
    await log.close()


async def test_append_to_a_leader_that_stays_is_waited_for(net: SimKafkaNet, store: KafkaStore) -> None:
    log = await begin(net, store, leader=0, coordinator=1)
    asyncio.get_running_loop().call_later(7, net.thaw, 0)
    base = await log.append([RECORD])
    assert await log.append([RECORD]) == base + 1
    await log.close()


async def test_leader_that_stands_still_and_stays_is_given_the_request_timeout(
    net: SimKafkaNet, store: KafkaStore
) -> None:
    log = await begin(net, store, leader=0, coordinator=1)
    began_at = now()
    with pytest.raises(OutcomeUnknownError, match="no answer within 8 s") as raised:
        await log.append([RECORD])
    assert raised.value.is_unanswered
    assert 8 <= now() - began_at < 8.1
    net.thaw(0)
    await log.close()


async def test_appends_in_time_ask_nobody(net: SimKafkaNet, store: KafkaStore) -> None:
    log = store.partition_log("events", 0)
    await appended(log, is_fenced=False)
    asked = len(net.requests)
    net.slowness_s = LATE_S - 0.1
    for _ in range(3):
        await log.append([RECORD])
    assert METADATA not in [request.API_KEY for request in net.requests[asked:]]
    await log.close()


async def test_cut_from_all_brokers_ends_when_one_is_back(net: SimKafkaNet, store: KafkaStore) -> None:
    log = await begin(net, store, leader=0, coordinator=0)
    net.freeze(1)
    appending = asyncio.ensure_future(appended(log))
    await asyncio.sleep(60)
    assert not appending.done()
    net.thaw(1)
    elect(net)
    healed_at = now()
    await appending
    assert now() - healed_at < GAP_S
    net.thaw(0)
    await log.close()
