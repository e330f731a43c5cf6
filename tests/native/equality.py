"""
Compares both paths on millions of generated events, seed by seed, and records what it compared.

    python -m tests.native.equality --seeds 1-25 --into equality.tsv

Each seed makes the same 200,000 events in any run, a third of them for each kind of deployment; what becomes
records is written and read again on both paths, too. Seeds that the file has are left out, so a run that was
stopped goes on. It ends with 1 at the first difference, and prints the body.
"""

import argparse
import sys
import time
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path

import gateway_native

from tests.native.both_paths import Compared, Paths, all_paths, compare_generated

EVENTS = 200_000
COLUMNS = ("seed", *(field.name for field in fields(Compared)), "native", "odd", "other_bodies", "cpu_s")


def main() -> int:
    """Compare; print and record a line for each seed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--seeds", default="1-25", help="a range, both ends included")
    parser.add_argument("--events", type=int, default=EVENTS, help="generated events of each seed")
    parser.add_argument("--into", type=Path, required=True, help="the file of lines; it may exist")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split("-"))
    done = _rows(options.into)
    print(f"gateway-native {gateway_native.__version__}, orjson {version('orjson')}", flush=True)
    for seed in range(first, last + 1):
        if seed in done:
            continue
        row = done[seed] = _compare(seed, options.events)
        with options.into.open("a", encoding="utf-8") as lines:
            lines.write("\t".join(map(str, row)) + "\n")
        told = ", ".join(f"{name} {number:,}" for name, number in zip(COLUMNS, row, strict=True))
        print(f"{told}; {sum(each[2] for each in done.values()):,} events so far", flush=True)
    sums = [sum(row[place] for row in done.values()) for place in range(len(COLUMNS))]
    print(
        "identical: "
        + ", ".join(f"{total:,} {name}" for total, name in zip(sums[1:], COLUMNS[1:], strict=True))
    )
    return 0


def _compare(seed: int, events: int) -> tuple[int, ...]:
    started, total, deployments = time.process_time(), Compared(), all_paths()
    for paths in deployments.values():
        compared = compare_generated(paths, seed, events // len(deployments))
        total.bodies += compared.bodies
        total.events += compared.events
        total.records += compared.records
        assert paths.panics == 0
    cpu_s = round(time.process_time() - started)
    return (seed, *asdict(total).values(), *_use(list(deployments.values())), cpu_s)


def _use(deployments: list[Paths]) -> tuple[int, int, int]:
    uses = [paths.native.use for paths in deployments]
    return (
        sum(use.events for use in uses),
        sum(use.odd_events for use in uses),
        sum(sum(use.other_bodies.values()) for use in uses),
    )


def _rows(file: Path) -> dict[int, tuple[int, ...]]:
    """Return the lines of earlier runs by seed."""
    if not file.exists():
        return {}
    rows = [tuple(map(int, line.split("\t"))) for line in file.read_text(encoding="utf-8").splitlines()]
    return {row[0]: row for row in rows}


if __name__ == "__main__":
    sys.exit(main())
