"""The results of a run: figures from locust's statistics, violated limits, and a summary."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from loadtests.load.names import HOSTILE, LATE, LOCUST, REFUSED, UNSENT
from loadtests.load.options import Options
from loadtests.load.profiles import PROFILES
from loadtests.load.sample import Compared


class Entry(Protocol):
    """One line of locust's statistics."""

    name: str
    method: str
    num_requests: int
    num_failures: int
    response_times: dict[int, int]


class Figures(NamedTuple):
    """What was counted and measured."""

    requests: int  # of well-behaved clients, answered or not
    refused: int
    failures: int  # wrong or missing answers, to hostile clients as well
    hostile: int
    late: int
    p50_ms: float
    p99_ms: float
    slowest_ms: float


def figures_of(entries: Iterable[Entry]) -> Figures:
    """Return the figures of a run."""
    times: Counter[int] = Counter()
    requests = refused = failures = hostile = late = 0
    for entry in entries:
        failures += entry.num_failures
        if entry.method == LOCUST:
            late += entry.num_requests if entry.name in (LATE, UNSENT) else 0
        elif entry.name.startswith(HOSTILE):
            hostile += entry.num_requests
        else:
            requests += entry.num_requests
            refused += entry.num_requests if entry.name == REFUSED else 0
            if entry.name != REFUSED:
                times.update(entry.response_times)
    return Figures(
        requests,
        refused,
        failures,
        hostile,
        late,
        _percentile(times, 0.5),
        _percentile(times, 0.99),
        max(times, default=0),
    )


def _percentile(times: Counter[int], share: float) -> float:
    wanted, seen = share * times.total(), 0
    for milliseconds, count in sorted(times.items()):
        seen += count
        if seen >= wanted:
            return milliseconds
    return 0.0


def broken_limits(options: Options, figures: Figures, compared: Compared | None) -> list[str]:
    """Return a sentence for each limit that was broken."""
    profile = PROFILES[options.load_profile]
    p99_max = options.p99_ms or profile.p99_ms
    refused_max = profile.refused_max if options.refused_max < 0 else options.refused_max
    requests = max(1, figures.requests)
    broken = []
    if not figures.requests - figures.refused - figures.failures > 0:
        broken.append("nothing was acknowledged")
    if figures.p99_ms > p99_max:
        broken.append(f"p99 is {figures.p99_ms:,.0f} ms, more than {p99_max:,.0f}")
    if figures.refused > refused_max * requests:
        broken.append(f"{figures.refused / requests:.1%} were refused, more than {refused_max:.1%}")
    if figures.failures > options.failures_max * (requests + figures.hostile):
        broken.append(f"{figures.failures:,} answers were wrong or missing")
    if figures.late > options.late_max * requests:
        broken.append(
            f"locust was late with {figures.late / requests:.1%} of its requests: it needs more CPU"
        )
    if compared is not None and not compared.is_whole:
        broken.append(f"the log disagrees: {compared}")
    return broken


def summary_of(
    options: Options,
    figures: Figures,
    compared: Compared | None,
    *,
    seconds: float,
    cpu_s: float,
    events: int,
) -> dict[str, Any]:
    """Return all that a report needs."""
    requests = figures.requests + figures.hostile
    return {
        "profile": options.load_profile,
        "options": {name: value for name, value in options._asdict().items() if name != "summary"},
        "seconds": round(seconds, 1),
        **figures._asdict(),
        "events_acknowledged": events,
        "requests_per_s": round(requests / max(seconds, 1e-9), 1),
        "locust_cpu_us_per_request": round(cpu_s / max(1, requests) * 1e6),
        "locust_cpu_share": round(cpu_s / max(seconds, 1e-9), 3),
        "log": str(compared) if compared is not None else "not compared",
        "broken": broken_limits(options, figures, compared),
    }


def as_text(summary: Mapping[str, Any]) -> str:
    """Return a summary for people."""
    lines = [
        f"Profile {summary['profile']}, {summary['seconds']:g} s: {summary['requests']:,} requests, "
        f"{summary['refused']:,} of them refused, {summary['failures']:,} answers wrong or missing",
        f"{summary['events_acknowledged']:,} events acknowledged, duplicates included; "
        f"{summary['hostile']:,} hostile requests",
        f"latency from when it was due: p50 {summary['p50_ms']:,.0f} ms, p99 {summary['p99_ms']:,.0f} ms, "
        f"at most {summary['slowest_ms']:,.0f} ms",
        f"locust: {summary['locust_cpu_us_per_request']:,} us of CPU a request, "
        f"{summary['locust_cpu_share']:.0%} of a core, late with {summary['late']:,} requests",
        f"log: {summary['log']}",
    ]
    return "\n".join([*lines, *(f"LIMIT BROKEN: {sentence}" for sentence in summary["broken"])])
