"""
The partition of the routing topic in which the owner of a clean partition decides.

It is fenced together with the clean one: each fence has its marker written into both, and reads both to it.
So a decision of an earlier owner is there when a fence is over, or never will be.
"""

from contextlib import closing

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from dedupe.model.errors import FencedError, NotAppendedError, OutcomeUnknownError, RetriableError
from dedupe.model.types import LogRecord, NewRecord, Offset
from dedupe.storage.kafka.broker_connection import ConnectionPool
from dedupe.storage.kafka.cluster import EARLIEST, LATEST, KafkaCluster
from dedupe.storage.kafka.config import KafkaConfig
from dedupe.storage.kafka.probe import produce
from dedupe.storage.kafka.reader import FETCH_BYTES_OF_FEW, PartitionReader
from dedupe.storage.kafka.record_batch import encode_batch
from dedupe.storage.kafka.transactions import REFUSED_CODES, Patience, raise_for_code
from dedupe.storage.kafka.wire import ProducerIdAndEpoch

READ_RECORDS_MAX = 1_000
DECISION_BYTES_MAX = 64 * 1024


class DecisionsReader:
    """Reads the decisions of one clean partition, as its new owner does."""

    def __init__(self, config: KafkaConfig, cluster: KafkaCluster, tp: TopicPartition) -> None:
        """Connect to nothing yet; `tp` is of the routing topic."""
        self.tp = tp
        self._config = config
        self._cluster = cluster

    async def end(self) -> Offset:
        """Return the last stable offset. Raises RetriableError."""
        return (await self._cluster.offsets(self.tp, LATEST))[0]

    async def behind_marker(self, marked: ProducerIdAndEpoch, before: Offset) -> list[LogRecord]:
        """
        Return all decisions, of which none is to come.

        Args:
            marked: the producer of the fence's marker.
            before: the end before the fence.

        Raises:
            RetriableError: no answer, or the leader does not show the marker: it may be deposed.
        """
        start, end = await self._cluster.offsets(self.tp, EARLIEST, LATEST)
        with closing(self._reader(before)) as reader:
            if marked not in (await reader.control_markers(end)).producers:
                raise RetriableError(f"the leader of {self.tp} does not know of the fence")
        found: list[LogRecord] = []
        with closing(self._reader(start)) as reader:
            while reader.position < end:
                found += [each for each in await reader.read(READ_RECORDS_MAX) if each.offset < end]
        return found

    def _reader(self, start: Offset) -> PartitionReader:
        return PartitionReader(self._config, self._cluster, self.tp, start, fetch_bytes=FETCH_BYTES_OF_FEW)


async def append_decision(
    config: KafkaConfig,
    cluster: KafkaCluster,
    connections: ConnectionPool,
    tp: TopicPartition,
    record: NewRecord,
    producer: ProducerIdAndEpoch,
    sequence: int,
) -> Offset:
    """
    Append a decision by one request, and return its offset.

    Args:
        config: how to reach the cluster.
        cluster: the cluster.
        connections: those of the owner.
        tp: where to.
        record: the decision.
        producer: the owner's epoch, behind the marker of its fence.
        sequence: how many decisions it has made under this epoch.

    Raises:
        NotAppendedError, FencedError, OutcomeUnknownError: see DecidingLog.decide.
    """
    is_in_doubt, limit_s = False, config.request_timeout_s
    try:
        batch = encode_batch([record], producer, sequence, bytes_max=DECISION_BYTES_MAX)
        patience = Patience(limit_s, limit_s)
        connection = await patience.connect(connections, await cluster.leader_of(tp))
        if patience.is_over:
            raise NotAppendedError("the decision took too long to begin")
        is_in_doubt = True
        produced = await produce(connection, tp, batch, patience, timeout_s=limit_s)
        is_in_doubt = produced.code not in REFUSED_CODES
        raise_for_code("Produce of a decision", produced.code)
    except FencedError:
        raise
    except (RetriableError, KafkaError, OSError) as err:
        problem = config.explain(err)
        if is_in_doubt:
            raise OutcomeUnknownError(f"the decision was not confirmed: {problem}") from err
        raise NotAppendedError(problem) from err
    return produced.offset
