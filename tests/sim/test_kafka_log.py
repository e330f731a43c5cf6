"""
Claim: on a simulated Kafka cluster, whatever request or answer of a producer is lost, late or refused,
an append is told truthfully, and only another gateway's fence is taken for one.

Histories run in virtual time; a failing one prints the line that repeats it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count
from random import Random
from typing import TypeAlias

import pytest

from dedupe.model.errors import FencedError, NotAppendedError, OutcomeUnknownError, RetriableError
from dedupe.model.types import NewRecord
from dedupe.storage.kafka.broker_connection import IDLE_S_MAX
from dedupe.storage.kafka.log import KafkaLog
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.log import no_crashpoint
from tests.sim.seeds import ARE_AS_PLANNED, each_seed
from tests.support.settings import kafka_config
from tests.support.sim_kafka import SimKafka
from tests.support.sim_kafka_net import (
    ADD_PARTITIONS_TO_TXN,
    BOOTSTRAP_SERVERS,
    END_TXN,
    FAULTS,
    HOLDS_S,
    INIT_PRODUCER_ID,
    PRODUCE,
    SimKafkaNet,
)
from tests.support.virtual_time import VirtualTimeLoop

APPENDS = 20
CHANCE_MAX = 0.8
TOPIC = "events"
PAUSES_S = (0.0, 0.0, 0.002, 1.0, 20.0, 600.0)  # before an append; in the longer ones, what is late arrives
RECORD = NewRecord(1, b"id", b"value", [])
PATIENCE_S = 600.0  # virtual: several requests may each be late by more than a request may take

Seen: TypeAlias = Counter[tuple[str, int]]

REQUESTS = (INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, PRODUCE, END_TXN)
"""What a writer asks for."""

PLANNED = [(fault, api) for fault in FAULTS for api in REQUESTS]


class Writer:
    """One gateway's writer of the partition, and what it was told."""

    def __init__(self, name: str, rng: Random) -> None:
        self.name = name
        self._rng = rng
        self.store = KafkaStore(kafka_config(BOOTSTRAP_SERVERS), no_crashpoint)
        self.log: KafkaLog = self.store.partition_log(TOPIC, 0)
        self.at: dict[str, int] = {}  # the offset of what was told to be committed
        self.unknown: set[str] = set()
        self.told: Counter[str] = Counter()
        self.is_overtaken = False
        """Whether somebody has written behind its fence."""
        self._numbers = count()

    async def write(self, appends: int) -> None:
        """Append so many records, each once; fence as often as it takes."""
        await self._fence()
        for _ in range(appends):
            await asyncio.sleep(self._rng.choice(PAUSES_S))
            await self._append(f"{self.name}-{next(self._numbers)}")

    async def _append(self, key: str) -> None:
        try:
            self.at[key] = await self.log.append([RECORD._replace(key=key.encode())])
        except (FencedError, NotAppendedError, OutcomeUnknownError) as err:
            self.told[err.code] += 1
            self.is_overtaken |= "instead of" in str(err)
            if isinstance(err, OutcomeUnknownError):
                self.unknown.add(key)
            await self._fence()

    async def _fence(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await self.log.fence()
                except RetriableError:
                    continue
                return

    async def close(self) -> None:
        await self.log.close()
        await self.store.close()


def chances_of(rng: Random) -> dict[str, float]:
    """
    Draw which faults a history has, and how many: half of them have only one kind.

    Together they befall at most CHANCE_MAX of the requests, or a fence would not end while they last.
    """
    if rng.random() < 0.5:
        return {rng.choice(FAULTS): 0.2}
    chances = {fault: rng.choice((0.02, 0.2)) for fault in FAULTS if rng.random() < 0.4}
    part = CHANCE_MAX / max(CHANCE_MAX, sum(chances.values()))
    return {fault: chance * part for fault, chance in chances.items()}


@pytest.fixture
async def net(seed: int) -> AsyncIterator[SimKafkaNet]:
    """A simulated cluster with the faults of a seed."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    rng = Random(seed)
    net = SimKafkaNet(SimKafka(TOPIC, 1, loop.time), rng)
    net.listen(loop)
    net.chance = chances_of(rng)
    yield net
    await net.close()


@pytest.fixture(scope="module")
def seen() -> Seen:
    """What befell requests in all histories of this run."""
    return Counter()


@each_seed(one_in=16)
async def test_what_one_writer_is_told_is_true_and_it_never_fences_itself(
    seed: int, net: SimKafkaNet, seen: Seen
) -> None:
    writer = Writer("a", Random(seed))
    await writer.write(APPENDS)

    assert writer.told["fenced"] == 0
    await judge(net, [writer])
    seen.update(net.seen)


@each_seed(one_in=16)
async def test_what_two_rivals_are_told_is_true(seed: int, net: SimKafkaNet) -> None:
    writers = [Writer("a", Random(seed)), Writer("b", Random(-seed))]
    await asyncio.gather(*(writer.write(APPENDS) for writer in writers))

    await judge(net, writers)


@pytest.mark.parametrize("seed", [0])
async def test_without_faults_every_append_is_committed_at_once(seed: int, net: SimKafkaNet) -> None:
    net.chance = {}
    writer = Writer("a", Random(seed))
    await writer.write(APPENDS)

    assert (len(writer.at), writer.told.total()) == (APPENDS, 0)
    sent = {request.API_KEY for request in net.requests}
    assert sent.intersection(REQUESTS) == set(REQUESTS)
    await judge(net, [writer])


@pytest.mark.regression("A lane took its own late fences for another gateway and gave up.")
@pytest.mark.parametrize("seed", [0])
async def test_none_of_several_late_fences_of_its_own_is_taken_for_another_gateway(net: SimKafkaNet) -> None:
    writer = Writer("a", Random(0))
    net.chance, net.holds_s = {"hold_request": 1.0}, [40.0]
    for _ in range(3):
        with pytest.raises(RetriableError):
            await writer.log.fence()
    net.chance = {}
    await writer.write(1)
    await asyncio.sleep(IDLE_S_MAX)
    await writer.write(APPENDS)

    assert writer.told["fenced"] == 0
    await judge(net, [writer])


@pytest.mark.parametrize("seed", [0])
async def test_late_fence_of_its_own_is_noticed_when_the_coordinator_is_asked(net: SimKafkaNet) -> None:
    writer = Writer("a", Random(0))
    net.chance, net.holds_s = {"hold_request": 1.0}, [40.0]
    with pytest.raises(RetriableError):
        await writer.log.fence()
    net.chance = {}
    await writer.log.fence()
    await asyncio.sleep(IDLE_S_MAX)  # it arrives
    with pytest.raises(NotAppendedError, match="an earlier attempt of its own"):
        await writer.log.append([RECORD])
    await writer.write(1)
    await judge(net, [writer])


@pytest.mark.parametrize("seed", [0])
async def test_leader_that_does_not_know_of_the_fence_is_not_believed(net: SimKafkaNet) -> None:
    writer = Writer("a", Random(0))
    net.chance = {}
    await writer.write(3)
    partition = net.kafka.partitions[0]
    partition.shown_end = partition.end - 1
    with pytest.raises(RetriableError, match="does not know of its fence"):
        await writer.log.fence()
    partition.shown_end = None
    await writer.write(3)
    await judge(net, [writer])


if ARE_AS_PLANNED:

    def test_histories_see_every_fault_of_every_request(seen: Seen) -> None:
        assert not [cell for cell in PLANNED if not seen[cell]]


async def judge(net: SimKafkaNet, writers: list[Writer]) -> None:
    """What was told is in the log once and where it was said; what was told to be lost never is."""
    net.chance = {}
    await asyncio.sleep(2 * max(HOLDS_S))  # what is late arrives
    last = Writer("last", Random(0))
    await last.write(1)
    end = await last.log.fence()
    found = [record async for batch in last.log.read(0, end) for record in batch]
    places = {record.key.decode(): record.offset for record in found}
    assert len(places) == len(found)
    told = {key: offset for writer in [*writers, last] for key, offset in writer.at.items()}
    unknown = set().union(*(writer.unknown for writer in writers))
    assert not any(writer.is_overtaken for writer in [*writers, last])
    assert told.items() <= places.items()
    assert places.keys() <= told.keys() | unknown
    for writer in [*writers, last]:
        await writer.close()
