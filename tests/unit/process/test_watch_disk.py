"""Claim: requests are taken only while the disk is known to have room."""

import asyncio
from pathlib import Path

import pytest

from app.process.disk import Disk
from dedupe.model.identity import Identity
from dedupe.model.quarantine import Quarantine
from dedupe.model.types import Topic
from dedupe.router import Router


@pytest.fixture
def router() -> Router:
    return Router([], [], Quarantine(Identity(b"a secret of the tests"), Topic("events.quarantine", 1)))


async def room_after_a_look(router: Router, path: Path, free_min_bytes: int) -> bool:
    disk = Disk(path, free_min_bytes=free_min_bytes)
    watching = asyncio.ensure_future(disk.watch(router, interval_s=3_600))
    await asyncio.sleep(0)
    watching.cancel()
    await asyncio.wait([watching])
    assert router.has_disk_room == disk.has_room
    return router.has_disk_room


async def test_disk_that_cannot_be_read_has_no_room(router: Router, tmp_path: Path) -> None:
    assert not await room_after_a_look(router, tmp_path / "unmounted", 1)


async def test_full_disk_has_no_room_until_it_has_again(router: Router, tmp_path: Path) -> None:
    assert not await room_after_a_look(router, tmp_path, 1 << 62)
    assert await room_after_a_look(router, tmp_path, 1)
