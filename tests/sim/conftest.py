"""The simulation says little: thousands of faults would print a line each, and take longer than the rest."""

from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
import structlog


def _drop(*_line: Any) -> NoReturn:
    raise structlog.DropEvent


@pytest.fixture(autouse=True)
def _say_little() -> Iterator[None]:
    structlog.configure(processors=[_drop])
    yield
    structlog.reset_defaults()
