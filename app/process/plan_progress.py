"""Which plan a process follows, and for how long its requests have waited for the next one."""

from collections.abc import Mapping

from dedupe.model.clock import Clock


class PlanProgress:
    """Outlives the rounds of a process; belongs to the loop of the ingest."""

    def __init__(self, clock: Clock) -> None:
        """Begin without a plan, between two rounds of which none has ended."""
        self.number = 0
        """Of the plan by which the present round spreads events, or the last one did; 0: never divided."""
        self.preparing: Mapping[int, int | None] = {}
        """Offsets that new partitions of an open plan have to read, of those that are prepared here."""
        self._clock = clock
        self._waits_since: float | None = None

    @property
    def waiting_s(self) -> float | None:
        """Seconds since the last round ended; None while one runs."""
        return None if self._waits_since is None else self._clock.monotonic() - self._waits_since

    def wait(self) -> None:
        """A round ends, and the process goes on; once more changes nothing."""
        if self._waits_since is None:
            self._waits_since = self._clock.monotonic()

    def follow(self, number: int) -> None:
        """A round begins by the plan of this number."""
        self.number, self._waits_since = number, None
