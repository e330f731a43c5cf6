"""Claim: a test that passes only when it runs again is told of, and more than a few of them fail the run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.again import AGAIN_MAX

ROOT = Path(__file__).parents[2]

FAILS_FIRST = """
import pytest
runs = []

@pytest.mark.parametrize("number", range({count}))
def test_fails_first(number):
    runs.append(number)
    assert runs.count(number) == 2, f"the first run of {{number}}"
"""


def run(tmp_path: Path, tests: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "test_it.py"
    file.write_text(tests)
    words = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml")]
    words += ["-p", "tests.support.again", "--reruns", "1", str(file)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("count", "code"), [(0, 0), (1, 0), (AGAIN_MAX, 0), (AGAIN_MAX + 1, 1)])
def test_failures_of_first_runs_are_shown_and_bounded(count: int, code: int, tmp_path: Path) -> None:
    done = run(tmp_path, FAILS_FIRST.format(count=count) + "\ndef test_passes(): pass\n")
    assert done.returncode == code, done.stdout
    for number in range(count):
        assert f"the first run of {number}" in done.stdout
    assert ("each is a bug" in done.stdout) == (count > 0)


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    assert run(tmp_path, "def test_fails(): assert 0\n").returncode == 1
