"""
Claim: the workers of a group share the partitions of an input out, and store its events once each through
kills, stops and returns of workers.
"""

import asyncio
import json
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import chain
from pathlib import Path

import httpx
import pytest
from aiokafka import AIOKafkaProducer

from tests.integration.test_inputs import event
from tests.support.http import AUTH
from tests.support.kafka import create_topic
from tests.support.verdict import read_kafka
from tests.support.workers import Worker, Workers, until

pytestmark = pytest.mark.kafka

PARTITIONS, READ, EVENTS = 2, 6, 12_000
SETTLED_S = 60.0


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

    async def send(self, values: Sequence[bytes], *, pause_s: float = 0.0) -> None:
        """Append to the input's partitions in turn, with a pause after each 500."""
        producer = AIOKafkaProducer(bootstrap_servers=self.servers)
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


@pytest.fixture
async def group(tmp_path: Path, kafka_bootstrap: str) -> AsyncIterator[Group]:
    group = Group(tmp_path, kafka_bootstrap)
    await create_topic(kafka_bootstrap, group.input, partitions=READ)
    yield group
    await group.workers.stop()


async def test_each_event_is_stored_once_through_kills_and_moves(group: Group) -> None:
    rng = random.Random(11)
    ids = [f"m-{number}" for number in range(EVENTS)]
    sent = [*ids, *rng.choices(ids, k=EVENTS // 10)]
    await group.workers.start()
    await until(group.is_shared, SETTLED_S)
    sending = asyncio.ensure_future(group.send([event(each) for each in sent], pause_s=1.0))
    for worker in (*group.workers.all, *group.workers.all):
        before = (await group.stored()).total()
        async with asyncio.timeout(SETTLED_S):
            while before == (await group.stored()).total() < EVENTS:
                await asyncio.sleep(0.05)
        await asyncio.to_thread(rng.choice((worker.kill, worker.stop)))
        await asyncio.to_thread(worker.start)
    await sending
    async with asyncio.timeout(SETTLED_S):
        while (await group.stored()).keys() < set(ids):
            await asyncio.sleep(0.2)
    await until(group.is_shared, SETTLED_S)
    assert await group.stored() == Counter(ids)


async def test_all_doors_of_all_workers_know_an_event(group: Group) -> None:
    await group.workers.start()
    await group.send([event("both")])
    async with asyncio.timeout(SETTLED_S):
        while not await group.stored():
            await asyncio.sleep(0.1)
    for worker in group.workers.all:
        async with httpx.AsyncClient(base_url=worker.url, auth=AUTH) as client:
            answer = (await client.post("/v1/events", content=event("both"))).raise_for_status()
        assert answer.headers["Gateway-Duplicates"] == "1"
    assert await group.stored() == Counter(["both"])
