"""
The limit of an append: the request timeout, or less if its leader is deposed meanwhile.

A leader that stands still keeps its connections, while the cluster has elected another one within seconds.
So once a response is late, another broker is asked who leads. What was appended is unknown then, as after
any time-out, and the next fence finds out.
"""

import asyncio
from contextlib import suppress

from aiokafka import TopicPartition

from dedupe.model.errors import RetriableError
from dedupe.storage.kafka.broker_connection import BrokerConnection
from dedupe.storage.kafka.cluster import KafkaCluster
from dedupe.storage.kafka.config import Address

LATE_S = 2.0
"""The wait for a response before another broker is asked."""
LOOK_AGAIN_S = 0.25


class LateAppend:
    """Waits for the responses to the appends of one producer, one at a time."""

    def __init__(self, cluster: KafkaCluster, tp: TopicPartition, timeout_s: float) -> None:
        self._cluster = cluster
        self._tp = tp
        self._timeout_s = timeout_s
        self._late_s = min(LATE_S, timeout_s)
        self._looking: asyncio.Task[None] | None = None

    async def answer(
        self, response: "asyncio.Future[bytes]", connection: BrokerConnection, leader: Address
    ) -> bytes:
        """Return the response of a leader. Raises KafkaConnectionError: the connection has ended."""
        loop = asyncio.get_running_loop()
        late = loop.call_later(self._late_s, self._begin_to_look, connection, leader)
        try:
            return await response
        finally:
            late.cancel()
            if self._looking is not None:
                self._looking.cancel()
                self._looking = None

    def _begin_to_look(self, connection: BrokerConnection, leader: Address) -> None:
        self._cluster.distrust(leader)
        self._looking = asyncio.ensure_future(self._end(connection, leader))

    async def _end(self, connection: BrokerConnection, leader: Address) -> None:
        """End the connection to a leader once it is deposed, or the timeout is over."""
        why = f"no answer within {self._timeout_s:g} s"
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s - self._late_s):
                await self._until_deposed(leader)
                why = "no answer, and another broker leads the partition by now"
        connection.close(why)

    async def _until_deposed(self, leader: Address) -> None:
        while True:
            with suppress(RetriableError):
                if await self._cluster.is_led_elsewhere(self._tp, leader):
                    return
            await asyncio.sleep(LOOK_AGAIN_S)
