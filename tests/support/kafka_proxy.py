"""
A TCP proxy that understands Kafka's frames well enough to lose or hold single requests and answers.

The broker must advertise the proxy's port, so that clients come back to it.
"""

import asyncio
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, IntEnum
from pathlib import Path

from tests.support.kafka import KafkaBroker
from tests.support.processes import HOST, free_port
from tests.support.tcp_server import TCPServer, close


@contextmanager
def broker_behind_a_proxy(
    folder: Path, *, format_options: Sequence[str] = ()
) -> Iterator[tuple[KafkaBroker, int]]:
    """Run a broker that tells its clients, and itself, to come through a proxy; return its port, too."""
    port = free_port()
    properties = {"advertised.listeners": f"PLAINTEXT://{HOST}:{port}"}
    with KafkaBroker(folder, properties=properties, format_options=format_options) as broker:
        yield broker, port


class Api(IntEnum):
    """Kafka API keys of a transaction, and of a group."""

    PRODUCE = 0
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26


class Fault(Enum):
    """What happens to the next request of a kind; the client's connection breaks each time."""

    LOSE_REQUEST = "the broker never sees it"
    LOSE_ANSWER = "the broker does its work, its answer is lost"
    HOLD_REQUEST = "the broker sees it when `release` is called"


class KafkaProxy(TCPServer):
    """Forwards to one broker; `inject` arms one fault for the next request of its kind."""

    def __init__(self, port: int, upstream_port: int) -> None:
        super().__init__(port)
        self.seen: list[int] = []
        self._upstream_port = upstream_port
        self._faults: dict[int, Fault] = {}
        self._held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._release = asyncio.Event()
        self.is_holding = False

    def inject(self, api: Api, fault: Fault) -> None:
        self._faults[api] = fault

    async def release(self) -> None:
        """Let the broker see what is held, and wait until it has answered."""
        self._release.set()
        await self._held

    async def cut(self) -> None:
        """End all connections of now."""
        connections = [*self._connections]
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(HOST, self._upstream_port)
        lost: set[int] = set()
        answers = asyncio.ensure_future(_forward_answers(upstream_reader, writer, lost))
        try:
            held = await self._forward_requests(reader, upstream_writer, lost)
            if held is not None:
                self.is_holding = True
                answers.cancel()
                await close(writer)
                await self._release.wait()
                upstream_writer.write(held)
                await _frame(upstream_reader)
                self._held.set_result(None)
        finally:
            answers.cancel()
            upstream_writer.close()  # at once: whoever is cancelled does not come to the next line
            await asyncio.gather(answers, return_exceptions=True)
            await close(upstream_writer)

    async def _forward_requests(
        self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, lost: set[int]
    ) -> bytes | None:
        """Forward until the client leaves or a fault ends the connection; return a request to hold."""
        while True:
            frame = await _frame(reader)
            api, _, correlation_id = struct.unpack(">hhi", frame[4:12])
            self.seen.append(api)
            fault = self._faults.pop(api, None)
            if fault is Fault.LOSE_REQUEST:
                return None
            if fault is Fault.HOLD_REQUEST:
                return frame
            if fault is Fault.LOSE_ANSWER:
                lost.add(correlation_id)
            upstream.write(frame)
            await upstream.drain()


async def _forward_answers(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: set[int]
) -> None:
    """Forward answers; the connection ends instead of one that is to be lost."""
    try:
        while True:
            frame = await _frame(reader)
            if struct.unpack(">i", frame[4:8])[0] in lost:
                break
            writer.write(frame)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack(">i", head)[0])
