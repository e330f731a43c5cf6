"""The window: never later than its exact bounds, at most a step earlier each, and a function of the log."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupe.decide.window import PAST_STEPS_MAX, Step, Window, WindowPolicy
from dedupe.model.types import Offset

EXAMPLES = settings(max_examples=150)

POLICY = WindowPolicy(window_ms=6_400, keys_max=640, time_step_ms=100)  # a step each 100 ms or 10 records
TINY = WindowPolicy(window_ms=128, keys_max=192, time_step_ms=2)  # a step each 2 ms or 3 records


def window_after(policy: WindowPolicy, records: Sequence[Step]) -> Window:
    """Return the window after these records, one at a time."""
    window = Window(policy)
    for record in records:
        window.advance(record, [record])
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
    assert window.seconds(0, log_start=0) == 6.4
    assert window.keys == 0


def test_first_record_begins_the_window() -> None:
    window = Window(POLICY)
    first = Step(1_000, 7, 0)

    assert window.advance(first, [first]) == ([first], [])
    assert window.start == 7
    assert window.steps == [first]


def test_records_of_the_same_step_are_not_read() -> None:
    window = Window(POLICY, [Step(1_000, 7, 0)], Step(1_000, 7, 0))

    steps = iter([Step(1_099, 16, 9)])

    assert window.advance(Step(1_099, 16, 9), steps) == ([], [])
    assert next(steps), "it is still there"
    assert window.start == 7


@pytest.mark.parametrize(
    ("newest", "why"), [(Step(1_100, 8, 1), "100 ms later"), (Step(1_000, 17, 10), "ten records later")]
)
def test_next_bucket_begins_a_step(newest: Step, why: str) -> None:
    window = Window(POLICY, [Step(1_000, 7, 0)])

    assert window.advance(newest, [newest]) == ([newest], []), why


def test_step_is_the_first_record_of_its_bucket() -> None:
    window = Window(POLICY)
    records = [Step(1_000, 0, 0), Step(1_150, 1, 1), Step(1_160, 2, 2), Step(1_310, 3, 3)]

    added, dropped = window.advance(records[-1], records)

    assert added == [records[0], records[1], records[3]]
    assert dropped == []


def test_time_bound_passes_a_step_once_all_its_time_has_left() -> None:
    first, second = Step(1_000, 0, 0), Step(1_100, 5, 5)
    window = Window(POLICY, [first, second])

    just_inside = Step(7_499, 6, 6)  # 7,499 - 6,400 = 1,099: a record of that time would lie in the step
    assert window.advance(just_inside, [just_inside]) == ([just_inside], [])
    assert window.start == 0

    outside = Step(7_500, 7, 7)
    assert window.advance(outside, [outside]) == ([outside], [])
    assert window.start == 5


def test_key_bound_passes_a_step_once_its_successor_is_the_oldest_of_keys_max() -> None:
    first, second, third = Step(1_000, 0, 0), Step(1_000, 10, 10), Step(1_000, 20, 20)
    window = Window(POLICY, [first, second, third])

    one_less = Step(1_000, 648, 648)  # keys 9..648 are 640, the second step is not the oldest yet
    window.advance(one_less, [one_less])
    assert window.start == 0

    newest = Step(1_000, 649, 649)  # keys 10..649 are 640: exactly from the second step on
    window.advance(newest, [])
    assert (window.start, window.keys) == (10, 640)


def test_pause_longer_than_the_window_leaves_the_newest_record_only() -> None:
    first, much_later = Step(1_000, 0, 0), Step(10**9, 1, 1)
    window = Window(POLICY, [first])

    assert window.advance(much_later, [much_later]) == ([much_later], [])
    assert (window.start, window.keys) == (1, 1)


def test_steps_behind_the_window_are_dropped_when_they_are_many() -> None:
    window = Window(POLICY)
    records = [Step(1_000 * i, i, i) for i in range(PAST_STEPS_MAX + 10)]

    added, dropped = window.advance(records[-1], records)

    assert added == records
    assert window.start == PAST_STEPS_MAX + 3  # of 521,000 - 6,400 = 514,600 on
    assert dropped == records[:3]
    assert window.steps == records[3:]
    assert window.is_whole


def test_longer_window_is_found_in_the_steps_that_a_shorter_one_left() -> None:
    records = [Step(1_000 * i, i, i + 5) for i in range(20)]
    window = window_after(POLICY, records)

    longer = Window(POLICY._replace(window_ms=10_000), window.steps, records[-1])

    assert (window.start, longer.start) == (13, 9)
    assert longer.is_whole
    assert not Window(POLICY._replace(window_ms=30_000), window.steps, records[-1]).is_whole


def test_steps_are_a_copy() -> None:
    window = Window(POLICY, [Step(1_000, 7, 0)])

    window.steps.clear()

    assert window.start == 7


def test_whole_log_that_is_remembered_makes_the_time_bound_the_answer() -> None:
    window = window_after(POLICY, [Step(1_000, 0, 0), Step(1_200, 1, 1)])

    assert window.seconds(1_200, log_start=0) == 6.4


def test_seconds_counts_from_the_newest_forgotten_record_where_keys_bind() -> None:
    window = window_after(POLICY, [Step(1_000 + i, i, i) for i in range(1_000)])

    assert window.start == 360
    assert window.seconds(2_000, log_start=0) == 0.64  # back to 1,360, where the window starts
    assert window.seconds(4_000, log_start=0) == 2.64  # time passes, and no id is forgotten meanwhile
    assert window.seconds(1_000, log_start=0) == 0  # never negative
    assert window.seconds(99_000, log_start=0) == 6.4  # never more than configured


def test_seconds_of_a_rebuilt_window_that_keys_bind_count_from_its_start() -> None:
    window = window_after(POLICY, [Step(1_000 + i, i, i) for i in range(360, 1_001)])

    assert window.start == 360
    assert window.seconds(2_000, log_start=0) == 0.64


@pytest.mark.parametrize(("first_seq", "is_whole"), [(359, True), (360, True), (361, False)])
def test_window_is_whole_where_its_first_step_is_the_oldest_that_keys_allow(
    first_seq: int, is_whole: bool
) -> None:
    window = window_after(POLICY, [Step(1_000, seq, seq) for seq in range(first_seq, 1_001)])

    assert window.is_whole == is_whole  # of 1,000 - 640 + 1 = 361 on, and so of the step at 360


def test_window_of_a_whole_log_is_whole() -> None:
    assert window_after(POLICY, [Step(1_000, 7, 0)]).is_whole
    assert not Window(POLICY).is_whole


def test_seconds_shrink_when_the_log_deletes_inside_the_window() -> None:
    window = window_after(POLICY, [Step(1_000 + 50 * i, i, i) for i in range(60)])

    assert window.seconds(4_000, log_start=0) == 6.4
    assert window.seconds(4_000, log_start=40) == 1.0  # the newest deleted one came at 2,950
    assert window.seconds(4_000, log_start=60) == pytest.approx(0.05)  # all are gone, the last came at 3,950


def test_idle_partition_remembers_for_the_whole_window_though_retention_left_nothing() -> None:
    window = window_after(POLICY, [Step(1_000, 0, 0), Step(1_050, 1, 1)])

    assert window.seconds(8_000, log_start=3) == 6.4


def test_pause_does_not_shorten_the_window() -> None:
    window = window_after(POLICY, [Step(1_000, 0, 0), Step(90_000, 1, 1)])

    assert window.start == 1
    assert window.seconds(90_001, log_start=0) == 6.4


def test_bucket_of_a_key_bound_smaller_than_its_steps_is_one() -> None:
    assert WindowPolicy(window_ms=100, keys_max=1, time_step_ms=10).bucket(17, 23) == (1, 23)


# ---- for every log


@EXAMPLES
@given(logs())
def test_start_is_never_later_than_exact_and_at_most_one_step_too_old(records: list[Step]) -> None:
    window = window_after(TINY, records)
    newest, exact = records[-1], exact_start(TINY, records)
    first = next(record for record in records if record.offset == window.start)

    assert first.offset <= exact
    assert first.timestamp_ms >= TINY.first_kept_ms(newest.timestamp_ms)
    assert first.lane_seq >= TINY.first_kept_seq(newest.lane_seq)
    assert window.keys == newest.lane_seq - first.lane_seq + 1


@EXAMPLES
@given(logs(), st.data())
def test_window_is_the_same_however_records_are_batched(records: list[Step], data: st.DataObject) -> None:
    window = Window(TINY)
    stored: list[Step] = []
    rest = records
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        batch, rest = rest[:size], rest[size:]
        added, dropped = window.advance(batch[-1], batch)
        stored = [step for step in stored + added if step not in dropped]

    assert (window.start, window.steps) == (window_after(TINY, records).start, stored)
    assert stored == window_after(TINY, records).steps == steps_of(TINY, records)


@EXAMPLES
@given(logs(), st.data())
def test_window_goes_on_from_its_stored_steps(records: list[Step], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(records)))
    stored = window_after(TINY, records[:at]).steps

    window = Window(TINY, stored, records[at - 1] if at else None)
    for record in records[at:]:
        window.advance(record, [record])

    whole = window_after(TINY, records)
    assert (window.start, window.steps) == (whole.start, whole.steps)


@EXAMPLES
@given(logs(), st.data())
def test_rebuild_from_any_record_before_the_window_gives_the_same_start(
    records: list[Step], data: st.DataObject
) -> None:
    whole = window_after(TINY, records)
    start = data.draw(st.integers(0, exact_start(TINY, records)))
    kept = [record for record in records if record.offset >= start]

    rebuilt = window_after(TINY, kept)

    assert rebuilt.start == max(whole.start, kept[0].offset)


@EXAMPLES
@given(logs(), st.integers(1, 400), st.integers(0, 1_700))
def test_no_id_within_the_seconds_is_forgotten(records: list[Step], later_ms: int, log_start: Offset) -> None:
    window = window_after(TINY, records)
    now_ms = records[-1].timestamp_ms + later_ms
    forgotten = [record for record in records if record.offset < max(window.start, log_start)]

    seconds = window.seconds(now_ms, log_start=log_start)

    assert all(now_ms - record.timestamp_ms >= round(seconds * 1000) for record in forgotten)
