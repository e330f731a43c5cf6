"""Claim: a producer is trusted only while each request of a transaction was sent once and succeeded."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from dedupe.adapters.kafka_producer import CONCURRENT_TRANSACTIONS, INVALID_TIMESTAMP, RequestWatch
from dedupe.errors import FencedError, NotAppendedError

TRANSACTION = (AddPartitionsToTxnRequest, ProduceRequest, EndTxnRequest)
NOT_ENOUGH_REPLICAS = 19
FENCED = (47, 90)


class Client:
    """Answers requests as a broker would, each with the error code that is due."""

    def __init__(self) -> None:
        self.code: int | None = 0  # None: the answer is lost
        self.sent: list[type] = []

    async def send(self, _node_id: int, request: object, **_more: object) -> Any:
        self.sent.append(type(request))
        if self.code is None:
            raise KafkaConnectionError("gone")
        of_partition = [("events", [(0, self.code)])]
        return SimpleNamespace(error_code=self.code, errors=of_partition, topics=of_partition)


class Producer:
    """A watched client, and the requests of one transaction after the other."""

    def __init__(self) -> None:
        self.client = Client()
        self.watch = RequestWatch(self.client)
        self.watch.begin()

    async def send(self, kind: type, code: int | None = 0) -> None:
        self.client.code = code
        await self.client.send(0, object.__new__(kind))

    @property
    def is_tainted(self) -> bool:
        return self.watch.tainted.done()


@pytest.fixture
async def producer() -> Producer:
    return Producer()


async def test_transaction_whose_requests_succeed_once_each_is_trusted(producer: Producer) -> None:
    for _ in range(2):
        producer.watch.begin()
        assert not producer.watch.saw_each_once
        for kind in TRANSACTION:
            await producer.send(kind)
        assert producer.watch.saw_each_once


@pytest.mark.parametrize("repeated", TRANSACTION)
async def test_request_that_was_answered_twice_is_not_trusted(producer: Producer, repeated: type) -> None:
    for kind in (*TRANSACTION, repeated):
        await producer.send(kind)

    assert not producer.watch.saw_each_once


@pytest.mark.parametrize("missing", TRANSACTION)
async def test_request_that_is_missing_is_not_trusted(producer: Producer, missing: type) -> None:
    for kind in TRANSACTION:
        if kind is not missing:
            await producer.send(kind)

    assert not producer.watch.saw_each_once


@pytest.mark.parametrize("lost", TRANSACTION)
async def test_request_without_an_answer_taints_though_the_next_try_succeeds(
    producer: Producer, lost: type
) -> None:
    with pytest.raises(KafkaConnectionError):
        await producer.send(lost, None)
    for kind in TRANSACTION:
        await producer.send(kind)

    assert not producer.watch.saw_each_once
    with pytest.raises(NotAppendedError, match="was not answered"):
        producer.watch.tainted.result()


@pytest.mark.parametrize("refused", TRANSACTION)
@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (NOT_ENOUGH_REPLICAS, NotAppendedError, "NotEnoughReplicasError"),
        (INVALID_TIMESTAMP, NotAppendedError, "the clock of this machine"),
        *((code, FencedError, "newer producer epoch") for code in FENCED),
    ],
)
async def test_request_that_was_refused_taints(
    producer: Producer, refused: type, code: int, error: type[Exception], words: str
) -> None:
    await producer.send(refused, code)
    for kind in TRANSACTION:
        await producer.send(kind)

    assert not producer.watch.saw_each_once
    with pytest.raises(error, match=words):
        producer.watch.tainted.result()


async def test_markers_that_are_still_being_written_taint_nothing(producer: Producer) -> None:
    await producer.send(AddPartitionsToTxnRequest, CONCURRENT_TRANSACTIONS)
    for kind in TRANSACTION:
        await producer.send(kind)

    assert producer.watch.saw_each_once


@pytest.mark.parametrize(("code", "is_lost"), [(0, False), (None, True)])
async def test_fence_without_an_answer_is_remembered(
    producer: Producer, code: int | None, is_lost: bool
) -> None:
    try:
        await producer.send(InitProducerIdRequest, code)
    except KafkaConnectionError:
        assert is_lost

    assert (producer.watch.has_lost_fence, producer.is_tainted) == (is_lost, False)


async def test_discarded_producer_sends_nothing_more(producer: Producer) -> None:
    producer.watch.close()

    for kind in (*TRANSACTION, InitProducerIdRequest):
        with pytest.raises(KafkaConnectionError, match="discarded"):
            await producer.send(kind)

    assert producer.client.sent == []
