"""
Requests to the coordinator of one transactional.id: epochs, and empty transactions of which only a marker
is written into the partition.

Each is a small request and has a limit of its own. One is sent again only after a response that means: too
early, or not here. Pauses that a quota of the brokers imposes count for no limit.
"""

import asyncio
from collections.abc import Coroutine, Set
from typing import Any, TypeVar

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError, for_code
from aiokafka.protocol.transaction import (
    AddPartitionsToTxnRequest_v0,
    EndTxnRequest_v0,
    InitProducerIdRequest_v0,
)

from dedupe.model.errors import FencedError, NotAppendedError, RetriableError
from dedupe.model.types import Offset
from dedupe.storage.kafka.broker_connection import BrokerConnection, ConnectionPool
from dedupe.storage.kafka.cluster import NO_COORDINATOR_CODES, KafkaCluster, error_name
from dedupe.storage.kafka.config import Address, KafkaConfig
from dedupe.storage.kafka.wire import ProducerIdAndEpoch

NONE, INVALID_TIMESTAMP, INVALID_PRODUCER_ID_MAPPING, CONCURRENT_TRANSACTIONS = 0, 32, 49, 51
INVALID_PRODUCER_EPOCH = 47
OPERATION_NOT_ATTEMPTED = 55  # another partition of the request has an error
FENCED_CODES = frozenset({INVALID_PRODUCER_EPOCH, 90})  # 90: PRODUCER_FENCED

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

ANSWER_S = 2.0
"""The limit of a small request at the first try: a lost response costs a fence no more."""

RETRY_S, RETRY_S_MAX = 0.005, 0.5
"""The pause after "too early", doubled each time: markers take milliseconds, a leader's outage minutes."""

Result = TypeVar("Result")


class UnknownProducerError(NotAppendedError):
    """The coordinator does not know the producer id: it forgot it after a week, or has given another one."""


class Patience:
    """The time that a series of requests may take, and the limit of each."""

    def __init__(self, seconds: float, answer_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + seconds
        self._answer_s = answer_s

    async def connect(self, connections: ConnectionPool, broker: Address) -> BrokerConnection:
        """Return the connection to a broker; a login may take all the time. Raises KafkaError, OSError."""
        return await self._wait_for(connections.connect(broker), self._left_s, of="a connection")

    async def wait_for(self, request: Coroutine[Any, Any, Result], *, of: str) -> Result:
        """Return a request's result. Raises KafkaConnectionError after its limit, or if no time is left."""
        return await self._wait_for(request, min(self._answer_s, self._left_s), of=of)

    @property
    def _left_s(self) -> float:
        return max(self._until - self._loop.time(), 0.0)

    async def _wait_for(self, request: Coroutine[Any, Any, Result], limit_s: float, *, of: str) -> Result:
        try:
            async with asyncio.timeout(limit_s):
                return await request
        except TimeoutError as err:
            raise KafkaConnectionError(f"no answer to {of} within {limit_s:.3g} s") from err

    def extend(self, seconds: float) -> None:
        """Add a pause that does not count."""
        self._until += seconds

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self._loop.time() >= self._until


class TransactionCoordinator:
    """Asks for epochs of one transactional.id, and has markers written into its partitions."""

    def __init__(
        self,
        config: KafkaConfig,
        tp: TopicPartition,
        transactional_id: str,
        cluster: KafkaCluster,
        connections: ConnectionPool,
        *,
        beside: TopicPartition | None = None,
    ) -> None:
        """Connect to nothing yet; each marker is written into `tp`, and into the partition `beside` it."""
        self._config = config
        self._tps = (tp,) if beside is None else (tp, beside)
        self._transactional_id = transactional_id
        self._cluster = cluster
        self._connections = connections
        self._address: Address | None = None
        self.unanswered = 0
        """Requests for an epoch without a response: each may be executed late, and fence a successor."""
        self._has_open_transaction = False  # perhaps
        self.throttled_s = 0.0
        """How long quotas of the brokers have held requests back."""

    async def take_epoch(self, patience: Patience) -> ProducerIdAndEpoch:
        """
        Return a new epoch, once no transaction is undecided and all markers are written.

        Raises:
            KafkaError, OSError, RetriableError: no answer in time, or a refusal.
        """
        timeout_ms = round(self._config.transaction_timeout_s * 1000)
        request = InitProducerIdRequest_v0(self._transactional_id, timeout_ms)
        code, response = await self._ask(request, patience, again={CONCURRENT_TRANSACTIONS})
        if code != NONE:
            raise for_code(code)()
        self._has_open_transaction = False
        return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    async def mark(self, producer: ProducerIdAndEpoch, patience: Patience) -> None:
        """
        Commit an empty transaction; its marker is in each partition a moment later.

        Raises:
            FencedError: a newer epoch exists.
            UnknownProducerError: the coordinator does not know the producer id (any more).
            KafkaError, OSError, RetriableError: no answer in time, or another refusal.
        """
        had_open_transaction, self._has_open_transaction = self._has_open_transaction, True
        topics = [(tp.topic, [tp.partition]) for tp in self._tps]
        begin = AddPartitionsToTxnRequest_v0(self._transactional_id, *producer, topics)
        code, _ = await self._ask(begin, patience, again={CONCURRENT_TRANSACTIONS})
        if code != NONE:
            self._has_open_transaction = had_open_transaction
        raise_for_code("AddPartitionsToTxn", code)
        end = EndTxnRequest_v0(self._transactional_id, *producer, True)
        code, _ = await self._ask(end, patience, again=TAKEOVER_CODES)
        self._has_open_transaction = False
        raise_for_code("EndTxn", code)

    @property
    def own_late_epochs(self) -> int:
        """
        The number of epochs that the coordinator may have given to none but this gateway.

        It executes a request late, or aborts a transaction that was not ended in time, under a new epoch.
        """
        return self.unanswered + self._has_open_transaction

    async def _ask(self, request: Any, patience: Patience, *, again: Set[int]) -> tuple[int, Any]:
        """Send a request, again after these codes, and return the error code and the response."""
        retry_s = RETRY_S
        while True:
            if self._address is None:
                self._address = await self._cluster.coordinator_of(self._transactional_id)
            if self._address is not None:
                response = await self._send(self._address, request, patience)
                code = self._code_of(response)
                if code in NO_COORDINATOR_CODES:
                    self._address = None
                elif code not in again:
                    return code, response
            if patience.is_over:
                raise KafkaConnectionError("the coordinator is not ready, or cannot write markers yet")
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_S_MAX)

    def _code_of(self, response: Any) -> int:
        if response.API_KEY != AddPartitionsToTxnRequest_v0.API_KEY:
            return int(response.error_code)
        codes = {(topic, each[0]): int(each[1]) for topic, parts in response.errors for each in parts}
        if codes.keys() != set(self._tps):
            raise RetriableError("a coordinator's response is about other partitions")
        wrong = [code for code in codes.values() if code not in (NONE, OPERATION_NOT_ATTEMPTED)]
        return wrong[0] if wrong else max(codes.values())

    async def _send(self, address: Address, request: Any, patience: Patience) -> Any:
        name = type(request).__name__.partition("Request_")[0]
        try:
            connection = await patience.connect(self._connections, address)
        except (KafkaError, OSError):
            self._address = None
            self._cluster.distrust(address)
            raise
        paused_s = await connection.rest()
        self.throttled_s += paused_s
        patience.extend(paused_s)
        takes_epoch = isinstance(request, InitProducerIdRequest_v0)
        self.unanswered += takes_epoch
        try:
            response = await patience.wait_for(connection.send(request), of=name)
        except KafkaConnectionError:
            connection.close()  # it may be dead
            self._address = None
            self._cluster.distrust(address)
            raise
        self.unanswered -= takes_epoch
        return response


def raise_for_code(request: str, code: int) -> None:
    """Raise the error of a response's code, none for 0."""
    if code in FENCED_CODES:
        raise FencedError(f"{request} was refused: a newer producer epoch exists")
    if code == INVALID_PRODUCER_ID_MAPPING:
        raise UnknownProducerError(f"{request} was refused: the coordinator does not know the producer id")
    if code == INVALID_TIMESTAMP:
        raise NotAppendedError(
            f"{request} was refused: the clock of this machine or of the broker is wrong, or was when the "
            "gateway started (InvalidTimestampError)",
            is_log_time_refused=True,
        )
    if code != NONE:
        raise NotAppendedError(f"{request} was refused: {error_name(code)}") from for_code(code)()


async def why_unmarked(config: KafkaConfig, cluster: KafkaCluster, tp: TopicPartition, end: Offset) -> str:
    """Return why readers do not see the marker of a fence below the last stable offset, `end`."""
    all_end = await cluster.end(tp)
    if all_end <= end:
        return f"the leader of {tp} does not know of its fence"
    topic, partition = tp
    return (
        f"a transaction of another producer is open in {topic}-{partition} since offset {end}, and hides "
        f"all up to {all_end}: wait for its timeout, or end it by `kafka-transactions.sh "
        f"--bootstrap-server {config.bootstrap_servers} abort --topic {topic} "
        f"--partition {partition} --start-offset {end}`"
    )
