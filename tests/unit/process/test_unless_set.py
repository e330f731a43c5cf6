"""Claim: what a process does until it is told to stop ends at once then, and has cleaned up."""

import asyncio

import pytest

from app.process.life import unless_set
from dedupe.model.errors import ConfigurationError


async def test_result_is_returned_and_an_error_raised() -> None:
    async def fail() -> None:
        raise ConfigurationError("no")

    assert await unless_set(asyncio.Event(), asyncio.sleep(0, 7)) == 7
    with pytest.raises(ConfigurationError, match="no"):
        await unless_set(asyncio.Event(), fail())


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "meanwhile"])
async def test_it_is_cancelled_once_told_to_stop(is_late: bool) -> None:
    stop, began, cleaned = asyncio.Event(), asyncio.Event(), list[str]()

    async def wait() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    if not is_late:
        stop.set()
    running = asyncio.ensure_future(unless_set(stop, wait()))
    await began.wait()
    stop.set()

    await asyncio.wait([running])
    assert cleaned == ["up"]


async def test_whoever_cancels_it_cancels_what_it_does() -> None:
    began, cleaned = asyncio.Event(), list[str]()

    async def wait() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            cleaned.append("up")

    running = asyncio.ensure_future(unless_set(asyncio.Event(), wait()))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned == ["up"]
