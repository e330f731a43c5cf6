"""Claim: all inputs together hold no more than they are given, and each gets its turn."""

import asyncio

from app.inputs.memory import (
    DECIDED_EVENT_BYTES,
    DECIDED_FACTOR,
    FETCH_BYTES_MAX,
    FETCH_BYTES_MIN,
    PARSED_FACTOR,
    InputMemory,
)
from tests.support.waiting import PATIENCE_S

MIB = 1024 * 1024


def test_responses_are_divided_among_partitions() -> None:
    memory = InputMemory(8 * MIB)
    assert memory.fetch_bytes == FETCH_BYTES_MAX
    readings = [memory.reading() for _ in range(16)]
    for reading in readings:
        reading.__enter__()
    assert memory.fetch_bytes * 16 == 4 * MIB
    for reading in readings:
        reading.__exit__(None, None, None)
    assert memory.fetch_bytes == FETCH_BYTES_MAX
    assert InputMemory(1).fetch_bytes == FETCH_BYTES_MIN


async def test_what_exceeds_the_memory_waits_in_order() -> None:
    memory, held, done = InputMemory(8 * MIB), list[int](), list[int]()

    async def admit(number: int, size_bytes: int) -> None:
        room = await memory.hold(size_bytes)
        held.append(memory.held_bytes)
        await asyncio.sleep(0)
        done.append(number)
        room.release()

    half = 4 * MIB // PARSED_FACTOR
    sizes = [half // 2, half // 2, half, 10 * half, 1]
    await asyncio.gather(*(admit(number, size) for number, size in enumerate(sizes)))
    assert done == [0, 1, 2, 3, 4]
    assert max(held) == 4 * MIB
    assert memory.held_bytes == 0


async def test_one_that_is_cancelled_holds_nothing() -> None:
    memory = InputMemory(8 * MIB)
    room = await memory.hold(8 * MIB)
    waiting = asyncio.ensure_future(memory.hold(8 * MIB))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    room.release()
    async with asyncio.timeout(PATIENCE_S):
        await memory.hold(8 * MIB)
    assert memory.held_bytes == 4 * MIB


async def test_parsed_batch_holds_what_its_events_take_and_never_more_than_before() -> None:
    memory = InputMemory(8 * MIB)
    room = await memory.hold(1_000)
    room.shrink(events=1, value_bytes=1_000)
    assert memory.held_bytes == DECIDED_FACTOR * 1_000 + DECIDED_EVENT_BYTES
    room.shrink(events=100, value_bytes=1_000)
    assert memory.held_bytes == DECIDED_FACTOR * 1_000 + DECIDED_EVENT_BYTES
    room.release()
    room.release()
    assert memory.held_bytes == 0
