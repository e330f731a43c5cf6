"""Claim: a response is that of the oldest request of its connection, whole and bounded, or ends it."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.coordination import FindCoordinatorRequest_v1
from aiokafka.protocol.transaction import EndTxnRequest_v0

from dedupe.model.errors import ConfigurationError
from dedupe.storage.kafka.broker_connection import (
    IDLE_S_MAX,
    RESPONSE_BYTES_MAX,
    BrokerConnection,
    ConnectionPool,
)
from dedupe.storage.kafka.config import Address
from dedupe.storage.kafka.wire import Request, metadata_request
from tests.support.processes import HOST
from tests.support.settings import kafka_config
from tests.support.tcp_server import TCPServer
from tests.support.waiting import PATIENCE_S

METADATA, API_VERSIONS, END_TXN = 3, 18, 26
VERSIONS = struct.pack(">hihhhhhh", 0, 2, METADATA, 0, 13, END_TXN, 0, 5)
"""The response to ApiVersions 0: what the broker speaks."""

REQUEST = Request(END_TXN, 0, (b"bo", b"dy"))


class Broker(TCPServer):
    """
    Answers requests with what is due, in pieces, and remembers the requests; then it is silent.

    It says at the beginning of a connection what it speaks.
    """

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
                frame = await reader.readexactly(size)
                if frame[:2] == struct.pack(">h", API_VERSIONS):
                    writer.write(framed(0, VERSIONS))
                    continue
                self.frames.append(frame)
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


@pytest.fixture
async def connection(broker: Broker) -> AsyncIterator[BrokerConnection]:
    connection = await BrokerConnection.open(
        kafka_config("", client_id="gateway-w1"), Address(HOST, broker.port)
    )
    yield connection
    connection.close()


async def test_request_has_its_size_kind_and_number_in_front(
    broker: Broker, connection: BrokerConnection
) -> None:
    broker.due = [[framed(1, b"a")], [framed(2, b"b")]]

    assert await connection.send_encoded(REQUEST) == b"a"
    assert await connection.send_encoded(REQUEST) == b"b"
    assert broker.frames == [struct.pack(">hhi", END_TXN, 0, n) + b"\0\x0agateway-w1body" for n in (1, 2)]


async def test_answer_may_come_byte_by_byte(broker: Broker, connection: BrokerConnection) -> None:
    answer = framed(1, b"in pieces")
    broker.due = [[answer[place : place + 1] for place in range(len(answer))]]

    assert await connection.send_encoded(REQUEST) == b"in pieces"
    assert connection.is_usable


@pytest.mark.parametrize(
    "pieces",
    [
        [framed(0, b"")],
        [struct.pack(">ii", RESPONSE_BYTES_MAX + 1, 1)],
        [framed(1, b"half")[:-1], b""],
        [b""],
    ],
    ids=["of another request", "without end", "cut off", "none"],
)
async def test_answer_that_is_none_ends_the_connection(
    broker: Broker, connection: BrokerConnection, pieces: list[bytes]
) -> None:
    broker.due = [pieces]

    with pytest.raises(KafkaConnectionError):
        await connection.send_encoded(REQUEST)

    assert not connection.is_usable
    with pytest.raises(KafkaConnectionError):
        connection.send_encoded(REQUEST)


async def test_answer_that_follows_the_last_one_ends_the_connection(
    broker: Broker, connection: BrokerConnection
) -> None:
    broker.due = [[framed(1, b"a") + framed(2, b"b")]]

    assert await connection.send_encoded(REQUEST) == b"a"
    assert not connection.is_usable


async def test_what_nobody_asked_for_ends_the_connection(
    broker: Broker, connection: BrokerConnection
) -> None:
    broker.due = [[framed(1, b"")]]
    await connection.send_encoded(REQUEST)
    broker.writers[0].write(framed(1, b""))
    await asyncio.wait_for(broker.ended.wait(), PATIENCE_S)
    assert not connection.is_usable


async def test_answers_are_those_of_the_requests_in_turn(
    broker: Broker, connection: BrokerConnection
) -> None:
    broker.due = [[], [framed(1, b"a") + framed(2, b"b")[:5]], [framed(2, b"b")[5:] + framed(3, b"c")]]

    answers = [connection.send_encoded(REQUEST) for _ in range(3)]

    assert await asyncio.gather(*answers) == [b"a", b"b", b"c"]
    assert connection.is_usable


async def test_end_of_a_connection_fails_all_that_is_unanswered(connection: BrokerConnection) -> None:
    answers = [connection.send_encoded(REQUEST) for _ in range(2)]

    connection.close()

    for answer in answers:
        with pytest.raises(KafkaConnectionError, match="closed by the gateway"):
            await answer


async def test_answer_that_cannot_be_decoded_ends_the_connection(
    broker: Broker, connection: BrokerConnection
) -> None:
    broker.due = [[framed(1, b"")]]

    with pytest.raises(KafkaError, match="cannot be read"):
        await connection.send(metadata_request([]))

    assert not connection.is_usable


async def test_pool_has_one_connection_to_each_broker_and_replaces_one_that_ended(broker: Broker) -> None:
    pool, address = ConnectionPool(kafka_config("")), Address(HOST, broker.port)
    assert pool.get(address) is None

    first, *others = await asyncio.gather(*(pool.connect(address) for _ in range(3)))
    assert {*others, pool.get(address)} == {first}
    first.close()
    assert pool.get(address) is None
    second = await pool.connect(address)
    assert second is not first
    pool.close()
    assert not second.is_usable


@pytest.mark.regression("A connection with an answer on its way was taken for idle and replaced.")
async def test_pool_replaces_an_idle_connection_and_none_whose_answer_is_on_its_way(broker: Broker) -> None:
    pool, address = ConnectionPool(kafka_config("")), Address(HOST, broker.port)
    first = await pool.connect(address)
    first._used_at -= IDLE_S_MAX - 0.01
    answer = first.send_encoded(REQUEST)
    await asyncio.sleep(0.02)

    assert await pool.connect(address) is first
    broker.writers[0].write(framed(1, b"late"))
    assert await answer == b"late"
    first._used_at -= IDLE_S_MAX
    assert await pool.connect(address) is not first
    pool.close()


@pytest.mark.regression("A closed pool of connections kept one that was still connecting.")
async def test_pool_that_was_closed_connects_to_nobody(broker: Broker) -> None:
    pool, address = ConnectionPool(kafka_config("")), Address(HOST, broker.port)
    connecting = asyncio.create_task(pool.connect(address))
    await asyncio.sleep(0)
    pool.close()

    with pytest.raises(KafkaConnectionError, match="closed by the gateway"):
        await connecting
    assert pool.get(address) is None


async def test_answer_to_one_who_has_left_is_dropped(broker: Broker, connection: BrokerConnection) -> None:
    broker.due = [[framed(1, b"late")]]
    connection.send_encoded(REQUEST).cancel()
    while connection._unanswered:
        await asyncio.sleep(0)
    broker.due = [[framed(2, b"next")]]
    assert await connection.send_encoded(REQUEST) == b"next"


async def test_request_that_the_broker_does_not_speak_is_told_and_not_sent(
    broker: Broker, connection: BrokerConnection
) -> None:
    with pytest.raises(ConfigurationError, match=f"broker {HOST}:{broker.port} speaks no FindCoordinator"):
        await connection.send(FindCoordinatorRequest_v1("name", 1))

    assert connection.is_usable
    assert broker.frames == []


async def test_pool_lets_a_connection_whose_login_ends_finish_what_it_was_asked(broker: Broker) -> None:
    pool, address = ConnectionPool(kafka_config("")), Address(HOST, broker.port)
    first = await pool.connect(address)
    answer = first.send_encoded(REQUEST)
    first._ends_at = 0.0

    assert await pool.connect(address) is not first
    broker.writers[0].write(framed(1, b"late"))
    assert await answer == b"late"
    with pytest.raises(KafkaConnectionError):
        first.send_encoded(REQUEST)
    pool.close()


async def test_request_waits_until_the_broker_reads_again(
    broker: Broker, connection: BrokerConnection
) -> None:
    loop = asyncio.get_running_loop()
    broker.due = [[framed(1, struct.pack(">ih", 1_000, 0))], [framed(2, struct.pack(">ih", 0, 0))]]
    request = EndTxnRequest_v0("id", 1, 0, True)
    await connection.send(request)
    began_at = loop.time()

    await connection.send(request, timeout_s=0.9)

    assert loop.time() - began_at >= 0.99
