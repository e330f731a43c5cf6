"""
A producer of one partition, fenced by its epoch, and discarded at the first doubt (rules R1, R2, R3).

A commit is one Produce request with one record batch, outside of any transaction: the leader appends a batch
whole or not at all, waits for all replicas, and refuses older epochs of the same producer id. An empty
transaction, of which only the marker is written into the partition, makes the leader know a new epoch before
the new owner reads (docs/adr/0018-one-request-a-commit.md).

aiokafka's producer retries inside, without a bound and with the same epoch. Here a request is sent again only
after a response that means: too early. Any other error, and a missing response, end the producer.
"""

import asyncio
from collections.abc import Sequence

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.transaction import (
    AddPartitionsToTxnRequest_v0,
    EndTxnRequest_v0,
    InitProducerIdRequest_v0,
)
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from dedupe.model.errors import FencedError, NotAppendedError, OutcomeUnknownError, RetriableError
from dedupe.model.types import NewRecord, Offset
from dedupe.storage.kafka.broker_connection import BrokerConnection, ConnectionPool
from dedupe.storage.kafka.cluster import (
    LATEST,
    NO_COORDINATOR_CODES,
    KafkaCluster,
    error_name,
    transactional_id_of,
)
from dedupe.storage.kafka.config import Address, KafkaConfig
from dedupe.storage.kafka.wire import ProduceCodec, ProducerIdAndEpoch, response_for
from dedupe.storage.log import Crashpoint

NONE, INVALID_TIMESTAMP, CONCURRENT_TRANSACTIONS = 0, 32, 51
FENCED_CODES = frozenset({47, 90})  # INVALID_PRODUCER_EPOCH, PRODUCER_FENCED
NOT_YET_CODES = NO_COORDINATOR_CODES | {CONCURRENT_TRANSACTIONS}
"""Definite refusals for a while: the coordinator is loading, elsewhere, or still writes markers."""

TAKEOVER_CODES = frozenset({-1, CONCURRENT_TRANSACTIONS})
"""
What a coordinator answers to EndTxn while it aborts the transaction for a newer producer; Kafka 4.2 answers
UNKNOWN_SERVER_ERROR (-1), too. It answers the next request with the error that the epoch is fenced.
"""

REFUSED_CODES = frozenset({2, 3, 10, 18, 19, 29, 31, INVALID_TIMESTAMP, 44, 45, 87})
"""
Errors of Produce that a leader finds before it appends: CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION (the
records of a deleted topic are gone), MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, NOT_ENOUGH_REPLICAS,
TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED, INVALID_TIMESTAMP, POLICY_VIOLATION,
OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_RECORD. Any other error may follow an append: a leader that is deposed
while it waits for replicas answers NOT_LEADER_OR_FOLLOWER about a batch that may stay.
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

RETRY_S = 0.005
FENCE_RETRY_S = 0.01
NO_PRODUCER = ProducerIdAndEpoch(-1, -1)


class FencedProducer:
    """Appends record batches to one partition, each by one request, until the first doubt."""

    def __init__(
        self, config: KafkaConfig, tp: TopicPartition, cluster: KafkaCluster, *, crashpoint: Crashpoint
    ) -> None:
        """Connect to nothing yet. The transactional.id follows from the partition alone (rule R4)."""
        self._config = config
        self._cluster = cluster
        self._tp = tp
        self._transactional_id = transactional_id_of(tp)
        self._crashpoint = crashpoint
        self._connections = ConnectionPool(config)
        self._leader = self._coordinator = Address("", 0)
        self._produce = ProduceCodec(tp, timeout_ms=round(config.request_timeout_s * 1000))
        self._producer = NO_PRODUCER
        self._sequence = 0
        self._confirmed_at = 0.0
        self.marked = NO_PRODUCER
        """The producer of the marker that proves that a leader knows this producer's epoch."""
        self.has_pending_epoch_request = False
        """Whether a request for an epoch is unanswered: it may be executed late, and fence a successor."""

    async def start(self) -> None:
        """
        Connect, and fence every earlier producer: the leader accepts nothing more of theirs.

        The coordinator gives the next epoch, under which batches are sent, only after the marker of a new
        epoch is committed. Another epoch than the next one means that a rival takes the partition over.

        A marker fences epochs of its own producer id only. So a fence that finds a producer id near its
        last epoch marks it once more before it goes on to the next id.

        Raises:
            KafkaError, OSError, RetriableError: call again, later. Unbounded, so the caller sets a timeout.
        """
        self._leader = await self._cluster.leader_of(self._tp)
        await self._connections.connect(self._leader)
        try:
            marked = await self._mark_new_epoch()
            if marked.epoch > EPOCH_OF_ROTATION:
                while (await self._take_epoch()).id == marked.id:
                    pass
                marked = await self._mark_new_epoch()
        except FencedError as err:
            raise KafkaError(f"another gateway takes the partition over: {err}") from err
        self.marked, self._producer, self._sequence = marked, await self._take_epoch(), 0
        if self._producer != marked._replace(epoch=marked.epoch + 1):
            raise KafkaError("another gateway takes the partition over")

    async def append(self, records: Sequence[NewRecord], *, expected: Offset) -> Offset:
        """
        Append all records or none, within the request timeout.

        Args:
            records: n >= 1.
            expected: the end of the partition while no other producer writes.

        Returns:
            The first record's offset: `expected`, or one more behind a marker of its own.

        Raises:
            NotAppendedError, FencedError, OutcomeUnknownError: see PartitionLog.append. The
            producer must be discarded.
        """
        is_in_doubt = False
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                batch = self._batch_of(records)
                if self._must_renew():
                    expected = await self._renew(expected)
                self._crashpoint("append")
                # Never over a connection that is younger than the coordinator's confirmation.
                connection = self._connections.get(self._leader)
                if connection is None:
                    raise NotAppendedError("the connection to the leader has ended")
                response = connection.send_encoded(self._produce.encode(batch))
                is_in_doubt = True
                code, offset = self._produce.decode(await response)
                is_in_doubt = code not in REFUSED_CODES
                _raise_for_code("Produce", code)
                if offset != expected:
                    raise NotAppendedError(f"the batch landed at offset {offset} instead of {expected}")
        except FencedError:
            raise
        except (RetriableError, KafkaError, OSError) as err:
            problem = self._config.explain(err)
            if is_in_doubt:
                raise OutcomeUnknownError(f"the append was not confirmed: {problem}") from err
            raise err if isinstance(err, NotAppendedError) else NotAppendedError(problem) from err
        self._sequence = (self._sequence + len(records)) % SEQUENCES
        self._crashpoint("commit")
        return offset

    def close(self) -> None:
        """Close the producer's connections, in any state."""
        self._connections.close()

    def _must_renew(self) -> bool:
        """
        Whether the coordinator must confirm the epoch before the next batch.

        A leader closes a connection that is idle for ten minutes; so a gateway that was frozen, or cut off,
        for longer finds it closed, and renews, even if the leader has forgotten the epochs.
        """
        is_old = asyncio.get_running_loop().time() - self._confirmed_at > RENEW_S
        return is_old or self._connections.get(self._leader) is None

    async def _renew(self, expected: Offset) -> Offset:
        """Have the coordinator confirm the epoch by a marker, and return the offset behind the marker."""
        self._leader = await self._cluster.leader_of(self._tp)
        self._coordinator = await self._cluster.coordinator_of(self._transactional_id) or self._coordinator
        await self._connections.connect(self._leader)
        await self._mark(self._producer)
        while (end := (await self._cluster.offsets(self._tp, LATEST))[0]) == expected:  # noqa: ASYNC110
            await asyncio.sleep(RETRY_S)
        if end != expected + 1:
            raise NotAppendedError(f"the partition ends at {end} instead of {expected + 1}")
        return end

    async def _mark(self, producer: ProducerIdAndEpoch) -> None:
        """Commit an empty transaction; its marker is in the partition a moment later."""
        coordinator = await self._connections.connect(self._coordinator)
        while (code := await self._begin(coordinator, producer)) == CONCURRENT_TRANSACTIONS:  # noqa: ASYNC110
            await asyncio.sleep(RETRY_S)
        _raise_for_code("AddPartitionsToTxn", code)
        while (code := await self._end(coordinator, producer)) in TAKEOVER_CODES:  # noqa: ASYNC110
            await asyncio.sleep(RETRY_S)
        _raise_for_code("EndTxn", code)
        self._confirmed_at = asyncio.get_running_loop().time()

    async def _begin(self, coordinator: BrokerConnection, producer: ProducerIdAndEpoch) -> int:
        """Begin a transaction with the partition; return an error code."""
        topics = [(self._tp.topic, [self._tp.partition])]
        request = AddPartitionsToTxnRequest_v0(self._transactional_id, *producer, topics)
        (code,) = response_for(self._tp, (await coordinator.send(request)).errors)
        return int(code)

    async def _end(self, coordinator: BrokerConnection, producer: ProducerIdAndEpoch) -> int:
        """Commit the transaction; return an error code."""
        request = EndTxnRequest_v0(self._transactional_id, *producer, True)
        return int((await coordinator.send(request)).error_code)

    async def _mark_new_epoch(self) -> ProducerIdAndEpoch:
        producer = await self._take_epoch()
        await self._mark(producer)
        return producer

    async def _take_epoch(self) -> ProducerIdAndEpoch:
        """Return a new epoch, once no transaction is undecided and all markers are written."""
        while (producer := await self._try_to_take_epoch()) is None:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(FENCE_RETRY_S)
        return producer

    async def _try_to_take_epoch(self) -> ProducerIdAndEpoch | None:
        """Request a new epoch once; None if it is too early."""
        coordinator = await self._cluster.coordinator_of(self._transactional_id)
        if coordinator is None:
            return None
        self._coordinator = coordinator
        connection = await self._connections.connect(coordinator)
        timeout_ms = round(self._config.transaction_timeout_s * 1000)
        request = InitProducerIdRequest_v0(self._transactional_id, timeout_ms)
        self.has_pending_epoch_request = True
        response = await connection.send(request)
        self.has_pending_epoch_request = False
        if response.error_code in NOT_YET_CODES:
            return None
        if response.error_code != NONE:
            raise for_code(response.error_code)()
        return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    def _batch_of(self, records: Sequence[NewRecord]) -> bytes:
        batch = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=0,
            producer_id=self._producer.id,
            producer_epoch=self._producer.epoch,
            base_sequence=self._sequence,
            batch_size=2 * self._config.batch_bytes_max,
        )
        for index, (timestamp_ms, key, value, headers) in enumerate(records):
            if batch.append(index, timestamp_ms, key, value, headers) is None:  # type: ignore[arg-type] # invariant
                raise NotAppendedError("the records do not fit into one record batch")
        return bytes(batch.build())


def _raise_for_code(request: str, code: int) -> None:
    if code in FENCED_CODES:
        raise FencedError(f"{request} was refused: a newer producer epoch exists")
    if code == INVALID_TIMESTAMP:
        raise NotAppendedError(
            f"{request} was refused: the clock of this machine or of the broker is wrong, or was when the "
            "gateway started (InvalidTimestampError)",
            is_log_time_refused=True,
        )
    if code != NONE:
        raise NotAppendedError(f"{request} was refused: {error_name(code)}")
