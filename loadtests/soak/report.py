"""The report of a soak test: which figures were constant, as Markdown, and their course, as plots."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from loadtests.soak.run import TURNOVER_EVENTS, Moment

Figure = Callable[[Moment], float]


class Flat(NamedTuple):
    """A figure that must not grow once the index has turned over."""

    name: str
    figure: Figure
    growth_max: float  # of its median from the first to the last third; noise of a shared machine included
    slack: float = 0.0  # what it may grow by in any case, in its own unit


INDEX_LOGS_MIB_MAX = 32  # they are bounded by twice the memory of the index, and get there slowly

CROWDING = (
    "Crowding is how many times longer the gateway took because other processes had the cores. What a clock"
    " measures is judged as a multiple of it."
)

FLAT = (
    Flat("RSS, MiB", lambda moment: moment.rss_mib, 1.1, slack=5),
    Flat("open files", lambda moment: moment.open_files, 1.1, slack=4),
    Flat("CPU us an event", lambda moment: moment.cpu_us, 1.2),
    Flat("p50 ms / crowding", lambda moment: moment.p50_ms / moment.crowding, 1.5, slack=5),
    Flat("p99 ms / crowding", lambda moment: moment.p99_ms / moment.crowding, 2.0, slack=20),
    Flat("ms a commit / crowding", lambda moment: moment.commit_ms / moment.crowding, 1.5, slack=2),
    Flat("index, MiB", lambda moment: moment.index_mib, 1.2, slack=2),
    Flat("index files", lambda moment: moment.index_files, 1.2, slack=4),
    Flat("index logs, MiB", lambda moment: moment.index_logs_mib, 1.2, slack=INDEX_LOGS_MIB_MAX),
)


class Finding(NamedTuple):
    """How a figure went."""

    name: str
    first: float
    last: float
    is_flat: bool


def findings(moments: Sequence[Moment]) -> list[Finding]:
    """Compare the first and the last third of what was seen after the index dropped its first files."""
    full = [moment for moment in moments if moment.events > TURNOVER_EVENTS]
    if len(full) < 6:
        raise ValueError(f"only {moments[-1].events:,} events were sent: run for longer")
    third = len(full) // 3
    return [_finding(flat, full[:third], full[-third:]) for flat in FLAT]


def _finding(flat: Flat, early: Sequence[Moment], late: Sequence[Moment]) -> Finding:
    first, last = (statistics.median(map(flat.figure, part)) for part in (early, late))
    return Finding(flat.name, first, last, last <= max(first * flat.growth_max, first + flat.slack))


def as_markdown(head: Mapping[str, Any], found: Sequence[Finding]) -> str:
    """Return the report."""
    lines = [
        "# Soak",
        "",
        *(f"- {name}: {value}" for name, value in head.items()),
        "",
        "![plots](soak.svg)",
        "",
    ]
    lines += [CROWDING, ""]
    lines += ["| | first third | last third | flat |", "|---|---|---|---|"]
    lines += [f"| {f.name} | {f.first:.1f} | {f.last:.1f} | {'yes' if f.is_flat else 'NO'} |" for f in found]
    return "\n".join(lines) + "\n"


PLOTTED: list[tuple[str, Figure]] = [
    *((flat.name, flat.figure) for flat in FLAT),
    ("crowding", lambda moment: moment.crowding),
    ("p50 ms", lambda moment: moment.p50_ms),
    ("p99 ms", lambda moment: moment.p99_ms),
]
WIDTH, HEIGHT, GAP = 330, 90, 46


def plots(moments: Sequence[Moment]) -> str:
    """Return a line for each figure over time, as SVG."""
    rows = -(-len(PLOTTED) // 2)
    parts = [
        part for place, (name, figure) in enumerate(PLOTTED) for part in _plot(moments, name, figure, place)
    ]
    width, height = 2 * (WIDTH + GAP) + GAP, rows * (HEIGHT + GAP) + GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' font-family="sans-serif" font-size="11" fill="#24292f">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _plot(moments: Sequence[Moment], name: str, figure: Figure, place: int) -> Iterator[str]:
    left, top = GAP + place % 2 * (WIDTH + GAP), GAP / 2 + place // 2 * (HEIGHT + GAP)
    values = [figure(moment) for moment in moments]
    highest, end = max(values) or 1.0, moments[-1].minute
    points = " ".join(
        f"{left + WIDTH * moment.minute / end:.1f},{top + HEIGHT * (1 - value / highest):.1f}"
        for moment, value in zip(moments, values, strict=True)
    )
    yield f'<text x="{left}" y="{top - 6}">{escape(name)}, 0 to {highest:.4g}; {end:.0f} minutes</text>'
    yield f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#d0d7de"/>'
    yield f'<polyline points="{points}" fill="none" stroke="#2a6f97" stroke-width="1.5"/>'
