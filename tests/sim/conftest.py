"""The simulation says little, but a history that fails says how to repeat it."""

from collections.abc import Generator, Iterator
from typing import Any, NoReturn

import pytest
import structlog


def _drop(*_line: Any) -> NoReturn:
    raise structlog.DropEvent


@pytest.fixture(autouse=True)
def _say_little() -> Iterator[None]:
    """Thousands of faults would print a line each, and take longer than the rest."""
    structlog.configure(processors=[_drop])
    yield
    structlog.reset_defaults()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the line that repeats a failed history."""
    report = yield
    callspec = getattr(item, "callspec", None)
    if report.failed and callspec is not None and "seed" in callspec.params:
        seed, name = callspec.params["seed"], item.name.partition("[")[0]
        line = f'SIM_SEED={seed} SIM_HISTORIES=1 make unit ARGS="-k {name}"'
        report.sections.append(("to repeat this history", line))
    return report
