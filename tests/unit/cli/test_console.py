"""Claim: a command ends by Ctrl-C, whatever its libraries make of it, and otherwise as its coroutine does."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from app.cli import console
from app.cli.console import run_async


@pytest.fixture
def as_a_command_starts() -> Iterator[None]:
    """A Spark session that an earlier test of this process had leaves a handler of its own."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("as_a_command_starts")
def test_interrupts_that_a_library_has_swallowed_end_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "CANCEL_AGAIN_S", 0.001)
    swallowed = 0

    async def work() -> None:
        nonlocal swallowed
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            swallowed += 1
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        run_async(work())
    assert swallowed == 3


def test_error_of_a_command_is_its_end() -> None:
    async def work() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        run_async(work())
