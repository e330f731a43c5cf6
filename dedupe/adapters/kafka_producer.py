"""
One transactional producer that is thrown away at the first doubt (rules R1, R2, R3).

It speaks the protocol through aiokafka's client and not through its producer, which retries inside, for
ever and with the same epoch: a request that is retried may take effect late, in a later transaction, and
turn its commit into one of nothing. Here each request of a transaction is sent once. Whatever is not
answered, or answered with an error, ends the producer: nothing it did counts as committed, and before its
last request was sent nothing ever will be.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from dedupe.adapters.kafka_client import KafkaConfig, bounded, close_client
from dedupe.errors import FencedError, GatewayError, NotAppendedError, OutcomeUnknownError
from dedupe.log import Crashpoint
from dedupe.types import NewRecord, Offset

NONE, INVALID_TIMESTAMP, CONCURRENT_TRANSACTIONS = 0, 32, 51
FENCED_CODES = frozenset({47, 90})  # INVALID_PRODUCER_EPOCH, PRODUCER_FENCED
NOT_YET_CODES = frozenset({14, 15, 16, CONCURRENT_TRANSACTIONS})
"""Definite refusals for a while: the coordinator is loading, elsewhere, or still writes markers."""

RETRY_S = 0.005
"""The markers of the transaction before are on their way: written within a few milliseconds."""

FENCE_RETRY_S = 0.02

ALL_REPLICAS = -1
SEQUENCES = 2**31
"""A producer counts its records of a partition, and begins anew here."""


class Transactor:
    """Commits record batches to one partition, one transaction each, until the first doubt."""

    def __init__(self, config: KafkaConfig, tp: TopicPartition, *, crashpoint: Crashpoint) -> None:
        """Connect to nothing yet. The transactional.id follows from the partition alone (rule R4)."""
        self._config = config
        self._client: AIOKafkaClient = config.client()
        self._tp = tp
        self._transactional_id = f"gateway-{tp.topic}-{tp.partition}"
        self._crashpoint = crashpoint
        self._leader = self._coordinator = -1
        self._producer_id, self._epoch, self._sequence = -1, -1, 0
        self._is_committing = False
        self.asks_for_epoch = False
        """Whether a request for an epoch is unanswered: it may arrive late, and fence a successor."""

    async def start(self) -> None:
        """
        Connect and take a new producer epoch, which fences every earlier one.

        Returns when no earlier transaction is undecided and all markers are written. Raises
        KafkaError or OSError; unbounded, so the caller sets a timeout.
        """
        await self._client.bootstrap()
        await self._client.set_topics([self._tp.topic])
        self._leader = self._client.cluster.leader_for_partition(self._tp)
        if self._leader in (None, -1):
            is_known = self._client.cluster.partitions_for_topic(self._tp.topic)
            told = f"{self._tp} has no leader" if is_known else f"topic {self._tp.topic} does not exist"
            raise KafkaError(told)
        while not await self._has_epoch():  # noqa: ASYNC110 - only asking again tells
            await asyncio.sleep(FENCE_RETRY_S)

    async def commit(self, records: Sequence[NewRecord], *, expected: Offset, timeout_s: float) -> None:
        """
        Append the records at exactly `expected`, all or none.

        Raises:
            NotAppendedError, FencedError, OutcomeUnknownError: see PartitionLog.append. The
            transactor must be discarded then.
        """
        self._is_committing = False
        try:
            await bounded(self._transact(records, expected), timeout_s)
        except FencedError:
            raise
        except (NotAppendedError, KafkaError, OSError) as err:
            raise self._translated(err) from err

    async def discard(self) -> None:
        """Stop using the producer, whatever state it is in; bounded, never raises."""
        await close_client(self._client)

    async def _has_epoch(self) -> bool:
        """Ask the coordinator once for a new epoch; false if it is too early."""
        try:
            self._coordinator = await self._client.coordinator_lookup(
                CoordinationType.TRANSACTION, self._transactional_id
            )
        except KafkaError as err:
            if getattr(err, "errno", None) in NOT_YET_CODES:
                return False
            raise
        self.asks_for_epoch = await self._client.ready(self._coordinator, group=ConnectionGroup.COORDINATION)
        answer = await self._coordinate(
            InitProducerIdRequest(self._transactional_id, round(self._config.transaction_timeout_s * 1000))
        )
        self.asks_for_epoch = False
        if answer.error_code in NOT_YET_CODES:
            return False
        if answer.error_code != NONE:
            raise for_code(answer.error_code)()
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        return True

    async def _transact(self, records: Sequence[NewRecord], expected: Offset) -> None:
        batch = self._batch_of(records)
        await self._begin()
        offset = await self._produce(batch)
        if offset != expected:
            raise NotAppendedError(f"the batch landed at offset {offset} instead of {expected}")
        self._sequence = (self._sequence + len(records)) % SEQUENCES
        self._crashpoint("append")
        self._is_committing = True
        answer = await self._coordinate(
            EndTxnRequest(self._transactional_id, self._producer_id, self._epoch, True)
        )
        _judge("EndTxn", answer.error_code)
        self._crashpoint("commit")

    async def _begin(self) -> None:
        """Register the partition, again while the markers of the transaction before are written."""
        topic, partition = self._tp
        request = AddPartitionsToTxnRequest(
            self._transactional_id, self._producer_id, self._epoch, [(topic, [partition])]
        )
        while True:
            answer = await self._coordinate(request)
            ((_, ((_, code),)),) = answer.errors
            if code != CONCURRENT_TRANSACTIONS:
                break
            await asyncio.sleep(RETRY_S)
        _judge("AddPartitionsToTxn", code)

    async def _produce(self, batch: bytes) -> Offset:
        """Send the batch to the partition's leader, and return where it landed."""
        topic, partition = self._tp
        timeout_ms = round(self._config.request_timeout_s * 1000)
        request = ProduceRequest(
            self._transactional_id, ALL_REPLICAS, timeout_ms, [(topic, [(partition, batch)])]
        )
        answer = await self._client.send(self._leader, request)
        ((_, ((_, code, offset, *_),)),) = answer.topics
        _judge("Produce", code)
        return int(offset)

    async def _coordinate(self, request: Any) -> Any:
        return await self._client.send(self._coordinator, request, group=ConnectionGroup.COORDINATION)

    def _batch_of(self, records: Sequence[NewRecord]) -> bytes:
        batch = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=1,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
            batch_size=2 * self._config.batch_bytes_max,
        )
        for place, (timestamp_ms, key, value, headers) in enumerate(records):
            if batch.append(place, timestamp_ms, key, value, headers) is None:  # type: ignore[arg-type] # invariant
                raise NotAppendedError("the records do not fit into one record batch")
        return bytes(batch.build())

    def _translated(self, err: Exception) -> GatewayError:
        """Say what an error means: before EndTxn nothing can ever be committed, after it nobody knows."""
        if self._is_committing:
            return OutcomeUnknownError(f"commit was not confirmed: {err!r}")
        return err if isinstance(err, NotAppendedError) else NotAppendedError(repr(err))


def _judge(request: str, code: int) -> None:
    if code in FENCED_CODES:
        raise FencedError(f"{request} was refused: a newer producer epoch exists")
    if code == INVALID_TIMESTAMP:
        raise NotAppendedError(
            f"{request} was refused: the clock of this machine or of the broker is wrong "
            "(InvalidTimestampError)"
        )
    if code != NONE:
        raise NotAppendedError(f"{request} was refused: {for_code(code).__name__}")
