"""
Claim: through faults of the network and kill -9 of gateway and client, every sequence that the Python client
has given is in the log exactly once, and the gateway's own account of each session agrees.
"""

import asyncio
import itertools
import json
import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fault.conftest import LogUnderTest, kafka_log, sqlite_log
from tests.support.fault_proxy import FaultProxy
from tests.support.gateway import Gateway
from tests.support.verdict import assert_sequences_whole, assert_sessions_whole
from tests.support.waiting import PATIENCE_S

DRIVER = Path(__file__).with_name("python_driver.py")
ROOT = DRIVER.parents[3]
LIVES = 3
EVENTS_MAX = 100_000
LAST_EVENTS = 100
LIFE_S = (0.5, 1.0)


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def log_under_test(request: pytest.FixtureRequest) -> LogUnderTest:
    """Both logs, one after the other."""
    if request.param == "sqlite":
        return sqlite_log()
    return kafka_log(request.getfixturevalue("kafka_bootstrap"))


@pytest.fixture
def gateway(tmp_path: Path, log_under_test: LogUnderTest) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path / "gateway", log_under_test.env)
    yield gateway
    gateway.stop()


async def live(url: str, path: Path, life: int, *, kill_after_s: float | None) -> list[dict[str, Any]]:
    """Run the application, to its end or until it is killed; return what it has printed."""
    count = LAST_EVENTS if kill_after_s is None else EVENTS_MAX
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "tests.e2e.clients.python_driver", url, str(path), str(life), str(count)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    try:
        lines = [await process.stdout.readline()]
        if kill_after_s is not None:
            await asyncio.sleep(kill_after_s)  # the load, not a wait for a condition
            process.kill()
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == (0 if kill_after_s is None else -9), errors.decode()
    lines += output.splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


async def kill_and_restart(gateway: Gateway, rng: random.Random, end: asyncio.Event) -> None:
    """Kill it again and again; leave it started. A start is in a thread, which a cancellation would leave."""
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(end.wait(), rng.uniform(*LIFE_S))
            return
        gateway.kill()
        await asyncio.to_thread(gateway.start)


async def test_every_sequence_is_stored_once_through_faults_and_kills(
    gateway: Gateway, log_under_test: LogUnderTest, tmp_path: Path
) -> None:
    rng = random.Random(13)
    await asyncio.to_thread(gateway.start)
    lives: list[list[dict[str, Any]]] = []
    async with asyncio.timeout(4 * PATIENCE_S), FaultProxy(gateway.port, late_s_max=PATIENCE_S) as proxy:
        end = asyncio.Event()
        killing = asyncio.create_task(kill_and_restart(gateway, rng, end))
        for life in range(LIVES - 1):
            lives.append(
                await live(proxy.url, tmp_path / "queue.db", life, kill_after_s=rng.uniform(*LIFE_S))
            )
        end.set()
        await killing
        # On a busy machine few requests carry many events: then one more life is needed.
        while len(lives) < LIVES or not proxy.has_struck_all:
            lives.append(await live(proxy.url, tmp_path / "queue.db", len(lives), kill_after_s=None))

    committed = await log_under_test.read(gateway)
    stored = sorted((event["life"], event["n"]) for event in map(properties_of, committed))
    assert len(set(stored)) == len(stored)
    for life, numbers in itertools.groupby(stored, key=lambda event: event[0]):
        found = [n for _, n in numbers]
        assert found == list(range(len(found)))
        assert len(found) >= len(lives[life]) - 1
    assert_sequences_whole(committed)
    counts = assert_sessions_whole(committed)
    assert sorted(counts.values()) == sorted(told_of(gateway, lives))


def properties_of(record: Any) -> dict[str, int]:
    properties: dict[str, int] = json.loads(record.value)["properties"]
    return properties


def told_of(gateway: Gateway, lives: list[list[dict[str, Any]]]) -> Iterator[int]:
    """Yield the watermark of each life's session, as the gateway tells it; nothing is missing below."""
    for told_client, *places in lives:
        (session,) = {place["session"] for place in places}
        answer = httpx.get(
            f"{gateway.url}/v1/sessions/{session}",
            auth=("phone", ""),
            headers={"Gateway-Client": told_client["client"]},
        )
        told = answer.raise_for_status().json()
        assert told["missing"] == []
        assert told["highest"] == told["watermark"]
        yield told["watermark"]
