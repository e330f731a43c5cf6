"""
The routing topic of a clean topic: its notes, in the order in which they were written.

Partition 0 has the notes; the others are for what the owners of the clean partitions decide, one for each. A
process reads what was written since it last asked. Records are written once, by one request: if its outcome
is unknown the caller writes the note again, which changes nothing.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from dedupe.model.errors import ConfigurationError, IdentityMismatchError, RetriableError
from dedupe.model.types import LogRecord, Offset
from dedupe.storage.kafka.broker_connection import ConnectionPool
from dedupe.storage.kafka.cluster import EARLIEST, LATEST, UNKNOWN_TOPIC, KafkaCluster, error_name
from dedupe.storage.kafka.config import KafkaConfig
from dedupe.storage.kafka.probe import produce
from dedupe.storage.kafka.producer import NO_PRODUCER
from dedupe.storage.kafka.reader import FETCH_BYTES_OF_FEW, PartitionReader
from dedupe.storage.kafka.record_batch import encode_batch
from dedupe.storage.kafka.transactions import Patience
from dedupe.storage.kafka.wire import NO_TOPIC_ID
from dedupe.storage.routing_records import Note, Notes, Place, note_record, read_record, routing_topic_of

NOTES_PARTITION = 0
TOPIC_AUTHORIZATION_FAILED = 29
BATCH_BYTES_MAX = 64 * 1024
"""Of one note, with its text in JSON's escapes."""
READ_RECORDS_MAX = 1_000
NO_SEQUENCE = -1


class RoutingKey(NamedTuple):
    """Whose routing topic it is, and how its records are proved."""

    topic: str  # the clean one
    mac_key: bytes


class RoutingTopic:
    """Reads and writes the notes of one clean topic, and of its quarantine."""

    def __init__(
        self,
        config: KafkaConfig,
        cluster: KafkaCluster,
        key: RoutingKey,
        log_id: Callable[[], str],
    ) -> None:
        """Connect to nothing yet; `log_id` returns the id of the cluster."""
        self.name = routing_topic_of(key.topic)
        self._config = config
        self._cluster = cluster
        self._key = key
        self._log_id = log_id
        self._tp = TopicPartition(self.name, NOTES_PARTITION)
        self._connections = ConnectionPool(config)
        self._notes = Notes()
        self._position: Offset = 0
        self._turn = asyncio.Lock()

    async def notes(self, name: str, topic: str) -> dict[int, str]:
        """
        Return the notes of this name by partition; none if there is no routing topic.

        Raises:
            RetriableError: no answer, or the routing topic is gone.
            ConfigurationError: a right is missing, or the topic has lost records.
            IdentityMismatchError: a record is of another secret, cluster or topic, or of a newer gateway.
        """
        async with self._turn:
            await self._catch_up()
        return self._notes.of(name, topic)

    async def note(self, note: Note) -> None:
        """
        Write a note.

        Raises:
            RetriableError: its outcome is unknown; call again.
            ConfigurationError: a right is missing.
        """
        if not await self._cluster.partitions_of(self._key.topic):
            raise RetriableError(f"topic {self._key.topic} does not exist")  # and has no id to bind a note to
        place = (await self._places())[0]
        record = note_record(note, place, self._key.mac_key, now_ms=time.time_ns() // 1_000_000)
        batch = encode_batch([record], NO_PRODUCER, NO_SEQUENCE, bytes_max=BATCH_BYTES_MAX)
        limit_s = self._config.request_timeout_s
        patience = Patience(limit_s, limit_s)
        try:
            connection = await patience.connect(self._connections, await self._cluster.leader_of(self._tp))
            produced = await produce(connection, self._tp, batch, patience, timeout_s=limit_s)
        except (KafkaError, OSError) as err:
            raise RetriableError(f"no answer about a note: {self._config.explain(err)}") from err
        if produced.code == TOPIC_AUTHORIZATION_FAILED:
            raise self._without_right("Write")
        if produced.code:
            raise RetriableError(f"a note is refused by {self.name}: {error_name(produced.code)}")

    async def exists(self) -> bool:
        """Whether the routing topic exists. Raises RetriableError, ConfigurationError."""
        (topic,) = (await self._cluster.describe(self.name)).topics
        code = topic["error_code"]
        if code == TOPIC_AUTHORIZATION_FAILED:
            raise self._without_right("Describe")
        if code not in (0, UNKNOWN_TOPIC):
            raise RetriableError(f"cannot describe topic {self.name}: {error_name(code)}")
        return bool(code == 0)

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    async def _catch_up(self) -> None:
        """Read what was written since the last time."""
        if self._position == 0 and not await self.exists():
            return
        start, end = await self._cluster.offsets(self._tp, EARLIEST, LATEST)
        if start > 0 or end < self._position:
            raise ConfigurationError(
                f"topic {self.name} has lost records, by which the gateway knows how {self._key.topic} is "
                "written: see docs/operations.md"
            )
        if end == self._position:
            return
        places, mac_key = await self._places(), self._key.mac_key
        with closing(
            PartitionReader(
                self._config, self._cluster, self._tp, self._position, fetch_bytes=FETCH_BYTES_OF_FEW
            )
        ) as reader:
            while reader.position < end:
                for record in await self._read(reader):
                    said = read_record(record, places, mac_key)
                    if not isinstance(said, Note):  # its lanes do not follow plans
                        raise IdentityMismatchError(f"{self.name} has a plan: run the newer gateway")
                    self._notes.add(said)
                self._position = reader.position

    async def _read(self, reader: PartitionReader) -> list[LogRecord]:
        try:
            return [*await reader.read(READ_RECORDS_MAX)]
        except RetriableError as err:
            if isinstance(err.__cause__, TopicAuthorizationFailedError):
                raise self._without_right("Read") from err
            raise

    async def _places(self) -> list[Place]:
        """Return where records belong; those of before the cluster gave topics ids name none."""
        topic_id = await self._cluster.topic_id(self._key.topic)
        ids = dict.fromkeys((topic_id, NO_TOPIC_ID))
        return [Place(self._log_id(), each, NOTES_PARTITION) for each in ids]

    def _without_right(self, operation: str) -> ConfigurationError:
        return ConfigurationError(f"topic {self.name}: Kafka does not allow {operation} on it: add the ACL")
