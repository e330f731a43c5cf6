"""Appends to one partition beside other writers: no batch is fenced, and a doubt may double one."""

from collections.abc import Sequence

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from dedupe.model.errors import RecordsRefusedError, RetriableError
from dedupe.model.types import NewRecord
from dedupe.storage.kafka.broker_connection import ConnectionPool
from dedupe.storage.kafka.cluster import KafkaCluster, error_name
from dedupe.storage.kafka.config import KafkaConfig
from dedupe.storage.kafka.probe import produce
from dedupe.storage.kafka.producer import INVALID_RECORD, NO_PRODUCER, SIZE_SETTINGS
from dedupe.storage.kafka.record_batch import encode_batch
from dedupe.storage.kafka.transactions import Patience
from dedupe.storage.kafka.wire import Produced

NO_SEQUENCE = -1
BYTES_MAX = 1024 * 1024
"""Of a batch: what brokers take by default."""


class PlainProducer:
    """See dedupe.storage.log.Appender."""

    def __init__(self, config: KafkaConfig, cluster: KafkaCluster, tp: TopicPartition) -> None:
        """Connect to nothing yet."""
        self._config = config
        self._cluster = cluster
        self._tp = tp
        self._connections = ConnectionPool(config)

    async def append(self, records: Sequence[NewRecord]) -> None:
        code = (await self.produce(records)).code
        if code == INVALID_RECORD or code in SIZE_SETTINGS:
            raise RecordsRefusedError(f"topic {self._tp.topic} takes no such records: {error_name(code)}")
        if code:
            raise RetriableError(f"records are refused by {self._tp}: {error_name(code)}")

    async def produce(self, records: Sequence[NewRecord]) -> Produced:
        """
        Send n >= 1 records as one batch, and return the leader's response.

        Raises:
            RetriableError: no answer; the records may be there.
            RecordsRefusedError: they are more than BYTES_MAX.
        """
        batch = encode_batch(records, NO_PRODUCER, NO_SEQUENCE, bytes_max=BYTES_MAX)
        limit_s = self._config.request_timeout_s
        patience = Patience(limit_s, limit_s)
        try:
            connection = await patience.connect(self._connections, await self._cluster.leader_of(self._tp))
            return await produce(connection, self._tp, batch, patience, timeout_s=limit_s)
        except (KafkaError, OSError) as err:
            raise RetriableError(f"no answer about {self._tp}: {self._config.explain(err)}") from err

    async def close(self) -> None:
        self._connections.close()
