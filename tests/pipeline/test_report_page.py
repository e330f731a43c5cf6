"""Claim: the page of an audit labels a chart with the length of its bars."""

import pytest

from pipeline.audit.report_page import BARS_MAX, _over_time


@pytest.mark.parametrize(
    ("count", "length", "bars"), [(0, "10 min", 0), (BARS_MAX, "10 min", BARS_MAX), (134, "30 min", 45)]
)
def test_length_of_a_step_is_that_of_a_bar(count: int, length: str, bars: int) -> None:
    steps = [{"begins": f"2026-01-01T{n // 60:02}:{n % 60:02}:00Z", "records": 1} for n in range(count)]

    heading, chart = _over_time(steps, 600.0)

    assert heading == f"<h2>Records over time, UTC, in steps of {length}</h2>"
    assert chart.count("<rect ") == bars
