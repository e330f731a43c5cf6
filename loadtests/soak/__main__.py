"""
The soak test: minutes at 70 % of the gateway's throughput, with sizes so small that all data are replaced.

    .venv/bin/python -m loadtests.soak [--minutes 5] [--events-per-s N] [--out build/soak]

The window moves by its bound of keys every few seconds, and the index drops its oldest files repeatedly. It
fails if memory, open files, latency, CPU of an event or the index grew, or if an event was not accepted once.
Only the log grows, since it retains days.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from loadtests.soak.report import as_markdown, findings, plots
from loadtests.soak.run import BATCH_EVENTS, DUPLICATE_PERCENT, KEYS_MAX, LANES, SHARE, SMALL, Soak
from tests.support.gateway import Gateway

ROOT = Path(__file__).resolve().parents[2]
MOMENTS_MIN = 60


def _tell(progress: str) -> None:
    print(progress, flush=True)


def main() -> None:
    """Run, print and write the report; exit with an error if a figure grew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--events-per-s", type=float, help=f"instead of {SHARE:.0%}% of what it can take")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "soak", help="for the report")
    args = parser.parse_args()
    seconds, load_before = args.minutes * 60, os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="gateway-soak-") as folder,
        Gateway(Path(folder), SMALL) as gateway,
    ):
        soak = Soak(gateway, _tell)
        capacity = soak.capacity()
        pace = args.events_per_s or SHARE * capacity
        _tell(f"it takes {capacity:,.0f} events/s; sending {pace:,.0f} for {args.minutes:g} minutes")
        began = time.monotonic()
        moments = soak.run(pace, seconds=seconds, interval_s=min(5.0, seconds / MOMENTS_MIN))
        totals = gateway.stats()["totals"]
    is_once = totals["accepted"] == soak.history.new_events
    found = findings(moments)
    head = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "minutes": f"{(time.monotonic() - began) / 60:.1f}",
        "load": f"{pace:,.0f} events/s, batches of {BATCH_EVENTS}, {DUPLICATE_PERCENT} % of them sent again",
        "what it can take": f"{capacity:,.0f} events/s",
        "window": f"{KEYS_MAX:,} keys in {LANES} lanes, slid {moments[-1].events / KEYS_MAX:.0f} times",
        "every event accepted once": "yes" if is_once else f"NO: {totals}, {soak.history.new_events} sent",
        "load of the machine before and after": f"{load_before:.1f} and {os.getloadavg()[0]:.1f}",
    }
    report = as_markdown(head, found)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "soak.md").write_text(report)
    (args.out / "soak.svg").write_text(plots(moments))
    (args.out / "soak.json").write_text(
        json.dumps({**head, "moments": [moment._asdict() for moment in moments]}, indent=1) + "\n"
    )
    print(f"\n{report}")
    sys.exit(0 if is_once and all(finding.is_flat for finding in found) else 1)


if __name__ == "__main__":
    main()
