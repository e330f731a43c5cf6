"""Claim: of a group, any worker tells the last hour of all, and its tail shows its own clients' events."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.fault.conftest import kafka_log
from tests.support.http import AUTH, new_event
from tests.support.waiting import until_in_thread
from tests.support.workers import Worker, Workers

pytestmark = pytest.mark.slow

EVENTS = 40


@pytest.fixture
async def workers(kafka_bootstrap: str, tmp_path: Path) -> AsyncIterator[Workers]:
    """Two workers that have shared the lanes out."""
    workers = Workers(tmp_path, kafka_log(kafka_bootstrap).env, 2)
    try:
        await workers.start()
        yield workers
    finally:
        await workers.stop()


def history(worker: Worker, query: str = "") -> dict[str, Any]:
    document: dict[str, Any] = httpx.get(f"{worker.admin_url}/admin/v1/history{query}").json()
    return document


def accepted(worker: Worker, query: str = "") -> int:
    return sum(history(worker, query)["accepted"])


async def tail(worker: Worker, count: int, listening: asyncio.Event) -> list[dict[str, Any]]:
    """Return so many events of a worker's tail; `listening` says when it has begun."""
    events: list[dict[str, Any]] = []
    async with (
        httpx.AsyncClient() as http,
        http.stream("GET", f"{worker.admin_url}/admin/v1/tail") as answer,
    ):
        async for line in answer.aiter_lines():
            document = orjson.loads(line)
            listening.set()
            if document["kind"] == "event":
                events.append(document)
            if len(events) == count:
                break
    return events


async def test_any_worker_tells_what_all_have_decided(workers: Workers) -> None:
    one, other = workers.all
    listening = asyncio.Event()
    tailing = asyncio.create_task(tail(one, EVENTS, listening))
    await listening.wait()
    receipts = []
    for worker in (one, other):
        async with httpx.AsyncClient(base_url=worker.url, auth=AUTH) as client:
            answer = await client.post("/v1/events", json=[new_event() for _ in range(EVENTS)])
            receipts.append(answer.json()["receipts"])
    own = {(receipt["messageId"], receipt["partition"], receipt["offset"]) for receipt in receipts[0]}
    told = {(event["message_id"], event["partition"], event["offset"]) for event in await tailing}
    assert told == own, "its clients' events, those that the other worker stored among them"

    counts = [worker.stats()["totals"]["accepted"] for worker in workers.all]
    await until_in_thread(lambda: [accepted(one), accepted(other)] == [sum(counts)] * 2)
    assert [accepted(worker, "?worker") for worker in workers.all] == counts
    other.kill()
    await until_in_thread(lambda: accepted(one) == counts[0])
