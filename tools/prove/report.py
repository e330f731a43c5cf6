"""The report of the proof."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from tools.prove.parts import Part
from tools.prove.run import BROKEN, HELD, LEFT_OUT, ROOT, Result


class Row(NamedTuple):
    """A line of the report."""

    part: Part
    result: Result
    seconds: float


def status_of(rows: Sequence[Row]) -> int:
    """Return the exit status: 0 if nothing was broken."""
    return int(any(row.result.verdict == BROKEN for row in rows))


def as_markdown(rows: Sequence[Row], head: Mapping[str, str]) -> str:
    """Return the report."""
    verdicts = [row.result.verdict for row in rows]
    left_out = verdicts.count(LEFT_OUT)
    verdict = f"{verdicts.count(HELD)} parts held, {verdicts.count(BROKEN)} broken, {left_out} left out."
    table = ["| part | verdict | tried | seconds |", "|---|---|---|---|"]
    table += [
        f"| {row.part.name} | {row.result.verdict} | {row.result.tried} | {row.seconds:.0f} |" for row in rows
    ]
    details = [f"## {row.part.name}\n\n{row.part.claim}\n\n{row.result.detail}" for row in rows]
    facts = [f"- {name}: {value}" for name, value in head.items()]
    return "\n".join(["# Proof", "", verdict, "", *facts, "", *table, "", "\n\n".join(details).rstrip(), ""])


def head_of(seed: int, minutes: float) -> dict[str, str]:
    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = ", with changes that are not committed" if git("status", "--porcelain", "-uno") else ""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "commit": git("rev-parse", "HEAD") + changed,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()} {platform.release()},"
        f" Python {platform.python_version()}; load before: {os.getloadavg()[0]:.1f}",
        "to repeat": f'`make prove MINUTES={minutes:g} ARGS="--seed {seed}"`',
    }
