"""
How tests wait for what they expect: for a condition, and for as long as a loaded machine may take.

Only a test that fails waits that long, so it is the one limit for whatever has no time of its own: answers,
starts, ends. What is tested for its time has constants of its own, or is tested in virtual time.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

PATIENCE_S = 120.0
POLL_INTERVAL_S = 0.02

Why: TypeAlias = str | Callable[[], str]
"""What is waited for, or what tells of it once it did not come."""


def until(condition: Callable[[], Any], why: Why = "") -> None:
    """Wait until a condition is true. Raises AssertionError after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, _late(why)
        time.sleep(POLL_INTERVAL_S)


async def until_async(condition: Callable[[], Any | Awaitable[Any]], why: Why = "") -> None:
    """Wait until a condition is true, which may be asynchronous. Raises AssertionError after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not await _value(condition()):
        assert time.monotonic() < deadline, _late(why)
        await asyncio.sleep(POLL_INTERVAL_S)


async def until_in_thread(condition: Callable[[], Any], why: Why = "") -> None:
    """As `until_async`, for a condition that blocks: an HTTP request, a large file."""
    await until_async(lambda: asyncio.to_thread(condition), why)


async def _value(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found


def _late(why: Why) -> str:
    return f"not within {PATIENCE_S:.0f} s: {why if isinstance(why, str) else why()}"
