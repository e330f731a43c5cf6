"""Claim: the workers of a group share the partitions of an input out, and know the events of all doors."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.integration.test_inputs import event
from tests.support.group_inputs import READ, Group
from tests.support.http import AUTH
from tests.support.kafka import create_topic
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.kafka


@pytest.fixture
async def group(tmp_path: Path, kafka_bootstrap: str) -> AsyncIterator[Group]:
    group = Group(tmp_path, kafka_bootstrap)
    await create_topic(kafka_bootstrap, group.input, partitions=READ)
    yield group
    await group.workers.stop()


async def test_all_doors_of_all_workers_know_an_event(group: Group) -> None:
    await group.workers.start()
    await group.send([event("both")])
    async with asyncio.timeout(PATIENCE_S):
        while not await group.stored():
            await asyncio.sleep(0.1)
    for worker in group.workers.all:
        async with httpx.AsyncClient(base_url=worker.url, auth=AUTH) as client:
            answer = (await client.post("/v1/events", content=event("both"))).raise_for_status()
        assert answer.headers["Gateway-Duplicates"] == "1"
    assert await group.stored() == Counter(["both"])
