"""A bar chart of a run as SVG: what an event costs, by service and share of duplicates."""

from collections.abc import Iterator
from html import escape

from loadtests.bench.contestants import GATEWAY, NATIVE, PLAIN, REDIS, SQLITE
from loadtests.bench.report import Samples, service_cpu, store_cpu
from loadtests.bench.run import CONNECTIONS, Load

COLOURS = {PLAIN: "#8a8f98", REDIS: "#c8553d", GATEWAY: "#2a6f97", NATIVE: "#014f86", SQLITE: "#61a5c2"}
BAR, GAP, LEFT, TOP, HEIGHT = 26, 34, 60, 46, 240
WHITE, INK, LINE = "#ffffff", "#24292f", "#d0d7de"


def cpu_chart(samples: Samples, batch_events: int) -> str:
    """Return a chart of CPU an event in batches of one size; the pale part of a bar is Kafka and Redis."""
    loads = [
        load
        for load in samples.loads
        if load.batch_events == batch_events and load.connections == CONNECTIONS
    ]
    highest = max(sum(_bar(samples, name, load)) for load in loads for name in samples.contestants)
    top_us = _round_up(highest)
    group = len(samples.contestants) * BAR + GAP
    width = LEFT + len(loads) * group + GAP
    parts = [
        _text(
            LEFT,
            20,
            f"CPU us an event, batches of {batch_events}: service, and pale Kafka and Redis",
            anchor="start",
        ),
        *_axis(top_us, width),
        *(
            part
            for place, load in enumerate(loads)
            for part in _group(samples, load, LEFT + GAP / 2 + place * group, HEIGHT / top_us)
        ),
        *_legend(samples.contestants),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TOP + HEIGHT + 70}"'
        f' font-family="sans-serif" font-size="12" fill="{INK}">'
        f'<rect width="100%" height="100%" fill="{WHITE}"/>{"".join(parts)}</svg>\n'
    )


def _bar(samples: Samples, name: str, load: Load) -> tuple[float, float]:
    return samples.spread(name, load, service_cpu).median, samples.spread(name, load, store_cpu).median


def _group(samples: Samples, load: Load, left: float, scale: float) -> Iterator[str]:
    for place, name in enumerate(samples.contestants):
        x, base = left + place * BAR, TOP + HEIGHT
        service, store = _bar(samples, name, load)
        yield _rect(x, base - service * scale, service * scale, COLOURS[name], 1)
        yield _rect(x, base - (service + store) * scale, store * scale, COLOURS[name], 0.35)
        yield _text(x + BAR / 2 - 2, base - (service + store) * scale - 4, f"{service + store:.0f}")
        yield _text(x + BAR / 2 - 2, base - 6, f"{service:.0f}", fill=WHITE)
    middle = left + len(samples.contestants) * BAR / 2
    yield _text(middle, TOP + HEIGHT + 18, f"{load.duplicate_percent} % duplicates")


def _axis(top_us: float, width: float) -> Iterator[str]:
    for step in range(5):
        y = TOP + HEIGHT - HEIGHT * step / 4
        yield f'<line x1="{LEFT}" x2="{width - GAP / 2}" y1="{y}" y2="{y}" stroke="{LINE}"/>'
        yield _text(LEFT - 8, y + 4, f"{top_us * step / 4:g}", anchor="end")


def _legend(names: list[str]) -> Iterator[str]:
    x = float(LEFT)
    for name in names:
        y = TOP + HEIGHT + 40
        yield f'<rect x="{x}" y="{y}" width="12" height="12" fill="{COLOURS[name]}"/>'
        yield _text(x + 18, y + 11, name, anchor="start")
        x += 40 + 8 * len(name)


def _rect(x: float, y: float, height: float, colour: str, opacity: float) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{BAR - 4}" height="{max(0.0, height):.1f}"'
        f' fill="{colour}" opacity="{opacity}"/>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "middle", fill: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'


def _round_up(value: float) -> float:
    """Return the next value that four lines divide evenly."""
    step = next(
        step for step in (4, 8, 20, 40, 80, 200, 400, 800, 2_000, 4_000, 100_000) if step * 5 >= value
    )
    return step * -(-value // step)
