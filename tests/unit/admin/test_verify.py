"""Claim: where an index does not say what its log says, an operator is told, and nothing is changed by it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest

from app.admin import verify
from dedupe.model.types import Entry, Event
from dedupe.partition.lane import Lane
from dedupe.storage.index import IndexUpdate
from tests.sim.session_world import SessionWorld
from tests.sim.world import World
from tests.unit.admin.admin_port import admin_of, client_of

FAST = "?rate=200000"


@asynccontextmanager
async def serving(
    world: World, count: int = 40
) -> AsyncIterator[tuple[httpx.AsyncClient, Lane, list[Event]]]:
    """Yield a client of a world that serves, its first lane, and what that has stored."""
    router = await world.start()
    events = [world.event(str(number)) for number in range(count)]
    for event in events:
        await world.deliver([event])
    try:
        async with client_of(admin_of(router, world.log)) as client:
            yield client, router.lanes[0], [event for event in events if event.partition == 0]
    finally:
        await world.crash()


async def lines_of(client: httpx.AsyncClient, query: str = FAST, partition: int = 0) -> list[dict[str, Any]]:
    answer = await client.get(f"/admin/v1/verify/{partition}{query}")
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    return [orjson.loads(line) for line in answer.content.splitlines()]


async def until_one_runs() -> None:
    def names() -> set[str]:
        return {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}

    while "Verification._run" not in names():
        await asyncio.sleep(0)


def differences_in(lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(line["kind"], line["message_id"]) for line in lines if line["type"] == "difference"]


def write(lane: Lane, event: Event, entry: Entry) -> None:
    """Have the index say something else of an event."""
    index = lane.partition_index.index
    index.apply(IndexUpdate([(event.key, entry)], index.state))


async def test_index_that_says_what_its_log_says() -> None:
    async with serving(World()) as (client, lane, stored):
        before = lane.partition_index.index.state
        lines = await lines_of(client)
        assert lane.partition_index.index.state == before
        assert [line["type"] for line in lines] == ["begin", "end"]
        assert (lines[0]["start_offset"], lines[0]["end_offset"]) == (1, before.applied_offset)
        assert (lines[1]["verified"], lines[1]["records"], lines[1]["differences"]) == (True, len(stored), 0)


async def test_each_kind_of_difference_is_told_with_its_event() -> None:
    async with serving(World()) as (client, lane, stored):
        entries = lane.partition_index.index.lookup([event.key for event in stored])
        moved, other = entries[1], entries[2]
        assert moved is not None
        assert other is not None
        write(lane, stored[1], Entry(moved.offset + 1, moved.fingerprint))
        write(lane, stored[2], Entry(other.offset, b"otherwis"))
        lane.partition_index.index._disk.entries.pop(stored[0].key)  # type: ignore[attr-defined]
        lines = await lines_of(client)
        assert differences_in(lines) == [
            ("missing", stored[0].message_id),
            ("elsewhere", stored[1].message_id),
            ("content", stored[2].message_id),
        ]
        assert lines[2]["index_offset"] == moved.offset + 1
        assert (lines[-1]["verified"], lines[-1]["differences"]) == (False, 3)


async def test_records_that_the_log_has_lost_are_a_gap() -> None:
    world = World()
    async with serving(world) as (client, _lane, _stored):
        world.log.lose_tail("events", 0, 2)
        lines = await lines_of(client)
        assert differences_in(lines) == [("gap", "")]
        assert lines[-1]["verified"] is False


async def test_second_key_of_a_sessions_event_is_compared_too() -> None:
    world = SessionWorld()
    router = await world.start()
    event = world.sent(1, own_id="own")
    await world.ask(event)
    async with client_of(admin_of(router, world.log)) as client:
        lane = router.lanes[event.partition]
        assert (await lines_of(client, partition=event.partition))[-1]["verified"] is True
        assert event.secondary_key is not None
        lane.partition_index.index._disk.entries.pop(event.secondary_key)  # type: ignore[attr-defined]
        assert differences_in(await lines_of(client, partition=event.partition)) == [("missing", "c/own")]
    await world.crash()


async def test_progress_is_told_and_one_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "PROGRESS_S", 0.0)
    monkeypatch.setattr("dedupe.partition.verifier.LOOKED_UP_MAX", 5)
    async with serving(World()) as (client, _lane, stored):
        first = asyncio.create_task(lines_of(client, "?rate=100"))
        await until_one_runs()
        busy = await client.get(f"/admin/v1/verify/0{FAST}")
        assert (busy.status_code, busy.json()["code"]) == (409, "busy")
        lines = await first
        progress = [line for line in lines if line["type"] == "progress"]
        assert [line["records"] for line in progress] == [*range(5, len(stored), 5), len(stored)]
        assert progress[-1]["ratio"] > progress[0]["ratio"] > 0
        assert (await lines_of(client))[-1]["verified"] is True


async def test_lane_that_closes_its_index_ends_it_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedupe.partition.verifier.LOOKED_UP_MAX", 5)
    async with serving(World()) as (client, lane, _stored):
        running = asyncio.create_task(lines_of(client, "?rate=100"))
        await until_one_runs()
        lane.drain()
        lines = await running
        assert (lines[-1]["type"], lines[-1]["code"]) == ("error", "index_unavailable")
        answer = await client.get("/admin/v1/verify/0")
        assert (answer.status_code, answer.json()["code"]) == (503, "lane_not_active")


async def test_partition_that_is_not_there_and_rate_that_is_none() -> None:
    async with serving(World(), count=0) as (client, _lane, _stored):
        for path, status in (("9", 404), ("0?rate=0", 400), ("x", 400)):
            assert (await client.get(f"/admin/v1/verify/{path}")).status_code == status
        quarantine = await lines_of(client, "?quarantine=true")
        assert (quarantine[0]["topic"], quarantine[-1]["verified"]) == ("events.quarantine", True)
