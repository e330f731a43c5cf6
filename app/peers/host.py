"""What a worker does for the others: the seam between connections and whoever owns the lanes."""

import asyncio
from typing import Any, Protocol

from dedupe.submission import Outcomes, Submission


class Host(Protocol):
    """One worker, as the others use it. Bodies are what msgpack can say: a tuple arrives as a list."""

    def status(self) -> Any:
        """Return what all others shall know now, a few KiB at most. Must not raise."""

    def take(self, worker: str, kind: str, body: Any) -> None:
        """
        Take a message that nobody answers. Must not raise.

        `status` is one: what another worker has told of itself, None when it is down.
        """

    async def answer(self, worker: str, kind: str, body: Any) -> Any:
        """Answer a question. A GatewayError travels to whoever asks; cancelled when he is gone."""

    def submit(self, lane: int, submission: Submission) -> "asyncio.Future[Outcomes]":
        """
        Take events for a lane of this worker; `lane` and their partitions may be any numbers.

        Returns:
            A future of their outcomes, same order, or of a GatewayError; nobody cancels it.

        Raises:
            LaneNotActiveError, LaneSaturatedError, DiskFullError: nothing was taken.
        """
