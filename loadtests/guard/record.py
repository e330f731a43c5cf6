"""What an event cost when it was last recorded, and the comparison with what it costs now."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from loadtests.guard.cost import LOOP, OFF, Cost, ways

RECORD = Path(__file__).with_name("cost.json")
GROWTH_MAX = 1.15
LOOP_TRIES = 5
"""The number of tries, of which the cheapest counts, since other processes only add cost."""


def key_of(way: str, native: str = OFF) -> str:
    """Return the name of a method's record, for each version of Python, with the native module or without."""
    way = way if native == OFF else f"{way}, native"
    return f"{way}, Python {sys.version_info.major}.{sys.version_info.minor}"


def recorded() -> dict[str, Cost]:
    """Return what was recorded, by key."""
    return {key: Cost(**cost) for key, cost in json.loads(RECORD.read_text()).items()}


def write(costs: Mapping[str, Cost]) -> None:
    """Record some costs; those of other ways and Pythons stay."""
    known = recorded() if RECORD.exists() else {}
    merged = {key: cost._asdict() for key, cost in sorted({**known, **costs}.items())}
    RECORD.write_text(json.dumps(merged, indent=1) + "\n")


def measured(way: str, bound: Cost | None = None, native: str = OFF) -> Cost:
    """Return what an event costs now; CPU time is measured again while it seems to exceed the bound."""
    cost = ways(native)[way]()
    for _ in range(LOOP_TRIES - 1 if way == LOOP else 0):
        if bound is not None and not exceeded(cost, bound):
            break
        cost = Cost(*map(min, cost, ways(native)[way]()))
    return Cost(round(cost.new, 2), round(cost.again, 2))


def exceeded(cost: Cost, bound: Cost) -> list[str]:
    """Return one sentence for each figure that has grown too much."""
    return [
        f"{name}: {now:,.1f} instead of {was:,.1f}, {now / was - 1:+.0%}"
        for name, now, was in zip(("a new event", "an event sent again"), cost, bound, strict=True)
        if now > was * GROWTH_MAX
    ]
