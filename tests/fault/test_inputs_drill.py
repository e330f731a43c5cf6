"""
Claim: a group stores each event of an input once, through kills and stops of workers, all of which move its
partitions: what the input has and what the clean topic has are compared id by id.

INPUT_EVENTS and INPUT_FAULTS size it, INPUT_SEED is its seed: make prove runs larger ones.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.group_inputs import PARTITIONS, READ, Group
from tests.support.kafka import create_topic
from tests.support.waiting import PATIENCE_S, until_in_thread

pytestmark = pytest.mark.kafka

EVENTS = int(os.environ.get("INPUT_EVENTS", "20000"))
FAULTS = int(os.environ.get("INPUT_FAULTS", "4"))
SEED = int(os.environ.get("INPUT_SEED", "1"))
AGAIN = 10
"""The producer repeats one in so many events, up to a thousand later."""
READ_S = PATIENCE_S + EVENTS / 1_000
FAULT_EVENTS = max(1, EVENTS // (2 * FAULTS))
"""Between two faults: half of the events are stored through them."""


@pytest.fixture
async def group(tmp_path: Path, kafka_bootstrap: str) -> AsyncIterator[Group]:
    group = Group(tmp_path, kafka_bootstrap)
    await create_topic(kafka_bootstrap, group.input, partitions=READ)
    yield group
    await group.workers.stop()


def events(rng: random.Random) -> Iterator[bytes]:
    """Yield each event once, and some again."""
    for number in range(EVENTS):
        yield b'{"messageId":"m-%d","type":"track","event":"Seen","userId":"u"}' % number
        if rng.randrange(AGAIN) == 0:
            earlier = rng.randrange(max(0, number - 1_000), number + 1)
            yield b'{"messageId":"m-%d","type":"track","event":"Seen","userId":"u"}' % earlier


async def test_input_and_clean_topic_have_the_same_events_through_kills_and_moves(group: Group) -> None:
    rng = random.Random(SEED)
    await group.workers.start()
    await until_in_thread(group.is_shared)
    sending = asyncio.ensure_future(group.send(events(random.Random(SEED)), pause_s=0.05))
    for number in range(FAULTS):
        async with asyncio.timeout(READ_S):
            while await group.stored_count() < (number + 1) * FAULT_EVENTS:
                await asyncio.sleep(0.1)
        worker = rng.choice(group.workers.all)
        await asyncio.to_thread(worker.kill if number % 2 == 0 else worker.stop)
        await asyncio.sleep(rng.random())
        await asyncio.to_thread(worker.start)
    await sending
    async with asyncio.timeout(READ_S):
        while not await group.is_read():
            await asyncio.sleep(0.2)
    await until_in_thread(group.is_shared)
    appended = await group.numbers_in(group.input, READ, EVENTS)
    stored = await group.numbers_in(group.clean, PARTITIONS, EVENTS)
    lost = sum(1 for had, has in zip(appended, stored, strict=True) if had and not has)
    twice = sum(1 for has in stored if has > 1)
    print(f"{EVENTS:,} events, {FAULTS} kills and moves: {lost} lost, {twice} twice")
    assert appended.count(0) == lost == twice == 0
