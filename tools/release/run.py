"""One release: its version, its folders, and the programs that it runs."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]


class ReleaseError(Exception):
    """A step failed; what it printed."""


@dataclass(frozen=True, slots=True)
class Release:
    """What is made, and where to."""

    version: str
    out: Path
    """The folder of what is published, empty at the beginning."""
    stage: Path
    """A folder for copies and builds."""
    registry: str = ""
    """Registry of images and charts, with a path if it has one; nothing is pushed without it."""
    is_plain_http: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, *words: str | Path, cwd: Path = ROOT) -> str:
        """Run a program and return what it printed. Raises ReleaseError."""
        env = {**os.environ, **self.env}
        done = subprocess.run(
            [*map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ReleaseError(
                f"{' '.join(map(str, words[:4]))}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            )
        return done.stdout.strip()
