"""Claim: one event passes few files and few calls between them, and docs/ARCHITECTURE.md states how many."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
FILES_MAX, CALLS_MAX = 44, 79
"""A reader follows so much in an hour; today's figures stand in docs/ARCHITECTURE.md."""
LINES_MAX = 400
"""Of a file: otherwise files could be merged to be fewer."""


def test_one_event_passes_few_files_and_calls() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.one_event"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    counted = re.match(r"(\d+) files, (\d+) calls\n", done.stdout)
    assert counted, done.stdout
    files, calls = map(int, counted.groups())
    assert files <= FILES_MAX, done.stdout
    assert calls <= CALLS_MAX, done.stdout
    stated = re.search(
        r"(\d+) files, (\d+) calls\n", (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    )
    assert stated is not None
    assert abs(files - int(stated[1])) <= 1, counted[0]  # what a loaded machine has do beside a request
    assert abs(calls - int(stated[2])) <= 2, counted[0]


def test_no_file_is_longer_than_a_reader_takes_in() -> None:
    sources = [path for house in ("app", "dedupe", "pipeline") for path in (ROOT / house).rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in sources}
    assert {path: lines for path, lines in lengths.items() if lines > LINES_MAX} == {}
