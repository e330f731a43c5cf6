"""
Claim: a transaction is told as committed only if each of its requests was sent once and succeeded; as one
of unknown outcome only once its last request was sent; and a newer epoch is never taken for a hiccup.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatch

from dedupe.adapters.kafka_client import Background, KafkaConfig
from dedupe.adapters.kafka_cluster import KafkaCluster
from dedupe.adapters.kafka_connection import IDLE_S_MAX, Connection
from dedupe.adapters.kafka_producer import (
    CONCURRENT_TRANSACTIONS,
    FENCED_CODES,
    INVALID_TIMESTAMP,
    NOT_YET_CODES,
    Transactor,
)
from dedupe.errors import FencedError, NotAppendedError, OutcomeUnknownError
from dedupe.log import no_crashpoint
from dedupe.types import NewRecord
from tests.support.sim_kafka import EPOCH_MAX, SimKafka
from tests.support.sim_kafka_net import (
    ADD_PARTITIONS_TO_TXN,
    BOOTSTRAP_SERVERS,
    END_TXN,
    HOST,
    INIT_PRODUCER_ID,
    PORTS,
    PRODUCE,
    SimKafkaNet,
)
from tests.support.sim_kafka_wire import batch_of
from tests.support.virtual_time import VirtualTimeLoop

UNKNOWN_SERVER_ERROR, NOT_ENOUGH_REPLICAS, TRANSACTIONAL_ID_AUTHORIZATION_FAILED = -1, 19, 53
BEGIN, END = ADD_PARTITIONS_TO_TXN, END_TXN
TRANSACTIONS = {1: [BEGIN, PRODUCE, END], 2: [PRODUCE, END]}
"""The requests of one, by version."""
EACH = [(version, api) for version, apis in TRANSACTIONS.items() for api in apis]
OF_VERSION = pytest.mark.parametrize("version", TRANSACTIONS)

RECORD = NewRecord(1_700_000_000_000, b"id", b"{}", [("source", b"web")])
PAUSE_S = 0.01  # markers are written meanwhile
HELD_S = 100.0
TIMEOUT_S = 8.0


@pytest.fixture
def version() -> int:
    return 2


@pytest.fixture
async def net(version: int) -> AsyncIterator[SimKafkaNet]:
    """A cluster without faults but those that are due."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    net = SimKafkaNet(SimKafka("events", 1, loop.time, transaction_version=version), Random(0))
    net.holds_s = [HELD_S]
    net.listen(loop)
    yield net
    await net.close()


@pytest.fixture
async def transactor(net: SimKafkaNet) -> AsyncIterator[Transactor]:
    """One that has an epoch."""
    config = KafkaConfig(bootstrap_servers=BOOTSTRAP_SERVERS, batch_bytes_max=10_000)
    background = Background()
    cluster = KafkaCluster(config, background)
    transactor = Transactor(config, TopicPartition("events", 0), cluster, crashpoint=no_crashpoint)
    await transactor.start()
    net.requests.clear()
    yield transactor
    transactor.close()
    cluster.close()
    await background.finish()


def sent(net: SimKafkaNet) -> list[int]:
    """Return what brokers were asked for."""
    return [request.API_KEY for request in net.requests]


def batches_sent(net: SimKafkaNet) -> list[Any]:
    """Return the record batches that a broker was sent."""
    return [DefaultRecordBatch(batch_of(each)[2]) for each in net.requests if each.API_KEY == PRODUCE]


class Committer:
    """Commits at the partition's end, after a pause for the markers."""

    def __init__(self, net: SimKafkaNet, transactor: Transactor) -> None:
        self._net, self._transactor = net, transactor

    async def __call__(self, records: Sequence[NewRecord] = (RECORD,), *, off_by: int = 0) -> None:
        await asyncio.sleep(PAUSE_S)
        self._net.kafka.settle()
        expected = self._net.kafka.partitions[0].end + off_by
        await self._transactor.commit(records, expected=expected, timeout_s=TIMEOUT_S)


@pytest.fixture
async def commit(net: SimKafkaNet, transactor: Transactor) -> Committer:
    return Committer(net, transactor)


@OF_VERSION
async def test_requests_of_a_transaction_are_sent_once_each_in_order(
    net: SimKafkaNet, commit: Committer, version: int
) -> None:
    await commit()
    await commit()

    assert sent(net) == TRANSACTIONS[version] * 2


@pytest.mark.parametrize(("version", "places"), [(1, [(1, 0), (1, 2)]), (2, [(1, 0), (2, 0)])])
async def test_every_request_is_one_of_the_partitions_own_transaction_and_waits_for_all_replicas(
    net: SimKafkaNet, transactor: Transactor, commit: Committer, places: list[tuple[int, int]]
) -> None:
    await transactor.start()
    await commit([RECORD, RECORD])
    await commit()

    kinds = {INIT_PRODUCER_ID, *TRANSACTIONS[1]}
    of_writer = [request for request in net.requests if request.API_KEY in kinds]
    assert {request.transactional_id for request in of_writer} == {"gateway-events-0"}
    assert of_writer[0].transaction_timeout_ms == 30_000
    produces = [request for request in net.requests if request.API_KEY == PRODUCE]
    batches = batches_sent(net)
    assert [request.required_acks for request in produces] == [-1, -1]
    assert [request.timeout for request in produces] == [8_000, 8_000]
    assert [batch.is_transactional for batch in batches] == [True, True]
    assert [batch.validate_crc() for batch in batches] == [True, True]
    assert {batch.producer_id for batch in batches} == {1000}
    assert [(batch.producer_epoch, batch.base_sequence) for batch in batches] == places


@OF_VERSION
async def test_what_was_committed_is_what_was_given(net: SimKafkaNet, commit: Committer) -> None:
    large = RECORD._replace(value=bytes(9_000), headers=[("source", b"web"), ("gw", b"\xff")])
    await commit([RECORD, large])
    await commit()
    await asyncio.sleep(PAUSE_S)
    net.kafka.settle()

    batches = [DefaultRecordBatch(raw) for raw in net.kafka.partitions[0].read(0)]
    found = [
        (record.timestamp, record.key, record.value, record.headers)
        for batch in batches
        if not batch.is_control_batch
        for record in batch
    ]
    assert found == [tuple(record) for record in (RECORD, large, RECORD)]


@pytest.mark.parametrize("outcome", ["lose_request", "lose_answer", "hold_answer", NOT_ENOUGH_REPLICAS])
@pytest.mark.parametrize(("version", "api"), EACH)
async def test_request_that_is_lost_late_or_refused_is_not_sent_again(
    net: SimKafkaNet, commit: Committer, version: int, api: int, outcome: str | int
) -> None:
    net.due[api] = [outcome]

    with pytest.raises(OutcomeUnknownError if api == END else NotAppendedError):
        await commit()

    await asyncio.sleep(2 * HELD_S)
    assert sent(net) == TRANSACTIONS[version][: TRANSACTIONS[version].index(api) + 1]


@pytest.mark.parametrize(("version", "api"), [(1, BEGIN), (2, PRODUCE)])
async def test_failure_after_a_commit_is_no_doubt_about_it(
    net: SimKafkaNet, commit: Committer, api: int
) -> None:
    await commit()
    net.due[api] = ["lose_request"]

    with pytest.raises(NotAppendedError):
        await commit()


@pytest.mark.parametrize(("version", "api"), EACH)
async def test_request_that_is_never_answered_is_given_up_in_time(
    net: SimKafkaNet, commit: Committer, api: int
) -> None:
    net.due[api] = ["hold_request"]

    with pytest.raises(OutcomeUnknownError if api == END else NotAppendedError):
        async with asyncio.timeout(TIMEOUT_S + 1):
            await commit()


@pytest.mark.parametrize("code", sorted(FENCED_CODES))
@pytest.mark.parametrize(("version", "api"), EACH)
async def test_newer_epoch_is_told_as_such(net: SimKafkaNet, commit: Committer, api: int, code: int) -> None:
    net.due[api] = [code]

    with pytest.raises(FencedError):
        await commit()


@OF_VERSION
async def test_takeover_amid_a_commit_is_told_as_such(net: SimKafkaNet, commit: Committer) -> None:
    net.due[END] = [CONCURRENT_TRANSACTIONS, UNKNOWN_SERVER_ERROR, max(FENCED_CODES)]

    with pytest.raises(FencedError):
        await commit()


@OF_VERSION
async def test_commit_is_asked_for_again_while_the_coordinator_is_confused(
    net: SimKafkaNet, commit: Committer
) -> None:
    net.due[END] = [UNKNOWN_SERVER_ERROR]

    await commit()

    assert sent(net)[-2:] == [END, END]


@OF_VERSION
async def test_wrong_clock_is_blamed(net: SimKafkaNet, commit: Committer) -> None:
    net.due[PRODUCE] = [INVALID_TIMESTAMP]

    with pytest.raises(NotAppendedError, match="the clock of this machine"):
        await commit()


@pytest.mark.parametrize(("version", "api"), [(1, BEGIN), (2, PRODUCE)])
async def test_markers_that_are_still_being_written_are_waited_for(
    net: SimKafkaNet, commit: Committer, version: int, api: int
) -> None:
    net.due[api] = [CONCURRENT_TRANSACTIONS, CONCURRENT_TRANSACTIONS]

    await commit()

    assert sent(net) == [api, api, *TRANSACTIONS[version]]


@OF_VERSION
async def test_records_that_land_elsewhere_are_not_committed(net: SimKafkaNet, commit: Committer) -> None:
    with pytest.raises(NotAppendedError, match="at offset 0 instead of 1"):
        await commit(off_by=1)

    assert END not in sent(net)


async def test_records_that_fit_into_no_batch_are_sent_nowhere(net: SimKafkaNet, commit: Committer) -> None:
    with pytest.raises(NotAppendedError, match="one record batch"):
        await commit([RECORD, RECORD._replace(value=bytes(30_000)), RECORD])

    assert sent(net) == []


async def test_epochs_that_are_used_up_go_on_under_another_producer_id(
    net: SimKafkaNet, commit: Committer
) -> None:
    for _ in range(2 * EPOCH_MAX):
        await commit()

    owners = [(batch.producer_id, batch.producer_epoch) for batch in batches_sent(net)]
    assert len(set(owners)) == 2 * EPOCH_MAX
    assert {producer_id for producer_id, _ in owners} == {1000, 1001}


async def test_coordinator_that_is_not_ready_is_asked_again_and_one_that_refuses_is_not(
    net: SimKafkaNet, transactor: Transactor
) -> None:
    net.due[INIT_PRODUCER_ID] = [*sorted(NOT_YET_CODES)]
    await transactor.start()
    assert sent(net).count(INIT_PRODUCER_ID) == len(NOT_YET_CODES) + 1

    net.requests.clear()
    net.due[INIT_PRODUCER_ID] = [TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    with pytest.raises(KafkaError):
        await transactor.start()
    assert sent(net).count(INIT_PRODUCER_ID) == 1


@pytest.mark.parametrize(
    ("outcome", "may_arrive_late"),
    [("lose_request", True), (TRANSACTIONAL_ID_AUTHORIZATION_FAILED, False)],
    ids=["lost", "refused"],
)
async def test_only_a_request_for_an_epoch_that_is_unanswered_may_arrive_late(
    net: SimKafkaNet, transactor: Transactor, outcome: str | int, may_arrive_late: bool
) -> None:
    net.due[INIT_PRODUCER_ID] = [outcome]
    with pytest.raises(KafkaError):
        await transactor.start()
    assert transactor.asks_for_epoch is may_arrive_late


async def test_request_for_an_epoch_that_could_not_be_sent_does_not_arrive_late(
    net: SimKafkaNet, transactor: Transactor
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    accept = loop.listeners[HOST, PORTS[1]]

    def refuse(protocol: object) -> asyncio.Transport:
        if isinstance(protocol, Connection):
            raise ConnectionRefusedError
        return accept(protocol)

    net.kafka.coordinator = 1
    loop.listeners[HOST, PORTS[1]] = refuse
    with pytest.raises(ConnectionRefusedError):
        await transactor.start()
    assert not transactor.asks_for_epoch


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed by the broker", "still open"])
async def test_connection_that_was_idle_for_long_is_replaced_before_anything_is_sent_on_it(
    net: SimKafkaNet, transactor: Transactor, commit: Committer, *, is_closed: bool
) -> None:
    await commit()
    (old,) = transactor._connections.values()
    await asyncio.sleep(IDLE_S_MAX)
    if is_closed:
        for transport in net.transports:
            transport.close()
    await commit()

    (new,) = transactor._connections.values()
    assert new is not old
    assert not old.is_usable


async def test_connection_that_is_used_now_and_then_is_kept(
    transactor: Transactor, commit: Committer
) -> None:
    await commit()
    before = [*transactor._connections.values()]
    for _ in range(3):
        await asyncio.sleep(IDLE_S_MAX - 1)
        await commit()

    assert [*transactor._connections.values()] == before


async def test_coordinator_that_is_no_leader_has_a_connection_of_its_own(
    net: SimKafkaNet, transactor: Transactor, commit: Committer
) -> None:
    net.kafka.coordinator = 1
    await transactor.start()
    await commit()

    assert PRODUCE in sent(net)


@pytest.mark.parametrize("version", [1])
async def test_leader_that_knows_less_than_the_coordinator_decides(
    net: SimKafkaNet, transactor: Transactor, commit: Committer
) -> None:
    await commit()
    net.kafka.transaction_version, net.kafka.coordinator = 2, 1  # the leader's connection was opened before
    await transactor.start()
    net.requests.clear()
    await commit()

    assert sent(net) == TRANSACTIONS[1]
