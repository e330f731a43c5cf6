"""
Reads one partition of Kafka: Fetch requests to its leader, one after another, on a connection of our own.

aiokafka takes the answer apart: checksums, compression, markers, and what an aborted transaction has left.
Its consumer would take 4 ms of CPU to start, and recovery often wants one record; and it can hang when it is
stopped. A request that failed is sent again from the same place: reading twice changes nothing.
"""

import asyncio
from itertools import islice
from time import monotonic
from typing import Any

import structlog
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.errors import KafkaError
from aiokafka.protocol.fetch import FetchRequest_v4
from aiokafka.record.memory_records import MemoryRecords

from dedupe.adapters.kafka_client import READ_COMMITTED, KafkaConfig, bounded
from dedupe.adapters.kafka_cluster import Address, KafkaCluster, fetched_in
from dedupe.adapters.kafka_connection import Connection
from dedupe.adapters.kafka_wire import request_of
from dedupe.errors import RetriableError
from dedupe.types import LogRecord, Offset

WAIT_MS = 100
"""How long a broker that has nothing yet waits with its answer."""

RETRY_S = 0.1
"""Between two requests of which the first brought nothing: an election takes a second."""

ANSWER_BYTES_MAX = 2**31 - 1
"""The protocol's own bound: a broker answers with one whole batch, however few bytes it is asked for."""


class PartitionReader:
    """Committed records from an offset on; never jumps to another one."""

    def __init__(
        self,
        config: KafkaConfig,
        cluster: KafkaCluster,
        tp: TopicPartition,
        start: Offset,
        *,
        fetch_bytes: int,
    ) -> None:
        """Connect at the first `read`. A fetch is answered with about so many bytes."""
        self.position = start
        """Behind the last record that was read, and behind markers that follow it."""
        self._config = config
        self._cluster = cluster
        self._tp = tp
        self._fetch_bytes = fetch_bytes
        self._connection: Connection | None = None
        self._fetched: _Records | None = None
        self._throttled_s = 0.0
        self._has_told = False

    async def read(self, records_max: int) -> list[LogRecord]:
        """
        Return the next records; none if nothing but the position has moved.

        Raises:
            RetriableError: nothing has come for the request timeout, time for which a quota makes us wait
                apart; or the leader says that nothing will. Only `close` may follow.
        """
        before, since = self.position, monotonic()
        while True:
            self._throttled_s = 0.0
            try:
                records = await self._read(records_max)
            except (KafkaError, OSError, RetriableError) as err:
                is_final = isinstance(err, KafkaError) and not err.retriable
                if is_final or monotonic() - since > self._config.request_timeout_s:
                    raise RetriableError(f"cannot read {self._tp}: {err!r}") from err
                self.close()
            else:
                if records or self.position > before:
                    return records
                if not self._throttled_s and monotonic() - since > self._config.request_timeout_s:
                    raise RetriableError(f"{self._tp} stopped delivering at offset {self.position}")
            await asyncio.sleep(max(self._throttled_s, RETRY_S))
            since += self._throttled_s

    def close(self) -> None:
        """Release the connection, and what of its last answer was not read; raises nothing."""
        self._fetched = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _read(self, records_max: int) -> list[LogRecord]:
        """Return what is left of the last answer, or else of the next one; bounded."""
        timeout_s = self._config.request_timeout_s
        if records := await bounded(self._unpack(records_max), timeout_s):
            return records
        if self._connection is None or not self._connection.is_usable:
            self.close()
            await bounded(self._connect(await self._cluster.leader_of(self._tp)), timeout_s)
        self._fetched = await bounded(self._fetch(), timeout_s)
        return await bounded(self._unpack(records_max), timeout_s)

    async def _connect(self, leader: Address) -> None:
        self._connection = await Connection.open(self._config, *leader, answer_bytes_max=ANSWER_BYTES_MAX)

    async def _unpack(self, records_max: int) -> list[LogRecord]:
        """Return the next records of the last answer; none if there is no more."""
        if self._fetched is None:
            return []
        records = list(islice(self._fetched, records_max))
        self.position = self._fetched.next_fetch_offset
        if len(records) < records_max:
            self._fetched = None
        return records

    async def _fetch(self) -> "_Records | None":
        """Ask for what follows `position`; None, and `_throttled_s`, if a quota is used up."""
        assert self._connection is not None
        topic, partition = self._tp
        places = [(topic, [(partition, self.position, self._fetch_bytes)])]
        request = FetchRequest_v4(-1, WAIT_MS, 1, self._fetch_bytes, READ_COMMITTED, places)
        answer: Any = request.RESPONSE_TYPE.decode(await self._connection.ask(request_of(request)))
        found = fetched_in(answer)
        if found is None:
            self._note_throttled(answer.throttle_time_ms)
            return None
        *_, aborted, batches = found
        return _Records(  # type: ignore[no-untyped-call]
            self._tp,
            MemoryRecords(batches),
            aborted,
            self.position,
            key_deserializer=None,
            value_deserializer=None,
            check_crcs=True,
            isolation_level=READ_COMMITTED,
        )

    def _note_throttled(self, throttle_time_ms: int) -> None:
        """The broker reads nothing of this connection for so long."""
        self._throttled_s = throttle_time_ms / 1000
        if not self._has_told:
            self._has_told = True
            structlog.get_logger(__name__).warning(
                "a quota of the brokers slows the reading of the log", partition=self._tp
            )


class _Records(PartitionRecords):
    """aiokafka's, as records of ours."""

    def _consumer_record(self, _tp: TopicPartition, record: Any) -> LogRecord:
        return LogRecord(
            record.offset, record.timestamp, record.key or b"", record.value or b"", record.headers
        )
