"""
Housekeeping: at intervals, where the log begins and ends now, so that the lane can look after its index.

The log is asked beside the commits, which must not wait for it.
"""

import asyncio
from collections.abc import Callable

from dedupe.clock import Clock
from dedupe.errors import RetriableError
from dedupe.log import PartitionLog
from dedupe.types import Offset


class Housekeeping:
    """Asks one question at a time."""

    def __init__(
        self, partition_log: PartitionLog, clock: Clock, *, interval_s: float, wake: Callable[[], None]
    ) -> None:
        """Take whom to wake once there is an answer."""
        self.interval_s = interval_s
        self._log = partition_log
        self._clock = clock
        self._wake = wake
        self._asked: asyncio.Task[tuple[Offset, Offset] | None] | None = None
        self._asked_at = 0.0
        self._known_end: Offset = 0  # when it was asked

    def begin(self) -> None:
        """Count the interval from now on."""
        self._asked_at = self._clock.monotonic()

    def due_answer(self, known_end: Offset) -> Offset | None:
        """
        Return the log's first offset if there is news of it, and ask again when it is time.

        Called often: a busy lane is what outgrows its disk bound.

        Args:
            known_end: the log ends here, or later.

        Raises:
            RetriableError: it does not any more, so what was a copy of a lost event is none.
        """
        asked, log_start = self._asked, None
        if asked is not None and asked.done():
            self._asked = None
            if (answer := asked.result()) is not None:
                log_start, end = answer
                if end < self._known_end:
                    raise RetriableError(f"the log ends at {end} and has ended at {self._known_end}")
        now = self._clock.monotonic()
        if now - self._asked_at >= self.interval_s and self._asked is None:
            self._asked_at, self._known_end = now, known_end
            self._asked = asyncio.ensure_future(self._find_bounds())
            self._asked.add_done_callback(self._tell)
        return log_start

    def end(self) -> None:
        """Forget the question: what comes of it may be true of a topic that exists no more."""
        if self._asked is not None:
            self._asked.cancel()
            self._asked = None

    def _tell(self, asked: "asyncio.Task[tuple[Offset, Offset] | None]") -> None:
        if not asked.cancelled():  # a pause after a failure goes on
            self._wake()

    async def _find_bounds(self) -> tuple[Offset, Offset] | None:
        """Return the log's bounds, or None: the next append will find out whether the log is there."""
        try:
            return await self._log.bounds()
        except RetriableError:
            return None
