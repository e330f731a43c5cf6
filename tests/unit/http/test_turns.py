"""Claim: work on the loop is done in short rounds, and every sender gets his turn in them."""

import asyncio

import pytest

from app.http.turns import LONE_ROUND_BYTES, PIECE_COST_BYTES, ROUND_BYTES, Turns


async def shared() -> Turns:
    """Turns that two senders have just had."""
    turns = Turns()
    await turns.take("a", 0)
    await turns.take("b", 0)
    await asyncio.sleep(0)
    return turns


async def rounds_of(turns: Turns, pieces: int, size_bytes: int) -> int:
    """In how many looks at the sockets so many pieces of one sender are done."""
    looks, done = 0, set[int]()

    async def work() -> None:
        await turns.take("a", size_bytes)
        done.add(looks)

    working = [asyncio.create_task(work()) for _ in range(pieces)]
    while not all(task.done() for task in working):
        await asyncio.sleep(0)
        looks += 1
    return len(done)


async def test_small_pieces_share_a_round_without_waiting() -> None:
    turns = await shared()
    for _ in range(ROUND_BYTES // (1_024 + PIECE_COST_BYTES)):
        taking = turns.take("a", 1_024)
        with pytest.raises(StopIteration):
            taking.send(None)


async def test_large_piece_ends_a_round_while_several_send() -> None:
    assert await rounds_of(await shared(), 5, ROUND_BYTES) == 5


async def test_lone_sender_does_more_in_a_round() -> None:
    assert await rounds_of(Turns(), 32, LONE_ROUND_BYTES // 8) == pytest.approx(4, abs=1)


async def test_sender_with_one_piece_waits_for_one_of_each_other_sender() -> None:
    turns, done = await shared(), list[str]()

    async def work(sender: str) -> None:
        await turns.take(sender, ROUND_BYTES)
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
    turns, done = await shared(), list[int]()

    async def work(number: int) -> None:
        await turns.take("a", ROUND_BYTES)
        done.append(number)

    working = [asyncio.create_task(work(number)) for number in range(4)]
    await asyncio.sleep(0)
    working[1].cancel()
    working[2].cancel()
    await asyncio.gather(*working, return_exceptions=True)
    assert done == [0, 3]
    await asyncio.wait_for(turns.take("b", 1), 5)
