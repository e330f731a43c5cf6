"""Claim: the last hour is told in steps of ten seconds, of one worker or of several added up."""

from app.admin.history import STEP_S, STEPS_MAX, History, columns_of, steps_of
from dedupe.metrics import Tally


class SetClock:
    def __init__(self) -> None:
        self.s = 1_700_000_000

    def now_ms(self) -> int:
        return self.s * 1000

    def monotonic(self) -> float:
        return float(self.s)


def test_a_step_has_what_was_decided_in_it() -> None:
    clock, totals = SetClock(), Tally()
    history = History(clock)
    for accepted, duplicates in ((5, 0), (0, 0), (2, 3)):
        clock.s += STEP_S
        totals.accepted += accepted
        totals.duplicates += duplicates
        history.note(totals)
    columns = history.columns()
    assert columns["accepted"] == [5, 0, 2]
    assert columns["duplicates"] == [0, 0, 3]
    assert columns["number"] == [170_000_001, 170_000_002, 170_000_003]


def test_an_hour_is_remembered_and_no_more() -> None:
    clock, totals = SetClock(), Tally()
    history = History(clock)
    for _ in range(STEPS_MAX + 5):
        clock.s += STEP_S
        totals.accepted += 1
        history.note(totals)
    columns = history.columns()
    assert STEPS_MAX * STEP_S == 3600
    assert {len(column) for column in columns.values()} == {STEPS_MAX}
    assert columns["accepted"] == [1] * STEPS_MAX
    assert columns["number"][-1] == clock.s // STEP_S


def test_requests_that_were_refused_before_their_events_were_known_are_told_beside_them() -> None:
    clock, totals = SetClock(), Tally()
    history = History(clock)
    for refused in (9, 9, 12):
        clock.s += STEP_S
        totals.refused += 1
        history.note(totals, refused)
    columns = history.columns()
    assert (columns["refused"], columns["refused_requests"]) == ([1, 1, 1], [9, 0, 3])
    summed = columns_of([*steps_of(columns), *steps_of(columns)])
    assert summed["refused_requests"] == [18, 0, 6]


def test_workers_are_added_up_step_by_step() -> None:
    one = {"number": [4, 5], "accepted": [1, 2]}
    other = {"number": [5, 6], "accepted": [10, 20]}
    told = [
        {name: [0] * 2 for name in ("duplicates", "conflicts", "rejected", "unknown", "refused")} | columns
        for columns in (one, other)
    ]
    summed = columns_of([step for columns in told for step in steps_of(columns)])
    assert (summed["number"], summed["accepted"]) == ([4, 5, 6], [1, 12, 20])


def test_a_clock_that_wakes_the_history_early_costs_no_event() -> None:
    clock, totals = SetClock(), Tally()
    history = History(clock)
    for _ in range(2):
        totals.refused += 4
        history.note(totals)
    assert history.columns()["refused"] == [8]
