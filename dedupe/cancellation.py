"""Whose a cancellation is: a task that was told to end ends; one whose library was cancelled goes on."""

import asyncio


def is_own_cancellation(err: BaseException) -> bool:
    """
    Whether the current task was told to end.

    A CancelledError may also come out of a library that cancelled a task of its own and awaited it. A task
    that ends by such a one ends unseen: asyncio.TaskGroup takes it for ended on purpose.
    """
    task = asyncio.current_task()
    return isinstance(err, asyncio.CancelledError) and task is not None and task.cancelling() > 0
