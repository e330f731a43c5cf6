"""Who runs which tests where several processes share a run (`pytest -n 3`)."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SPARK_TESTS = "tests/pipeline/"
SPARK_PROCESSES = 2
"""A session costs 30 CPU-seconds until it is warm, and one alone would take longer than all the rest."""


class BySharedFixtures(LoadScopeScheduling):
    """
    Gives a file at a time to each process that has done with the one before, Spark's to the same two.

    So what a module shares is made once, and a Spark session twice; each process has a broker of its own.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        """Keep the order in which tests were collected."""
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        runs_spark = node in self.nodes[:SPARK_PROCESSES]
        own = (file for file in self.workqueue if file.startswith(SPARK_TESTS) == runs_spark)
        if (first := next(own, None)) is not None:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)
