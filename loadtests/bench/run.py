"""One run: every contestant under every load, in turn, as often as there are rounds."""

import os
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from loadtests.bench.contestants import Contestant
from loadtests.bench.load import Answered, send_all

CONNECTIONS = 32
"""Enough to keep every contestant busy, with one request at a time on each."""


class Load(NamedTuple):
    """What is sent to each contestant before the next one's turn."""

    batch_events: int
    duplicate_percent: int
    connections: int = CONNECTIONS


class Sample(NamedTuple):
    """One contestant under one load in one round."""

    contestant: str
    load: Load
    events: int
    seconds: float
    cpu_us: dict[str, float]  # an event, by role
    client_cpu_us: float  # an event
    p50_ms: float
    p99_ms: float

    @property
    def events_per_s(self) -> float:
        """Return the throughput."""
        return self.events / self.seconds


class Extent(NamedTuple):
    """The size of a run: events of one sample by batch size, and rounds."""

    events: dict[int, int]
    duplicate_percents: Sequence[int]
    rounds: int

    @property
    def loads(self) -> list[Load]:
        """All loads: many connections, then one alone."""
        many = [Load(*pair) for pair in product(self.events, self.duplicate_percents)]
        return [*many, Load(max(self.events), 0, connections=1)]

    def requests(self, load: Load) -> int:
        """Return the number of requests of one sample."""
        events = self.events[load.batch_events]
        return max(2, events // load.batch_events // (1 if load.connections > 1 else 5))


FULL = Extent({100: 20_000, 20: 8_000, 1: 2_000}, (0, 1, 50, 95), rounds=5)
QUICK = Extent({100: 5_000, 1: 300}, (0, 95), rounds=2)


def warm_up(contestant: Contestant, extent: Extent) -> None:
    """Warm up imports, caches, connections and compilers of all processes."""
    for batch_events, events in extent.events.items():
        requests = contestant.history.requests(events // batch_events, batch_events, duplicate_percent=0)
        send_all(contestant.port, requests, CONNECTIONS)


def measure(
    contestants: Sequence[Contestant], extent: Extent, tell: Callable[[str], None]
) -> Iterator[Sample]:
    """Yield the samples of all rounds; within a round, contestants alternate for each load."""
    rng = random.Random(extent.rounds)
    for number in range(1, extent.rounds + 1):
        for load in extent.loads:
            tell(
                f"round {number} of {extent.rounds}: batches of {load.batch_events}, "
                f"{load.duplicate_percent} % duplicates, {load.connections} connections, "
                f"load of the machine {os.getloadavg()[0]:.1f}"
            )
            for contestant in rng.sample(contestants, len(contestants)):
                yield _sample(contestant, load, extent.requests(load))


def _sample(contestant: Contestant, load: Load, count: int) -> Sample:
    requests = contestant.history.requests(count, load.batch_events, duplicate_percent=load.duplicate_percent)
    before = contestant.cpu_seconds()
    answered = send_all(contestant.port, requests, load.connections)
    after = contestant.cpu_seconds()
    events = count * load.batch_events
    cpu_us = {role: (after[role] - before[role]) / events * 1e6 for role in after}
    return Sample(
        contestant.name,
        load,
        events,
        answered.seconds,
        cpu_us,
        answered.client_cpu_seconds / events * 1e6,
        *_percentiles_ms(answered),
    )


def _percentiles_ms(answered: Answered) -> tuple[float, float]:
    cuts = statistics.quantiles(answered.latencies_s, n=100, method="inclusive")
    return cuts[49] * 1e3, cuts[98] * 1e3
