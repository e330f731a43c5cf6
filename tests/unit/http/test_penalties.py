"""Claim: who is refused again and again waits for each answer, and nobody else does."""

import asyncio
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Scope

from app.http import penalties
from app.http.body_memory import BodyMemory
from app.http.errors import (
    BodyTimeoutError,
    DisabledWriteKeyError,
    InvalidJSONError,
    InvalidWriteKeyError,
    QuotaExceededError,
)
from app.http.penalties import FREE, RATE, Penalties
from app.http.request_context import CONTEXT, begin_context

NOW_S = 1_000.0


class Delays:
    """Penalties whose waits are counted, not waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = NOW_S
        self.waits = 0
        self.memory = BodyMemory(1_000_000)
        self.penalties = Penalties(0.5, clock=lambda: self.now)

        async def sleep(seconds: float) -> None:
            assert seconds == 0.5
            self.waits += 1

        monkeypatch.setattr(asyncio, "sleep", sleep)

    def scope(self, write_key: str = "", address: str = "192.0.2.1") -> Scope:
        scope: Scope = {"type": "http", "client": (address, 1)}
        begin_context(scope, self.memory).write_key = write_key
        return scope

    async def refuse(self, err: Any, times: int, write_key: str = "", address: str = "192.0.2.1") -> int:
        """Return how many of these refusals had to wait."""
        before = self.waits
        for _ in range(times):
            await self.penalties.hold_back(err, self.scope(write_key, address))
        return self.waits - before


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> Delays:
    return Delays(monkeypatch)


@pytest.mark.parametrize(
    "err", [InvalidJSONError(), InvalidWriteKeyError(), DisabledWriteKeyError(), HTTPException(404)]
)
async def test_final_refusals_wait_after_the_first_few(delays: Delays, err: Exception) -> None:
    assert await delays.refuse(err, 100) == 100 - FREE


async def test_want_of_quota_always_waits_and_a_passing_error_never(delays: Delays) -> None:
    assert await delays.refuse(QuotaExceededError("events"), 3) == 3
    assert await delays.refuse(BodyTimeoutError(), 100) == 0


async def test_stranger_with_a_public_key_slows_nobody_else(delays: Delays) -> None:
    assert await delays.refuse(InvalidJSONError(), 1_000, "public") == 1_000 - FREE
    assert await delays.refuse(InvalidJSONError(), 5, "public", "192.0.2.2") == 0
    assert await delays.refuse(InvalidJSONError(), 5, "other") == 0
    assert await delays.refuse(InvalidWriteKeyError(), 5, "other") == 0


async def test_failed_log_ins_of_an_address_group_count_together(delays: Delays) -> None:
    for number in range(1_000):
        await delays.refuse(InvalidWriteKeyError(), 1, f"guess-{number}", f"2001:db8::{number:x}")
    assert delays.waits == 1_000 - FREE
    assert await delays.refuse(InvalidWriteKeyError(), 1, "guess", "2001:db8:0:1::1") == 0


async def test_free_refusals_come_back(delays: Delays) -> None:
    await delays.refuse(InvalidJSONError(), 1_000)
    delays.now += 5 / RATE
    assert await delays.refuse(InvalidJSONError(), 10) == 5


async def test_unknown_keys_of_one_request_count_each(delays: Delays) -> None:
    err = InvalidWriteKeyError()
    err.keys = 16
    assert await delays.refuse(err, 3) == 2
    await delays.penalties.note_failed_log_ins(16, delays.scope())
    assert delays.waits == 3
    await delays.penalties.note_failed_log_ins(0, delays.scope())
    assert delays.waits == 3


async def test_memory_is_released_while_an_answer_waits(delays: Delays) -> None:
    await delays.refuse(InvalidJSONError(), int(FREE))
    scope = delays.scope()
    scope[CONTEXT].lease.take(1_000)
    err = InvalidJSONError()
    err.__cause__ = ValueError("a body")
    await delays.penalties.hold_back(err, scope)
    assert (delays.waits, delays.memory.used) == (1, 0)
    assert [held for held in (err.__cause__, err.__traceback__) if held is not None] == []


async def test_remembered_senders_are_bounded(delays: Delays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penalties, "ENTRIES_MAX", 100)
    await delays.refuse(InvalidJSONError(), 30, "k")
    for number in range(99):
        await delays.refuse(InvalidJSONError(), 1, "k", f"198.51.100.{number}")
    assert await delays.refuse(InvalidJSONError(), 1, "k") == 1
    for number in range(100):
        await delays.refuse(InvalidJSONError(), 1, "k", f"198.51.100.{number}")
    assert await delays.refuse(InvalidJSONError(), 1, "k") == 0
    assert len(delays.penalties._left) == 100


async def test_client_without_an_address_is_one_sender(delays: Delays) -> None:
    scope = delays.scope()
    scope["client"] = None
    for _ in range(50):
        await delays.penalties.hold_back(InvalidJSONError(), scope)
    assert delays.waits == 50 - FREE
