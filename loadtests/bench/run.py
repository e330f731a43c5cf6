"""One run: every contestant under every load, in turn, as often as there are rounds."""

import os
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from loadtests.bench.contestants import Contestant
from loadtests.bench.load import LoadError, send_all

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
    """The size of a run."""

    batches: Sequence[int]
    """Events of a request."""
    duplicate_percents: Sequence[int]
    connections: Sequence[int]
    """Besides CONNECTIONS, for the largest batch."""
    requests: int
    """Of one sample, besides a first one on each connection."""
    rounds: int

    @property
    def loads(self) -> list[Load]:
        """All loads: many connections, then fewer and more."""
        many = [Load(*pair) for pair in product(self.batches, self.duplicate_percents)]
        return [*many, *(Load(max(self.batches), 0, count) for count in self.connections)]


FULL = Extent((100, 20, 1), (0, 1, 50, 95), (1, 256), requests=1_500, rounds=5)
"""Of 1,500 answers, p99 is the 15th worst; of 200, it would be one stall."""
QUICK = Extent((100, 1), (0, 95), (1,), requests=50, rounds=2)


def warm_up(contestant: Contestant, extent: Extent) -> None:
    """Warm up imports, caches, connections and compilers of all processes."""
    for batch_events in extent.batches:
        requests = contestant.history.requests(extent.requests // 5, batch_events, duplicate_percent=0)
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
                yield _sample(contestant, load, extent.requests + load.connections)


def _sample(contestant: Contestant, load: Load, count: int) -> Sample:
    requests = contestant.history.requests(count, load.batch_events, duplicate_percent=load.duplicate_percent)
    before = contestant.cpu_seconds()
    try:
        answered = send_all(contestant.port, requests, load.connections)
    except LoadError as err:
        raise LoadError(f"{contestant.name}, {load}: {err}") from err
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
        *_percentiles_ms(answered.latencies_s[load.connections :]),
    )


def _percentiles_ms(latencies_s: Sequence[float]) -> tuple[float, float]:
    """Return p50 and p99 without the first wave, in which all connections send at once."""
    cuts = statistics.quantiles(latencies_s, n=100, method="inclusive")
    return cuts[49] * 1e3, cuts[98] * 1e3
