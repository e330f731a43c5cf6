"""Claim: whatever aiokafka does with a task, its caller gets an answer in time, or its own cancellation."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace

import pytest
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from dedupe.adapters import kafka_client
from dedupe.adapters.kafka_client import bounded, keep_from_creating_topics
from dedupe.errors import RetriableError


async def raises(err: BaseException) -> None:
    raise err


async def test_cancellation_that_nobody_asked_for_is_an_error_of_the_client() -> None:
    with pytest.raises(KafkaError):
        await bounded(raises(asyncio.CancelledError()), 1)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_error_of_the_client_s_own_bookkeeping_is_an_error_of_the_client() -> None:
    with pytest.raises(KafkaError, match="KeyError"):
        await bounded(raises(KeyError("node")), 1)
    for err in (OSError(), KafkaError(), RetriableError("")):
        with pytest.raises(type(err)) as caught:
            await bounded(raises(err), 1)
        assert caught.value is err


async def test_cancelled_caller_is_cancelled_and_its_work_too() -> None:
    started, forever = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def work() -> None:
        started.set()
        await forever

    caller = asyncio.ensure_future(bounded(work(), 60))
    await started.wait()
    caller.cancel()

    with pytest.raises(asyncio.CancelledError):
        await caller
    assert forever.cancelled()


async def test_client_that_does_not_let_itself_be_cancelled_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_client, "CANCELLATION_S", 0.01)
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()

    try:
        async with asyncio.timeout(5):
            with pytest.raises(TimeoutError):
                await bounded(stubborn(), 0.01)
    finally:
        release.set()


class Connection:
    """Stands in for an AIOKafkaConnection."""

    def __init__(self) -> None:
        self.sent: list[MetadataRequest] = []

    def send(self, request: MetadataRequest) -> None:
        self.sent.append(request)


async def test_no_question_for_a_topic_creates_it() -> None:
    connection = Connection()

    async def get_connection(_node_id: int) -> Connection:
        return connection

    client = SimpleNamespace(_get_conn=get_connection)
    keep_from_creating_topics(client)
    for _ in range(2):
        (await client._get_conn(0)).send(MetadataRequest(["events"]))

    assert [request._allow_auto_topic_creation for request in connection.sent] == [False, False]
