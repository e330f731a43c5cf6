"""Tells a cancellation of the current task from one that comes out of a library."""

import asyncio


def is_own_cancellation(err: BaseException) -> bool:
    """
    Return whether the current task was cancelled.

    A CancelledError may also come out of a library that cancelled a task of its own and awaited it. A task
    that ends by such a one ends unseen: asyncio.TaskGroup takes it for ended on purpose.
    """
    task = asyncio.current_task()
    return isinstance(err, asyncio.CancelledError) and task is not None and task.cancelling() > 0
