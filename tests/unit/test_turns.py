"""Claim: work on the loop is done in short rounds, and every sender gets his turn in them."""

import asyncio

from app.turns import PIECE_COST_BYTES, ROUND_BYTES, Turns


async def test_small_pieces_share_a_round_without_waiting() -> None:
    turns = Turns()
    for _ in range(ROUND_BYTES // (1_024 + PIECE_COST_BYTES)):
        taking = turns.take("a", 1_024)
        try:
            taking.send(None)
        except StopIteration:
            continue
        raise AssertionError("it had to wait")


async def test_one_large_piece_ends_a_round() -> None:
    turns, rounds, done = Turns(), 0, []

    async def work(number: int) -> None:
        await turns.take("a", ROUND_BYTES)
        done.append((number, rounds))

    working = [asyncio.create_task(work(number)) for number in range(5)]
    while len(done) < 5:
        await asyncio.sleep(0)
        rounds += 1
    assert [number for number, _ in done] == [0, 1, 2, 3, 4]
    assert len({at for _, at in done}) == 5
    await asyncio.gather(*working)


async def test_sender_with_one_piece_waits_for_one_of_each_other_sender() -> None:
    turns, done = Turns(), list[str]()

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
    turns, done = Turns(), list[int]()

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
