"""Claim: a soak fails for what grows once the index has turned over, and only for that."""

from xml.etree import ElementTree

import pytest

from loadtests.bench.workload import Workload
from loadtests.soak.report import PLOTTED, findings, plots
from loadtests.soak.run import AT_ONCE, BATCH_EVENTS, DUPLICATE_PERCENT, TURNOVER_EVENTS, Moment, requests_of


def moment(number: int, *, rss_mib: float = 100.0, cpu_us: float = 20.0, crowding: float = 1.0) -> Moment:
    return Moment(
        minute=number / 12,
        events=TURNOVER_EVENTS // 10 * number,
        events_per_s=6_000.0,
        cpu_us=cpu_us,
        p50_ms=50.0 * crowding,
        p99_ms=200.0 * crowding,
        rss_mib=rss_mib,
        open_files=70,
        index_mib=10.0,
        index_files=6,
        index_logs_mib=12.0,
        keys=50_000,
        commit_ms=2.0,
        crowding=crowding,
    )


@pytest.mark.parametrize("count", [1, AT_ONCE, AT_ONCE + 30])
def test_no_event_counts_as_sent_that_is_in_no_request(count: int) -> None:
    history = Workload(1)
    history.requests(10, BATCH_EVENTS, duplicate_percent=0)
    assert len(list(requests_of(history, count))) == count
    assert history.new_events == (10 + count - count * DUPLICATE_PERCENT // 100) * BATCH_EVENTS


def test_what_grows_before_the_index_has_turned_over_is_no_leak() -> None:
    moments = [moment(number, rss_mib=min(100.0, 10.0 * number)) for number in range(40)]
    assert all(finding.is_flat for finding in findings(moments))


def test_memory_that_goes_on_growing_is_found() -> None:
    moments = [moment(number, rss_mib=100.0 + 2 * number) for number in range(60)]
    assert [finding.name for finding in findings(moments) if not finding.is_flat] == ["RSS, MiB"]


def test_an_index_that_gets_dearer_is_found() -> None:
    moments = [moment(number, cpu_us=20.0 + number / 4) for number in range(60)]
    assert [finding.name for finding in findings(moments) if not finding.is_flat] == ["CPU us an event"]


def test_what_other_processes_take_is_not_blamed_on_the_gateway() -> None:
    moments = [moment(number, crowding=1.0 + number / 10) for number in range(60)]
    assert all(finding.is_flat for finding in findings(moments))


def test_too_short_a_run_says_nothing() -> None:
    with pytest.raises(ValueError, match="run for longer"):
        findings([moment(number) for number in range(12)])


def test_every_figure_is_plotted() -> None:
    svg = ElementTree.fromstring(plots([moment(number) for number in range(20)]))
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}polyline"))) == len(PLOTTED)
