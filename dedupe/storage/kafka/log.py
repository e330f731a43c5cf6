"""
The log on Kafka: a fenced producer per partition, and readers of committed records.

The transactional.id is a function of topic and partition alone (rule R4), so each new owner of a partition
fences the one before. `fence` has a marker of a new epoch written before it reads the end: the leader
accepts nothing of an older epoch behind the marker, so all of it lies below the end.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from dedupe.model.clock import Clock
from dedupe.model.errors import FencedError, NotAppendedError, RetriableError
from dedupe.model.types import LogRecord, NewRecord, Offset
from dedupe.storage.kafka.cluster import EARLIEST, LATEST, NO_OFFSET, KafkaCluster, group_of
from dedupe.storage.kafka.config import KafkaConfig
from dedupe.storage.kafka.group import KafkaMembership
from dedupe.storage.kafka.producer import FencedProducer
from dedupe.storage.kafka.reader import PartitionReader
from dedupe.storage.log import Crashpoint, no_crashpoint

PAUSE_AFTER_APPEND_S = 0.0015
"""Events that arrive meanwhile share the next record batch: fewer, larger batches cost less CPU."""
READ_BATCH_RECORDS_MAX = 2_000
FETCH_BYTES = 2 * 1024 * 1024
FETCH_BYTES_OF_FEW = 64 * 1024
"""A fetch for a short read. The broker answers with one whole batch where that is larger."""

logger = structlog.get_logger(__name__)


class KafkaStore:
    """One Kafka cluster as the gateway uses it."""

    def __init__(self, config: KafkaConfig, crashpoint: Crashpoint) -> None:
        """Use `open`. Raises ConfigurationError, see KafkaConfig.bootstrap_addresses."""
        self.config = config
        self.crashpoint = crashpoint
        self.cluster = KafkaCluster(config)
        self._log_id = config.bootstrap_servers

    @classmethod
    async def open(cls, config: KafkaConfig, *, crashpoint: Crashpoint = no_crashpoint) -> "KafkaStore":
        """
        Connect to the cluster.

        Raises:
            RetriableError: no broker answers (yet).
            ConfigurationError: the bootstrap servers are no list of host:port, or the login lacks a file.
        """
        await config.login.check()
        store = cls(config, crashpoint)
        try:
            cluster = await store.cluster.describe()
        except BaseException as err:
            await store.close()
            if isinstance(err, RetriableError):
                raise RetriableError(f"no Kafka broker answers at {config.bootstrap_servers}: {err}") from err
            raise
        store._log_id = cluster.cluster_id or config.bootstrap_servers
        return store

    @property
    def log_id(self) -> str:
        """See LogStore; Kafka's cluster id."""
        return self._log_id

    async def partitions_of(self, topic: str) -> int:
        return await self.cluster.partitions_of(topic)

    def partition_log(self, topic: str, partition: int) -> "KafkaLog":
        return KafkaLog(self, topic, partition)

    async def notes(self, name: str, topic: str) -> dict[int, str]:
        return await self.cluster.notes(name, topic)

    async def note(self, name: str, topic: str, partition: int, text: str) -> None:
        await self.cluster.note(name, topic, partition, text)

    def membership(self, topic: str, *, lanes: int, standbys: bool, clock: Clock) -> KafkaMembership:
        """
        Return a worker's membership in the group of the workers of a topic; not joined yet.

        Args:
            topic: the topic of the clean partitions.
            lanes: the number of the group's lanes, those of quarantine included.
            standbys: whether lanes have followers.
            clock: for the order of starts, and for silence.
        """
        group = group_of("workers", topic)
        return KafkaMembership(self.config, self.cluster, group, lanes, standbys=standbys, clock=clock)

    async def close(self) -> None:
        self.cluster.close()


class KafkaLog:
    """One partition of a topic; see PartitionLog."""

    pause_after_append_s = PAUSE_AFTER_APPEND_S

    def __init__(self, store: KafkaStore, topic: str, partition: int) -> None:
        """
        Connect to nothing yet.

        A fence that timed out may still be executed by a broker that was frozen, and then fences its own
        successor: as many fencings as there were such fences are not reported as another gateway's.
        """
        self._store = store
        self._config = store.config
        self._tp = TopicPartition(topic, partition)
        self._producer: FencedProducer | None = None
        self._expected: Offset = 0
        self._abandoned_fences = 0

    async def fence(self) -> Offset:
        self._discard()
        cluster, crashpoint = self._store.cluster, self._store.crashpoint
        producer = self._producer = FencedProducer(self._config, self._tp, cluster, crashpoint=crashpoint)
        try:
            _, before = await self.bounds()
            async with asyncio.timeout(self._config.request_timeout_s):
                await producer.start()
            _, end = await self.bounds()
            with closing(self._reader(before, FETCH_BYTES_OF_FEW)) as reader:
                is_marked = await reader.has_control_marker(producer.marked, end=end)
            if not is_marked:
                raise RetriableError(f"the leader of {self._tp} does not know of its fence")
        except BaseException as err:
            self._discard()
            self._abandoned_fences += producer.has_pending_epoch_request
            if isinstance(err, KafkaError | OSError):
                raise RetriableError(f"cannot fence {self._tp}: {self._config.explain(err)}") from err
            raise
        self._expected = end
        return end

    async def bounds(self) -> tuple[Offset, Offset]:
        start, end = await self._store.cluster.offsets(self._tp, EARLIEST, LATEST)
        return start, end

    async def offset_at(self, timestamp_ms: int) -> Offset:
        """See PartitionLog; it may be the offset of a marker, or of an aborted record."""
        # The end comes first: a record that is committed after the look-up lies at or above it.
        end, offset = await self._store.cluster.offsets(self._tp, LATEST, max(timestamp_ms, 0))
        return end if offset == NO_OFFSET else offset

    async def read(
        self, start: Offset, end: Offset, *, records_max: int | None = None
    ) -> AsyncGenerator[Sequence[LogRecord], None]:
        if start >= end:
            return
        log_start, _ = await self.bounds()
        if start < log_start:
            logger.warning(
                "reading from the log start", partition=self._tp, requested=start, log_start=log_start
            )
            start = log_start
        left = end - start if records_max is None else records_max
        fetch_bytes = FETCH_BYTES if records_max is None else FETCH_BYTES_OF_FEW
        with closing(self._reader(start, fetch_bytes)) as reader:
            while reader.position < end and left > 0:
                read = await reader.read(min(left, READ_BATCH_RECORDS_MAX))
                if records := [record for record in read if record.offset < end]:
                    yield records
                    left -= len(records)

    async def append(self, records: Sequence[NewRecord]) -> Offset:
        producer = self._producer
        if producer is None:
            raise NotAppendedError(f"{self._tp} is not fenced")
        try:
            base = await producer.append(records, expected=self._expected)
        except FencedError as err:
            self._discard()
            if self._abandoned_fences:
                self._abandoned_fences -= 1
                raise NotAppendedError("fenced, probably by an earlier attempt of its own") from err
            raise
        except BaseException:
            self._discard()
            raise
        self._expected = base + len(records)
        return base

    async def close(self) -> None:
        self._discard()

    def _reader(self, start: Offset, fetch_bytes: int) -> PartitionReader:
        return PartitionReader(self._config, self._store.cluster, self._tp, start, fetch_bytes=fetch_bytes)

    def _discard(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None
