"""
Which histories are simulated: SIM_SEED is the first seed, SIM_HISTORIES how many.

Suites of fewer or costlier histories run a share of that number, and at least one.
"""

import os

import pytest

FIRST_SEED = int(os.environ.get("SIM_SEED", "0"))
DEFAULT_HISTORIES = 1000
HISTORIES = int(os.environ.get("SIM_HISTORIES", DEFAULT_HISTORIES))
ARE_AS_PLANNED = FIRST_SEED == 0 and HISTORIES >= DEFAULT_HISTORIES
"""Whether everything must be seen that is planned; the tests that ask for it are not there otherwise."""


def each_seed(*, one_in: int = 1) -> pytest.MarkDecorator:
    """Return the mark that runs a test with each seed of its histories."""
    seeds = range(FIRST_SEED, FIRST_SEED + max(1, HISTORIES // one_in))
    return pytest.mark.parametrize("seed", seeds, ids=lambda seed: f"seed-{seed}")
