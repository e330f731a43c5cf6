"""Claim: beside others a sender has a bounded share of requests under way, and no end of one is forgotten."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.http.in_flight import IN_FLIGHT_BYTES_MAX, REQUEST_COST_BYTES, WAITING_BYTES_MAX, InFlight
from app.http.turns import Turns
from dedupe.clock import Deadline, SystemClock
from dedupe.errors import LaneSaturatedError

BODY_BYTES = 64 * 1024
SHARE = IN_FLIGHT_BYTES_MAX // (BODY_BYTES + REQUEST_COST_BYTES)
WAITING_MAX = WAITING_BYTES_MAX // (BODY_BYTES + REQUEST_COST_BYTES)


async def shared() -> Turns:
    """Turns that two senders have just had."""
    turns = Turns()
    await turns.take("a", 0)
    await turns.take("b", 0)
    return turns


class Crowd:
    """Requests that stay under way until they are told to end."""

    def __init__(self, turns: Turns) -> None:
        self.in_flight = InFlight(turns, counted_s=60)
        self.inside = 0
        self.end = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def send(
        self, sender: str, requests: int, *, timeout_s: float = 60, body_bytes: int = BODY_BYTES
    ) -> list[asyncio.Task[None]]:
        """Begin requests, and return them once those that may be are inside."""
        begun = [asyncio.create_task(self._request(sender, timeout_s, body_bytes)) for _ in range(requests)]
        self.tasks += begun
        await asyncio.sleep(0)
        return begun

    async def _request(self, sender: str, timeout_s: float, body_bytes: int) -> None:
        async with self.in_flight.room(sender, body_bytes, Deadline(SystemClock(), timeout_s)):
            self.inside += 1
            await self.end.wait()


@pytest.fixture
async def crowd() -> AsyncIterator[Crowd]:
    """A crowd beside others, of which nothing is left at the end."""
    found = Crowd(await shared())
    yield found
    found.end.set()
    await asyncio.gather(*found.tasks, return_exceptions=True)
    assert found.in_flight._senders == {}


async def test_sender_alone_is_let_in_at_once() -> None:
    crowd = Crowd(Turns())
    await crowd.send("a", 10 * SHARE)
    assert crowd.inside == 10 * SHARE
    crowd.end.set()
    await asyncio.gather(*crowd.tasks)


async def test_flood_beside_others_has_its_share_and_the_others_have_theirs(crowd: Crowd) -> None:
    await crowd.send("noisy", 10 * SHARE)
    assert crowd.inside == SHARE
    await crowd.send("quiet", 1)
    assert crowd.inside == SHARE + 1


async def test_request_that_ends_lets_the_next_one_in(crowd: Crowd) -> None:
    await crowd.send("noisy", 10 * SHARE)
    crowd.end.set()
    await asyncio.gather(*crowd.tasks)
    assert crowd.inside == 10 * SHARE


async def test_request_larger_than_any_share_is_let_in_alone() -> None:
    in_flight = InFlight(await shared())
    async with in_flight.room("a", 10 * IN_FLIGHT_BYTES_MAX, Deadline(SystemClock(), 60)):
        pass


async def test_wait_ends_with_the_deadline_and_nothing_was_begun(crowd: Crowd) -> None:
    await crowd.send("noisy", SHARE)
    (late,) = await crowd.send("noisy", 1, timeout_s=0)
    with pytest.raises(LaneSaturatedError):
        await late
    assert crowd.inside == SHARE


async def test_flood_waits_only_until_it_would_take_the_memory_of_others(crowd: Crowd) -> None:
    sent = await crowd.send("noisy", SHARE + WAITING_MAX + 1)
    with pytest.raises(LaneSaturatedError):
        await sent[-1]
    assert not any(task.done() for task in sent[:-1])
    sent[-2].cancel()
    await asyncio.gather(sent[-2], return_exceptions=True)
    (next_one,) = await crowd.send("noisy", 1)
    assert not next_one.done()


async def test_one_request_may_wait_however_large_it_is(crowd: Crowd) -> None:
    await crowd.send("noisy", 1)
    (huge,) = await crowd.send("noisy", 1, body_bytes=WAITING_BYTES_MAX)
    assert not huge.done()


async def test_waiting_client_that_left_is_passed_over(crowd: Crowd) -> None:
    await crowd.send("noisy", SHARE)
    left, _ = await crowd.send("noisy", 2)
    left.cancel()
    crowd.tasks[0].cancel()
    await asyncio.gather(left, crowd.tasks[0], return_exceptions=True)
    await asyncio.sleep(0)
    assert crowd.inside == SHARE + 1


async def test_client_that_leaves_as_it_is_let_in_gives_its_place_back(crowd: Crowd) -> None:
    await crowd.send("noisy", SHARE)
    left, next_one = await crowd.send("noisy", 2)
    crowd.tasks[0].cancel()
    await asyncio.sleep(0)  # its end lets `left` in, which has not run yet
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    await asyncio.sleep(0)
    assert crowd.inside == SHARE + 1
    assert not next_one.done()
