"""
Claim: a group of workers keeps every promise through the loss, freeze, stop and restart of any of them, and
through a cut between two; and who sends to the others is answered with 200 all the while.

The figures are loadtests/results/group_faults.md's; here are bounds that a loaded machine keeps as well.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fault.conftest import LogUnderTest, kafka_log
from tests.support.verdict import assert_exactly_once
from tests.support.workers import Workers, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LOAD_S = 2.0  # the load, not a wait for a condition
TAKEOVER_S = 15.0


@pytest.fixture
def log(kafka_bootstrap: str) -> LogUnderTest:
    return kafka_log(kafka_bootstrap)


@pytest.fixture
async def workers(log: LogUnderTest, tmp_path: Path) -> AsyncIterator[Workers]:
    """Three workers that have shared the lanes out."""
    workers = Workers(tmp_path, log.env, 3)
    try:
        await workers.start()
        yield workers
    finally:
        await workers.stop()


async def judge(workers: Workers, log: LogUnderTest) -> None:
    """Nothing is lost or doubled, every worker gives the same receipts, and each lane's sequence is whole."""
    await workers.repeat()
    assert_exactly_once(await log.read(workers.all[0]), workers.clients)


async def test_group_counts_every_event_once(workers: Workers, log: LogUnderTest) -> None:
    async with workers.load() as load:
        await asyncio.sleep(LOAD_S)
    assert not load.refusals()
    answered = sum(said.events for said in load.said())
    committed = await log.read(workers.all[0])
    totals = workers.totals()
    assert (totals["received"], totals["accepted"]) == (answered, len(committed))
    assert totals["received"] == totals["accepted"] + totals["duplicates"]
    await judge(workers, log)


async def test_killed_workers_lanes_answer_again_and_nobody_else_is_refused(
    workers: Workers, log: LogUnderTest
) -> None:
    victim, other, _ = workers.all
    async with workers.load() as load:
        await asyncio.sleep(LOAD_S)
        victim.is_in_use = False
        victim.kill()
        killed_at = time.monotonic()
        took_s = await workers.all_answer(other)
        await asyncio.sleep(LOAD_S)
        await asyncio.to_thread(victim.start)
        victim.is_in_use = True
        await workers.settle()
        await asyncio.sleep(LOAD_S)
    assert not load.refusals(killed_at)
    assert took_s < TAKEOVER_S
    await judge(workers, log)


async def test_stopped_worker_hands_over_and_nobody_is_refused(workers: Workers, log: LogUnderTest) -> None:
    leaving = workers.all[0]
    async with workers.load() as load:
        await asyncio.sleep(LOAD_S)
        assert await asyncio.to_thread(leaving.stop) == 0
        leaving.is_in_use = False
        await asyncio.sleep(LOAD_S)
        await asyncio.to_thread(leaving.start)
        leaving.is_in_use = True
        await workers.settle()
        await asyncio.sleep(LOAD_S)
    assert not load.errors()
    assert not load.refusals(but=[leaving])
    await judge(workers, log)


async def test_frozen_worker_that_wakes_up_does_no_harm(workers: Workers, log: LogUnderTest) -> None:
    frozen, other, _ = workers.all
    async with workers.load() as load:
        await asyncio.sleep(LOAD_S)
        frozen.is_in_use = False
        frozen.process.send_signal(signal.SIGSTOP)
        frozen_at = time.monotonic()
        try:
            await workers.all_answer(other)
            await until(lambda: "active" in other.states(), TAKEOVER_S)
            await asyncio.sleep(LOAD_S)
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        frozen.is_in_use = True
        await workers.settle()
        await asyncio.sleep(LOAD_S)
    assert not load.refusals(frozen_at, but=[frozen])
    await judge(workers, log)
