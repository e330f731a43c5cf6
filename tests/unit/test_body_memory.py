"""Claim: bodies never hold more than the budget, and all that a request held comes back, whatever happens."""

import asyncio
import gzip
import random

import pytest
from starlette.types import Message

from app.body import BodyLimits, read_body
from app.body_memory import BodyMemory, Lease
from app.errors import BodyMemoryFullError, BodyTooLargeError

LIMITS = BodyLimits(bytes_max=1_000, compressed_bytes_max=1_000, timeout_s=5)


def test_what_does_not_fit_is_refused_and_gives_all_back() -> None:
    memory = BodyMemory(100)
    first, second = Lease(memory), Lease(memory)
    assert first.take(60)
    assert second.take(40)
    assert not second.take(1)
    assert (memory.used, memory.refused) == (60, 1)
    with pytest.raises(BodyMemoryFullError):
        second.check()
    assert not second.take(1)  # for good, though there is room again
    assert first.take(40)
    assert (memory.used, memory.peak, memory.refused) == (100, 100, 1)


def test_announcement_takes_nothing_and_is_refused_where_it_cannot_fit() -> None:
    memory = BodyMemory(100)
    first, second = Lease(memory), Lease(memory)
    first.expect(100)
    assert memory.used == 0
    assert second.take(1)
    second.expect(100)  # of which one byte has come
    second.check()
    first.expect(100)
    with pytest.raises(BodyMemoryFullError):
        first.check()


def test_body_gives_way_to_what_became_of_it() -> None:
    memory = BodyMemory(100)
    lease = Lease(memory)
    lease.take(80)
    lease.hold(90)
    assert memory.used == 90
    with pytest.raises(BodyMemoryFullError):
        lease.hold(101)
    assert memory.used == 0


def test_release_is_final_and_once() -> None:
    ended: list[int] = []
    memory = BodyMemory(100)
    lease = Lease(memory, on_release=lambda: ended.append(memory.used))
    lease.take(10)
    lease.release()
    lease.release()
    assert not lease.take(1)
    assert (ended, memory.used, memory.refused) == ([0], 0, 0)


def test_random_histories_stay_within_the_budget() -> None:
    dice = random.Random(7)
    memory = BodyMemory(1_000)
    leases = [Lease(memory) for _ in range(20)]
    for _ in range(5_000):
        number = dice.randrange(len(leases))
        lease = leases[number]
        if not lease.take(dice.randrange(200)) or dice.random() < 0.1:
            lease.release()
            leases[number] = Lease(memory)
        assert memory.used == sum(lease.held for lease in leases) <= 1_000
    for lease in leases:
        lease.release()
    assert memory.used == 0


async def test_inflated_bytes_count() -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": gzip.compress(b"x" * 900), "more_body": False}

    headers = {b"content-encoding": b"gzip"}
    with pytest.raises(BodyMemoryFullError):
        await read_body(receive, headers, LIMITS, Lease(BodyMemory(899)))
    memory = BodyMemory(1_000)
    assert len(await read_body(receive, headers, LIMITS, Lease(memory))) == 900
    assert memory.used == 900


async def test_refusal_while_a_body_is_awaited_ends_the_waiting() -> None:
    lease = Lease(BodyMemory(10))

    async def receive() -> Message:
        await asyncio.sleep(0)
        lease.take(11)
        return {"type": "http.request", "body": b"", "more_body": True}

    with pytest.raises(BodyMemoryFullError):
        await read_body(receive, {}, LIMITS, lease)


async def test_size_limit_stands_before_memory() -> None:
    async def receive() -> Message:
        raise AssertionError

    with pytest.raises(BodyTooLargeError):
        await read_body(receive, {b"content-length": b"1001"}, LIMITS, Lease(BodyMemory(1)))
