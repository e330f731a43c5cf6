"""Claim: how old duplicates are is counted as it is, or a step of the window too old, and never too young."""

from dedupe.decide.admission import Admission
from dedupe.decide.window import Step, Window, WindowPolicy
from dedupe.partition.metrics import AGE_S, MARKS_MAX, SAMPLES_MAX, DuplicateAges, Histogram

HOUR_MS = 3_600_000
DUPLICATE, NEW = Admission.DUPLICATE, Admission.NEW


def window_of(*steps: Step) -> Window:
    return Window(WindowPolicy(7 * 24 * HOUR_MS, 1_000_000), steps, steps[-1] if steps else None)


def ages_in(histogram: Histogram) -> dict[float, int]:
    """Return how many were at most how old, empty ones left out."""
    edges = [*histogram.edges, float("inf")]
    return {edge: count for edge, count in zip(edges, histogram.counts, strict=True) if count}


def test_recent_original_is_dated_to_the_second() -> None:
    histogram = Histogram(AGE_S)
    ages = DuplicateAges(histogram)
    for second in range(100):
        ages.note_commit(base=second * 10, timestamp_ms=HOUR_MS + second * 1_000)
    now_ms = HOUR_MS + 100_000
    ages.note([DUPLICATE, NEW, DUPLICATE], [995, ~0, 405], window_of(), now_ms)
    assert ages_in(histogram) == {1: 1, 60: 1}
    assert histogram.total == 1 + 60


def test_older_original_is_dated_by_the_steps_of_the_window() -> None:
    histogram = Histogram(AGE_S)
    ages = DuplicateAges(histogram)
    ages.note_commit(base=500, timestamp_ms=50 * HOUR_MS)
    window = window_of(
        Step(10 * HOUR_MS, 100, 100), Step(11 * HOUR_MS, 200, 200), Step(50 * HOUR_MS, 500, 500)
    )
    ages.note([DUPLICATE, DUPLICATE], [150, 499], window, 50 * HOUR_MS)
    assert histogram.total == (40 + 39) * 3_600
    ages.note([DUPLICATE], [99], window, 50 * HOUR_MS)  # nobody knows
    assert sum(histogram.counts) == 2


def test_storm_of_duplicates_is_counted_whole_and_looked_at_in_part() -> None:
    histogram = Histogram(AGE_S)
    ages = DuplicateAges(histogram)
    ages.note_commit(base=0, timestamp_ms=0)
    for count in (1, SAMPLES_MAX, SAMPLES_MAX + 1, 1_000):
        before = sum(histogram.counts)
        ages.note([DUPLICATE] * count, list(range(count)), window_of(), 5_000)
        assert sum(histogram.counts) == before + count
    assert ages_in(histogram).keys() == {10}


def test_marks_are_bounded_and_forgotten_with_the_offsets() -> None:
    histogram = Histogram(AGE_S)
    ages = DuplicateAges(histogram)
    for second in range(5 * MARKS_MAX):
        ages.note_commit(base=second, timestamp_ms=second * 1_000)
    assert MARKS_MAX <= len(ages._offsets) <= 2 * MARKS_MAX
    ages.forget()
    ages.note([DUPLICATE], [5 * MARKS_MAX], window_of(), 0)
    assert sum(histogram.counts) == 0


def test_batch_without_duplicates_counts_nothing() -> None:
    histogram = Histogram(AGE_S)
    DuplicateAges(histogram).note([NEW, Admission.CONFLICT], [~0, 7], window_of(Step(0, 0, 0)), 5_000)
    assert sum(histogram.counts) == 0
