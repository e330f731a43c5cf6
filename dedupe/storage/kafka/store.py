"""One Kafka cluster as the gateway uses it: partitions, notes, the group of workers."""

from aiokafka import TopicPartition

from dedupe.cluster.membership import MemberPlace
from dedupe.model.clock import Clock
from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.storage.kafka.cluster import KafkaCluster, group_of
from dedupe.storage.kafka.config import KafkaConfig
from dedupe.storage.kafka.group import KafkaMembership
from dedupe.storage.kafka.log import KafkaFence, KafkaLog
from dedupe.storage.kafka.plain_producer import PlainProducer
from dedupe.storage.kafka.routing_topic import RoutingKey, RoutingTopic
from dedupe.storage.kafka.self_test import check_fencing
from dedupe.storage.kept_fences import KeptFences
from dedupe.storage.log import Crashpoint, no_crashpoint
from dedupe.storage.routing_records import Note, routing_topic_of


class KafkaStore:
    """One Kafka cluster as the gateway uses it."""

    def __init__(
        self, config: KafkaConfig, crashpoint: Crashpoint, routing: RoutingKey | None = None
    ) -> None:
        """Use `open`. Raises ConfigurationError, see KafkaConfig.bootstrap_addresses."""
        self.config = config
        self.crashpoint = crashpoint
        self.cluster = KafkaCluster(config)
        self.fences: KeptFences[KafkaFence] = KeptFences()
        self._log_id = config.bootstrap_servers
        self._routing = (
            RoutingTopic(config, self.cluster, routing, lambda: self._log_id, crashpoint) if routing else None
        )

    @classmethod
    async def open(
        cls,
        config: KafkaConfig,
        *,
        crashpoint: Crashpoint = no_crashpoint,
        routing: RoutingKey | None = None,
    ) -> "KafkaStore":
        """
        Connect to the cluster; without `routing`, notes cannot be asked for.

        Raises:
            RetriableError: no broker answers (yet).
            ConfigurationError: the bootstrap servers are no list of host:port, or the login lacks a file.
        """
        await config.login.check()
        store = cls(config, crashpoint, routing)
        try:
            cluster = await store.cluster.describe()
        except BaseException as err:
            await store.close()
            if isinstance(err, RetriableError):
                raise RetriableError(f"no Kafka broker answers at {config.bootstrap_servers}: {err}") from err
            raise
        store._log_id = cluster.cluster_id or config.bootstrap_servers
        return store

    @property
    def log_id(self) -> str:
        """See LogStore; Kafka's cluster id."""
        return self._log_id

    async def partitions_of(self, topic: str) -> int:
        return await self.cluster.partitions_of(topic)

    def partition_log(self, topic: str, partition: int) -> KafkaLog:
        return KafkaLog(self, topic, partition)

    def deciding_log(self, topic: str, partition: int) -> KafkaLog:
        beside = TopicPartition(routing_topic_of(topic), partition + 1)
        return KafkaLog(self, topic, partition, beside)

    def release_fence(self, topic: str, partition: int) -> None:
        """See DividedStore."""
        self.fences.release((topic, partition))

    def appender(self, topic: str) -> PlainProducer:
        return PlainProducer(self.config, self.cluster, TopicPartition(topic, 0))

    async def check_fencing(self, topic: str, *, now_ms: int) -> None:
        """Test on a quarantine topic whether the brokers fence; arguments and errors as of check_fencing."""
        await check_fencing(self.config, self.cluster, topic, now_ms=now_ms)

    async def notes(self, name: str, topic: str) -> dict[int, str]:
        return await self.routing_topic.notes(name, topic)

    async def note(self, name: str, topic: str, partition: int, text: str, *, once: bool = False) -> None:
        await self.routing_topic.note(Note(name, topic, partition, text, once))

    @property
    def routing_topic(self) -> RoutingTopic:
        """The notes and plans of the topic. Raises ConfigurationError: opened without `routing`."""
        if self._routing is None:
            raise ConfigurationError("the notes of this log are proved by the identity of its gateways")
        return self._routing

    def membership(
        self, topic: str, *, lanes: int, standbys: bool, clock: Clock, place: MemberPlace | None = None
    ) -> KafkaMembership:
        """
        Return a worker's membership in the group of the workers of a topic; not joined yet.

        Args:
            topic: the topic of the clean partitions.
            lanes: the number of the group's lanes, those of quarantine included.
            standbys: whether lanes have followers.
            clock: for the order of starts, and for silence.
            place: that this process has in the group; None: none yet.
        """
        return KafkaMembership(
            self.config,
            self.cluster,
            group_of("workers", topic),
            lanes,
            standbys=standbys,
            clock=clock,
            place=place,
        )

    async def close(self) -> None:
        self.fences.end()
        if self._routing is not None:
            await self._routing.close()
        self.cluster.close()
