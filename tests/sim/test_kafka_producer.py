"""
Claim: an append is told as done only if its one request was sent once and succeeded, as one of unknown
outcome only once it was sent; a fence ends all earlier producers, or fails; a newer epoch is never taken for
a hiccup.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from itertools import groupby
from random import Random
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatch

from dedupe.model.errors import FencedError, NotAppendedError, OutcomeUnknownError
from dedupe.model.types import NewRecord, Offset
from dedupe.storage.kafka.broker_connection import IDLE_S_MAX, BrokerConnection
from dedupe.storage.kafka.cluster import NO_COORDINATOR_CODES, KafkaCluster
from dedupe.storage.kafka.producer import EPOCH_OF_ROTATION, RENEW_S, FencedProducer
from dedupe.storage.kafka.reader import PartitionReader
from dedupe.storage.kafka.transactions import CONCURRENT_TRANSACTIONS, INVALID_TIMESTAMP, REFUSED_CODES
from dedupe.storage.kafka.wire import ProducerIdAndEpoch
from dedupe.storage.log import no_crashpoint
from tests.support.settings import kafka_config
from tests.support.sim_kafka import SimKafka
from tests.support.sim_kafka_net import (
    ADD_PARTITIONS_TO_TXN,
    BOOTSTRAP_SERVERS,
    END_TXN,
    HOST,
    INIT_PRODUCER_ID,
    PORTS,
    PRODUCE,
    SimKafkaNet,
    batch_of,
)
from tests.support.virtual_time import VirtualTimeLoop

UNKNOWN_SERVER_ERROR, NOT_LEADER_OR_FOLLOWER = -1, 6
NOT_ENOUGH_REPLICAS, TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 19, 53
BEGIN, END = ADD_PARTITIONS_TO_TXN, END_TXN
FENCE = [INIT_PRODUCER_ID, BEGIN, END, INIT_PRODUCER_ID]
RENEWAL = [BEGIN, END, INIT_PRODUCER_ID]
NOT_YET_CODES = NO_COORDINATOR_CODES | {CONCURRENT_TRANSACTIONS}
NO_FAULT = ""

RECORD = NewRecord(1_700_000_000_000, b"id", b"{}", [("source", b"web")])
HELD_S = 100.0
CONFIG = kafka_config(BOOTSTRAP_SERVERS, batch_bytes_max=10_000)


@pytest.fixture
async def net() -> AsyncIterator[SimKafkaNet]:
    """A cluster without faults but those that are due."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    net = SimKafkaNet(SimKafka("events", 1, loop.time), Random(0))
    net.holds_s = [HELD_S]
    net.listen(loop)
    yield net
    await net.close()


@pytest.fixture
async def cluster(net: SimKafkaNet) -> AsyncIterator[KafkaCluster]:
    cluster = KafkaCluster(CONFIG)
    yield cluster
    cluster.close()


@pytest.fixture
async def producer(net: SimKafkaNet, cluster: KafkaCluster) -> AsyncIterator[FencedProducer]:
    """One that has fenced."""
    async with started(cluster) as producer:
        net.requests.clear()
        yield producer


@asynccontextmanager
async def started(cluster: KafkaCluster) -> AsyncIterator[FencedProducer]:
    producer = FencedProducer(CONFIG, TopicPartition("events", 0), cluster, crashpoint=no_crashpoint)
    try:
        await producer.start()
        yield producer
    finally:
        producer.close()


def connection_of(producer: FencedProducer) -> BrokerConnection:
    """Return the connection that appends take."""
    connection = producer._connections.get(producer._leader)
    assert connection is not None
    return connection


async def has_marker(
    cluster: KafkaCluster, producer: ProducerIdAndEpoch, *, start: Offset, end: Offset
) -> bool:
    reader = PartitionReader(CONFIG, cluster, TopicPartition("events", 0), start, fetch_bytes=64 * 1024)
    with closing(reader):
        return producer in (await reader.control_markers(end)).producers


def sent(net: SimKafkaNet) -> list[int]:
    """Return what brokers were asked for by producers, and ourselves."""
    asked = [request.API_KEY for request in net.requests]
    mine = [api for api in asked if api in (*FENCE, PRODUCE)]
    # The coordinator is asked for the next epoch until the marker is there.
    return [api for n, api in enumerate(mine) if n == 0 or api != INIT_PRODUCER_ID or mine[n - 1] != api]


def batches_sent(net: SimKafkaNet) -> list[Any]:
    """Return the record batches that a broker was sent."""
    return [DefaultRecordBatch(batch_of(each)[2]) for each in net.requests if each.API_KEY == PRODUCE]


class Appender:
    """Appends at the partition's end."""

    def __init__(self, net: SimKafkaNet, producer: FencedProducer) -> None:
        self._net, self._producer = net, producer

    async def __call__(self, records: Sequence[NewRecord] = (RECORD,), *, off_by: int = 0) -> Offset:
        expected = self._net.kafka.partitions[0].end + off_by
        return await self._producer.append(records, expected=expected)


@pytest.fixture
async def append(net: SimKafkaNet, producer: FencedProducer) -> Appender:
    return Appender(net, producer)


async def test_each_append_is_one_request(net: SimKafkaNet, append: Appender) -> None:
    await append()
    await append()

    assert sent(net) == [PRODUCE, PRODUCE]


async def test_requests_are_of_the_partitions_own_producer_and_wait_for_all_replicas(
    net: SimKafkaNet, producer: FencedProducer, append: Appender
) -> None:
    await producer.start()
    await append([RECORD, RECORD])
    await append()

    of_fence = [request for request in net.requests if request.API_KEY in FENCE]
    assert [api for api, _ in groupby(request.API_KEY for request in of_fence)] == FENCE
    assert {request.transactional_id for request in of_fence} == {"gateway-events-0"}
    assert of_fence[0].transaction_timeout_ms == 30_000
    produces = [request for request in net.requests if request.API_KEY == PRODUCE]
    batches = batches_sent(net)
    assert [request.transactional_id for request in produces] == [None, None]
    assert [request.required_acks for request in produces] == [-1, -1]
    assert [request.timeout for request in produces] == [8_000, 8_000]
    assert [batch.is_transactional for batch in batches] == [False, False]
    assert [batch.validate_crc() for batch in batches] == [True, True]
    assert {batch.producer_id for batch in batches} == {1000}
    assert [(batch.producer_epoch, batch.base_sequence) for batch in batches] == [(3, 0), (3, 2)]


async def test_what_was_appended_is_what_was_given(net: SimKafkaNet, append: Appender) -> None:
    large = RECORD._replace(value=bytes(9_000), headers=[("source", b"web"), ("gw", b"\xff")])
    await append([RECORD, large])
    await append()

    batches = [DefaultRecordBatch(raw) for raw in net.kafka.partitions[0].read(0)]
    found = [
        (record.timestamp, record.key, record.value, record.headers)
        for batch in batches
        if not batch.is_control_batch
        for record in batch
    ]
    assert found == [tuple(record) for record in (RECORD, large, RECORD)]


# ---- doubts


@pytest.mark.parametrize("outcome", ["lose_request", "lose_answer", "hold_answer", NOT_LEADER_OR_FOLLOWER])
async def test_append_that_is_lost_late_or_in_doubt_is_not_sent_again(
    net: SimKafkaNet, append: Appender, outcome: str | int
) -> None:
    net.due[PRODUCE] = [outcome]

    with pytest.raises(OutcomeUnknownError):
        await append()

    await asyncio.sleep(2 * HELD_S)
    assert sent(net) == [PRODUCE]


@pytest.mark.parametrize("code", sorted(REFUSED_CODES))
async def test_append_that_is_refused_before_it_took_place_is_not_there(
    net: SimKafkaNet, append: Appender, code: int
) -> None:
    net.due[PRODUCE] = [code]

    with pytest.raises(NotAppendedError):
        await append()

    assert sent(net) == [PRODUCE]


async def test_failure_before_anything_was_sent_is_no_doubt_about_the_append_before(
    append: Appender,
) -> None:
    await append()

    with pytest.raises(NotAppendedError):
        await append([RECORD, RECORD._replace(value=bytes(30_000)), RECORD])


@pytest.mark.parametrize("api", [PRODUCE, *RENEWAL])
async def test_request_that_is_never_answered_is_given_up_in_time(
    net: SimKafkaNet, append: Appender, api: int
) -> None:
    await asyncio.sleep(RENEW_S)
    net.due[api] = ["hold_request"]

    with pytest.raises(OutcomeUnknownError if api == PRODUCE else NotAppendedError):
        async with asyncio.timeout(CONFIG.request_timeout_s + 1):
            await append()


@pytest.mark.parametrize("code", [47, 90], ids=["INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"])
@pytest.mark.parametrize("api", [PRODUCE, BEGIN, END])
async def test_newer_epoch_is_told_as_such(net: SimKafkaNet, append: Appender, api: int, code: int) -> None:
    await asyncio.sleep(RENEW_S)
    net.due[api] = [code]

    with pytest.raises(FencedError):
        await append()


async def test_wrong_clock_is_blamed(net: SimKafkaNet, append: Appender) -> None:
    net.due[PRODUCE] = [INVALID_TIMESTAMP]

    with pytest.raises(NotAppendedError, match="the clock of this machine") as refused:
        await append()
    assert refused.value.is_log_time_refused


async def test_records_that_land_elsewhere_are_not_told_as_expected(append: Appender) -> None:
    with pytest.raises(OutcomeUnknownError, match="at offset 1 instead of 2"):
        await append(off_by=1)


async def test_records_that_fit_into_no_batch_are_sent_nowhere(net: SimKafkaNet, append: Appender) -> None:
    with pytest.raises(NotAppendedError, match="one record batch"):
        await append([RECORD, RECORD._replace(value=bytes(30_000)), RECORD])

    assert sent(net) == []


# ---- fences


async def test_marker_of_a_fence_ends_the_producer_before(
    net: SimKafkaNet, cluster: KafkaCluster, append: Appender
) -> None:
    async with started(cluster):
        with pytest.raises(FencedError):
            await append()


async def test_fence_that_has_not_come_to_its_marker_ends_nobody(
    net: SimKafkaNet, cluster: KafkaCluster, append: Appender
) -> None:
    net.due[BEGIN] = ["lose_request"]
    with pytest.raises(KafkaError):
        async with started(cluster):
            pass

    await append()


async def test_fence_waits_for_its_marker(net: SimKafkaNet, producer: FencedProducer) -> None:
    (marker,) = net.kafka.partitions[0].batches
    written = DefaultRecordBatch(marker.raw)

    assert (written.producer_id, written.producer_epoch) == producer.marked


async def test_marker_of_another_fence_is_not_taken_for_it(
    cluster: KafkaCluster, producer: FencedProducer, append: Appender
) -> None:
    marked, end = producer.marked, await append() + 1

    assert await has_marker(cluster, marked, start=0, end=end)
    assert not await has_marker(cluster, marked._replace(epoch=marked.epoch + 1), start=0, end=end)
    assert not await has_marker(cluster, marked._replace(id=marked.id + 1), start=0, end=end)
    assert not await has_marker(cluster, marked, start=1, end=end)


@pytest.mark.regression("A fence believed in a marker above the end that it had read.")
async def test_marker_above_the_end_says_nothing_of_what_is_below(
    net: SimKafkaNet, cluster: KafkaCluster, append: Appender
) -> None:
    """A leader that was deposed said where the end is, and its successor is asked for the marker."""
    await append()
    async with started(cluster) as rival:
        end = net.kafka.partitions[0].end

        assert await has_marker(cluster, rival.marked, start=0, end=end)
        assert not await has_marker(cluster, rival.marked, start=0, end=end - 1)


@pytest.mark.parametrize("place", range(len(FENCE)))
async def test_of_two_fences_at_once_one_fails(
    net: SimKafkaNet, cluster: KafkaCluster, producer: FencedProducer, place: int
) -> None:
    """The rival begins and ends while the answer to one request of ours is late."""
    net.holds_s = [1.0]
    net.due[FENCE[place]] = [*[NO_FAULT] * (place == 3), "hold_answer"]
    ours = asyncio.ensure_future(producer.start())
    while len(sent(net)) <= place:
        await asyncio.sleep(0.001)
    async with started(cluster) as rival:
        with pytest.raises(KafkaError):
            await ours
        await Appender(net, rival)()


async def test_epochs_of_a_producer_id_come_to_their_end_behind_a_marker(
    net: SimKafkaNet, cluster: KafkaCluster
) -> None:
    net.kafka.first_epoch = EPOCH_OF_ROTATION - 1
    owners = []
    async with AsyncExitStack() as stack:
        zombies: list[FencedProducer] = []
        for _ in range(4):
            producer = await stack.enter_async_context(started(cluster))
            await Appender(net, producer)()
            for zombie in zombies:
                with pytest.raises(FencedError):
                    await Appender(net, zombie)()
            zombies.append(producer)
            owners.append((producer.marked.id, producer.marked.epoch))
    assert owners == [(1000, EPOCH_OF_ROTATION - 1), (1001, 0 + 1), (1001, 3), (1001, 5)]


async def test_coordinator_that_is_not_ready_is_asked_again_and_one_that_refuses_is_not(
    net: SimKafkaNet, producer: FencedProducer
) -> None:
    net.due[INIT_PRODUCER_ID] = [*sorted(NOT_YET_CODES)]
    await producer.start()
    assert [api for api, _ in groupby(sent(net))] == FENCE

    net.requests.clear()
    net.due[INIT_PRODUCER_ID] = [TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    with pytest.raises(KafkaError):
        await producer.start()
    assert sent(net).count(INIT_PRODUCER_ID) == 1


@pytest.mark.parametrize(
    ("outcome", "may_arrive_late"),
    [("lose_request", True), (TRANSACTIONAL_ID_AUTHORIZATION_FAILED, False)],
    ids=["lost", "refused"],
)
async def test_only_a_request_for_an_epoch_that_is_unanswered_may_arrive_late(
    net: SimKafkaNet, producer: FencedProducer, outcome: str | int, may_arrive_late: bool
) -> None:
    net.due[INIT_PRODUCER_ID] = [outcome]
    with pytest.raises(KafkaError):
        await producer.start()
    assert (producer.late_fences > 0) is may_arrive_late


async def test_request_for_an_epoch_that_could_not_be_sent_does_not_arrive_late(
    net: SimKafkaNet, producer: FencedProducer
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    accept = loop.listeners[HOST, PORTS[1]]

    def refuse(protocol: object) -> asyncio.Transport:
        if isinstance(protocol, BrokerConnection):
            raise ConnectionRefusedError
        return accept(protocol)

    net.kafka.coordinator = 1
    loop.listeners[HOST, PORTS[1]] = refuse
    with pytest.raises(ConnectionRefusedError):
        await producer.start()
    assert not producer.late_fences


# ---- the coordinator's word


async def test_who_was_silent_for_long_asks_whether_it_is_still_the_owner(
    net: SimKafkaNet, append: Appender
) -> None:
    before = await append()
    await asyncio.sleep(IDLE_S_MAX)

    assert await append() == before + 2  # its own marker lies between
    assert sent(net) == [PRODUCE, *RENEWAL, PRODUCE]


async def test_who_was_silent_for_long_and_has_lost_the_partition_writes_nothing_although_nobody_knows(
    net: SimKafkaNet, cluster: KafkaCluster, append: Appender
) -> None:
    await append()
    async with started(cluster):
        await asyncio.sleep(IDLE_S_MAX)
        partition = net.kafka.partitions[0]
        partition.forget()
        end = partition.end
        with pytest.raises(FencedError):
            await append()
        assert partition.end == end


async def test_decision_needs_a_confirmed_epoch(net: SimKafkaNet, producer: FencedProducer) -> None:
    producer._decisions = TopicPartition("events", 0)
    await asyncio.sleep(IDLE_S_MAX)

    with pytest.raises(NotAppendedError, match="to be confirmed"):
        await producer.decide(RECORD)

    assert sent(net) == []


async def test_busy_owner_asks_now_and_then(net: SimKafkaNet, append: Appender) -> None:
    for _ in range(10):
        await append()
        await asyncio.sleep(RENEW_S / 8)

    assert sent(net) == [PRODUCE] * 8 + RENEWAL + [PRODUCE] * 2


async def test_renewal_behind_which_somebody_has_written_is_a_failure(
    net: SimKafkaNet, producer: FencedProducer
) -> None:
    await asyncio.sleep(IDLE_S_MAX)
    end = net.kafka.partitions[0].end
    with pytest.raises(NotAppendedError, match="ends at"):
        await producer.append([RECORD], expected=end - 2)


async def test_renewal_finds_where_leader_and_coordinator_are_now(net: SimKafkaNet, append: Appender) -> None:
    await asyncio.sleep(IDLE_S_MAX)
    net.kafka.coordinator = 1

    await append()

    assert sent(net) == [BEGIN, *RENEWAL, PRODUCE]


@pytest.mark.regression("A batch went over a newer connection than the epoch it was sent under.")
async def test_connection_that_ends_behind_the_coordinators_word_is_not_replaced(
    net: SimKafkaNet, producer: FencedProducer, append: Appender
) -> None:
    await asyncio.sleep(IDLE_S_MAX)
    net.kafka.coordinator = 1
    appending = asyncio.ensure_future(append())
    while END not in sent(net):
        await asyncio.sleep(0)
    connection_of(producer).close()

    with pytest.raises(NotAppendedError):
        await appending
    assert PRODUCE not in sent(net)


@pytest.mark.parametrize("codes", [[CONCURRENT_TRANSACTIONS], [UNKNOWN_SERVER_ERROR]])
async def test_renewal_is_asked_for_again_while_the_coordinator_is_busy(
    net: SimKafkaNet, append: Appender, codes: list[str | int]
) -> None:
    await asyncio.sleep(IDLE_S_MAX)
    net.due[END] = codes

    await append()

    assert sent(net) == [BEGIN, END, END, INIT_PRODUCER_ID, PRODUCE]


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed by the broker", "still open"])
async def test_connection_that_was_idle_for_long_is_replaced_before_anything_is_sent_on_it(
    net: SimKafkaNet, producer: FencedProducer, append: Appender, *, is_closed: bool
) -> None:
    await append()
    old = connection_of(producer)
    await asyncio.sleep(IDLE_S_MAX)
    if is_closed:
        for transport in net.transports:
            transport.close()
    await append()

    new = connection_of(producer)
    assert new is not old
    assert not old.is_usable


async def test_connection_that_is_used_now_and_then_is_kept(
    producer: FencedProducer, append: Appender
) -> None:
    await append()
    before = connection_of(producer)
    for _ in range(3):
        await asyncio.sleep(IDLE_S_MAX - 1)
        await append()

    assert connection_of(producer) is before


async def test_coordinator_that_is_no_leader_has_a_connection_of_its_own(
    net: SimKafkaNet, producer: FencedProducer, append: Appender
) -> None:
    net.kafka.coordinator = 1
    await producer.start()
    await append()

    assert PRODUCE in sent(net)
