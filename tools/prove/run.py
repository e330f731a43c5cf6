"""One run of the proof: its seed, its folder, and the commands that it runs."""

import os
import random
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 300.0
"""Beyond its share, before a command counts as hanging."""
TAIL_LINES = 40

HELD, BROKEN, LEFT_OUT = "held", "BROKEN", "left out"
"""The verdicts of a part."""


class Result(NamedTuple):
    """What a part has shown."""

    verdict: str
    tried: str
    """How much was tried."""
    detail: str = ""
    """Markdown for the report: how to repeat it, a table, the end of what a failure has printed."""


class Ran(NamedTuple):
    """One command."""

    status: int
    output: str

    @property
    def tail(self) -> str:
        """Its last lines, as Markdown."""
        return "```text\n" + "\n".join(self.output.splitlines()[-TAIL_LINES:]) + "\n```"


@dataclass
class Proof:
    """One run of all parts."""

    seed: int
    folder: Path
    rng: random.Random = field(default_factory=random.Random)
    """Of the part that runs."""

    def begin(self, part: str) -> None:
        """Draw as this part does with this seed, whatever has run before."""
        self.rng.seed(f"{self.seed} {part}")

    def run(
        self, name: str, command: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None
    ) -> Ran:
        """Run a command to its end, or kill it at its limit; its output goes to a file, too."""
        log = self.folder / f"{name}.log"
        with log.open("w+") as out:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
            try:
                status = process.wait(limit_s + GRACE_S)
            except subprocess.TimeoutExpired:
                status = -1
                out.write(f"\nkilled: it took longer than {limit_s + GRACE_S:.0f} s\n")
            finally:
                if process.poll() is None:
                    process.terminate()
                    _end(process)
            out.flush()
            return Ran(status, log.read_text(errors="replace"))

    def results(self, name: str) -> Path:
        """Return where pytest leaves the results of a run of `tests`."""
        return self.folder / f"{name}.xml"

    def tests(
        self, name: str, arguments: Sequence[str], limit_s: float, *, within: Sequence[str] = (), **env: str
    ) -> tuple[Ran, int]:
        """Run pytest; return its end, and how many tests have passed."""
        results = self.results(name)
        results.unlink(missing_ok=True)
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={results}"]
        ran = self.run(name, [*within, sys.executable, "-m", "pytest", *options, *arguments], limit_s, env)
        return ran, _passed(results)


def missed_in(results: Path) -> dict[str, str]:
    """Return the tests of a JUnit file that failed, as pytest names them, with their messages."""
    missed = {}
    for case in ET.parse(results).getroot().iter("testcase") if results.exists() else ():
        for bad in (*case.findall("failure"), *case.findall("error")):
            name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
            missed[name] = bad.get("message", "")
    return missed


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _passed(results: Path) -> int:
    if not results.exists():
        return 0
    suites = ET.parse(results).getroot().iter("testsuite")
    counts = [
        [int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")] for suite in suites
    ]
    return sum(tests - sum(others) for tests, *others in counts)
