"""Claim: ratios compare within a round, a duplicate's cost is taken out of the mix, the chart is whole."""

from xml.etree import ElementTree

import pytest

from loadtests.bench.chart import cpu_chart
from loadtests.bench.contestants import GATEWAY, KAFKA, PLAIN, SERVICE
from loadtests.bench.report import Remembered, Samples, as_json, as_markdown, service_cpu, targets
from loadtests.bench.run import QUICK, Load, Sample

NEW, MOSTLY_AGAIN = Load(100, 0), Load(100, 95)


def sample(contestant: str, load: Load, cpu_us: float) -> Sample:
    return Sample(
        contestant=contestant,
        load=load,
        events=1_000,
        seconds=0.1,
        cpu_us={SERVICE: cpu_us, KAFKA: 5.0},
        client_cpu_us=1.0,
        p50_ms=2.0,
        p99_ms=9.0,
    )


@pytest.fixture
def samples() -> Samples:
    """Three rounds; in the second one the machine is twice as slow for everybody."""
    cost_us = {PLAIN: {100: 20.0, 1: 200.0}, GATEWAY: {100: 10.0, 1: 150.0}}
    found = []
    for pace in (1.0, 2.0, 1.0):
        for load in QUICK.loads:
            for contestant, by_batch in cost_us.items():
                cpu_us = by_batch[load.batch_events]
                if contestant == GATEWAY and load == MOSTLY_AGAIN:
                    cpu_us = 0.05 * 10.0 + 0.95 * 4.0
                found.append(sample(contestant, load, cpu_us * pace))
    return Samples(found)


def test_a_ratio_compares_the_services_of_one_round(samples: Samples) -> None:
    assert samples.ratio(GATEWAY, NEW, service_cpu) == (0.5, 0.5, 0.5)
    assert samples.spread(GATEWAY, NEW, service_cpu) == (10.0, 10.0, 20.0)


def test_targets_say_whether_they_are_met(samples: Samples) -> None:
    assert {(target.contestant, target.base) for target in targets(samples)} == {(GATEWAY, PLAIN)}
    found = {target.name: (round(target.found.median, 9), target.is_met) for target in targets(samples)}
    assert found == {
        "CPU of a new event, batches of 100": (0.5, True),
        "CPU of an event sent again, batches of 100": (0.2, True),
        "CPU of a new event, batches of 1": (0.75, True),
        "new events/s, batches of 100": (1.0, False),
        "p50 of one connection, batches of 100": (1.0, True),
    }


def test_the_report_names_every_load_of_every_service(samples: Samples) -> None:
    remembered = [Remembered(GATEWAY, 1_000_000, 90.0, 20.0, 33 * 2**20)]
    text = as_markdown({"commit": "abc"}, samples, remembered)
    assert text.count(f"| {GATEWAY} | 10.0 (10.0 to 20.0) | 0.50 (0.50 to 0.50) |") == 2  # and one connection
    assert f"| {GATEWAY} | 1,000,000 | 90 | 20 | 33 |" in text
    assert len(as_json({}, samples, remembered)["samples"]) == 3 * 2 * len(QUICK.loads)


def test_the_chart_is_xml_with_two_bars_a_service_and_load(samples: Samples) -> None:
    chart = ElementTree.fromstring(cpu_chart(samples, 100))
    bars = [node for node in chart.iter("{http://www.w3.org/2000/svg}rect") if node.get("opacity")]
    assert len(bars) == 2 * len(samples.contestants) * 2
    assert all(float(bar.get("height", "-1")) >= 0 for bar in bars)
