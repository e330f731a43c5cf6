"""Claim: `make bench` brings every service up, sends it what it says, and has a figure for each of them."""

from collections import Counter

import pytest

from loadtests.bench.__main__ import run
from loadtests.bench.contestants import NAMES, PLAIN, REDIS, SERVICE
from loadtests.bench.report import Samples, as_markdown, targets
from loadtests.bench.run import Extent

SMALLEST = Extent((100, 1), (0, 95), (1,), requests=10, rounds=1)


@pytest.mark.kafka
@pytest.mark.slow
def test_every_service_is_measured_under_every_load() -> None:
    measured, remembered = run(SMALLEST)  # fails if a gateway did not accept each event once
    assert Counter(sample.contestant for sample in measured) == dict.fromkeys(NAMES, len(SMALLEST.loads))
    assert all(sample.cpu_us[SERVICE] > 0 for sample in measured)
    assert {row.contestant: row.index_bytes_grown > 0 for row in remembered} == {
        name: name not in (PLAIN, REDIS) for name in NAMES
    }
    samples = Samples(measured)
    assert len(targets(samples)) == 3 * 3 + 2
    assert as_markdown({}, samples, remembered).count(f"| {REDIS} |") == len(SMALLEST.loads) + 1
