"""
A batch of an older epoch, which a leader refuses and stores nothing of: it proves fencing, or a path.

Readers skip the record, in case a broker that does not fence stores it.
"""

import time

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from dedupe.login.errors import LoginRefusedError
from dedupe.model.errors import RetriableError
from dedupe.storage.kafka.broker_connection import BrokerConnection, ConnectionPool
from dedupe.storage.kafka.config import Address, KafkaConfig
from dedupe.storage.kafka.transactions import Patience
from dedupe.storage.kafka.wire import (
    PROBE_HEADERS,
    PRODUCE,
    PRODUCE_VERSIONS,
    ProduceCodec,
    Produced,
    ProducerIdAndEpoch,
)

PATH_BYTES = 64 * 1024
"""Many full packets, as a batch of some hundred events has."""

EPOCHS_LEFT = 1_000
"""
A probe is of a producer id with so many epochs left: its successors take epochs of the same id, so that the
leader knows a later one, and refuses the probe however old it is.
"""


def batch_of_older_epoch(producer: ProducerIdAndEpoch, now_ms: int, *, size_bytes: int = 0) -> bytes:
    """Return the batch of a zombie whose sequence number fits."""
    batch = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=0,
        batch_size=2 * PATH_BYTES,
    )
    value = bytes(size_bytes) if size_bytes else None
    batch.append(0, now_ms, key=None, value=value, headers=PROBE_HEADERS)
    return bytes(batch.build())


async def produce(
    connection: BrokerConnection, tp: TopicPartition, batch: bytes, patience: Patience, *, timeout_s: float
) -> Produced:
    """Return a leader's response to a batch. Raises KafkaError, OSError, RetriableError."""
    codec = ProduceCodec(tp, timeout_ms=round(timeout_s * 1000))
    codec.version = connection.version_of(PRODUCE, *PRODUCE_VERSIONS)
    await connection.rest()

    async def answer() -> bytes:
        return await connection.send_encoded(codec.encode(batch))

    return codec.decode(await patience.wait_for(answer(), of="Produce"))


async def probe_path(
    config: KafkaConfig, tp: TopicPartition, leader: Address, older: ProducerIdAndEpoch
) -> None:
    """
    Require an answer of a leader to a large request over a new connection, whichever it is.

    A refused login is one: the leader can be reached, and a definite refusal moves no lane.

    Args:
        config: how to reach the cluster.
        tp: a partition.
        leader: its leader.
        older: an epoch that the leader knows to be over.

    Raises RetriableError: no answer.
    """
    connections = ConnectionPool(config)
    try:
        patience = Patience(config.request_timeout_s, config.request_timeout_s)
        connection = await patience.connect(connections, leader)
        batch = batch_of_older_epoch(older, time.time_ns() // 1_000_000, size_bytes=PATH_BYTES)
        await produce(connection, tp, batch, patience, timeout_s=config.request_timeout_s)
    except LoginRefusedError:
        return
    except (KafkaError, OSError) as err:
        raise RetriableError(f"{leader} does not answer a large request: {config.explain(err)}") from err
    finally:
        connections.close()
