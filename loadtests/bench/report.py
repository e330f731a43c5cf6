"""The report of a run: medians, spread and ratios to the plain service, as Markdown and JSON."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from loadtests.bench.contestants import GATEWAY, NAMES, NATIVE, PLAIN, SERVICE
from loadtests.bench.run import CONNECTIONS, Load, Sample

Figure = Callable[[Sample], float]

MOSTLY_DUPLICATES_PERCENT = 95

CPU_TARGETS = (
    "CPU of a new event, batches of 100",
    "CPU of an event sent again, batches of 100",
    "CPU of a new event, batches of 1",
)


class Spread(NamedTuple):
    """The median of some rounds, and their spread."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise n >= 1 values."""
        return cls(statistics.median(values), min(values), max(values))

    def __format__(self, digits: str) -> str:
        return f"{self.median:{digits}} ({self.low:{digits}} to {self.high:{digits}})"


class Remembered(NamedTuple):
    """The memory and disk of a contestant for the ids of a run."""

    contestant: str
    new_events: int
    rss_mib: float
    rss_mib_grown: float
    index_bytes_grown: int


class Target(NamedTuple):
    """A target of a gateway: a ratio to another service."""

    contestant: str
    base: str
    name: str
    ratio: float
    is_least: bool
    found: Spread

    @property
    def is_met(self) -> bool:
        """Whether the median is within the target."""
        return self.found.median >= self.ratio if self.is_least else self.found.median <= self.ratio


def service_cpu(sample: Sample) -> float:
    """Return the service's own CPU, us an event."""
    return sample.cpu_us[SERVICE]


def store_cpu(sample: Sample) -> float:
    """Return the CPU of Kafka and Redis behind it, us an event."""
    return sum(sample.cpu_us.values()) - sample.cpu_us[SERVICE]


class Samples:
    """The samples of a run, by contestant and load, in the order of its rounds."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.all = samples
        self.contestants = sorted({sample.contestant for sample in samples}, key=NAMES.index)
        self.loads = list(dict.fromkeys(sample.load for sample in samples))

    def of(self, contestant: str, load: Load, figure: Figure) -> list[float]:
        """Return one figure of each round."""
        return [figure(sample) for sample in self.all if sample[:2] == (contestant, load)]

    def spread(self, contestant: str, load: Load, figure: Figure) -> Spread:
        """Return a figure over the rounds."""
        return Spread.of(self.of(contestant, load, figure))

    def ratio(self, contestant: str, load: Load, figure: Figure, base: str = PLAIN) -> Spread:
        """Return a figure as a multiple of another service's in the same round."""
        pairs = zip(self.of(contestant, load, figure), self.of(base, load, figure), strict=True)
        return Spread.of([own / other for own, other in pairs])


def targets(samples: Samples) -> list[Target]:
    """Return what the gateways on Kafka are to reach, and where they stand."""
    new, alone, single = Load(100, 0), Load(100, 0, connections=1), Load(1, 0)
    found: list[Target] = []
    for contestant, base, *ratios in (
        (NATIVE, GATEWAY, 0.6, 0.62, 0.8),
        (NATIVE, PLAIN, 0.5, 0.3, 0.8),
        (GATEWAY, PLAIN, 0.5, 0.3, 0.8),
    ):
        if {contestant, base} <= set(samples.contestants):
            figures = (
                samples.ratio(contestant, new, service_cpu, base),
                _sent_again(samples, contestant, base),
                samples.ratio(contestant, single, service_cpu, base),
            )
            for name, ratio, figure in zip(CPU_TARGETS, ratios, figures, strict=True):
                found.append(Target(contestant, base, name, ratio, False, figure))
    best = NATIVE if NATIVE in samples.contestants else GATEWAY
    per_s = samples.ratio(best, new, lambda sample: sample.events_per_s)
    p50 = samples.ratio(best, alone, lambda sample: sample.p50_ms)
    return [
        *found,
        Target(best, PLAIN, "new events/s, batches of 100", 1.8, True, per_s),
        Target(best, PLAIN, "p50 of one connection, batches of 100", 1.5, False, p50),
    ]


def _sent_again(samples: Samples, contestant: str, base: str) -> Spread:
    """Return the CPU of a duplicate, without the share of the new events in its load."""
    share = MOSTLY_DUPLICATES_PERCENT / 100

    def duplicate(name: str) -> list[float]:
        new = samples.of(name, Load(100, 0), service_cpu)
        mixed = samples.of(name, Load(100, MOSTLY_DUPLICATES_PERCENT), service_cpu)
        return [(mix - (1 - share) * one) / share for mix, one in zip(mixed, new, strict=True)]

    pairs = zip(duplicate(contestant), duplicate(base), strict=True)
    return Spread.of([own / other for own, other in pairs])


def as_markdown(head: Mapping[str, Any], samples: Samples, remembered: Sequence[Remembered]) -> str:
    """Return the report of a run."""
    lines = ["# Benchmark", "", *(f"- {name}: {value}" for name, value in head.items()), ""]
    lines += _target_table(samples)
    for batch_events in dict.fromkeys(load.batch_events for load in samples.loads):
        lines += ["", f"## Batches of {batch_events}", "", *_load_table(samples, batch_events)]
    lines += ["", "## What is remembered", "", *_remembered_table(remembered)]
    return "\n".join(lines) + "\n"


def _target_table(samples: Samples) -> Iterator[str]:
    yield "| service | to | figure | target | median (lowest to highest round) | met |"
    yield "|---|---|---|---|---|---|"
    for target in targets(samples):
        bound = f"{'at least' if target.is_least else 'at most'} {target.ratio}"
        met = "yes" if target.is_met else "no"
        cells = (target.contestant, target.base, target.name, bound, f"{target.found:.2f}", met)
        yield f"| {' | '.join(cells)} |"


def _load_table(samples: Samples, batch_events: int) -> Iterator[str]:
    yield (
        "| duplicates | service | CPU us an event | to plain | Kafka and Redis us | events/s | to plain |"
        " p50 ms | p99 ms |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for load in samples.loads:
        if load.batch_events == batch_events:
            yield from (_row(samples, contestant, load) for contestant in samples.contestants)


def _row(samples: Samples, contestant: str, load: Load) -> str:
    def spread(figure: Figure) -> Spread:
        return samples.spread(contestant, load, figure)

    is_usual = load.connections == CONNECTIONS
    what = f"{load.duplicate_percent} %" + ("" if is_usual else f", connections: {load.connections}")
    cells = (
        what,
        contestant,
        f"{spread(service_cpu):.1f}",
        f"{samples.ratio(contestant, load, service_cpu):.2f}",
        f"{spread(store_cpu).median:.1f}",
        f"{spread(lambda sample: sample.events_per_s).median:,.0f}",
        f"{samples.ratio(contestant, load, lambda sample: sample.events_per_s).median:.2f}",
        f"{spread(lambda sample: sample.p50_ms).median:.1f}",
        f"{spread(lambda sample: sample.p99_ms).median:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def _remembered_table(remembered: Sequence[Remembered]) -> Iterator[str]:
    yield "| service | new ids | RSS MiB with Redis | its growth a million ids | disk MiB a million ids |"
    yield "|---|---|---|---|---|"
    for name, ids, rss_mib, grown_mib, index_bytes in remembered:
        millions = ids / 1e6
        yield (
            f"| {name} | {ids:,} | {rss_mib:.0f} | {grown_mib / millions:.0f}"
            f" | {index_bytes / 2**20 / millions:.0f} |"
        )


def as_json(head: Mapping[str, Any], samples: Samples, remembered: Sequence[Remembered]) -> dict[str, Any]:
    """Return every sample and the results."""
    return {
        **head,
        "connections": CONNECTIONS,
        "targets": [target._asdict() | {"found": target.found._asdict()} for target in targets(samples)],
        "remembered": [row._asdict() for row in remembered],
        "samples": [sample._asdict() | {"load": sample.load._asdict()} for sample in samples.all],
    }
