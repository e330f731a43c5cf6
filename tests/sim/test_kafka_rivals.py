"""
Claim: of gateways that write into one partition, an owner who is told that a batch was appended knew every
record before it, whatever was silent, frozen, forgotten, rotated or lost, at any request.
"""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from dedupe.storage.kafka.producer import EPOCH_OF_ROTATION, RENEW_S
from tests.sim.seeds import each_seed
from tests.sim.test_kafka_log import TOPIC, Writer, chances_of
from tests.support.sim_kafka import EPOCH_MAX, ID_EXPIRATION_S, PRODUCER_EXPIRATION_S, SimKafka
from tests.support.sim_kafka_net import SimKafkaNet
from tests.support.virtual_time import VirtualTimeLoop

PAUSES_S = (0.0, 0.001, 0.01, 1.0, 9.0, 35.0, 600.0, RENEW_S - 1, RENEW_S, 2 * RENEW_S)
LONG_S = (PRODUCER_EXPIRATION_S + 1, ID_EXPIRATION_S + 1)
FIRST_EPOCHS = (0, EPOCH_OF_ROTATION - 3, EPOCH_OF_ROTATION + 1, EPOCH_MAX - 4)
APPENDS = 14


@pytest.fixture
async def net(seed: int) -> AsyncIterator[SimKafkaNet]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    rng = Random(seed)
    kafka = SimKafka(TOPIC, 1, loop.time)
    kafka.first_epoch = rng.choice(FIRST_EPOCHS)
    net = SimKafkaNet(kafka, rng)
    net.listen(loop)
    net.chance = chances_of(rng)
    net.session_s = rng.choice((None, None, 5.0, 3000.0))
    yield net
    await net.close()


class Owner(Writer):
    """A writer that asks of each append whether it knew all records before."""

    def __init__(self, name: str, rng: Random, net: SimKafkaNet) -> None:
        super().__init__(name, rng)
        self._net = net
        self._known = 0  # below this offset it has read everything

    async def _fence(self) -> None:
        await super()._fence()
        self._known = self.log._expected

    async def _append(self, key: str) -> None:
        before = self._known
        await super()._append(key)
        if key in self.at:
            assert self.keys_in(before, self.at[key]) == [], "a record that it has not read"
            self._known = self.at[key] + 1

    def keys_in(self, start: int, end: int) -> list[bytes | None]:
        """Return the keys of the records of an offset range."""
        keys = []
        for base, last, raw in self._net.kafka.partitions[0].batches:
            batch = DefaultRecordBatch(raw)
            if start <= base and last < end and not batch.is_control_batch:
                keys += [record.key for record in batch]
        return keys


async def history(owner: Owner, rng: Random, net: SimKafkaNet) -> None:
    await owner._fence()
    for number in range(APPENDS):
        pause_s = rng.choice(LONG_S) if rng.random() < 0.05 else rng.choice(PAUSES_S)
        await asyncio.sleep(pause_s)
        if rng.random() < 0.1:
            net.kafka.partitions[0].forget()
        if rng.random() < 0.1:
            await owner._fence()
        await owner._append(f"{owner.name}-{number}")


@each_seed(one_in=16)
@pytest.mark.parametrize("rivals", [1, 2, 3])
async def test_owner_knows_every_record_before_its_own(seed: int, rivals: int, net: SimKafkaNet) -> None:
    owners = [Owner(name, Random(seed * 7 + ord(name)), net) for name in "abc"[:rivals]]
    rngs = [Random(seed * 13 + number) for number in range(rivals)]
    try:
        await asyncio.gather(*map(history, owners, rngs, [net] * rivals))
    finally:
        for owner in owners:
            await owner.close()
    net.chance = {}
    await asyncio.sleep(100)
    keys = owners[0].keys_in(0, net.kafka.partitions[0].end)
    told = {key.encode() for owner in owners for key in owner.at}
    unknown = {key.encode() for owner in owners for key in owner.unknown}
    assert told <= set(keys) <= told | unknown
    assert len(keys) == len(set(keys))
