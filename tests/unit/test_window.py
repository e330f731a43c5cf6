"""The window: never later than its exact bounds, at most a step earlier, and a function of the log alone."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupe.types import Offset
from dedupe.window import STEPS_PER_WINDOW, Step, Window, WindowPolicy

EXAMPLES = settings(max_examples=150)

POLICY = WindowPolicy(window_ms=6_400, keys_max=640)  # a step each 100 ms or 10 records
TINY = WindowPolicy(window_ms=128, keys_max=192)  # a step each 2 ms or 3 records


def window_after(policy: WindowPolicy, records: Sequence[Step]) -> Window:
    """Return the window after these records, one at a time."""
    window = Window(policy)
    for record in records:
        window.advance(record, lambda record=record: [record])  # type: ignore[misc]
    return window


def exact_start(policy: WindowPolicy, records: Sequence[Step]) -> Offset:
    """Return the first offset inside both bounds, read off the whole log."""
    newest = records[-1]
    return next(
        record.offset
        for record in records
        if record.timestamp_ms >= newest.timestamp_ms - policy.window_ms
        and record.lane_seq > newest.lane_seq - policy.keys_max
    )


def steps_of(policy: WindowPolicy, records: Sequence[Step]) -> list[Step]:
    """Return every step the log has ever begun."""
    steps: list[Step] = []
    for record in records:
        if not steps or policy.bucket(*_place(steps[-1])) != policy.bucket(*_place(record)):
            steps.append(record)
    return steps


def _place(step: Step) -> tuple[int, int]:
    return step.timestamp_ms, step.lane_seq


@st.composite
def logs(draw: st.DrawFn) -> list[Step]:
    """Draw the records of a log: time stands still, creeps or leaps; offsets have gaps, sequences none."""
    pauses = st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 300))
    gaps = st.integers(1, 4)
    timestamp_ms, offset = draw(st.integers(0, 1_000)), draw(gaps) - 1
    first_seq = draw(st.sampled_from([0, 0, 5, 1_000]))
    records = []
    for i in range(draw(st.integers(1, 400))):
        records.append(Step(timestamp_ms, offset, first_seq + i))
        timestamp_ms += draw(pauses)
        offset += draw(gaps)
    return records


# ---- by hand


def test_empty_log_forgets_nothing() -> None:
    window = Window(POLICY)

    assert window.start == 0
    assert window.steps == []
    assert window.seconds(0) == 6.4


def test_first_record_begins_the_window() -> None:
    window = Window(POLICY)
    first = Step(1_000, 7, 0)

    assert window.advance(first, lambda: [first]) == ([first], [])
    assert window.start == 7
    assert window.steps == [first]


def test_records_of_the_same_step_are_not_asked_for() -> None:
    window = Window(POLICY, [Step(1_000, 7, 0)])

    def unused() -> list[Step]:
        raise AssertionError

    assert window.advance(Step(1_099, 16, 9), unused) == ([], [])
    assert window.start == 7


@pytest.mark.parametrize(
    ("newest", "why"), [(Step(1_100, 8, 1), "100 ms later"), (Step(1_000, 17, 10), "ten records later")]
)
def test_next_bucket_begins_a_step(newest: Step, why: str) -> None:
    window = Window(POLICY, [Step(1_000, 7, 0)])

    assert window.advance(newest, lambda: [newest]) == ([newest], []), why


def test_step_is_the_first_record_of_its_bucket() -> None:
    window = Window(POLICY)
    records = [Step(1_000, 0, 0), Step(1_150, 1, 1), Step(1_160, 2, 2), Step(1_310, 3, 3)]

    added, dropped = window.advance(records[-1], lambda: records)

    assert added == [records[0], records[1], records[3]]
    assert dropped == []


def test_time_bound_drops_a_step_once_its_successor_has_left() -> None:
    first, second = Step(1_000, 0, 0), Step(1_100, 5, 5)
    window = Window(POLICY, [first, second])

    just_inside = Step(7_500, 6, 6)  # 7,500 - 6,400 = 1,100: the successor is still inside
    assert window.advance(just_inside, lambda: [just_inside]) == ([just_inside], [])
    assert window.start == 0

    outside = Step(7_501, 7, 7)
    assert window.advance(outside, list) == ([], [first])
    assert window.start == 5


def test_key_bound_drops_a_step_once_its_successor_is_the_oldest_of_keys_max() -> None:
    first, second, third = Step(1_000, 0, 0), Step(1_000, 10, 10), Step(1_000, 20, 20)
    window = Window(POLICY, [first, second, third])

    one_less = Step(1_000, 648, 648)  # keys 9..648 are 640, the second step is not the oldest yet
    assert window.advance(one_less, lambda: [one_less]) == ([one_less], [])

    newest = Step(1_000, 649, 649)  # keys 10..649 are 640: exactly from the second step on
    assert window.advance(newest, list) == ([], [first])
    assert window.start == 10


def test_last_step_is_never_dropped() -> None:
    first, much_later = Step(1_000, 0, 0), Step(10**9, 1, 1)
    window = Window(POLICY, [first])

    assert window.advance(much_later, lambda: [much_later]) == ([much_later], [])
    assert window.start == 0  # one step too old: the first record is forgotten with the next step


def test_steps_may_come_and_go_at_once() -> None:
    window = Window(POLICY)
    records = [Step(1_000 * i, i, i) for i in range(10)]

    added, dropped = window.advance(records[-1], lambda: records)

    assert added == records
    assert dropped == records[:2]  # 9,000 - 6,400 = 2,600 lies between the third and the fourth
    assert window.start == 2


def test_steps_are_a_copy() -> None:
    window = Window(POLICY, [Step(1_000, 7, 0)])

    window.steps.clear()

    assert window.start == 7


@pytest.mark.parametrize(
    ("steps", "newest_ms", "seconds"),
    [
        ([Step(1_000, 0, 0)], 1_000, 6.4),  # the whole log is remembered: the time bound is the answer
        ([Step(1_000, 9, 9)], 3_000, 2.0),  # keys bind
        ([Step(1_000, 9, 9)], 99_000, 6.4),  # never more than configured
        ([Step(1_000, 9, 9)], 500, 0.0),  # never negative
    ],
)
def test_seconds_is_how_far_back_ids_are_remembered(
    steps: list[Step], newest_ms: int, seconds: float
) -> None:
    assert Window(POLICY, steps).seconds(newest_ms) == seconds


def test_bucket_of_a_window_shorter_than_its_steps_is_one() -> None:
    policy = WindowPolicy(window_ms=STEPS_PER_WINDOW - 1, keys_max=1)

    assert policy.bucket(17, 23) == (17, 23)


# ---- for every log


@EXAMPLES
@given(logs())
def test_start_is_never_later_than_exact_and_at_most_one_step_too_old(records: list[Step]) -> None:
    window = window_after(TINY, records)
    exact = exact_start(TINY, records)

    too_old = [step for step in steps_of(TINY, records) if window.start < step.offset <= exact]

    assert window.start <= exact
    assert len(too_old) <= 1


@EXAMPLES
@given(logs(), st.data())
def test_window_is_the_same_however_records_are_batched(records: list[Step], data: st.DataObject) -> None:
    window = Window(TINY)
    stored: list[Step] = []
    rest = records
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        batch, rest = rest[:size], rest[size:]
        added, dropped = window.advance(batch[-1], batch.copy)
        stored = [step for step in stored + added if step not in dropped]

    assert window.steps == window_after(TINY, records).steps
    assert stored == window.steps


@EXAMPLES
@given(logs(), st.data())
def test_window_goes_on_from_its_stored_steps(records: list[Step], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(records)))
    stored = window_after(TINY, records[:at]).steps

    window = Window(TINY, stored)
    for record in records[at:]:
        window.advance(record, lambda record=record: [record])  # type: ignore[misc]

    assert window.steps == window_after(TINY, records).steps


@EXAMPLES
@given(logs(), st.data())
def test_rebuild_from_any_log_start_before_the_window_gives_the_same_start(
    records: list[Step], data: st.DataObject
) -> None:
    exact = exact_start(TINY, records)
    start = data.draw(st.integers(0, exact))
    kept = [record for record in records if record.offset >= start]
    log_start = kept[0].offset

    rebuilt = window_after(TINY, kept)

    assert rebuilt.start == max(window_after(TINY, records).start, log_start)
