"""Who runs which tests where several processes share a run (`pytest -n 2`)."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SPARK_TESTS = "tests/pipeline/"


class BySharedFixtures(LoadScopeScheduling):
    """
    Gives one process all Spark tests, and file after file to those that have done with the one before.

    So the Spark session and what a module shares are made once; each process has a broker of its own.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        """Keep the order in which tests were collected."""
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return SPARK_TESTS if nodeid.startswith(SPARK_TESTS) else nodeid.partition("::")[0]


def put_longest_first(items: list[pytest.Item]) -> None:
    """Begin with what one process has to do alone, so that none waits for it in the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(SPARK_TESTS))
