"""Workers of a group on one broker that read one input, what clients append to it, and what is stored."""

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import httpx
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.support.verdict import read_kafka
from tests.support.workers import Worker, Workers

PARTITIONS, READ = 2, 6
"""Of the clean topic, and of the input."""


class Group:
    """Three workers with one input."""

    def __init__(self, folder: Path, servers: str) -> None:
        name = uuid.uuid4().hex[:12]
        self.servers = servers
        self.input, self.clean = f"raw-{name}", f"events-{name}"
        inputs_file = folder / "inputs.yaml"
        spec = {"name": "raw", "topic": self.input, "source": "web", "id": {"field": "messageId"}}
        inputs_file.write_text(json.dumps({"inputs": [spec | {"start": "earliest"}]}))
        env = {
            "GATEWAY_LOG": "kafka",
            "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": servers,
            "GATEWAY_TOPIC": self.clean,
            "GATEWAY_PARTITIONS": str(PARTITIONS),
            "GATEWAY_INPUTS_FILE": str(inputs_file),
        }
        self.workers = Workers(folder, env, 3)

    async def send(self, values: Iterable[bytes], *, pause_s: float = 0.0) -> None:
        """Append to the input's partitions in turn, with a pause after each 500."""
        producer = AIOKafkaProducer(bootstrap_servers=self.servers, linger_ms=20)
        await producer.start()
        try:
            for number, value in enumerate(values):
                await producer.send(self.input, value=value, partition=number % READ)
                if number % 500 == 499:
                    await asyncio.sleep(pause_s)
            await producer.flush()
        finally:
            await producer.stop()

    async def stored(self) -> Counter[str]:
        return Counter(each.message_id for each in await read_kafka(self.servers, self.clean, PARTITIONS))

    def read_by(self, worker: Worker) -> list[int]:
        """Return the partitions that a worker reads."""
        (read,) = httpx.get(f"{worker.admin_url}/admin/v1/inputs").raise_for_status().json()["inputs"]
        assert read["stopped"] is None
        return [each["partition"] for each in read["partitions"]]

    def is_shared(self) -> bool:
        """Whether each partition is read once, and by all alike."""
        shares = [self.read_by(worker) for worker in self.workers.running]
        counts = [len(share) for share in shares]
        return sorted(chain.from_iterable(shares)) == list(range(READ)) and max(counts) - min(counts) <= 1

    async def stored_count(self) -> int:
        """Return how many records and markers the clean topic has."""
        return sum((await self._ends(self.clean, PARTITIONS)).values())

    async def is_read(self) -> bool:
        """Whether all that the input has is committed as read."""
        ends = await self._ends(self.input, READ)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.servers,
            group_id=f"gateway-{self.clean}-input-raw",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            return all([await consumer.committed(place) == end for place, end in ends.items()])
        finally:
            await consumer.stop()

    async def numbers_in(self, topic: str, partitions: int, count: int) -> bytearray:
        """Return how often each of the ids m-0, m-1, ... is in a topic, 255 at most."""
        found = bytearray(count)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=8 * 1024 * 1024,
        )
        ends = await self._ends(topic, partitions)
        await consumer.start()
        try:
            consumer.assign(list(ends))
            while any([await consumer.position(place) < end for place, end in ends.items()]):
                batches = await consumer.getmany(timeout_ms=200)
                for record in chain.from_iterable(batches.values()):
                    number = int((record.key or json.loads(record.value or b"{}")["messageId"].encode())[2:])
                    found[number] = min(255, found[number] + 1)
        finally:
            await consumer.stop()
        return found

    async def _ends(self, topic: str, partitions: int) -> dict[TopicPartition, int]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.servers)
        await consumer.start()
        try:
            ends: dict[TopicPartition, int] = await consumer.end_offsets(
                [TopicPartition(topic, number) for number in range(partitions)]
            )
            return ends
        finally:
            await consumer.stop()
