"""
Reads one partition of Kafka: Fetch requests to its leader, one after another, on a connection of our own.

aiokafka takes the answer apart: checksums, compression, markers, and what an aborted transaction has left.
Its consumer would take 4 ms of CPU to start, and recovery often wants one record; it retries inside, and
can hang when it is stopped. Here whatever goes wrong ends the reader, and the lane tries again.
"""

from itertools import islice
from typing import Any

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.errors import for_code
from aiokafka.protocol.fetch import FetchRequest_v4
from aiokafka.record.memory_records import MemoryRecords

from dedupe.adapters.kafka_client import READ_COMMITTED, KafkaConfig
from dedupe.adapters.kafka_cluster import KafkaCluster
from dedupe.adapters.kafka_connection import Connection
from dedupe.adapters.kafka_wire import request_of
from dedupe.types import LogRecord, Offset

WAIT_MS = 100
"""How long a broker that has nothing yet waits with its answer."""

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

    async def read(self, records_max: int) -> list[LogRecord]:
        """
        Return the next records, often none, with or without another `position`; unbounded.

        Raises:
            KafkaError, OSError, RetriableError: nothing but `close` may follow.
        """
        if self._fetched is None:
            self._fetched = await self._fetch()
        records = list(islice(self._fetched, records_max))
        self.position = self._fetched.next_fetch_offset
        if len(records) < records_max:
            self._fetched = None
        return records

    def close(self) -> None:
        """Release the connection; raises nothing."""
        if self._connection is not None:
            self._connection.close()

    async def _fetch(self) -> "_Records":
        if self._connection is None:
            leader = await self._cluster.leader_of(self._tp)
            self._connection = await Connection.open(self._config, *leader, answer_bytes_max=ANSWER_BYTES_MAX)
        topic, partition = self._tp
        places = [(topic, [(partition, self.position, self._fetch_bytes)])]
        request = FetchRequest_v4(-1, WAIT_MS, 1, self._fetch_bytes, READ_COMMITTED, places)
        answer: Any = request.RESPONSE_TYPE.decode(await self._connection.ask(request_of(request)))
        ((_, ((_, code, _, _, aborted, batches),)),) = answer.topics
        if code != 0:
            raise for_code(code)()
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


class _Records(PartitionRecords):
    """aiokafka's, as records of ours."""

    def _consumer_record(self, _tp: TopicPartition, record: Any) -> LogRecord:
        return LogRecord(
            record.offset, record.timestamp, record.key or b"", record.value or b"", record.headers
        )
