"""
The fence's self-test: proves at start that the brokers refuse batches of an older epoch.

All of the gateway's safety on Kafka rests on this refusal (docs/adr/0018-one-request-a-commit.md), and some
brokers that speak Kafka's protocol do not make it. The test has a transactional.id of its own, and leaves a
marker in a partition of quarantine, and on a broker that does not fence a record that readers skip.
"""

import asyncio
import random

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, for_code

from dedupe.model.errors import ConfigurationError, FencedError, RetriableError
from dedupe.storage.kafka.broker_connection import ConnectionPool
from dedupe.storage.kafka.cluster import KafkaCluster, error_name
from dedupe.storage.kafka.config import KafkaConfig
from dedupe.storage.kafka.probe import batch_of_older_epoch, produce
from dedupe.storage.kafka.transactions import (
    INVALID_PRODUCER_EPOCH,
    INVALID_TIMESTAMP,
    Patience,
    TransactionCoordinator,
    raise_for_code,
)
from dedupe.storage.kafka.wire import ProducerIdAndEpoch

RIGHT_CODES = {
    29: "Write on topic {topic}",
    31: "IdempotentWrite on the cluster",
    53: "Describe and Write on transactional id {transactional_id}",
}
"""TOPIC_, CLUSTER_ and TRANSACTIONAL_ID_AUTHORIZATION_FAILED, and the right that is missing."""

OVERTAKEN_S = 0.2
"""The longest pause before a test that another one has overtaken begins anew."""


def transactional_id_of_test(topic: str) -> str:
    """Return the transactional.id of the self-test of every gateway that uses a quarantine topic."""
    return f"gateway-{topic}-fence-test"


async def check_fencing(config: KafkaConfig, cluster: KafkaCluster, topic: str, *, now_ms: int) -> None:
    """
    Have a marker of a new epoch written, and require that the leader refuses a batch of the epoch before.

    Several gateways may do so at once: one whose epoch is overtaken meanwhile begins anew.

    Args:
        config: how to reach the cluster.
        cluster: the cluster.
        topic: the quarantine topic; the test uses partition 0.
        now_ms: the time of the record that must be refused.

    Raises:
        ConfigurationError: the broker does not fence, or a right is missing.
        RetriableError: no answer, or one that may change.
    """
    tp = TopicPartition(topic, 0)
    connections = ConnectionPool(config)
    try:
        coordinator = TransactionCoordinator(
            config, tp, transactional_id_of_test(topic), cluster, connections
        )
        patience = Patience(config.request_timeout_s, config.request_timeout_s)
        leader = await cluster.leader_of(tp)
        connection = await patience.connect(connections, leader)
        marked = await _marked_epoch(coordinator, patience)
        batch = batch_of_older_epoch(marked._replace(epoch=marked.epoch - 1), now_ms)
        produced = await produce(connection, tp, batch, patience, timeout_s=config.request_timeout_s)
    except (KafkaError, OSError, RetriableError) as err:
        _raise_if_right_is_missing(getattr(err.__cause__ or err, "errno", None), topic)
        raise RetriableError(f"cannot test whether the brokers fence: {config.explain(err)}") from err
    finally:
        connections.close()
    _judge(produced.code, topic)


async def _marked_epoch(coordinator: TransactionCoordinator, patience: Patience) -> ProducerIdAndEpoch:
    """Return an epoch above 0 whose marker is written."""
    while True:
        producer = await coordinator.take_epoch(patience)
        if producer.epoch == 0:
            continue
        try:
            await coordinator.mark(producer, patience)
        except FencedError:  # by the test of another gateway
            await asyncio.sleep(random.uniform(0, OVERTAKEN_S))
            continue
        await coordinator.take_epoch(patience)  # not given before the marker is there
        return producer


def _judge(code: int, topic: str) -> None:
    """Raise unless the code is the refusal of an older epoch."""
    if code == INVALID_PRODUCER_EPOCH:
        return
    _raise_if_right_is_missing(code, topic)
    if code == INVALID_TIMESTAMP or (code != 0 and for_code(code).retriable):
        try:
            raise_for_code("the probe of the fence's test", code)
        except RetriableError as err:
            raise RetriableError(f"cannot test whether the brokers fence: {err}") from err
    answer = "took it" if code == 0 else f"answered {error_name(code)}"
    raise ConfigurationError(
        f"this broker does not fence: a batch of an older producer epoch to topic {topic} must be refused "
        f"with InvalidProducerEpoch, and it {answer}; two gateways could store the same event twice, so only "
        "Apache Kafka and brokers that refuse it are supported"
    )


def _raise_if_right_is_missing(code: int | None, topic: str) -> None:
    right = RIGHT_CODES.get(code or 0)
    if right is not None:
        right = right.format(topic=topic, transactional_id=transactional_id_of_test(topic))
        raise ConfigurationError(
            f"Kafka does not let the gateway test its fence: it needs the ACL for {right}"
        )
