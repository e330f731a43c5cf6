"""Claim: a connection takes an answer for that of its one request, whole and bounded, or ends and says so."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
)

from dedupe.adapters.kafka_client import KafkaConfig
from dedupe.adapters.kafka_connection import ANSWER_BYTES_MAX, Connection
from dedupe.adapters.kafka_wire import END_TXN, Request
from tests.support.processes import HOST
from tests.support.sim_kafka_wire import versions_answer, versions_unknown
from tests.support.tcp_server import TCPServer

REQUEST = Request(END_TXN, 0, (b"\0\7gateway", b"body"))


class Broker(TCPServer):
    """Answers requests with what is due, in pieces, and remembers the requests; then it is silent."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[list[bytes]] = [[framed(1, versions_unknown())]]
        self.frames: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """See TCPServer."""
        self.writers.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                self.frames.append(await reader.readexactly(size))
                for piece in self.due.pop(0) if self.due else []:
                    if not piece:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        self.ended.set()


def framed(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        yield broker


async def opened(broker: Broker, config: KafkaConfig | None = None) -> Connection:
    return await Connection.open(config or KafkaConfig(""), HOST, broker.port)


@pytest.fixture
async def connection(broker: Broker) -> AsyncIterator[Connection]:
    connection = await opened(broker)
    yield connection
    connection.close()


async def test_request_has_its_size_kind_and_number_in_front(broker: Broker, connection: Connection) -> None:
    broker.due = [[framed(2, b"a")], [framed(3, b"b")]]

    assert await connection.ask(REQUEST) == b"a"
    assert await connection.ask(REQUEST) == b"b"
    assert broker.frames[1:] == [struct.pack(">hhi", END_TXN, 0, n) + b"\0\7gatewaybody" for n in (2, 3)]


async def test_answer_may_come_byte_by_byte(broker: Broker, connection: Connection) -> None:
    answer = framed(2, b"in pieces")
    broker.due = [[answer[place : place + 1] for place in range(len(answer))]]

    assert await connection.ask(REQUEST) == b"in pieces"
    assert connection.is_usable


@pytest.mark.parametrize(
    "pieces",
    [
        [framed(1, b"")],
        [framed(2, b"") + framed(3, b"")],
        [struct.pack(">ii", ANSWER_BYTES_MAX + 1, 2)],
        [framed(2, b"half")[:-1], b""],
        [b""],
    ],
    ids=["of another request", "twice", "without end", "cut off", "none"],
)
async def test_answer_that_is_none_ends_the_connection(
    broker: Broker, connection: Connection, pieces: list[bytes]
) -> None:
    broker.due = [pieces]

    with pytest.raises(KafkaConnectionError):
        await connection.ask(REQUEST)

    assert not connection.is_usable
    with pytest.raises(KafkaConnectionError):
        connection.ask(REQUEST)


async def test_what_nobody_asked_for_ends_the_connection(broker: Broker, connection: Connection) -> None:
    broker.writers[0].write(framed(2, b""))
    await asyncio.wait_for(broker.ended.wait(), 10)
    assert not connection.is_usable


async def test_second_request_waits_for_no_answer_of_the_first(connection: Connection) -> None:
    first = connection.ask(REQUEST)
    with pytest.raises(KafkaConnectionError, match="in use"):
        connection.ask(REQUEST)

    connection.close()
    with pytest.raises(KafkaConnectionError, match="closed by the gateway"):
        await first


async def test_answer_to_one_who_has_left_is_dropped(broker: Broker, connection: Connection) -> None:
    broker.due = [[framed(2, b"late")]]
    connection.ask(REQUEST).cancel()
    while connection._answer is not None:
        await asyncio.sleep(0)
    broker.due = [[framed(3, b"next")]]
    assert await connection.ask(REQUEST) == b"next"


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        (versions_unknown(), 1),
        (versions_answer({}), 1),
        (versions_answer({"metadata.version": 29}), 1),
        (versions_answer({"metadata.version": 29, "transaction.version": 0}), 0),
        (versions_answer({"group.version": 1, "transaction.version": 2}), 2),
        (struct.pack(">hxix", 0, 0)[:-1] + b"\0", 1),
    ],
    ids=["old broker", "nothing agreed", "other features", "off", "on", "no features"],
)
async def test_version_of_transactions_is_what_the_cluster_has_agreed_on(
    broker: Broker, answer: bytes, version: int
) -> None:
    broker.due = [[framed(1, answer)]]
    connection = await opened(broker)
    assert connection.transaction_version == version
    connection.close()


@pytest.mark.parametrize("answer", [b"", b"\0", b"\0\0\xff\xff", struct.pack(">h", 42)], ids=repr)
async def test_versions_that_cannot_be_read_are_an_error_and_leave_nothing_open(
    broker: Broker, answer: bytes
) -> None:
    broker.due = [[framed(1, answer)]]
    with pytest.raises(KafkaError):
        await opened(broker)
    await asyncio.wait_for(broker.ended.wait(), 10)
