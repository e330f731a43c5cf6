"""
IdentityGate: no lane serves before the log is known to be of this secret and partition count.

Each lane checks its own records and reports here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

Pin: TypeAlias = Callable[[], Awaitable[None]]
"""Notes with the log which rules it follows. Raises RetriableError."""

PROOF_RECORDS = 64
"""Records that prove a log's secret and partition count: each of another count passes at best every
second time, so the chance that none of so many tells is 1 in 2**64."""


class IdentityGate:
    """
    Keeps every lane from serving until each has checked records of its log, or found it empty.

    With a wrong secret or a raised partition count an empty lane would look healthy, and accept
    copies of another lane's events. Once all lanes have passed, the log is pinned, and the gate of the
    next process is open from the start. Lanes that cannot read their records delay the others for a
    limited time, if these have proved enough.
    """

    def __init__(self, lanes: int, pin: Pin | None = None) -> None:
        """
        Close the gate for so many lanes; without `pin` it is open, for the log is pinned already.

        `pin` is called when the last lane has passed. It may raise, and is called again then.
        """
        self._missing = set(range(lanes)) if pin else set()
        self._pin = pin
        self._proved = 0
        self._open = asyncio.Event()
        if pin is None:
            self._open.set()

    @property
    def is_open(self) -> bool:
        """Whether this log is known to be of our secret and partition count."""
        return self._open.is_set()

    async def pass_lane(self, number: int, *, proved: int) -> None:
        """
        Report one lane's log as checked; again is harmless. Raises what `pin` raises.

        Args:
            number: the lane's.
            proved: how many records proved it, 0 if it is empty.
        """
        if number in self._missing:
            self._missing.discard(number)
            self._proved += proved
        if self._pin is not None and not self._missing:
            await self._pin()
            self._pin = None
            self._open.set()

    async def wait(self, limit_s: float) -> None:
        """Wait until all lanes have passed, or for the last ones so long only."""
        while not self.is_open:
            try:
                async with asyncio.timeout(limit_s):
                    await self._open.wait()
            except TimeoutError:
                if self._proved >= PROOF_RECORDS:
                    self._open.set()
