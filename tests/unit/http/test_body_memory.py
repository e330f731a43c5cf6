"""Claim: bodies never hold more than the budget, and all that a request held comes back, whatever happens."""

import asyncio
import gzip
import random
import zlib

import pytest
from starlette.types import Message

from app.http.body import BodyLimits, read_body
from app.http.body_memory import SMALL_BODY_BYTES, BodyMemory, MemoryReservation
from app.http.errors import BodyMemoryFullError, BodyTooLargeError

LIMITS = BodyLimits(bytes_max=1_000, compressed_bytes_max=1_000)


async def look(_size_bytes: int) -> None:
    """Everybody else's turn."""
    await asyncio.sleep(0)


def test_what_does_not_fit_is_refused_and_gives_all_back() -> None:
    memory = BodyMemory(100)
    first, second = MemoryReservation(memory), MemoryReservation(memory)
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
    first, second = MemoryReservation(memory), MemoryReservation(memory)
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
    lease = MemoryReservation(memory)
    lease.take(80)
    lease.hold(90)
    assert memory.used == 90
    with pytest.raises(BodyMemoryFullError):
        lease.hold(101)
    assert memory.used == 0


def test_body_is_charged_for_what_it_takes_while_it_is_parsed_and_fits_alone() -> None:
    memory = BodyMemory(1_000)
    first, second, third = MemoryReservation(memory), MemoryReservation(memory), MemoryReservation(memory)
    first.hold_parsed(100, 120)
    assert memory.used == 220
    second.hold_parsed(300, 9_000)  # it alone would be refused for ever otherwise
    assert memory.used == 520
    third.hold_parsed(100, 9_000)
    assert memory.used == 770
    with pytest.raises(BodyMemoryFullError):
        MemoryReservation(memory).hold_parsed(100, 9_000)


def test_release_is_final_and_once() -> None:
    ended: list[int] = []
    memory = BodyMemory(100)
    lease = MemoryReservation(memory, on_release=lambda: ended.append(memory.used))
    lease.take(10)
    lease.release()
    lease.release()
    assert not lease.take(1)
    assert (ended, memory.used, memory.refused) == ([0], 0, 0)


def owned(memory: BodyMemory, owner: str) -> MemoryReservation:
    return MemoryReservation(memory, owner)


def test_part_of_the_budget_is_kept_for_small_bodies() -> None:
    memory = BodyMemory(80 * SMALL_BODY_BYTES)
    large = [MemoryReservation(memory) for _ in range(8)]
    taken = sum(lease.take(10 * SMALL_BODY_BYTES) for lease in large)
    assert (taken, memory.used) == (7, 70 * SMALL_BODY_BYTES)
    assert all(MemoryReservation(memory).take(SMALL_BODY_BYTES) for _ in range(10))
    assert not MemoryReservation(memory).take(1)


def test_one_address_has_half_of_the_budget_alone_and_a_quarter_beside_others() -> None:
    memory = BodyMemory(1_000)
    first = [owned(memory, "a") for _ in range(60)]
    assert sum(lease.take(10) for lease in first) == 50
    other = [owned(memory, "b") for _ in range(60)]
    assert sum(lease.take(10) for lease in other) == 25
    assert not owned(memory, "a").take(1)
    assert owned(memory, "c").take(10)
    for lease in first:
        lease.release()
    assert owned(memory, "b").take(10)


def test_announcement_is_judged_by_what_its_address_may_have() -> None:
    memory = BodyMemory(1_000)
    assert owned(memory, "a").take(400)
    announcing, other = owned(memory, "a"), owned(memory, "b")
    announcing.expect(101)
    other.expect(250)
    other.check()
    with pytest.raises(BodyMemoryFullError):
        announcing.check()


def test_random_histories_stay_within_the_budget() -> None:
    rng = random.Random(7)
    memory = BodyMemory(1_000)
    leases = [owned(memory, str(n % 4)) for n in range(20)]
    for _ in range(5_000):
        number = rng.randrange(len(leases))
        lease = leases[number]
        if not lease.take(rng.randrange(200)) or rng.random() < 0.1:
            lease.release()
            leases[number] = owned(memory, str(number % 4))
        assert memory.used == sum(lease.held for lease in leases) <= 1_000
    for lease in leases:
        lease.release()
    assert memory.used == 0


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (b"gzip", gzip.compress(b"x" * 900, mtime=0)),
        (
            b"gzip",
            gzip.compress(b"x" * 800, mtime=0) + gzip.compress(b"x" * 100, mtime=0),
        ),  # whose end tells of 100
        (b"deflate", zlib.compress(b"x" * 900)),  # whose end tells nothing
    ],
)
async def test_inflated_bytes_count(encoding: bytes, body: bytes) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = {b"content-encoding": encoding}
    with pytest.raises(BodyMemoryFullError):
        await read_body(receive, headers, LIMITS, MemoryReservation(BodyMemory(899)), look)
    memory = BodyMemory(1_000)
    assert len(await read_body(receive, headers, LIMITS, MemoryReservation(memory), look)) == 900
    assert memory.used == 900


async def test_refusal_while_a_body_is_awaited_ends_the_waiting() -> None:
    lease = MemoryReservation(BodyMemory(10))

    async def receive() -> Message:
        await asyncio.sleep(0)
        lease.take(11)
        return {"type": "http.request", "body": b"", "more_body": True}

    with pytest.raises(BodyMemoryFullError):
        await read_body(receive, {}, LIMITS, lease, look)


async def test_size_limit_stands_before_memory() -> None:
    async def receive() -> Message:
        raise AssertionError

    with pytest.raises(BodyTooLargeError):
        await read_body(receive, {b"content-length": b"1001"}, LIMITS, MemoryReservation(BodyMemory(1)), look)


@pytest.mark.regression("Bodies that could not fit took the memory of those that did.")
async def test_body_that_says_it_cannot_fit_is_refused_before_it_is_inflated() -> None:
    turns: list[int] = []

    async def turn(size_bytes: int) -> None:
        turns.append(size_bytes)

    memory, headers = BodyMemory(3_000_000), {b"content-encoding": b"gzip"}
    limits = BodyLimits(bytes_max=1_500_000, compressed_bytes_max=900_000)
    body = gzip.compress(b"x" * 1_500_000)

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    first, second = MemoryReservation(memory), MemoryReservation(memory)
    await read_body(receive, headers, limits, first, turn)
    assert first.held == 1_500_000
    turns.clear()
    with pytest.raises(BodyMemoryFullError):
        await read_body(receive, headers, limits, second, turn)
    assert not turns
    assert memory.used == 1_500_000
