"""
One transactional producer that is thrown away at the first doubt (rules R1, R2, R3).

aiokafka retries inside, for ever and with the same producer epoch: after an error *response* as
well as after a lost one. A request that is retried may take effect late, in a later transaction,
and turn its commit into one of nothing. So every request of a transaction is watched: unless
AddPartitionsToTxn, Produce and EndTxn were each sent once and answered without error, the producer
is tainted, is never used again, and nothing it did counts as committed.

aiokafka offers no hook for this; `client.send` is wrapped (tried with 0.14), and the tests on a
real broker fail if an upgrade moves it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.client import ConnectionGroup
from aiokafka.errors import KafkaConnectionError, KafkaError, ProducerFenced, for_code
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from dedupe.adapters.kafka_client import CLOSE_TIMEOUT_S, close_client, mark_retrieved
from dedupe.errors import FencedError, GatewayError, NotAppendedError, OutcomeUnknownError
from dedupe.log import Crashpoint
from dedupe.types import NewRecord, Offset

CONCURRENT_TRANSACTIONS = 51
"""AddPartitionsToTxn came while the previous markers are being written: a definite refusal."""
FENCED_CODES = frozenset({47, 90})  # INVALID_PRODUCER_EPOCH, PRODUCER_FENCED
ONCE_EACH = {AddPartitionsToTxnRequest: 1, ProduceRequest: 1, EndTxnRequest: 1}
INVALID_TIMESTAMP = 32


class RequestWatch:
    """Sees every request of one producer and says when it can no longer be trusted."""

    def __init__(self, client: Any) -> None:
        """Take the place of `client.send`."""
        self._send: Callable[..., Awaitable[Any]] = client.send
        self._is_closed = False
        self._answered: dict[type, int] = {}
        self.has_lost_fence = False
        self.tainted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tainted.add_done_callback(mark_retrieved)
        client.send = self.send

    async def send(
        self, node_id: int, request: Any, *, group: ConnectionGroup = ConnectionGroup.DEFAULT
    ) -> Any:
        """Pass a request on and judge its answer."""
        if self._is_closed:
            raise KafkaConnectionError("producer was discarded")
        kind = type(request)
        try:
            response = await self._send(node_id, request, group=group)
        except Exception as err:
            if kind in ONCE_EACH:
                self._taint(NotAppendedError(f"{kind.__name__} was not answered: {err!r}"))
            self.has_lost_fence |= kind is InitProducerIdRequest
            raise
        if kind in ONCE_EACH:
            self._judge(kind, _error_codes(kind, response))
        return response

    def begin(self) -> None:
        """Start counting the requests of the next transaction."""
        self._answered.clear()

    @property
    def saw_each_once(self) -> bool:
        """Whether each request of the transaction was sent once and succeeded."""
        return self._answered == ONCE_EACH and not self.tainted.done()

    def close(self) -> None:
        """Let no further request out: what a discarded producer still retries ends here."""
        self._is_closed = True

    def _judge(self, kind: type, codes: Sequence[int]) -> None:
        if kind is AddPartitionsToTxnRequest and codes and set(codes) == {CONCURRENT_TRANSACTIONS}:
            return
        errors = [code for code in codes if code != 0]
        if FENCED_CODES.intersection(errors):
            self._taint(FencedError(f"{kind.__name__} was refused: a newer producer epoch exists"))
        elif errors:
            self._taint(NotAppendedError(f"{kind.__name__} was refused: {_meaning(errors)}"))
        else:
            self._answered[kind] = self._answered.get(kind, 0) + 1

    def _taint(self, err: GatewayError) -> None:
        if not self.tainted.done():
            self.tainted.set_exception(err)


def _error_codes(kind: type, response: Any) -> list[int]:
    """Return all error codes of a response; 0 is none."""
    if kind is EndTxnRequest:
        return [response.error_code]
    if kind is AddPartitionsToTxnRequest:
        return [code for _, partitions in response.errors for _, code in partitions]
    return [partition[1] for _, partitions in response.topics for partition in partitions]


def _meaning(codes: Sequence[int]) -> str:
    if INVALID_TIMESTAMP in codes:
        return "the clock of this machine or of the broker is wrong (InvalidTimestampError)"
    return ", ".join(for_code(code).__name__ for code in codes)


class Transactor:
    """Commits record batches to one partition, one transaction each, until the first doubt."""

    def __init__(
        self, producer: AIOKafkaProducer, *, topic: str, partition: int, crashpoint: Crashpoint
    ) -> None:
        """Take over a producer that has not been started."""
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._crashpoint = crashpoint
        self._watch = RequestWatch(producer.client)
        self._is_committing = False
        self._work: asyncio.Future[None] | None = None

    @property
    def has_lost_fence(self) -> bool:
        """Whether `start` sent an InitProducerId that was not answered, and may take effect late."""
        return self._watch.has_lost_fence

    async def start(self) -> None:
        """
        Connect and take a new producer epoch, which fences every earlier one.

        Returns when no earlier transaction is undecided and all markers are written. Raises
        KafkaError or OSError; unbounded, so the caller sets a timeout.
        """
        await self._producer.start()

    async def commit(self, records: Sequence[NewRecord], *, expected: Offset, timeout_s: float) -> None:
        """
        Append the records at exactly `expected`, all or none.

        Raises:
            NotAppendedError, FencedError, OutcomeUnknownError: see PartitionLog.append. The
            transactor must be discarded then.
        """
        self._is_committing = False
        self._watch.begin()
        work = self._work = asyncio.ensure_future(self._transact(records, expected))
        work.add_done_callback(mark_retrieved)
        try:
            await asyncio.wait(
                {work, self._watch.tainted}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done() and not self._watch.tainted.done():
                work.result()
            elif self._watch.tainted.done():
                self._watch.tainted.result()
            else:
                raise NotAppendedError(f"no answer within {timeout_s} s")
            if not self._watch.saw_each_once:
                raise NotAppendedError("a request of the transaction is missing or was sent twice")
        except FencedError:
            raise
        except (NotAppendedError, KafkaError, OSError, AssertionError) as err:
            raise self._translated(err) from err

    async def discard(self) -> None:
        """
        Stop using the producer, whatever state it is in; bounded, never raises.

        Its own `stop` would flush through the retrying sender and can hang, and leaves connections
        open when the sender has failed.
        """
        self._watch.close()
        self._fail_waiters(KafkaConnectionError("producer was discarded"))
        if self._work is not None:
            await asyncio.wait({self._work}, timeout=CLOSE_TIMEOUT_S)
            self._work.cancel()
        sender_task = self._producer._sender.sender_task
        if sender_task is not None:
            sender_task.cancel()
            await asyncio.wait({sender_task}, timeout=CLOSE_TIMEOUT_S)
        self._producer._closed = True
        await close_client(self._producer.client)
        self._mark_transaction_end()

    def _fail_waiters(self, err: KafkaError) -> None:
        accumulator, manager = self._producer._message_accumulator, self._producer._txn_manager
        batches = [batch for queued in accumulator._batches.values() for batch in queued]
        batches += accumulator._pending_batches
        accumulator.fail_all(err)
        if manager.is_in_transaction() or self._is_committing:
            manager.fatal_error(err)
        for batch in batches:
            batch.future.add_done_callback(mark_retrieved)
            batch._drain_waiter.add_done_callback(mark_retrieved)
        self._mark_transaction_end()

    def _mark_transaction_end(self) -> None:
        """aiokafka replaces this future when its sender fails, so it is looked at again in the end."""
        waiter = self._producer._txn_manager.wait_for_transaction_end()
        if waiter is not None:
            waiter.add_done_callback(mark_retrieved)

    async def _transact(self, records: Sequence[NewRecord], expected: Offset) -> None:
        producer = self._producer
        await producer.begin_transaction()
        batch = producer.create_batch()
        for record in records:
            if (
                batch.append(
                    timestamp=record.timestamp_ms, key=record.key, value=record.value, headers=record.headers
                )
                is None
            ):
                raise NotAppendedError("the records do not fit into one record batch")
        assert batch.record_count() == len(records)
        batch.close()
        sent = await (await producer.send_batch(batch, self._topic, partition=self._partition))
        if sent.offset != expected:
            raise NotAppendedError(f"the batch landed at offset {sent.offset} instead of {expected}")
        self._crashpoint("append")
        self._is_committing = True
        await producer.commit_transaction()
        self._crashpoint("commit")

    def _translated(self, err: Exception) -> GatewayError:
        """Say what an error means: before EndTxn nothing can ever be committed, after it nobody knows."""
        if isinstance(err, ProducerFenced):
            return FencedError("a newer producer epoch exists")
        if self._is_committing:
            return OutcomeUnknownError(f"commit was not confirmed: {err!r}")
        return err if isinstance(err, NotAppendedError) else NotAppendedError(repr(err))
