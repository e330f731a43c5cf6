"""
A producer of one partition, fenced by its epoch, and discarded at the first doubt (rules R1, R2, R3).

A commit is one Produce request with one record batch, outside of any transaction: the leader appends a batch
whole or not at all, waits for all replicas, and refuses older epochs of the same producer id. An empty
transaction, of which only the marker is written into the partition, makes the leader know a new epoch before
the new owner reads (docs/adr/0018-one-request-a-commit.md).

aiokafka's producer retries inside, without a bound and with the same epoch. Here a batch is sent once. An
error, or a missing response, ends the producer.
"""

import asyncio
import math
from collections.abc import Sequence
from contextlib import closing

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError

from dedupe.model.errors import (
    FencedError,
    NotAppendedError,
    OutcomeUnknownError,
    RecordsRefusedError,
    RetriableError,
)
from dedupe.model.types import NewRecord, Offset
from dedupe.storage.kafka.broker_connection import BrokerConnection, ConnectionPool
from dedupe.storage.kafka.cluster import LATEST, KafkaCluster, transactional_id_of
from dedupe.storage.kafka.config import Address, KafkaConfig
from dedupe.storage.kafka.decisions import append_decision
from dedupe.storage.kafka.late_append import LateAppend
from dedupe.storage.kafka.reader import FETCH_BYTES_OF_FEW, PartitionReader
from dedupe.storage.kafka.record_batch import encode_batch
from dedupe.storage.kafka.transactions import (
    ANSWER_S,
    REFUSED_CODES,
    RETRY_S,
    RETRY_S_MAX,
    Patience,
    TransactionCoordinator,
    UnknownProducerError,
    raise_for_code,
)
from dedupe.storage.kafka.wire import (
    CREATE_TIME,
    PRODUCE,
    PRODUCE_VERSIONS,
    ProduceCodec,
    Produced,
    ProducerIdAndEpoch,
)
from dedupe.storage.log import Crashpoint

SIZE_SETTINGS = {10: "max.message.bytes", 18: "segment.bytes"}
"""The settings of the topic by which MESSAGE_TOO_LARGE and RECORD_LIST_TOO_LARGE refuse a batch."""
INVALID_RECORD = 87
"""
A refusal of content, as is one of size: the leader has not looked at the sequence number of the batch, so the
producer goes on with it.
"""

RENEW_S = 3600.0
"""
The longest that batches are sent without the coordinator's confirmation of the epoch. A coordinator forgets a
transactional.id that was unused for a week (`transactional.id.expiration.ms`), a leader a producer that has
written nothing for a day (`producer.id.expiration.ms`), and with it the epochs that it has fenced.
"""

EPOCH_OF_ROTATION = 32_700
"""A producer id is replaced above this epoch; the coordinator replaces it at 32,767."""

SEQUENCES = 2**31
"""Sequence numbers of a producer start again at 0 here."""

NO_PRODUCER = ProducerIdAndEpoch(-1, -1)


class LogAppendTimeError(OutcomeUnknownError):
    """The records are in the log, and the broker has replaced their timestamps, by which the window is."""


class FencedProducer:
    """Appends record batches to one partition, each by one request, until the first doubt."""

    def __init__(
        self,
        config: KafkaConfig,
        tp: TopicPartition,
        cluster: KafkaCluster,
        *,
        crashpoint: Crashpoint,
        decisions: TopicPartition | None = None,
    ) -> None:
        """
        Connect to nothing yet. The transactional.id follows from the partition alone (rule R4).

        `decisions` is the partition that is fenced beside it, see `decide`.
        """
        self._config = config
        self._cluster = cluster
        self._tp = tp
        self._crashpoint = crashpoint
        self._connections = ConnectionPool(config)
        self._coordinator = TransactionCoordinator(
            config, tp, transactional_id_of(tp), cluster, self._connections, beside=decisions
        )
        self._decisions = decisions
        self._decided = 0  # sequence of the next decision of this epoch
        self._leader = Address("", 0)
        self._produce = ProduceCodec(tp, timeout_ms=round(config.request_timeout_s * 1000))
        self._producer = NO_PRODUCER
        self._sequence = 0
        self._confirmed_at = -math.inf
        self._throttled_s = 0.0
        self._paused_until = 0.0
        self._late = LateAppend(cluster, tp, config.request_timeout_s)
        self.marked = NO_PRODUCER
        """The producer of the marker that proves that a leader knows this producer's epoch."""

    async def start(self, *, answer_s: float = ANSWER_S) -> None:
        """
        Connect, and fence every earlier producer: the leader accepts nothing more of theirs.

        The coordinator gives the next epoch, under which batches are sent, only after the marker of a new
        epoch is committed. Another epoch than the next one means that a rival takes the partition over.

        Args:
            answer_s: the limit of each request; all together take the request timeout, without the pauses
                that a quota imposes.

        Raises:
            KafkaError, OSError, RetriableError: call again, later.
        """
        patience = Patience(self._config.request_timeout_s, answer_s)
        await self._connect(patience)
        try:
            producer = await self._coordinator.take_epoch(patience)
            await self._coordinator.mark(producer, patience)
            await self._begin_behind(producer, patience)
        except FencedError as err:
            raise KafkaError(f"another gateway takes the partition over: {err}") from err

    async def append(self, records: Sequence[NewRecord], *, expected: Offset) -> Offset:
        """
        Append all records or none, within the request timeout, or until another broker leads.

        A used-up quota of the brokers, and the coordinator's confirmation if it is due, come before it.

        Args:
            records: n >= 1.
            expected: the end of the partition while no other producer writes.

        Returns:
            The first record's offset: `expected`, or a later one if only markers lie between.

        Raises:
            RecordsRefusedError: see PartitionLog.append; the producer goes on.
            NotAppendedError, FencedError, OutcomeUnknownError: the same; the producer must be discarded.
        """
        is_in_doubt = False
        try:
            if self._paused_until:
                await self._rest()
            if not self.is_confirmed:
                expected = await self.renew(expected)
                await self._rest()
            batch = self._batch_of(records)
            self._crashpoint("append")
            # Never over a connection that is younger than the coordinator's confirmation.
            connection = self._connections.get(self._leader)
            if connection is None:
                raise NotAppendedError("the connection to the leader has ended")
            response = connection.send_encoded(self._produce.encode(batch))
            is_in_doubt = True
            produced = self._produce.decode(await self._late.answer(response, connection, self._leader))
            if produced.throttle_s:
                self._note_throttle(connection, produced.throttle_s)
            is_in_doubt = produced.code not in REFUSED_CODES
            if produced.code or produced.log_time_ms != CREATE_TIME:
                self._raise_for(produced, len(batch))
            if produced.offset != expected:
                await self._check_gap(produced, expected)
        except (FencedError, LogAppendTimeError):
            raise
        except (RetriableError, KafkaError, OSError) as err:
            problem = self._config.explain(err)
            if is_in_doubt:
                is_unanswered = isinstance(err, OSError | KafkaConnectionError)
                raise OutcomeUnknownError(
                    f"the append was not confirmed: {problem}", is_unanswered=is_unanswered
                ) from err
            raise err if isinstance(err, NotAppendedError) else NotAppendedError(problem) from err
        self._sequence = (self._sequence + len(records)) % SEQUENCES
        self._crashpoint("commit")
        return produced.offset

    async def decide(self, record: NewRecord) -> Offset:
        """
        Append a decision beside the partition, under the same epoch; it is there when this returns.

        Raises:
            NotAppendedError, FencedError, OutcomeUnknownError: see `append`; the producer must be discarded.
        """
        assert self._decisions is not None, "this partition has none beside it"
        if not self.is_confirmed:  # its leader may have forgotten the epoch, and who has fenced it
            raise NotAppendedError("the epoch is to be confirmed before a decision")
        place = self._cluster, self._connections, self._decisions
        self._crashpoint("decide")
        offset = await append_decision(self._config, *place, record, self._producer, self._decided)
        self._crashpoint("decided")
        self._decided += 1
        return offset

    async def renew(self, expected: Offset) -> Offset:
        """
        Have the coordinator confirm the epoch by a marker, and go on under the next epoch.

        A leader that has forgotten the producer knows no sequence behind the marker, only the epoch; of a
        new epoch it takes sequence 0 in any case (docs/adr/0026-a-new-epoch-behind-the-marker.md).

        Returns:
            The end of the partition, where nothing but markers lies behind `expected`.

        Raises:
            FencedError: another gateway owns the partition.
            KafkaError, OSError, RetriableError: nothing was appended; `renew` may be called again.
        """
        self._confirmed_at = -math.inf
        patience = Patience(self._config.request_timeout_s, ANSWER_S)
        await self._connect(patience)
        marked = self._producer
        try:
            await self._coordinator.mark(marked, patience)
        except (FencedError, UnknownProducerError) as err:
            marked = await self._take_again(err, patience)
        await self._begin_behind(marked, patience)
        return await self._end_behind(expected, patience)

    @property
    def leader(self) -> Address:
        """The leader that batches are sent to."""
        return self._leader

    def close(self) -> None:
        """Close the producer's connections, in any state."""
        self._connections.close()

    @property
    def throttled_s(self) -> float:
        """How long the leader reads nothing, since a quota is used up; 0 if it does."""
        return max(self._paused_until - asyncio.get_running_loop().time(), 0.0) if self._paused_until else 0.0

    @property
    def throttled_total_s(self) -> float:
        """How long quotas of the brokers have held this producer back."""
        return self._throttled_s + self._coordinator.throttled_s

    @property
    def late_fences(self) -> int:
        """Unanswered requests for an epoch: each may be executed late, and fence a successor."""
        return self._coordinator.unanswered

    @property
    def confirmed_for_s(self) -> float:
        """How long ago the coordinator confirmed the epoch; infinite after a renewal that failed."""
        return asyncio.get_running_loop().time() - self._confirmed_at

    def _raise_for(self, produced: Produced, size_bytes: int) -> None:
        """Raise the error of a response's code, or of the timestamps that the broker has replaced."""
        topic = self._tp.topic
        if setting := SIZE_SETTINGS.get(produced.code):
            raise RecordsRefusedError(
                f"topic {topic} takes no record batch of {size_bytes} bytes: raise its {setting}"
            )
        if produced.code == INVALID_RECORD:
            says = f"topic {topic} takes no such record: look for what its brokers check records by"
            raise RecordsRefusedError(says, is_for_size=False)
        raise_for_code("Produce", produced.code)
        raise LogAppendTimeError(log_append_time_of(topic))

    def _note_throttle(self, connection: BrokerConnection, seconds: float) -> None:
        """Send nothing more over a connection that the leader does not read, since a quota is used up."""
        connection.note_throttle(seconds)
        self._paused_until = asyncio.get_running_loop().time() + seconds
        self._throttled_s += seconds

    @property
    def is_confirmed(self) -> bool:
        """
        Whether the coordinator need not confirm the epoch before the next batch.

        A leader closes a connection that is idle for ten minutes; so a gateway that was frozen, or cut off,
        for longer finds it closed, and renews, even if the leader has forgotten the epochs.
        """
        return self.confirmed_for_s <= RENEW_S and self._connections.get(self._leader) is not None

    async def _connect(self, patience: Patience) -> None:
        self._leader = await self._cluster.leader_of(self._tp)
        connection = await patience.connect(self._connections, self._leader)
        self._produce.version = connection.version_of(PRODUCE, *PRODUCE_VERSIONS)

    async def _take_again(self, err: RetriableError, patience: Patience) -> ProducerIdAndEpoch:
        """
        Mark a new epoch where the coordinator refuses the producer's own, unless somebody has taken one.

        It refuses an id that was unused for a week, and an epoch behind which this gateway's own earlier
        attempt has come late.
        """
        is_forgotten = isinstance(err, UnknownProducerError)
        late = self._coordinator.own_late_epochs
        if not is_forgotten and not late:
            raise err
        producer = await self._coordinator.take_epoch(patience)
        taken = producer.epoch if is_forgotten else producer.epoch - self._producer.epoch - 1
        if (producer.id == self._producer.id) == is_forgotten or taken > late:
            raise FencedError("another gateway has taken an epoch since") from err
        self._coordinator.unanswered -= min(taken, self._coordinator.unanswered)  # they have arrived
        self._producer = producer
        await self._coordinator.mark(producer, patience)
        return producer

    async def _begin_behind(self, marked: ProducerIdAndEpoch, patience: Patience) -> None:
        """
        Take the epoch next to one that was marked, and begin with sequence 0.

        A marker fences epochs of its own producer id only. So whoever finds a producer id near its last
        epoch goes on to the next id, which is marked, too.

        Raises FencedError: it is not the next one.
        """
        if marked.epoch > EPOCH_OF_ROTATION:
            while (await self._coordinator.take_epoch(patience)).id == marked.id:
                pass
            marked = await self._coordinator.take_epoch(patience)
            await self._coordinator.mark(marked, patience)
        producer = await self._coordinator.take_epoch(patience)
        if producer != marked._replace(epoch=marked.epoch + 1):
            raise FencedError("another gateway takes the partition over")
        self._decided = 0
        self.marked, self._producer, self._sequence = marked, producer, 0
        self._confirmed_at = asyncio.get_running_loop().time()
        connection = self._connections.get(self._leader)  # perhaps the coordinator's, too
        pause_s = 0.0 if connection is None else connection.throttled_s
        self._paused_until = self._confirmed_at + pause_s if pause_s else 0.0

    async def _rest(self) -> None:
        """Wait until the leader reads again."""
        await asyncio.sleep(self.throttled_s)
        self._paused_until = 0.0

    async def _end_behind(self, expected: Offset, patience: Patience) -> Offset:
        """Return the end of the partition behind the own marker; nothing but markers may lie before it."""
        retry_s = RETRY_S
        while (end := (await self._cluster.offsets(self._tp, LATEST))[0]) == expected:
            if patience.is_over:
                raise NotAppendedError(f"the partition still ends at {end}, before its marker")
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_S_MAX)
        if end != expected + 1 and not await self._holds_only_markers(expected, end):
            raise NotAppendedError(f"the partition ends at {end}: others have written from {expected} on")
        return end

    async def _check_gap(self, produced: Produced, expected: Offset) -> None:
        """Raise NotAppendedError if a batch landed elsewhere, and not only markers lie before it."""
        if not await self._holds_only_markers(expected, produced.offset):
            raise NotAppendedError(f"the batch landed at offset {produced.offset} instead of {expected}")

    async def _holds_only_markers(self, start: Offset, end: Offset) -> bool:
        """Whether [start, end) holds markers alone: of this producer, or of who tested the broker."""
        if start > end:
            return False
        reader = PartitionReader(self._config, self._cluster, self._tp, start, fetch_bytes=FETCH_BYTES_OF_FEW)
        with closing(reader):
            return (await reader.control_markers(end)).is_all

    def _batch_of(self, records: Sequence[NewRecord]) -> bytes:
        return encode_batch(
            records,
            self._producer,
            self._sequence,
            bytes_max=2 * self._config.batch_bytes_max,
            native=self._config.native_encode,
        )


def log_append_time_of(topic: str) -> str:
    """Return the sentence on a topic whose brokers replace the timestamps of records."""
    return (
        f"topic {topic} has message.timestamp.type=LogAppendTime, so the window would be measured by other "
        "times than the gateway's: set it to CreateTime"
    )
