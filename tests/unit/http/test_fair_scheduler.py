"""
Claim: work on the loop is done in short rounds in which every sender has its turn; beside others a sender
has a bounded share of requests in flight, and the end of each of them is counted.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.http.fair_scheduler import (
    IN_FLIGHT_BYTES_MAX,
    LARGE_PIECE_BYTES,
    LONE_ROUND_BYTES,
    PIECE_COST_BYTES,
    REQUEST_COST_BYTES,
    ROUND_BYTES,
    WAITING_BYTES_MAX,
    FairScheduler,
)
from dedupe.model.clock import Deadline, SystemClock
from dedupe.model.errors import LaneSaturatedError
from tests.support.waiting import PATIENCE_S

BODY_BYTES = 64 * 1024
SHARE = IN_FLIGHT_BYTES_MAX // (BODY_BYTES + REQUEST_COST_BYTES)
WAITING_MAX = WAITING_BYTES_MAX // (BODY_BYTES + REQUEST_COST_BYTES)


async def shared(*, counted_s: float = 60) -> FairScheduler:
    """A scheduler by which two senders have just worked."""
    scheduler = FairScheduler(counted_s=counted_s)
    await scheduler.yield_to_others("a", 0)
    await scheduler.yield_to_others("b", 0)
    await asyncio.sleep(0)
    return scheduler


# ---- pieces of work


async def rounds_of(scheduler: FairScheduler, pieces: int, size_bytes: int) -> int:
    """In how many looks at the sockets so many pieces of one sender are done."""
    looks, done = 0, set[int]()

    async def work() -> None:
        await scheduler.yield_to_others("a", size_bytes)
        done.add(looks)

    working = [asyncio.create_task(work()) for _ in range(pieces)]
    while not all(task.done() for task in working):
        await asyncio.sleep(0)
        looks += 1
    return len(done)


async def test_small_pieces_share_a_round_without_waiting() -> None:
    scheduler = await shared()
    for _ in range(ROUND_BYTES // (1_024 + PIECE_COST_BYTES)):
        taking = scheduler.yield_to_others("a", 1_024)
        with pytest.raises(StopIteration):
            taking.send(None)


async def test_large_piece_ends_a_round_while_several_send() -> None:
    assert await rounds_of(await shared(), 5, ROUND_BYTES) == 5


async def test_lone_sender_does_more_in_a_round() -> None:
    assert await rounds_of(FairScheduler(), 32, LONE_ROUND_BYTES // 8) == pytest.approx(4, abs=1)


@pytest.mark.regression(
    "A large piece of work was done at the end of a full round, and held all other requests."
)
async def test_large_piece_of_a_lone_sender_begins_a_round() -> None:
    scheduler = FairScheduler()
    for _ in range(LONE_ROUND_BYTES // LARGE_PIECE_BYTES - 1):  # nearly full
        await scheduler.yield_to_others("a", LARGE_PIECE_BYTES - PIECE_COST_BYTES)
    large = scheduler.yield_to_others("a", LONE_ROUND_BYTES)
    assert isinstance(large.send(None), asyncio.Future)
    large.close()
    assert await rounds_of(FairScheduler(), 4, LONE_ROUND_BYTES) == 4
    assert await rounds_of(FairScheduler(), 4, LONE_ROUND_BYTES // 2 - PIECE_COST_BYTES) == 2


async def test_large_piece_follows_little_work_in_the_same_round() -> None:
    for scheduler in (await shared(), FairScheduler()):
        for size_bytes in (1_024, LONE_ROUND_BYTES):
            taking = scheduler.yield_to_others("b", size_bytes)
            with pytest.raises(StopIteration):
                taking.send(None)


async def test_sender_with_one_piece_waits_for_one_of_each_other_sender() -> None:
    scheduler, done = await shared(), list[str]()

    async def work(sender: str) -> None:
        await scheduler.yield_to_others(sender, ROUND_BYTES)
        done.append(sender)

    noisy = [asyncio.create_task(work("noisy")) for _ in range(64)]
    other = [asyncio.create_task(work("other")) for _ in range(64)]
    while not done:
        await asyncio.sleep(0)
    quiet = asyncio.create_task(work("quiet"))
    await quiet
    assert len(done) <= 5
    await asyncio.gather(*noisy, *other)
    assert (done.count("noisy"), done.count("other")) == (64, 64)
    assert abs(done[:60].count("noisy") - done[:60].count("other")) <= 2


async def test_turn_of_one_who_left_goes_to_the_next() -> None:
    scheduler, done = await shared(), list[int]()

    async def work(number: int) -> None:
        await scheduler.yield_to_others("a", ROUND_BYTES)
        done.append(number)

    working = [asyncio.create_task(work(number)) for number in range(4)]
    await asyncio.sleep(0)
    working[1].cancel()
    working[2].cancel()
    await asyncio.gather(*working, return_exceptions=True)
    assert done == [0, 3]
    await asyncio.wait_for(scheduler.yield_to_others("b", 1), PATIENCE_S)


# ---- requests in flight


class Crowd:
    """Requests that stay under way until they are told to end."""

    def __init__(self, scheduler: FairScheduler) -> None:
        self.scheduler = scheduler
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
        async with self.scheduler.slot(sender, body_bytes, Deadline(SystemClock(), timeout_s)):
            self.inside += 1
            await self.end.wait()


@pytest.fixture
async def crowd() -> AsyncIterator[Crowd]:
    """A crowd beside others, of which nothing is left at the end."""
    found = Crowd(await shared())
    yield found
    found.end.set()
    await asyncio.gather(*found.tasks, return_exceptions=True)
    assert found.scheduler._senders == {}


async def test_sender_alone_is_let_in_at_once() -> None:
    crowd = Crowd(FairScheduler(counted_s=60))
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
    scheduler = await shared()
    async with scheduler.slot("a", 10 * IN_FLIGHT_BYTES_MAX, Deadline(SystemClock(), 60)):
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


@pytest.mark.regression("A request larger than a source's share was refused for ever.")
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
