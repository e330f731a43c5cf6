"""
What counting costs: microseconds a request, and an event, of requests with 1, 100 and 1,000 events.

    .venv/bin/python -m loadtests.bench.metrics_cost

Answers are counted for each request, ages of duplicates and the three histograms for each batch that a lane
decides; here a batch is one request, as on an idle gateway, which is the dearest case.
"""

import timeit
from collections.abc import Callable

from dedupe.decide.admission import DUPLICATE, NEW, Admission
from dedupe.decide.window import Window, WindowPolicy
from dedupe.metrics import AnswerCounts
from dedupe.model.types import Event
from dedupe.partition.metrics import AGE_S, LATENCY_S, DuplicateAges, Histogram

CALLS, ROUNDS = 2_000, 7
HISTOGRAMS = 3
SECONDS = 3_600


def fastest_us(function: Callable[[], object]) -> float:
    """Return the duration of an undisturbed call."""
    return min(timeit.repeat(function, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6


def measure(count: int, kind: Admission) -> float:
    """Return the microseconds of one request whose events all have this verdict."""
    counts, histogram, ages = AnswerCounts(), Histogram(LATENCY_S), DuplicateAges(Histogram(AGE_S))
    for second in range(SECONDS):
        ages.note_commit(second * 1_000, second * 1_000)
    events = [Event(bytes(16), 0, bytes(8), "web", str(number), b"{}") for number in range(count)]
    admissions, originals = [kind] * count, list(range(0, 300 * count, 300))
    window = Window(WindowPolicy(1, 1))

    def note() -> None:
        counts.note(events, [], admissions)
        ages.note(admissions, originals, window, SECONDS * 1_000)
        for _ in range(HISTOGRAMS):
            histogram.observe(0.003)

    return fastest_us(note)


def main() -> None:
    """Print one line for each size and verdict."""
    for count in (1, 100, 1_000):
        for kind in (NEW, DUPLICATE):
            us = measure(count, kind)
            print(f"{count:>5} events, {kind.value:<9} {us:8.2f} us a request {us / count:8.4f} us an event")


if __name__ == "__main__":
    main()
