"""The report of the proof."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from tools.prove.parts import Part
from tools.prove.run import BROKEN, HELD, LEFT_OUT, ROOT, Result

ABOUT = """\
What is tried: events sent to gateways are stored once, never lost, and answered the same again, whatever
fails meanwhile (`docs/TRUST.md`). *Held*: no event was lost or stored twice, and the faults cost no more
time than is promised. *BROKEN*: a promise was broken, or a test could not be run; the end of its output is
below, the whole in the file of that name beside this report. *Left out*: this machine lacks something. What
was tried is a sample: an hour tries more than ten minutes, and each run tries something else.

In the tables of kills, *times* are faults, *median* and *worst* how long a partition was without a gateway,
*slowest 200* the longest that a client waited for its answer, *not 200* the requests that were refused or
got no answer, and were sent again; *lost* and *twice* count events, by a reader of the log that knows
nothing of the gateways. In the list of network faults, *gap* is the longest time that a client which goes
to any gateway was without a success, then its bound, *out* the gateways that refused most of their own
clients, and *unready* those that told a load balancer so."""


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
    lines = ["# Proof", "", verdict, "", *facts, "", ABOUT, "", *table, "", "\n\n".join(details)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


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
