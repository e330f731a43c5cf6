"""
Claim: a transaction is told as committed only if each of its requests was sent once and succeeded; as one
of unknown outcome only once its last request was sent; and a newer epoch is never taken for a hiccup.
"""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest
from aiokafka.record.default_records import DefaultRecordBatch

from dedupe.adapters.kafka_client import KafkaConfig
from dedupe.adapters.kafka_producer import (
    CONCURRENT_TRANSACTIONS,
    INVALID_TIMESTAMP,
    NOT_YET_CODES,
    Transactor,
)
from dedupe.errors import FencedError, NotAppendedError, OutcomeUnknownError
from dedupe.log import no_crashpoint
from dedupe.types import NewRecord

LOST, LATE = -1, -2  # instead of an error code: no answer, because the connection ends or for ever
NOT_ENOUGH_REPLICAS, TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 19, 53
BEGIN, PRODUCE, END = AddPartitionsToTxnRequest, ProduceRequest, EndTxnRequest
TRANSACTION: list[type] = [BEGIN, PRODUCE, END]
RECORD = NewRecord(1_700_000_000_000, b"id", b"{}", [("source", b"web")])


class Cluster:
    """Stands in for aiokafka's client: answers each kind of request with the error codes that are due."""

    def __init__(self) -> None:
        self.cluster = SimpleNamespace(leader_for_partition=lambda _tp: 0)
        self.codes: dict[type, list[int]] = {}
        self.requests: list[Any] = []
        self.end = 7
        self.is_ready = True

    @property
    def sent(self) -> list[type]:
        return [type(request) for request in self.requests]

    async def bootstrap(self) -> None:
        """Be connected."""

    async def set_topics(self, _topics: Sequence[str]) -> None:
        """Know the leader."""

    async def coordinator_lookup(self, _kind: object, _key: str) -> int:
        return 0

    async def ready(self, _node_id: int, **_more: object) -> bool:
        return self.is_ready

    async def send(self, _node_id: int, request: object, **_more: object) -> Any:
        if not self.is_ready:
            raise NodeNotReadyError
        kind = type(request)
        self.requests.append(request)
        code = self.codes[kind].pop(0) if self.codes.get(kind) else 0
        if code == LATE:
            await asyncio.Event().wait()
        if code == LOST:
            raise KafkaConnectionError("gone")
        return SimpleNamespace(
            error_code=code,
            errors=[("events", [(0, code)])],
            topics=[("events", [(0, code, self.end)])],
            producer_id=5,
            producer_epoch=1,
        )


@pytest.fixture
async def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def transactor(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Transactor:
    monkeypatch.setattr(KafkaConfig, "client", lambda _config: cluster)
    config = KafkaConfig(bootstrap_servers="127.0.0.1:1", batch_bytes_max=10_000)
    transactor = Transactor(config, TopicPartition("events", 0), crashpoint=no_crashpoint)
    await transactor.start()
    cluster.requests.clear()
    return transactor


async def commit(
    transactor: Transactor, records: Sequence[NewRecord] = (RECORD,), timeout_s: float = 20
) -> None:
    await transactor.commit(records, expected=7, timeout_s=timeout_s)


async def test_requests_of_a_transaction_are_sent_once_each_in_order(
    cluster: Cluster, transactor: Transactor
) -> None:
    await commit(transactor)
    await commit(transactor)

    assert cluster.sent == TRANSACTION * 2


async def test_every_request_is_one_of_the_partitions_own_transaction_and_waits_for_all_replicas(
    cluster: Cluster, transactor: Transactor
) -> None:
    await transactor.start()
    await commit(transactor)
    await commit(transactor)

    epoch, _, first, _, _, second, _ = cluster.requests
    assert {request._transactional_id for request in cluster.requests} == {"gateway-events-0"}
    assert epoch._transaction_timeout_ms == 30_000
    batches = [DefaultRecordBatch(request._topics[0][1][0][1]) for request in (first, second)]
    assert [request._required_acks for request in (first, second)] == [-1, -1]
    assert [batch.is_transactional for batch in batches] == [True, True]
    assert [(batch.producer_id, batch.producer_epoch) for batch in batches] == [(5, 1)] * 2
    assert [batch.base_sequence for batch in batches] == [0, 1]


@pytest.mark.parametrize("code", [LOST, NOT_ENOUGH_REPLICAS])
@pytest.mark.parametrize(
    ("kind", "error"), [(BEGIN, NotAppendedError), (PRODUCE, NotAppendedError), (END, OutcomeUnknownError)]
)
async def test_request_that_is_lost_or_refused_is_not_sent_again(
    cluster: Cluster, transactor: Transactor, kind: type, error: type[Exception], code: int
) -> None:
    cluster.codes[kind] = [code]

    with pytest.raises(error):
        await commit(transactor)

    assert cluster.sent == TRANSACTION[: TRANSACTION.index(kind) + 1]


async def test_failure_after_a_commit_is_no_doubt_about_it(cluster: Cluster, transactor: Transactor) -> None:
    await commit(transactor)
    cluster.codes[BEGIN] = [LOST]

    with pytest.raises(NotAppendedError):
        await commit(transactor)


@pytest.mark.parametrize(
    ("kind", "error"), [(BEGIN, NotAppendedError), (PRODUCE, NotAppendedError), (END, OutcomeUnknownError)]
)
async def test_request_that_is_never_answered_is_given_up(
    cluster: Cluster, transactor: Transactor, kind: type, error: type[Exception]
) -> None:
    cluster.codes[kind] = [LATE]

    with pytest.raises(error):
        async with asyncio.timeout(20):
            await commit(transactor, timeout_s=0)


@pytest.mark.parametrize("kind", TRANSACTION)
@pytest.mark.parametrize("code", [47, 90])
async def test_newer_epoch_is_told_as_such(
    cluster: Cluster, transactor: Transactor, kind: type, code: int
) -> None:
    cluster.codes[kind] = [code]

    with pytest.raises(FencedError):
        await commit(transactor)


async def test_wrong_clock_is_blamed(cluster: Cluster, transactor: Transactor) -> None:
    cluster.codes[PRODUCE] = [INVALID_TIMESTAMP]

    with pytest.raises(NotAppendedError, match="the clock of this machine"):
        await commit(transactor)


async def test_markers_that_are_still_being_written_are_waited_for(
    cluster: Cluster, transactor: Transactor
) -> None:
    cluster.codes[BEGIN] = [CONCURRENT_TRANSACTIONS, CONCURRENT_TRANSACTIONS]

    await commit(transactor)

    assert cluster.sent == [BEGIN, BEGIN, *TRANSACTION]


async def test_records_that_land_elsewhere_are_not_committed(
    cluster: Cluster, transactor: Transactor
) -> None:
    cluster.end = 8

    with pytest.raises(NotAppendedError, match="at offset 8 instead of 7"):
        await commit(transactor)

    assert END not in cluster.sent


async def test_records_that_fit_into_no_batch_are_sent_nowhere(
    cluster: Cluster, transactor: Transactor
) -> None:
    with pytest.raises(NotAppendedError, match="one record batch"):
        await commit(transactor, [RECORD, RECORD._replace(value=bytes(30_000)), RECORD])

    assert cluster.sent == []


async def test_coordinator_that_is_not_ready_is_asked_again_and_one_that_refuses_is_not(
    cluster: Cluster, transactor: Transactor
) -> None:
    cluster.codes[InitProducerIdRequest] = sorted(NOT_YET_CODES)
    await transactor.start()
    assert cluster.sent == [InitProducerIdRequest] * (len(NOT_YET_CODES) + 1)

    cluster.requests.clear()
    cluster.codes[InitProducerIdRequest] = [TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    with pytest.raises(KafkaError):
        await transactor.start()
    assert cluster.sent == [InitProducerIdRequest]


@pytest.mark.parametrize(
    ("is_ready", "code", "may_arrive_late"),
    [(True, LOST, True), (True, TRANSACTIONAL_ID_AUTHORIZATION_FAILED, False), (False, 0, False)],
    ids=["lost", "refused", "not-sent"],
)
async def test_only_a_request_for_an_epoch_that_was_sent_may_arrive_late(
    cluster: Cluster, transactor: Transactor, is_ready: bool, code: int, may_arrive_late: bool
) -> None:
    cluster.is_ready, cluster.codes[InitProducerIdRequest] = is_ready, [code]
    with pytest.raises(KafkaError):
        await transactor.start()
    assert transactor.asks_for_epoch is may_arrive_late
