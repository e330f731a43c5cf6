"""Claim: of a flood all that is let in is decided in time, and a hanging partition keeps no request out."""

import asyncio

import pytest

from app.http.fair_scheduler import FairScheduler
from dedupe.model.clock import Deadline
from dedupe.model.errors import LaneSaturatedError

BODY_BYTES = 64 * 1024
COMMIT_S = 0.02
ANSWER_TIMEOUT_S = 4.5
SHORT_TIMEOUT_S = 1.0  # less than a queue that is full of one sender's requests takes
ARRIVAL_S = 0.003
FLOOD_ARRIVAL_S = 0.0008  # every second one is the flood's: twice of what a share lets through
REQUESTS = 4_000
PARTITIONS = 16


class LoopClock:
    """The event loop's own time."""

    def now_ms(self) -> int:
        return round(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


CLOCK = LoopClock()


async def test_flood_is_answered_in_time_for_all_that_is_let_in() -> None:
    scheduler = FairScheduler()
    in_time: list[bool] = []
    refused = 0

    async def send() -> None:
        nonlocal refused
        deadline = Deadline(CLOCK, SHORT_TIMEOUT_S)
        try:
            async with scheduler.slot("noisy", BODY_BYTES, deadline):
                await asyncio.sleep(COMMIT_S)
                in_time.append(not deadline.is_over)
        except LaneSaturatedError:
            refused += 1

    async with asyncio.TaskGroup() as requests:
        for number in range(REQUESTS):
            await scheduler.yield_to_others(("noisy", "quiet")[number % 2], 0)
            requests.create_task(send())
            await asyncio.sleep(FLOOD_ARRIVAL_S)

    assert refused
    assert all(in_time), f"{in_time.count(False)} of {len(in_time)} were let in for nothing"


@pytest.mark.regression("A partition that hung kept all requests of its senders out.")
async def test_partition_that_hangs_does_not_keep_out_requests_for_the_others() -> None:
    scheduler = FairScheduler()
    waits_s: list[float] = []

    async def send(number: int) -> None:
        began = CLOCK.monotonic()
        async with scheduler.slot("noisy", 0, Deadline(CLOCK, ANSWER_TIMEOUT_S)):
            waits_s.append(CLOCK.monotonic() - began)
            await asyncio.sleep(COMMIT_S if number % PARTITIONS else 4)

    async with asyncio.TaskGroup() as requests:
        for number in range(REQUESTS):
            await scheduler.yield_to_others(("noisy", "quiet")[number % 2], 0)
            requests.create_task(send(number))
            await asyncio.sleep(ARRIVAL_S)

    assert max(waits_s) < COMMIT_S
    assert scheduler._senders == {}
