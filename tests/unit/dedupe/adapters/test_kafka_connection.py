"""Claim: a connection takes an answer for that of its one request, whole and bounded, or ends and says so."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from aiokafka.errors import KafkaConnectionError

from dedupe.adapters.kafka_client import KafkaConfig
from dedupe.adapters.kafka_connection import ANSWER_BYTES_MAX, Connection
from dedupe.adapters.kafka_wire import END_TXN, Request
from tests.support.processes import HOST
from tests.support.tcp_server import TCPServer

REQUEST = Request(END_TXN, 0, (b"\0\7gateway", b"body"))


class Broker(TCPServer):
    """Answers requests with what is due, in pieces, and remembers the requests; then it is silent."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[list[bytes]] = []
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
    broker.due = [[framed(1, b"a")], [framed(2, b"b")]]

    assert await connection.ask(REQUEST) == b"a"
    assert await connection.ask(REQUEST) == b"b"
    assert broker.frames == [struct.pack(">hhi", END_TXN, 0, n) + b"\0\7gatewaybody" for n in (1, 2)]


async def test_answer_may_come_byte_by_byte(broker: Broker, connection: Connection) -> None:
    answer = framed(1, b"in pieces")
    broker.due = [[answer[place : place + 1] for place in range(len(answer))]]

    assert await connection.ask(REQUEST) == b"in pieces"
    assert connection.is_usable


@pytest.mark.parametrize(
    "pieces",
    [
        [framed(0, b"")],
        [framed(1, b"") + framed(2, b"")],
        [struct.pack(">ii", ANSWER_BYTES_MAX + 1, 1)],
        [framed(1, b"half")[:-1], b""],
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
    broker.due = [[framed(1, b"")]]
    await connection.ask(REQUEST)
    broker.writers[0].write(framed(1, b""))
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
    broker.due = [[framed(1, b"late")]]
    connection.ask(REQUEST).cancel()
    while connection._answer is not None:
        await asyncio.sleep(0)
    broker.due = [[framed(2, b"next")]]
    assert await connection.ask(REQUEST) == b"next"
