"""
One producer of one partition, fenced by its epoch, that is thrown away at the first doubt (R1, R2, R3).

A commit is one Produce request with one record batch, outside of any transaction: the leader takes a batch
whole or not at all, waits for all replicas, and refuses whoever has an older epoch of the same producer id.
An empty transaction, which leaves nothing but its marker in the partition, tells the leader of a new epoch
before the new owner reads (docs/adr/0018-one-request-a-commit.md).

It speaks the protocol itself and not through aiokafka's producer, which retries inside, for ever and with
the same epoch. Here a request is sent again only once it was answered, and only if the answer says that it
was too early. Whatever is not answered, or answered with another error, ends the producer.
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
from dedupe.adapters.kafka_wire import Producer, ProducerWire, Request, request_of
from dedupe.errors import FencedError, GatewayError, NotAppendedError, OutcomeUnknownError, RetriableError
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
confusion over that (UNKNOWN_SERVER_ERROR, seen with 4.2). Asked again, it says that the epoch is fenced.
"""

REFUSED_CODES = frozenset({2, 3, 10, 18, 19, 29, 31, INVALID_TIMESTAMP, 44, 45, 87})
"""
Of Produce, what a leader finds before it appends: CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION (what it had
of a deleted topic is gone), MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, NOT_ENOUGH_REPLICAS,
TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED, INVALID_TIMESTAMP, POLICY_VIOLATION,
OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_RECORD. Any other error may come after it has: a leader that ceases to
be one while it waits for replicas says NOT_LEADER_OR_FOLLOWER of a batch that may stay.
"""

RENEW_S = 3600.0
"""
The longest that batches are sent without the coordinator's word that nobody has taken over. It forgets a
transactional.id that it has not heard of for a week (`transactional.id.expiration.ms`), and a leader a
producer that has written nothing for a day (`producer.id.expiration.ms`): with it, whom it fenced.
"""

EPOCH_OF_ROTATION = 32_700
"""From here on a producer id is given up; the coordinator itself does at 32,767."""

RETRY_S = 0.005
FENCE_RETRY_S = 0.01


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
        self._connections: dict[Address, Connection] = {}
        self._leader = self._coordinator = Address("", 0)
        self._wire = ProducerWire(
            self._transactional_id, tp, timeout_ms=round(config.request_timeout_s * 1000)
        )
        self._producer = Producer(-1, -1)
        self._renewed_at = 0.0
        self._is_in_doubt = False
        self.marked = Producer(-1, -1)
        """Whose marker tells a leader that it knows of this producer's epoch."""
        self.asks_for_epoch = False
        """Whether a request for an epoch is unanswered: it may arrive late, and fence a successor."""

    async def start(self) -> None:
        """
        Connect and fence every earlier producer: the leader takes nothing more of theirs.

        A marker has told it of a new epoch when this returns, and is committed: the coordinator gives the
        next epoch, under which batches are sent, only then. Another epoch than the next one tells of a rival.

        A marker fences epochs of its own producer id alone. So whoever meets one whose epochs come to their
        end marks it once more, and only then goes on to the next id: nobody ever meets that one unprepared.

        Raises:
            KafkaError, OSError, RetriableError: call again, later. Unbounded, so the caller sets a timeout.
        """
        self._leader = await self._cluster.leader_of(self._tp)
        await self._connected(self._leader)
        try:
            marked = await self._marked_epoch()
            if marked.epoch > EPOCH_OF_ROTATION:
                while (await self._take_epoch()).id == marked.id:
                    pass
                marked = await self._marked_epoch()
        except FencedError as err:
            raise KafkaError(f"somebody else takes the partition over: {err}") from err
        self.marked, self._producer = marked, await self._take_epoch()
        if self._producer != marked._replace(epoch=marked.epoch + 1):
            raise KafkaError("somebody else takes the partition over")

    async def append(self, records: Sequence[NewRecord], *, expected: Offset, timeout_s: float) -> Offset:
        """
        Append the records, all or none, and return the offset of the first.

        It is `expected`, where nobody else may have written; or one more, behind a marker of its own.

        Raises:
            NotAppendedError, FencedError, OutcomeUnknownError: see PartitionLog.append. The
            producer must be discarded then.
        """
        self._is_in_doubt = False
        try:
            async with asyncio.timeout(timeout_s):
                return await self._append(records, expected)
        except FencedError:
            raise
        except TimeoutError as err:
            raise self._translated(TimeoutError(f"no answer within {timeout_s:g} s")) from err
        except (RetriableError, KafkaError, OSError, struct.error) as err:
            raise self._translated(err) from err

    def close(self) -> None:
        """Stop using the producer, whatever state it is in."""
        for connection in self._connections.values():
            connection.close()

    async def _append(self, records: Sequence[NewRecord], expected: Offset) -> Offset:
        batch = self._batch_of(records)
        if self._must_renew():
            expected = await self._renew(expected)
        self._crashpoint("append")
        answer = self._connections[self._leader].ask(self._wire.produce(batch))
        self._is_in_doubt = True
        code, offset = self._wire.landed(await answer)
        self._is_in_doubt = code not in REFUSED_CODES
        _judge("Produce", code)
        if offset != expected:
            raise NotAppendedError(f"the batch landed at offset {offset} instead of {expected}")
        self._producer = self._producer.after(len(records))
        self._crashpoint("commit")
        return offset

    def _must_renew(self) -> bool:
        """
        Whether the coordinator must be asked first whether this is still the owner.

        A leader closes a connection that is idle for ten minutes; so whoever was frozen, or cut off, for
        longer than that finds it closed, and asks, however little the leader remembers by then. A batch
        goes over no connection that is younger than the coordinator's word.
        """
        leader = self._connections.get(self._leader)
        is_old = asyncio.get_running_loop().time() - self._renewed_at > RENEW_S
        return is_old or leader is None or not leader.is_usable

    async def _renew(self, expected: Offset) -> Offset:
        """Have the coordinator say that nobody has taken over, and return the offset behind its marker."""
        self._leader = await self._cluster.leader_of(self._tp)
        self._coordinator = await self._cluster.coordinator_of(self._transactional_id) or self._coordinator
        await self._connected(self._leader)
        await self._mark(self._producer)
        while (end := await self._cluster.end_of(self._tp)) == expected:  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(RETRY_S)
        if end != expected + 1:
            raise NotAppendedError(f"the partition ends at {end} instead of {expected + 1}")
        return end

    async def _mark(self, producer: Producer) -> None:
        """Write a marker into the partition, by a transaction of nothing; it is there a moment later."""
        coordinator = await self._connected(self._coordinator)
        (code,) = await _ask(coordinator, self._wire.begin(producer), self._wire.begun)
        _judge("AddPartitionsToTxn", code)
        (code,) = await _ask(coordinator, self._wire.end(producer), self._wire.ended, again=TAKEOVER_CODES)
        _judge("EndTxn", code)
        self._renewed_at = asyncio.get_running_loop().time()

    async def _marked_epoch(self) -> Producer:
        """Take a new epoch and have a marker of it written."""
        producer = await self._take_epoch()
        await self._mark(producer)
        return producer

    async def _take_epoch(self) -> Producer:
        """Return a new epoch, once no transaction is undecided and all markers are written."""
        while (producer := await self._ask_for_epoch()) is None:  # noqa: ASYNC110 - only asking again tells
            await asyncio.sleep(FENCE_RETRY_S)
        return producer

    async def _ask_for_epoch(self) -> Producer | None:
        """Ask once for an epoch; None if it is too early."""
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
        return Producer(answer.producer_id, answer.producer_epoch)

    async def _connected(self, address: Address) -> Connection:
        """Return a connection that is open, a new one if need be: nothing is under way between two calls."""
        connection = self._connections.get(address)
        if connection is None or not connection.is_usable:
            if connection is not None:
                connection.close()
            connection = self._connections[address] = await Connection.open(self._config, *address)
        return connection

    def _batch_of(self, records: Sequence[NewRecord]) -> bytes:
        batch = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=0,
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
        """Say what an error means: before Produce nothing can ever be there, after it nobody knows."""
        if self._is_in_doubt:
            return OutcomeUnknownError(f"the append was not confirmed: {err!r}")
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
