"""Work that is written in turns, done at once where no request waits: at a start, by tools and by tests."""

from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def at_once(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that never waits. Raises as it does."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    coroutine.close()
    raise AssertionError("it waits")


async def yield_to_nobody(_work_bytes: int) -> None:
    """Run on: a YieldToOthers without others."""
