"""
The limit of open files is divided among connections, indexes and the rest, as far as the machine allows.

A process of its own each time: a hard limit, once lowered, cannot be raised again.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S

REPOSITORY = Path(__file__).parents[3]

LIMITED_PROCESS = """
import resource, sys
soft, hard, wanted, index_files = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from app.process.life import allow_connections
print(allow_connections(wanted, index_files=index_files), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "possible", "limit", "is_warned"),
    [
        (4_000, 4_000, 1_000, 4_000, False),
        (256, 4_000, 1_000, 3_024, False),  # 1,000 wanted, 1,000 of the indexes, 1,024 others
        (256, 2_500, 1_000, 2_500, True),
        (256, 1_500, 750, 1_500, True),
    ],
    ids=["enough", "raised", "too few for full indexes", "too few for connections"],
)
def test_open_files_are_divided(soft: int, hard: int, possible: int, limit: int, is_warned: bool) -> None:
    limited = subprocess.run(
        [sys.executable, "-c", LIMITED_PROCESS, str(soft), str(hard), "1000", "1000"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )

    *warnings, found = limited.stdout.splitlines()

    assert found == f"{possible} {limit}"
    assert any("limit of open files is too low" in line for line in warnings) == is_warned
