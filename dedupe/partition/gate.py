"""IdentityGate: no lane serves before the log is checked to be of this secret and partition count."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

Pin: TypeAlias = Callable[[], Awaitable[None]]
"""Writes the log's pin. Raises RetriableError."""

PROOF_RECORDS = 64
"""Records that prove a log's secret and partition count: one of another count passes with a probability of at
most 1/2, so all pass with at most 2**-64."""


class IdentityGate:
    """
    Prevents lanes from serving until each has checked records of its log, or that the log is empty.

    With a wrong secret or a higher partition count, an empty lane would accept copies of another lane's
    events. Once all lanes have passed, the log is pinned, and the gate is open from the start in later
    processes. Lanes that cannot read their records delay the others for a limited time, if these have checked
    PROOF_RECORDS.
    """

    def __init__(self, lanes: int, pin: Pin | None = None) -> None:
        """
        Close the gate for this number of lanes; without `pin` it is open, since the log is pinned.

        `pin` is called when the last lane has passed, and again after an error.
        """
        self._missing = set(range(lanes)) if pin else set()
        self._pin = pin
        self._proved = 0
        self._open = asyncio.Event()
        if pin is None:
            self._open.set()

    @property
    def is_open(self) -> bool:
        """Whether the log is checked, or pinned."""
        return self._open.is_set()

    async def pass_lane(self, number: int, *, proved: int) -> None:
        """
        Report one lane's log as checked. Idempotent; raises the errors of `pin`.

        Args:
            number: the lane's number.
            proved: the number of checked records, 0 if the log is empty.
        """
        if number in self._missing:
            self._missing.discard(number)
            self._proved += proved
        if self._pin is not None and not self._missing:
            await self._pin()
            self._pin = None
            self._open.set()

    async def wait(self, limit_s: float) -> None:
        """Wait until all lanes have passed, or `limit_s` seconds if PROOF_RECORDS are checked by then."""
        while not self.is_open:
            try:
                async with asyncio.timeout(limit_s):
                    await self._open.wait()
            except TimeoutError:
                if self._proved >= PROOF_RECORDS:
                    self._open.set()
