"""
Claim: a group of workers keeps every promise through the loss, freeze, stop and restart of any of them, and
through a cut between two; and who sends to the others is answered with 200 all the while.

The figures are loadtests/results/group_faults.md's; here nothing is asserted of time, and answers have it.
"""

import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.fault.conftest import PARTITIONS, LogUnderTest, kafka_log
from tests.support.gateway import Gateway
from tests.support.http import cli, division_of
from tests.support.peer_proxy import PeerProxy
from tests.support.processes import HOST, children_of, free_port
from tests.support.verdict import assert_exactly_once, assert_sessions_whole, read_kafka
from tests.support.waiting import until_in_thread
from tests.support.workers import Worker, Workers

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LOAD_S = 1.5  # the load, not a wait for a condition
PATIENT = {"GATEWAY_ANSWER_TIMEOUT": "20s", "GATEWAY_KAFKA_REQUEST_TIMEOUT": "25s"}
CUT_S = 4.0  # long enough for both sides to find each other dead
PRE_STOP_S = 1.0  # the chart's preStop, shorter
ENDPOINTS_S = 0.5  # for load balancers to notice that a pod goes
IS_READY = re.compile(
    r"is ready \(\w+, kafka log, \S+-[01]\)"
)  # the child whose banner comes last may lag /readyz
CLAIM = re.compile(r"partition claimed.* partition=(\d+) topic=(\S+)")


@pytest.fixture
def log(kafka_bootstrap: str) -> LogUnderTest:
    log = kafka_log(kafka_bootstrap)
    return LogUnderTest({**log.env, **PATIENT}, log.read)


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


async def test_group_survives_loss_stop_and_freeze_of_a_worker(workers: Workers, log: LogUnderTest) -> None:
    await count(workers, log)
    await lose(workers)
    await stop(workers)
    await freeze(workers)
    await judge(workers, log)


async def count(workers: Workers, log: LogUnderTest) -> None:
    """While nothing happens, each event is counted once in the group, by the worker that answered it."""
    async with workers.load() as load:
        await asyncio.sleep(LOAD_S)
    assert not load.refusals()
    answered = sum(said.events for said in load.said())
    committed = await log.read(workers.all[0])
    totals = workers.totals()
    assert (totals["received"], totals["accepted"]) == (answered, len(committed))
    assert totals["received"] == totals["accepted"] + totals["duplicates"]


async def lose(workers: Workers) -> None:
    """A worker is killed and started again; its lanes answer soon, and who asks the others is not refused."""
    victim, other, _ = workers.all
    async with workers.load() as load:
        await asyncio.sleep(LOAD_S)
        victim.is_in_use = False
        victim.kill()
        killed_at = time.monotonic()
        await workers.all_answer(other)
        await asyncio.to_thread(victim.start)
        victim.is_in_use = True
        await workers.settle()
    assert not load.refusals(killed_at)


async def stop(workers: Workers) -> None:
    """A worker is stopped in order and started again; nobody is refused, whoever is asked."""
    leaving = workers.all[1]
    async with workers.load() as load:
        await asyncio.sleep(LOAD_S)
        assert await asyncio.to_thread(leaving.stop) == 0
        leaving.is_in_use = False
        await asyncio.to_thread(leaving.start)
        leaving.is_in_use = True
        await workers.settle()
    assert not load.errors()
    assert not load.refusals(but=[leaving])


@pytest.mark.regression(
    "A worker that was frozen through a plan sent events to lanes of before, which stored them again."
)
@pytest.mark.parametrize("befalls", ["nothing", "freeze"])
async def test_group_is_divided_under_load_and_back_again(
    workers: Workers, log: LogUnderTest, kafka_bootstrap: str, befalls: str
) -> None:
    """
    Workers go on with twice the partitions, then with as many as before, though one sleeps through both.

    tests/fault/test_reshard_kills.py kills them.
    """
    async with workers.load(devices=2) as load:
        for plan, partitions in enumerate((2 * PARTITIONS, PARTITIONS), 1):
            await asyncio.sleep(LOAD_S)
            await divide(workers, partitions, befalls)
            await until_in_thread(partial(all_follow, workers, plan))
            await workers.settle()
        await asyncio.sleep(LOAD_S)
    assert befalls != "nothing" or {said.status for said in load.said()} == {200}

    await workers.repeat()
    committed = await read_kafka(kafka_bootstrap, log.env["GATEWAY_TOPIC"], 2 * PARTITIONS)
    assert {record.partition for record in committed} == set(range(2 * PARTITIONS))
    division = division_of(workers.all[0])
    assert [row["slots"] > 0 for row in division] == [True] * PARTITIONS + [False] * PARTITIONS
    assert_exactly_once(committed, workers.clients, division=division)
    assert_sessions_whole([record for record in committed if record.session])


def all_follow(workers: Workers, plan: int) -> bool:
    return all(worker.stats()["reshard"]["plan"] == plan for worker in workers.all)


async def divide(workers: Workers, partitions: int, befalls: str) -> None:
    """Have the topic divided into so many partitions, and something befall a worker meanwhile."""
    victim, asked = workers.all[1], workers.all[0]
    arguments = ("--partitions", str(partitions), "--notice", "0", "--url", asked.admin_url)
    command = partial(cli, asked, "reshard", "plan", *arguments)
    if befalls == "freeze":
        victim.is_in_use = False
        victim.process.send_signal(signal.SIGSTOP)
        refused = await asyncio.to_thread(command)
        assert (refused.returncode, b"does not answer" in refused.stderr) == (2, True), refused.stderr
    forced = () if befalls == "nothing" else ("--force",)
    dividing = asyncio.create_task(asyncio.to_thread(command, *forced))
    try:
        done = await dividing
    finally:
        if befalls == "freeze":
            victim.process.send_signal(signal.SIGCONT)
            victim.is_in_use = True
    assert done.returncode == 0, done.stderr.decode()


async def freeze(workers: Workers) -> None:
    """A worker is frozen until others serve its lanes, and wakes up."""
    frozen, other, _ = workers.all
    async with workers.load() as load:
        await asyncio.sleep(LOAD_S)
        frozen.is_in_use = False
        frozen.process.send_signal(signal.SIGSTOP)
        frozen_at = time.monotonic()
        try:
            await workers.all_answer(other)
            assert "active" in other.states()  # and its statistics are what they always are
            await asyncio.sleep(LOAD_S)
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        frozen.is_in_use = True
        await workers.settle()
        await asyncio.sleep(LOAD_S)
    assert not load.refusals(frozen_at, but=[frozen])


async def test_cut_between_two_workers_does_no_harm(log: LogUnderTest, tmp_path: Path) -> None:
    workers = Workers(tmp_path, log.env, 0)
    async with AsyncExitStack() as stack:
        proxies = []
        for number in range(3):
            port, name = free_port(), f"worker-{number}"
            proxies.append(await stack.enter_async_context(PeerProxy(port)))
            address = f"{HOST}:{proxies[-1].port}"
            workers.all.append(
                workers.new(name, GATEWAY_PEER_LISTEN=f"{HOST}:{port}", GATEWAY_PEER_ADDRESS=address)
            )
        stack.push_async_callback(workers.stop)
        await workers.start()
        one, other, between = workers.all
        async with workers.load() as load:
            await asyncio.sleep(LOAD_S)
            proxies[0].cut(other.name)
            proxies[1].cut(one.name)
            await asyncio.sleep(CUT_S)
            await workers.all_answer(between)  # the two cannot ask each other
            for proxy in proxies:
                proxy.heal()
            await workers.settle()
            await asyncio.sleep(LOAD_S)
            healed_at = time.monotonic()
            await asyncio.sleep(LOAD_S)
        assert not load.refusals(healed_at)
        claims = Counter(CLAIM.findall("".join(worker.log_path.read_text() for worker in workers.all)))
        assert set(claims.values()) == {1}, "the two take their lanes from each other for ever"
        await judge(workers, log)


async def test_workers_of_one_machine_are_started_again_and_stop_together(
    log: LogUnderTest, tmp_path: Path
) -> None:
    workers = Workers(tmp_path, log.env, 0)
    parent = Worker(tmp_path, "both", log.env, options=("--workers", "2"))
    workers.all.append(parent)
    try:
        await asyncio.to_thread(parent.start)
        workers.make_probes()
        first = children_of(parent.process.pid)
        assert len(first) == 2
        async with workers.load():
            await asyncio.sleep(LOAD_S)
            os.kill(first[0], signal.SIGKILL)
            await until_in_thread(lambda: len(set(children_of(parent.process.pid)) - set(first)) == 1)
            await workers.all_answer(parent)
        await judge(workers, log)
        both = children_of(parent.process.pid)
        assert await asyncio.to_thread(parent.stop) == 0
        await until_in_thread(lambda: not any(Path(f"/proc/{pid}").exists() for pid in both))
    finally:
        await workers.stop()


@pytest.mark.regression(
    "A new parent of workers failed on data folders that the killed one's workers still held."
)
async def test_workers_of_one_machine_stop_in_order_for_a_new_parent_when_theirs_is_killed(
    log: LogUnderTest, tmp_path: Path
) -> None:
    parent = Worker(tmp_path, "both", log.env, options=("--workers", "2"))
    try:
        await asyncio.to_thread(parent.start)
        both = children_of(parent.process.pid)
        parent.kill()
        await asyncio.to_thread(parent.start, wait=False)  # it waits for their data folders
        await until_in_thread(lambda: not any(Path(f"/proc/{pid}").exists() for pid in both))
        await asyncio.to_thread(parent.wait_until_ready)  # not before: they share its ports
        await until_in_thread(lambda: IS_READY.search(parent.log_path.read_text()) is not None)
        said = parent.log_path.read_text()
        assert await asyncio.to_thread(parent.stop) == 0
    finally:
        parent.kill()
    assert len(re.findall(r"\] stopped ", said)) == 2


def test_workers_of_one_machine_need_a_log_that_can_be_shared(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "alone")
    done = cli(gateway, "serve", "--workers", "2")
    said = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout, len(said)) == (2, b"", 1)
    assert said[0].startswith("gateway: --workers needs GATEWAY_LOG=kafka")
    assert not (gateway.data / "log.sqlite").exists()


async def test_older_of_two_workers_with_one_name_does_no_harm(
    workers: Workers, log: LogUnderTest, tmp_path: Path
) -> None:
    older = workers.all[0]
    newer = Worker(tmp_path, "newer", {**log.env, "GATEWAY_WORKER_ID": older.name})
    older.is_in_use = newer.is_in_use = False
    workers.all.append(newer)
    async with workers.load() as load:
        await asyncio.to_thread(newer.start)
        newer.is_in_use = True
        await until_in_thread(lambda: set(older.states()) == {"unassigned"})
        workers.all.remove(older)
        try:
            await workers.settle()
            alone_at = time.monotonic()
            await asyncio.sleep(LOAD_S)
        finally:
            assert not older.is_ready()
            await asyncio.to_thread(older.stop)
    assert not load.refusals(alone_at)
    await judge(workers, log)


async def test_rolling_update_of_a_stateful_set_is_answered_with_200_throughout(
    workers: Workers, log: LogUnderTest
) -> None:
    async with workers.load() as load:
        await asyncio.sleep(LOAD_S)
        for pod in reversed(workers.all):  # the highest ordinal first, the next one once it is ready
            await replace(pod, drain_before=pod is workers.all[1])
        await asyncio.sleep(LOAD_S)
    assert not load.refusals()
    await workers.settle()
    await judge(workers, log)


async def replace(pod: Worker, *, drain_before: bool) -> None:
    """Do what the kubelet does with a pod: preStop, SIGTERM, grace, start, wait for readiness."""
    if drain_before:  # an operator did, by hand
        done = await asyncio.to_thread(cli, pod, "drain", "--url", pod.admin_url)
        assert done.returncode == 0, done.stderr
        assert "active" not in pod.states()
    await asyncio.sleep(ENDPOINTS_S)
    pod.is_in_use = False
    await asyncio.sleep(PRE_STOP_S - ENDPOINTS_S)
    pod.process.terminate()
    assert await asyncio.to_thread(pod.wait) == 0, pod.log_tail()
    pod.start(wait=False)
    await asyncio.to_thread(pod.wait_until_ready)
    pod.is_in_use = True
