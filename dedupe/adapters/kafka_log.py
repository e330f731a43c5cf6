"""
The log on Kafka: a transactional producer per partition, read_committed consumers to read back.

The transactional.id is a function of topic and partition alone (rule R4), so whoever takes the
partition over fences whoever had it. `fence` first takes a new producer epoch and only then asks
for the last stable offset: InitProducerId is not answered before the markers of earlier
transactions are written, so nothing committed can lie beyond it.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from dedupe.adapters.kafka_producer import Transactor, bounded
from dedupe.errors import FencedError, NotAppendedError, RetriableError
from dedupe.log import Crashpoint, no_crashpoint
from dedupe.types import LogRecord, NewRecord, Offset

PAUSE_AFTER_COMMIT_S = 0.0015
"""A transaction that begins within about 1 ms of the last one's end meets CONCURRENT_TRANSACTIONS,
and aiokafka then sleeps 20 ms (measured: 1.5-4 ms against 23 ms)."""
POLL_MS = 50
"""One wait for records. The position may move past markers without any, so it is looked at this often."""
READ_BATCH_RECORDS_MAX = 2_000
UNKNOWN_TOPIC = 3  # UNKNOWN_TOPIC_OR_PARTITION; any other error says nothing about whether it exists
FETCH_BYTES_MAX = 8 * 1024 * 1024

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """How to reach the cluster and how long to wait for it."""

    bootstrap_servers: str
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = None
    ssl_ca_file: str | None = None
    ssl_cert_file: str | None = None
    ssl_key_file: str | None = None
    request_timeout_s: float = 8.0
    transaction_timeout_s: float = 30.0
    batch_bytes_max: int = 900 * 1024

    def client_options(self) -> dict[str, Any]:
        """Return what every aiokafka client of this cluster is created with."""
        uses_tls = self.security_protocol in ("SSL", "SASL_SSL")
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "request_timeout_ms": int(self.request_timeout_s * 1000),
            "security_protocol": self.security_protocol,
            "ssl_context": self._ssl_context() if uses_tls else None,
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": self.sasl_password,
        }

    def _ssl_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ssl_ca_file)
        if self.ssl_cert_file:
            context.load_cert_chain(self.ssl_cert_file, self.ssl_key_file)
        return context


class KafkaStore:
    """One Kafka cluster as the gateway uses it."""

    def __init__(
        self, config: KafkaConfig, admin: AIOKafkaAdminClient, log_id: str, crashpoint: Crashpoint
    ) -> None:
        """Use `open`."""
        self.config = config
        self.admin = admin
        self.crashpoint = crashpoint
        self._log_id = log_id
        self._metadata_consumer: AIOKafkaConsumer | None = None
        self._metadata_lock = asyncio.Lock()
        self._discarding: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, config: KafkaConfig, *, crashpoint: Crashpoint = no_crashpoint) -> "KafkaStore":
        """
        Connect to the cluster.

        Raises:
            RetriableError: no broker answers (yet).
        """
        admin = AIOKafkaAdminClient(**config.client_options())
        try:
            await bounded(admin.start(), config.request_timeout_s)
            cluster = await bounded(admin.describe_cluster(), config.request_timeout_s)
        except (KafkaError, OSError) as err:
            with suppress(Exception):
                await admin.close()
            raise RetriableError(f"no Kafka broker answers at {config.bootstrap_servers}: {err!r}") from err
        return cls(config, admin, cluster["cluster_id"] or config.bootstrap_servers, crashpoint)

    @property
    def log_id(self) -> str:
        """See LogStore; Kafka's cluster id."""
        return self._log_id

    async def partitions_of(self, topic: str) -> int:
        """See LogStore."""
        try:
            topics = await bounded(self.admin.describe_topics([topic]), self.config.request_timeout_s)
        except (KafkaError, OSError) as err:
            raise RetriableError(f"cannot describe topic {topic}: {err!r}") from err
        (found,) = topics
        if found["error_code"] not in (0, UNKNOWN_TOPIC):
            raise RetriableError(f"cannot describe topic {topic}: Kafka error {found['error_code']}")
        return len(found["partitions"])

    def partition_log(self, topic: str, partition: int) -> "KafkaLog":
        """See LogStore."""
        return KafkaLog(self, topic, partition)

    async def offsets(self, tp: TopicPartition) -> tuple[Offset, Offset]:
        """Return (log start, last stable offset) of a partition. Raises RetriableError."""
        try:
            async with asyncio.timeout(self.config.request_timeout_s):
                consumer = await self._offsets_consumer()
                start = await consumer.beginning_offsets([tp])
                end = await consumer.end_offsets([tp])
        except (KafkaError, OSError) as err:
            raise RetriableError(f"cannot read the offsets of {tp}: {err!r}") from err
        return start[tp], end[tp]

    def consumer(self) -> AIOKafkaConsumer:
        """Return an unstarted consumer that sees committed records and never jumps to another offset."""
        return AIOKafkaConsumer(
            **self.config.client_options(),
            isolation_level="read_committed",
            auto_offset_reset="none",
            enable_auto_commit=False,
            fetch_max_bytes=FETCH_BYTES_MAX,
            max_partition_fetch_bytes=FETCH_BYTES_MAX,
            fetch_max_wait_ms=100,
        )

    def discard(self, transactor: Transactor) -> None:
        """Get rid of a producer in the background."""
        task = asyncio.ensure_future(transactor.discard())
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)

    async def close(self) -> None:
        """See LogStore."""
        if self._discarding:
            await asyncio.wait(self._discarding)
        with suppress(Exception):
            if self._metadata_consumer is not None:
                await bounded(self._metadata_consumer.stop(), self.config.request_timeout_s)
        with suppress(Exception):
            await bounded(self.admin.close(), self.config.request_timeout_s)

    async def _offsets_consumer(self) -> AIOKafkaConsumer:
        async with self._metadata_lock:
            if self._metadata_consumer is None:
                consumer = self.consumer()
                try:
                    await consumer.start()
                except BaseException:
                    await consumer.stop()
                    raise
                self._metadata_consumer = consumer
            return self._metadata_consumer


class KafkaLog:
    """One partition of a topic; see PartitionLog."""

    pause_after_append_s = PAUSE_AFTER_COMMIT_S

    def __init__(self, store: KafkaStore, topic: str, partition: int) -> None:
        """
        Connect to nothing yet.

        A fence that was given up may still reach a broker that was frozen, and then fences its
        own successor: the first fencing after one is not taken for another gateway.
        """
        self._store = store
        self._config = store.config
        self._tp = TopicPartition(topic, partition)
        self._transactor: Transactor | None = None
        self._expected: Offset = 0
        self._has_abandoned_fence = False

    async def fence(self) -> Offset:
        """See PartitionLog."""
        self._discard()
        producer = AIOKafkaProducer(
            **self._config.client_options(),
            transactional_id=f"gateway-{self._tp.topic}-{self._tp.partition}",
            transaction_timeout_ms=int(self._config.transaction_timeout_s * 1000),
            max_batch_size=2 * self._config.batch_bytes_max,
            max_request_size=2 * self._config.batch_bytes_max,
        )
        self._transactor = Transactor(
            producer, topic=self._tp.topic, partition=self._tp.partition, crashpoint=self._store.crashpoint
        )
        try:
            await bounded(self._transactor.start(), self._config.request_timeout_s)
            _, end = await self._store.offsets(self._tp)
        except BaseException as err:
            self._discard()
            self._has_abandoned_fence = True
            if isinstance(err, KafkaError | OSError):
                raise RetriableError(f"cannot fence {self._tp}: {err!r}") from err
            raise
        self._expected = end
        return end

    async def bounds(self) -> tuple[Offset, Offset]:
        """See PartitionLog."""
        return await self._store.offsets(self._tp)

    async def read(self, start: Offset, end: Offset) -> AsyncGenerator[Sequence[LogRecord], None]:
        """See PartitionLog."""
        if start >= end:
            return
        log_start, _ = await self.bounds()
        if start < log_start:
            log.warning("reading from the log start", partition=self._tp, asked=start, log_start=log_start)
            start = log_start
        consumer = self._store.consumer()
        try:
            await bounded(consumer.start(), self._config.request_timeout_s)
            consumer.assign([self._tp])
            consumer.seek(self._tp, start)
            position, progress_at = start, monotonic()
            while position < end:
                records = await self._fetch(consumer, end)
                if records:
                    yield records
                position, previous = await consumer.position(self._tp), position
                if position > previous:
                    progress_at = monotonic()
                elif monotonic() - progress_at > self._config.request_timeout_s:
                    raise RetriableError(f"{self._tp} stopped delivering at offset {position} before {end}")
        except (KafkaError, OSError) as err:
            raise RetriableError(f"cannot read {self._tp}: {err!r}") from err
        finally:
            await consumer.stop()

    async def append(self, records: Sequence[NewRecord]) -> Offset:
        """See PartitionLog."""
        transactor = self._transactor
        if transactor is None:
            raise NotAppendedError(f"{self._tp} is not fenced")
        base = self._expected
        try:
            await transactor.commit(records, expected=base, timeout_s=self._config.request_timeout_s)
        except FencedError as err:
            self._discard()
            if self._has_abandoned_fence:
                self._has_abandoned_fence = False
                raise NotAppendedError("fenced, as it seems by an earlier attempt of its own") from err
            raise
        except BaseException:
            self._discard()
            raise
        self._expected = base + len(records) + 1  # the commit marker takes one offset
        return base

    async def close(self) -> None:
        """See PartitionLog."""
        self._discard()

    async def _fetch(self, consumer: AIOKafkaConsumer, end: Offset) -> list[LogRecord]:
        """Return the next committed records below `end`, none if the position moved without any."""
        fetched = await consumer.getmany(
            self._tp,
            timeout_ms=POLL_MS,
            max_records=READ_BATCH_RECORDS_MAX,
        )
        return [
            LogRecord(
                record.offset, record.timestamp, record.key or b"", record.value or b"", list(record.headers)
            )
            for record in fetched.get(self._tp, ())
            if record.offset < end
        ]

    def _discard(self) -> None:
        if self._transactor is not None:
            self._store.discard(self._transactor)
            self._transactor = None
