"""
One transactional producer that is thrown away at the first doubt (rules R1, R2, R3).

It speaks the protocol itself and not through aiokafka's producer, which retries inside, for ever and with
the same epoch: a request that is retried may take effect late, in a later transaction, and turn its commit
into one of nothing. Here a request is sent again only once it was answered, and only if the answer says that
it was too early. Whatever is not answered, or answered with another error, ends the producer: nothing it did
counts as committed, and before its last request was sent nothing ever will be.
"""

import asyncio
import struct
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.transaction import InitProducerIdRequest_v0
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from dedupe.adapters.kafka_client import KafkaConfig
from dedupe.adapters.kafka_cluster import Address, KafkaCluster, transactional_id_of
from dedupe.adapters.kafka_connection import Connection
from dedupe.adapters.kafka_wire import Producer, Request, TransactionWire, request_of
from dedupe.errors import FencedError, GatewayError, NotAppendedError, OutcomeUnknownError
from dedupe.log import Crashpoint
from dedupe.types import NewRecord, Offset

Answer = TypeVar("Answer", bound=tuple[Any, ...])

NONE, INVALID_TIMESTAMP, CONCURRENT_TRANSACTIONS = 0, 32, 51
FENCED_CODES = frozenset({47, 90})  # INVALID_PRODUCER_EPOCH, PRODUCER_FENCED
NOT_YET_CODES = frozenset({14, 15, 16, CONCURRENT_TRANSACTIONS})
"""Definite refusals for a while: the coordinator is loading, elsewhere, or still writes markers."""

TAKEOVER_CODES = frozenset({-1, CONCURRENT_TRANSACTIONS})
"""
What a coordinator answers to EndTxn while it aborts the transaction for a newer producer, -1 being its own
confusion over that (UNKNOWN_SERVER_ERROR, seen with 4.2). Asked again, it says that the epoch is fenced, and
whoever commits to a transaction that is ended already, by whichever of the two, changes nothing.
"""

RETRY_S = 0.005
"""The markers of the transaction before are on their way: written within a few milliseconds."""

FENCE_RETRY_S = 0.02


class Transactor:
    """Commits record batches to one partition, one transaction each, until the first doubt."""

    def __init__(
        self, config: KafkaConfig, tp: TopicPartition, cluster: KafkaCluster, *, crashpoint: Crashpoint
    ) -> None:
        """Connect to nothing yet. The transactional.id follows from the partition alone (rule R4)."""
        self._config = config
        self._cluster = cluster
        self._tp = tp
        self._transactional_id = transactional_id_of(tp)
        self._crashpoint = crashpoint
        self._connections: dict[Address, Connection] = {}
        self._leader = self._coordinator = Address("", 0)
        self._wire = self._wire_of(1)
        self._producer = Producer(-1, -1)
        self._is_committing = False
        self.asks_for_epoch = False
        """Whether a request for an epoch is unanswered: it may arrive late, and fence a successor."""

    async def start(self) -> None:
        """
        Connect and take a new producer epoch, which fences every earlier one.

        Returns when no earlier transaction is undecided and all markers are written. Raises
        KafkaError, OSError or RetriableError; unbounded, so the caller sets a timeout.
        """
        self._leader = await self._cluster.leader_of(self._tp)
        leader = await self._connected(self._leader)
        while (version := await self._take_epoch()) is None:  # noqa: ASYNC110 - only asking again tells
            await asyncio.sleep(FENCE_RETRY_S)
        self._wire = self._wire_of(min(version, leader.transaction_version))

    async def commit(self, records: Sequence[NewRecord], *, expected: Offset, timeout_s: float) -> None:
        """
        Append the records at exactly `expected`, all or none.

        Raises:
            NotAppendedError, FencedError, OutcomeUnknownError: see PartitionLog.append. The
            transactor must be discarded then.
        """
        self._is_committing = False
        try:
            async with asyncio.timeout(timeout_s):
                await self._transact(records, expected)
        except FencedError:
            raise
        except TimeoutError as err:
            raise self._translated(TimeoutError(f"no answer within {timeout_s:g} s")) from err
        except (NotAppendedError, KafkaError, OSError, struct.error) as err:
            raise self._translated(err) from err

    def close(self) -> None:
        """Stop using the producer, whatever state it is in."""
        for connection in self._connections.values():
            connection.close()

    async def _take_epoch(self) -> int | None:
        """Ask once for an epoch; return the coordinator's version of transactions, None if too early."""
        found = await self._cluster.coordinator_of(self._transactional_id)
        if found is None:
            return None
        self._coordinator = found
        coordinator = await self._connected(found)
        timeout_ms = round(self._config.transaction_timeout_s * 1000)
        request = InitProducerIdRequest_v0(self._transactional_id, timeout_ms)
        self.asks_for_epoch = True
        answer: Any = request.RESPONSE_TYPE.decode(await coordinator.ask(request_of(request)))
        self.asks_for_epoch = False
        if answer.error_code in NOT_YET_CODES:
            return None
        if answer.error_code != NONE:
            raise for_code(answer.error_code)()
        self._producer = Producer(answer.producer_id, answer.producer_epoch)
        return coordinator.transaction_version

    async def _connected(self, address: Address) -> Connection:
        """Return a connection that is open, a new one if need be: nothing is under way between two calls."""
        connection = self._connections.get(address)
        if connection is None or not connection.is_usable:
            if connection is not None:
                connection.close()
            connection = self._connections[address] = await Connection.open(self._config, *address)
        return connection

    async def _transact(self, records: Sequence[NewRecord], expected: Offset) -> None:
        wire, batch = self._wire, self._batch_of(records)
        leader, coordinator = await self._connected(self._leader), await self._connected(self._coordinator)
        if not wire.is_implicit:
            (code,) = await _ask(coordinator, wire.begin(self._producer), wire.begun)
            _judge("AddPartitionsToTxn", code)
        code, offset = await _ask(leader, wire.produce(batch), wire.landed)
        _judge("Produce", code)
        if offset != expected:
            raise NotAppendedError(f"the batch landed at offset {offset} instead of {expected}")
        self._crashpoint("append")
        self._is_committing = True
        code, following = await _ask(
            coordinator,
            wire.end(self._producer),
            lambda answer: wire.ended(answer, self._producer, len(records)),
            again=TAKEOVER_CODES,
        )
        _judge("EndTxn", code)
        self._producer = following
        self._crashpoint("commit")

    def _wire_of(self, version: int) -> TransactionWire:
        timeout_ms = round(self._config.request_timeout_s * 1000)
        return TransactionWire(self._transactional_id, self._tp, timeout_ms=timeout_ms, version=version)

    def _batch_of(self, records: Sequence[NewRecord]) -> bytes:
        batch = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=1,
            producer_id=self._producer.id,
            producer_epoch=self._producer.epoch,
            base_sequence=self._producer.sequence,
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


async def _ask(
    connection: Connection,
    request: Request,
    read: Callable[[bytes], Answer],
    *,
    again: Collection[int] = (CONCURRENT_TRANSACTIONS,),
) -> Answer:
    """Send a request, again while its answer, an error code in front, says that it is too early."""
    while True:
        answer = read(await connection.ask(request))
        if answer[0] not in again:
            return answer
        await asyncio.sleep(RETRY_S)


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
