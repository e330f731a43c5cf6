"""Cancellations that nobody asked for, as by a library that cancels a task of its own and awaits it."""

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any


@types.coroutine
def cancelled_at(number: int, work: Coroutine[Any, Any, None]) -> Generator[Any, None, None]:
    """Run a coroutine, and have its n-th await end in a CancelledError that nobody asked for."""
    awaits = 0
    thrown: BaseException | None = None
    while True:
        try:
            waited_for = work.send(None) if thrown is None else work.throw(thrown)
            awaits += 1
            if awaits == number:
                waited_for = work.throw(asyncio.CancelledError())
        except StopIteration:
            return
        thrown = None
        try:
            yield waited_for
        except BaseException as err:  # of the task that runs this: it is the coroutine's
            thrown = err
