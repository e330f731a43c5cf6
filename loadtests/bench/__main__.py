"""
`make bench`: the cost of an event in this gateway, a plain service and one with Redis, in one run.

    .venv/bin/python -m loadtests.bench [--quick] [--rounds 5] [--out build/bench/latest]

It starts everything on loopback, with one private Kafka. Absolute figures depend on the machine and its other
load; compare the ratios within one run. docs/benchmarks.md explains them.
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadtests.bench.chart import cpu_chart
from loadtests.bench.contestants import Contestant, contestants
from loadtests.bench.report import Remembered, Samples, as_json, as_markdown
from loadtests.bench.run import FULL, QUICK, Extent, Sample, measure, warm_up

ROOT = Path(__file__).resolve().parents[2]


def run(extent: Extent) -> tuple[list[Sample], list[Remembered]]:
    """Start everything, measure, stop everything."""
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as folder, contestants(Path(folder)) as started:
        for contestant in started:
            _tell(f"warming up: {contestant.name}")
            warm_up(contestant, extent)
        before = [(each.history.new_events, each.rss_mib(), each.index_bytes()) for each in started]
        samples = list(measure(started, extent, _tell))
        _check(started)
        return samples, [_remembered(each, *was) for each, was in zip(started, before, strict=True)]


def _remembered(contestant: Contestant, new_before: int, rss_before: float, disk_before: int) -> Remembered:
    rss_mib = contestant.rss_mib()
    return Remembered(
        contestant.name,
        contestant.history.new_events - new_before,
        rss_mib,
        rss_mib - rss_before,
        contestant.index_bytes() - disk_before,
    )


def _check(started: Sequence[Contestant]) -> None:
    """A figure counts only if every new event was accepted once, and nothing else was."""
    for contestant in started:
        if contestant.gateway is not None:
            totals = contestant.gateway.stats()["totals"]
            assert totals["accepted"] == contestant.history.new_events, (contestant.name, totals)


def _head(extent: Extent, began: float, load_before: float) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit.stdout.strip() or "unknown",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
        "python": platform.python_version(),
        "rounds": extent.rounds,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "load of the machine before and after": f"{load_before:.1f} and {os.getloadavg()[0]:.1f}",
    }


def _tell(progress: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {progress}", flush=True)


def main() -> None:
    """Measure, print and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, and rough")
    parser.add_argument("--rounds", type=int, help=f"{FULL.rounds}, and {QUICK.rounds} of the quick ones")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "bench" / "latest", help="for the report"
    )
    args = parser.parse_args()
    extent = QUICK if args.quick else FULL
    extent = extent._replace(rounds=args.rounds or extent.rounds)
    began, load_before = time.monotonic(), os.getloadavg()[0]
    measured, remembered = run(extent)
    samples, head = Samples(measured), _head(extent, began, load_before)
    report = as_markdown(head, samples, remembered)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "bench.md").write_text(report)
    (args.out / "bench.json").write_text(json.dumps(as_json(head, samples, remembered), indent=1) + "\n")
    (args.out / "bench.svg").write_text(cpu_chart(samples, batch_events=max(extent.batches)))
    print(f"\n{report}\nWritten to {args.out}: bench.md, bench.json, bench.svg")


if __name__ == "__main__":
    main()
