"""
Claim: snapshots go to stores that speak S3 and come back from them, also over a link that cuts, delays and
truncates; without the store events are taken as before, and the log has every index.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.integration.test_snapshots import (
    CONSTANTS,
    EVENTS,
    Stored,
    lose_index,
    send,
    snapshots_of,
)
from tests.support.gateway import Gateway
from tests.support.http import new_event
from tests.support.s3_stores import BUCKET, COMMANDS, s3_environment, s3_store
from tests.support.slow_link import SlowLink
from tests.support.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=COMMANDS)
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a store with an empty bucket."""
    with s3_store(request.param, tmp_path_factory.mktemp("s3") / "log") as number:
        yield number


def gateway_in(folder: Path, port: int, **settings: str) -> Gateway:
    """Return a gateway with a prefix of its own in the bucket."""
    return Gateway(
        folder,
        {
            "GATEWAY_PARTITIONS": "1",
            "GATEWAY_QUARANTINE_PARTITIONS": "1",
            "GATEWAY_SNAPSHOTS_URL": f"s3://{BUCKET}/{folder.parent.name}",
            "GATEWAY_SNAPSHOTS_INTERVAL": "1s",
            **s3_environment(port),
            **settings,
        },
        constants=CONSTANTS,
    )


def stored_by(gateway: Gateway) -> Stored:
    events = [new_event() for _ in range(EVENTS)]
    return Stored(gateway, events, send(gateway, events).content)


def test_index_comes_back(tmp_path: Path, port: int) -> None:
    gateway = gateway_in(tmp_path / "gateway", port)
    with gateway:
        stored = stored_by(gateway)
        until(lambda: snapshots_of(gateway)["newest_offset"] == EVENTS)
        gateway.kill()
    lose_index(gateway)
    with gateway:
        stored.answers_as_before()
        partition = gateway.stats()["partitions"][0]
    assert (partition["snapshots"]["restored"], partition["restored_records"]) == (1, 0)


@pytest.mark.parametrize("seed", [1, 2])
async def test_link_that_cuts_delays_and_truncates(tmp_path: Path, port: int, seed: int) -> None:
    async with SlowLink(port, Random(seed), faults=0.3) as link:
        gateway = gateway_in(tmp_path / "gateway", link.port)
        await asyncio.to_thread(gateway.start)
        try:
            stored = await asyncio.to_thread(stored_by, gateway)
            await asyncio.to_thread(until, lambda: snapshots_of(gateway)["newest_offset"] == EVENTS)
            for _ in range(2):
                await asyncio.to_thread(gateway.kill)
                lose_index(gateway)
                await asyncio.to_thread(gateway.start)
                await asyncio.to_thread(stored.answers_as_before)
        finally:
            await asyncio.to_thread(gateway.stop)
        assert link.struck


async def test_bucket_that_is_gone_or_slow_stops_nobody(tmp_path: Path, port: int) -> None:
    async with SlowLink(port, Random(1)) as link:
        gateway = gateway_in(tmp_path / "gateway", link.port)
        gateway._constants["dedupe.storage.snapshots.bucket:REQUEST_S"] = 1.0
        await asyncio.to_thread(gateway.start)
        try:
            stored = await asyncio.to_thread(stored_by, gateway)
            await asyncio.to_thread(until, lambda: snapshots_of(gateway)["newest_offset"] == EVENTS)
            link.bytes_a_second = 1_000.0
            await asyncio.to_thread(gateway.kill)
            lose_index(gateway)
            await asyncio.to_thread(gateway.start)
            await asyncio.to_thread(stored.answers_as_before)
            partition = (await asyncio.to_thread(gateway.stats))["partitions"][0]
            assert partition["restored_records"] == EVENTS
            assert partition["snapshots"]["failed"].keys() == {"slow"}
        finally:
            await asyncio.to_thread(gateway.stop)
    with gateway:  # nobody listens any more
        stored.answers_as_before()
        assert send(gateway, [new_event()]).headers["Gateway-Accepted"] == "1"
        until(lambda: "bucket" in snapshots_of(gateway)["failed"])
