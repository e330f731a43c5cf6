"""
Makes the archive of classes that a broker of the tests starts from; `make test` runs this once.

The JVM maps it, and need not read and check thousands of classes anew: a start takes half the CPU. The
classes are those of a broker that has taken and shown one transaction.
"""

import asyncio
import logging
import tempfile
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tests.support.kafka import CLASSES, KafkaBroker, create_topic

TOPIC = "classes"
FLAGS = ("-Xmx512m", "-XX:+UseSerialGC", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def main() -> None:
    """Run a broker once, and keep its classes, which its JVM writes at its end."""
    logging.disable()  # the client tells of each thing that a broker this young is not ready for
    made = CLASSES.with_suffix(".new")
    CLASSES.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        flags = (*FLAGS, f"-XX:ArchiveClassesAtExit={made}")
        # Formatting ends a JVM, too, whose archive the broker's replaces.
        with KafkaBroker(Path(folder), jvm_flags=flags) as broker:
            asyncio.run(_use(broker.bootstrap_servers))
    made.rename(CLASSES)


async def _use(servers: str) -> None:
    await create_topic(servers, TOPIC)
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=TOPIC)
    async with producer, producer.transaction():
        await producer.send_and_wait(TOPIC, b"value")
    async with AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=servers,
        group_id=TOPIC,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        await consumer.getone()


if __name__ == "__main__":
    main()
