"""Distinguishes a cancellation of the current task from one that a library raises."""

import asyncio


def is_own_cancellation(err: BaseException) -> bool:
    """
    Return whether the current task was cancelled.

    A library that cancels a task of its own and awaits it may raise CancelledError, too. asyncio.TaskGroup
    would not notice that it ended a task.
    """
    task = asyncio.current_task()
    return isinstance(err, asyncio.CancelledError) and task is not None and task.cancelling() > 0
