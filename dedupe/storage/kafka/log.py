"""
The log on Kafka: a fenced producer per partition, and readers of committed records.

The transactional.id is a function of topic and partition alone (rule R4), so each new owner of a partition
fences the one before. `fence` has a marker of a new epoch written before it reads the end: the leader
accepts nothing of an older epoch behind the marker, so all of it lies below the end.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from dedupe.decide.recovery import PlainRecords
from dedupe.model.errors import (
    FencedError,
    GatewayError,
    NotAppendedError,
    RecordsRefusedError,
    RetriableError,
)
from dedupe.model.types import LogRecord, NewRecord, Offset
from dedupe.storage.kafka.cluster import EARLIEST, LATEST, NO_OFFSET
from dedupe.storage.kafka.config import Address
from dedupe.storage.kafka.decisions import DecisionsReader
from dedupe.storage.kafka.probe import EPOCHS_LEFT, probe_path
from dedupe.storage.kafka.producer import (
    EPOCH_OF_ROTATION,
    RENEW_S,
    FencedProducer,
    LogAppendTimeError,
    log_append_time_of,
)
from dedupe.storage.kafka.reader import FETCH_BYTES_OF_FEW, PartitionReader
from dedupe.storage.kafka.transactions import ANSWER_S, why_unmarked
from dedupe.storage.kafka.wire import NO_TOPIC_ID, PROBE_HEADERS, ProducerIdAndEpoch

PAUSE_AFTER_APPEND_S = 0.0015
"""Events that arrive meanwhile share the next record batch: fewer, larger batches cost less CPU."""
READ_BATCH_RECORDS_MAX = 2_000
FETCH_BYTES = 2 * 1024 * 1024

FETCH_BYTES_OF_ONE = 1
"""A broker answers with one whole batch at least."""

RENEW_AGAIN_S = 10.0
"""Between two renewals of an idle partition of which the first failed; within a transaction's timeout."""

if TYPE_CHECKING:
    from dedupe.storage.kafka.store import KafkaStore

logger = structlog.get_logger(__name__)


class KafkaFence(NamedTuple):
    """The fence of a partition, see KeptFences: nothing of its producer is in doubt."""

    producer: FencedProducer
    end: Offset  # of the partition, since nobody else appends
    decisions: list[LogRecord]
    topic_id: bytes

    def close(self) -> None:
        self.producer.close()


class KafkaLog:
    """
    One partition of a topic; see PartitionLog.

    While it is idle, the coordinator confirms its epoch once an hour: leaders and coordinators forget a
    producer that is silent for long, and with it the epochs that it has fenced.
    """

    def __init__(
        self, store: "KafkaStore", topic: str, partition: int, beside: TopicPartition | None = None
    ) -> None:
        """
        Connect to nothing yet; decisions are made in the partition `beside` it.

        A fence that timed out may still be executed by a broker that was frozen, and then fences its own
        successor: as many fencings as there were such fences are not reported as another gateway's.
        """
        self._store = store
        self._config = store.config
        self._tp = TopicPartition(topic, partition)
        self._beside = DecisionsReader(store.config, store.cluster, beside) if beside else None
        self.decisions: list[LogRecord] = []
        """Those of all earlier owners, as the last fence found them, and its own."""
        self._producer: FencedProducer | None = None
        self._expected: Offset = 0
        self._seen_end: Offset | None = None  # of the partition, as `bounds` has found it last
        self._abandoned_fences = 0
        self._answer_s = ANSWER_S
        self._topic_id = NO_TOPIC_ID
        self._has_log_append_time = False  # as the last append has shown
        self._leader: Address | None = None
        self._older: ProducerIdAndEpoch | None = None  # an epoch that the leader knows to be over
        self._throttled_s = 0.0  # by producers of before
        self._is_throttled = False
        self._is_appending = False
        self._renew_timer: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._kept_reader: PartitionReader | None = None

    @property
    def pause_after_append_s(self) -> float:
        """See PartitionLog; longer while a quota of the brokers is used up."""
        producer = self._producer
        return PAUSE_AFTER_APPEND_S if producer is None else max(PAUSE_AFTER_APPEND_S, producer.throttled_s)

    @property
    def throttled_s(self) -> float:
        """See PartitionLog."""
        return self._throttled_s + (self._producer.throttled_total_s if self._producer else 0.0)

    async def fence(self) -> Offset:
        self._discard()
        if self._has_log_append_time:
            await self._check_timestamp_type()
        kept = self._store.fences.take(self._tp)
        # Another end is a marker of who has fenced it since, or of a log that has lost records, or a new one.
        if kept is not None and kept.producer.is_confirmed and self._seen_end in (None, kept.end):
            self._producer, end, self.decisions, self._topic_id = kept
            self._begin_behind(kept.producer, end)
            return end
        if kept is not None:
            kept.close()
        cluster, crashpoint = self._store.cluster, self._store.crashpoint
        beside = self._beside
        producer = self._producer = FencedProducer(
            self._config,
            self._tp,
            cluster,
            crashpoint=crashpoint,
            decisions=beside.tp if beside else None,
        )
        try:
            decided_before = await beside.end() if beside else 0
            self._topic_id = await cluster.topic_id(self._tp.topic)
            _, before = await self.bounds()
            await producer.start(answer_s=self._answer_s)
            _, end = await self.bounds()
            with closing(self._reader(before, FETCH_BYTES_OF_FEW)) as reader:
                is_marked = producer.marked in (await reader.control_markers(end)).producers
            if not is_marked:
                raise RetriableError(await why_unmarked(self._config, cluster, self._tp, end))
            if beside:
                self.decisions = await beside.behind_marker(producer.marked, decided_before)
        except BaseException as err:
            if producer.late_fences:  # a cluster that is slow must be able to answer at last
                self._answer_s = min(2 * self._answer_s, self._config.request_timeout_s)
            self._discard()
            if isinstance(err, KafkaError | OSError):
                raise RetriableError(f"cannot fence {self._tp}: {self._config.explain(err)}") from err
            raise
        self._answer_s = ANSWER_S
        self._begin_behind(producer, end)
        return end

    async def has_same_topic(self) -> bool:
        """See PartitionLog; True where the cluster gives topics no ids."""
        topic_id = await self._store.cluster.topic_id(self._tp.topic)
        return self._topic_id in (topic_id, NO_TOPIC_ID)

    async def bounds(self) -> tuple[Offset, Offset]:
        start, self._seen_end = await self._store.cluster.offsets(self._tp, EARLIEST, LATEST)
        return start, self._seen_end

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
                records = _events_below(end, read)
                if records:
                    yield records
                    left -= len(records)

    async def record_at(self, offset: Offset) -> LogRecord | None:
        """See PartitionLog. A reader is kept for the next call: logging in costs more than a record."""
        reader, self._kept_reader = self._kept_reader or self._reader(offset, FETCH_BYTES_OF_ONE), None
        reader.seek(offset)
        try:
            records = await reader.read(1)
        except BaseException:
            reader.close()
            raise
        self._close_reader()
        self._kept_reader = reader
        return records[0] if records and records[0].offset == offset else None

    async def append(self, records: Sequence[NewRecord]) -> Offset:
        producer = self._producer
        if self._renewal is not None:
            await asyncio.wait({self._renewal})
        if producer is None or producer is not self._producer:
            raise NotAppendedError(f"{self._tp} is not fenced")
        self._is_appending = True
        try:
            base = await producer.append(records, expected=self._expected)
        except FencedError as err:
            self._discard()
            if self._abandoned_fences:
                self._abandoned_fences -= 1
                raise NotAppendedError("fenced, probably by an earlier attempt of its own") from err
            raise
        except RecordsRefusedError:
            raise
        except BaseException as err:
            self._has_log_append_time = isinstance(err, LogAppendTimeError)
            self._discard()
            raise
        finally:
            self._is_appending = False
        self._expected = base + len(records)
        if self._older is None and producer.marked.epoch == 0:
            self._older = producer.marked  # the batch was of the next one
        if producer.throttled_s or self._is_throttled:
            self._tell_throttled(producer.throttled_s)
        return base

    async def decide(self, record: NewRecord) -> None:
        """Append a decision beside the partition; raises as `append` does, and must follow a fence."""
        if self._renewal is not None:
            await asyncio.wait({self._renewal})
        if self._producer is None:
            raise NotAppendedError(f"{self._tp} is not fenced")
        self._is_appending = True
        try:
            offset = await self._producer.decide(record)
        except BaseException:
            self._discard()
            raise
        finally:
            self._is_appending = False
        self.decisions = [*self.decisions, LogRecord(offset, *record)]

    @property
    def leader(self) -> str:
        leader = self._leader_now
        return "" if leader is None else f"{leader.host}:{leader.port}"

    @property
    def _leader_now(self) -> Address | None:
        known = self._store.cluster.known_leader_of(self._tp)
        return (known or self._leader) if self._producer is None else self._leader

    async def probe(self) -> None:
        leader, older, producer = self._leader_now, self._older, self._producer
        is_confirmed = (
            producer is None or producer.confirmed_for_s <= RENEW_S
        )  # else a leader may have forgotten
        if leader is None or older is None or not is_confirmed:
            await self.bounds()  # a small request, where no epoch is known to be over
        else:
            await probe_path(self._config, self._tp, leader, older)

    async def close(self) -> None:
        fences, producer = self._store.fences, self._producer
        if fences.is_keeping and producer is not None and self._renewal is None:
            self._producer = None
            self._throttled_s += producer.throttled_total_s
            fences.leave(self._tp, KafkaFence(producer, self._expected, self.decisions, self._topic_id))
        self._discard()
        self._close_reader()

    def _close_reader(self) -> None:
        if self._kept_reader is not None:
            self._kept_reader.close()
            self._kept_reader = None

    def _reader(self, start: Offset, fetch_bytes: int) -> PartitionReader:
        return PartitionReader(self._config, self._store.cluster, self._tp, start, fetch_bytes=fetch_bytes)

    def _begin_behind(self, producer: FencedProducer, end: Offset) -> None:
        """Write behind an end that nobody else moves."""
        self._leader, marked = producer.leader, producer.marked
        if 0 < marked.epoch < EPOCH_OF_ROTATION - EPOCHS_LEFT:
            self._older = marked._replace(epoch=marked.epoch - 1)
        elif marked.epoch > 0:
            self._older = None
        self._expected = end
        self._renew_after(max(RENEW_S - producer.confirmed_for_s, 0.0))

    def _renew_after(self, seconds: float) -> None:
        self._renew_timer = asyncio.get_running_loop().call_later(seconds, self._begin_renewal)

    def _begin_renewal(self) -> None:
        """Renew, unless an append has done so within the hour, or does it now."""
        producer = self._producer
        assert producer is not None
        due_s = RENEW_S - producer.confirmed_for_s
        if self._is_appending or due_s > 0:
            self._renew_after(max(due_s, RENEW_AGAIN_S))
            return
        self._renewal = asyncio.ensure_future(self._renew(producer))

    async def _renew(self, producer: FencedProducer) -> None:
        """Renew an idle producer; the next append repeats a renewal that failed, and raises its error."""
        try:
            self._expected = await producer.renew(self._expected)
        except FencedError as err:
            logger.warning("an idle partition was taken over", partition=self._tp, error=str(err))
        except (KafkaError, OSError, GatewayError) as err:
            logger.warning(
                "the epoch of an idle partition cannot be renewed yet",
                partition=self._tp,
                error=self._config.explain(err),
            )
            self._renew_after(RENEW_AGAIN_S)
        else:
            self._renew_after(RENEW_S)
        finally:
            self._renewal = None

    async def _check_timestamp_type(self) -> None:
        """Raise RetriableError while the brokers replace the timestamps of the topic's records."""
        settings = await self._store.cluster.topic_settings(self._tp.topic)
        if settings.get("message.timestamp.type") == "LogAppendTime":
            raise RetriableError(log_append_time_of(self._tp.topic))
        self._has_log_append_time = False

    def _tell_throttled(self, seconds: float) -> None:
        """Log the beginning of a time in which a quota of the brokers holds appends back."""
        if seconds and not self._is_throttled:
            logger.warning(
                "a quota of the brokers slows the writing of the log",
                partition=self._tp,
                pause_seconds=round(seconds, 3),
            )
        self._is_throttled = seconds > 0

    def _discard(self) -> None:
        if self._renew_timer is not None:
            self._renew_timer.cancel()
            self._renew_timer = None
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None
        if self._producer is not None:
            self._abandoned_fences += self._producer.late_fences
            self._throttled_s += self._producer.throttled_total_s
            self._producer.close()
            self._producer = None


def _events_below(end: Offset, records: Sequence[LogRecord]) -> Sequence[LogRecord]:
    """Return the records below an offset, without those of probes."""
    if isinstance(records, PlainRecords) and records.end <= end:
        return records
    return [each for each in records if each.offset < end and each.headers != PROBE_HEADERS]
