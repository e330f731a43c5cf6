"""The shared state of the clients of one process: the clock of the run, the sample, and locust's own CPU."""

import time
from typing import Any

from loadtests.load.answers import Place
from loadtests.load.options import Options
from loadtests.load.sample import Sample


class Run:
    """One run of locust in this process; a master adds the reports of its workers."""

    def __init__(self) -> None:
        self.sample = Sample()
        self.events = 0
        self.cpu_s = 0.0
        self.is_over = False
        self.unheard: set[str] = set()
        """The workers that have not sent their last report."""
        self._began = 0.0
        self._cpu_began = 0.0
        self._seconds = 1.0

    def begin(self, options: Options, workers: set[str]) -> None:
        """Start the clock; a master has workers."""
        self._seconds, self.is_over, self.unheard = options.seconds, False, workers
        self._began, self._cpu_began = time.monotonic(), time.process_time()

    @property
    def share(self) -> float:
        """Return which part of the time has passed."""
        return (time.monotonic() - self._began) / self._seconds

    def took_in(self, places: list[Place]) -> None:
        """Count acknowledged events, and store one of their receipts."""
        self.events += len(places)
        if places:
            self.sample.take(places)

    def lap_cpu_s(self) -> float:
        """Return the CPU time of this process since the last call."""
        now = time.process_time()
        lap, self._cpu_began = now - self._cpu_began, now
        return lap

    def report(self) -> dict[str, Any]:
        """Return a worker's report to its master since the last one."""
        events, self.events = self.events, 0
        receipts = self.sample.take_unreported()
        return {"cpu_s": self.lap_cpu_s(), "events": events, "receipts": receipts, "is_last": self.is_over}

    def take_report(self, worker: str, told: dict[str, Any]) -> None:
        """Add a worker's report."""
        if told["is_last"]:
            self.unheard.discard(worker)
        self.cpu_s += told["cpu_s"]
        self.events += told["events"]
        self.sample.add(Place(*place) for place in told["receipts"])


RUN = Run()
"""Global, since locust creates its users itself."""
