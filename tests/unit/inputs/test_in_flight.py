"""Claim: a bounded number of batches is decided at once; the position moves over decided ones alone."""

import asyncio

import pytest

from app.inputs.in_flight import BATCHES_MAX, InFlight


class Decisions:
    """Verdicts that a test gives."""

    def __init__(self, in_flight: InFlight) -> None:
        self.in_flight = in_flight
        self.futures: list[asyncio.Future[None]] = []

    def begin(self, end: int, *keys: bytes) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.futures.append(future)

        async def decide() -> None:
            await future

        self.in_flight.begin(end, frozenset(keys), decide())

    async def give(self, number: int, error: Exception | None = None) -> None:
        if error is None:
            self.futures[number].set_result(None)
        else:
            self.futures[number].set_exception(error)
        await turns()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_position_moves_over_what_is_decided_without_a_gap() -> None:
    in_flight = InFlight()
    decisions = Decisions(in_flight)
    for end in (10, 20, 30):
        decisions.begin(end)
    for number, position in ((1, None), (0, 20), (2, 30)):
        await decisions.give(number)
        in_flight.settle()
        assert in_flight.position == position


async def test_markers_are_passed_with_the_last_batch() -> None:
    in_flight = InFlight()
    in_flight.pass_markers(5)
    assert in_flight.position == 5
    decisions = Decisions(in_flight)
    decisions.begin(10)
    in_flight.pass_markers(12)
    assert in_flight.position == 5
    await decisions.give(0)
    in_flight.settle()
    assert in_flight.position == 12


async def test_no_more_batches_begin_than_are_allowed() -> None:
    in_flight = InFlight()
    decisions = Decisions(in_flight)
    for end in range(1, BATCHES_MAX + 1):
        await in_flight.make_room()
        decisions.begin(end)
    waiting = asyncio.ensure_future(in_flight.make_room())
    await decisions.give(1)
    assert not waiting.done(), "the oldest is the one that counts"
    await decisions.give(0)
    await waiting
    assert in_flight.position == 2


async def test_copies_are_not_decided_at_once() -> None:
    in_flight = InFlight()
    decisions = Decisions(in_flight)
    decisions.begin(1, b"a", b"b")
    decisions.begin(2, b"c")
    await in_flight.when_apart(frozenset([b"d"]))
    waiting = asyncio.ensure_future(in_flight.when_apart(frozenset([b"b", b"d"])))
    await decisions.give(1)
    assert not waiting.done()
    await decisions.give(0)
    await waiting


async def test_failure_is_raised_and_passed_by_nothing() -> None:
    in_flight = InFlight()
    decisions = Decisions(in_flight)
    decisions.begin(1)
    decisions.begin(2)
    await decisions.give(1)
    await decisions.give(0, ValueError("lost"))
    with pytest.raises(ValueError, match="lost"):
        in_flight.settle()
    assert in_flight.position is None


async def test_end_counts_what_is_decided_and_cancels_the_rest() -> None:
    in_flight = InFlight()
    decisions = Decisions(in_flight)
    for end in (1, 2, 3):
        decisions.begin(end)
    await decisions.give(0)
    await decisions.give(2)
    await in_flight.end()
    assert in_flight.position == 1
    assert decisions.futures[1].cancelled()
    await in_flight.drain()
    assert in_flight.position == 1
