"""
A temporary copy of the project in which one file at a time is changed, so that the tree itself never is.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self

from tools.mutants.catalogue import ROOT, Mutant

FAST_SUITE = [
    "tests/unit",
    "tests/sim",
    "tests/contract",
    "tests/integration",
    "-m",
    "not kafka and not slow",
]
"""What needs neither a broker nor minutes. Each mutant is a run of it."""

TEST_TIMEOUT_S = 60
"""A mutant may make its test hang, which counts as killed. No named test takes half of this time, the start
of Spark or a broker included."""

RUN_TIMEOUT_S = 1_800
"""Of a whole run. What a test raises when its time is over, a mutant may catch."""

_PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT_S}"]
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "node_modules", "__pycache__", ".*_cache")
_PASSED, _FAILED = 0, 1  # pytest's exit statuses; others say that it came to no verdict


class Run(NamedTuple):
    """One run of pytest."""

    status: int
    output: str
    seconds: float

    @property
    def has_passed(self) -> bool:
        """Whether every test passed."""
        return self.status == _PASSED

    @property
    def has_failed(self) -> bool:
        """Whether a test failed. Neither: none could be run."""
        return self.status == _FAILED


class Workshop:
    """A copy of the project, deleted in the end."""

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory(prefix="mutants-")
        self._copy = Path(self._folder.name) / "project"
        shutil.copytree(ROOT, self._copy, ignore=_LEFT_OUT, symlinks=True)
        (self._copy / "build").symlink_to(ROOT / "build")
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """Have the mutant in the copy. Raises MutantError."""
        file = self._copy / mutant.file
        before = file.read_text(encoding="utf-8")
        file.write_text(mutant.applied_to(before), encoding="utf-8")
        try:
            yield
        finally:
            file.write_text(before, encoding="utf-8")

    def run(self, tests: Sequence[str], *, until_first_failure: bool = False) -> Run:
        """Run some tests on the copy as it is."""
        limit_s = 3 * TEST_TIMEOUT_S if until_first_failure else RUN_TIMEOUT_S
        began = time.monotonic()
        with subprocess.Popen(
            [*_PYTEST, *(["-x"] if until_first_failure else []), *tests],
            cwd=self._copy,
            # No bytecode: it is found by second and size, which a quick change of a file may both keep.
            env=os.environ | {"PYTHONPATH": str(self._copy), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as running:
            status, output = _ended(running, limit_s)
        return Run(status, output, time.monotonic() - began)


def _ended(running: "subprocess.Popen[str]", limit_s: float) -> tuple[int, str]:
    """Return the exit status and the output; a run that does not end in time has failed."""
    try:
        output, _ = running.communicate(timeout=limit_s)
        return running.returncode, output
    except subprocess.TimeoutExpired:
        return _FAILED, f"no end within {limit_s:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)


def failures_in(output: str) -> list[str]:
    """Return the failed tests of pytest's summary, each once for all its parameters."""
    return sorted(set(re.findall(r"^(?:FAILED|ERROR) ([^\s\[]+)", output, flags=re.MULTILINE)))
