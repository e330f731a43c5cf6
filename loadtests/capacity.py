"""
What so many events a day need: figures measured under loadtests/results, and assumptions that are named.

    .venv/bin/python -m loadtests.capacity

prints the table of docs/capacity.md, which `make docs` writes anew.
"""

import json
import math
import statistics
from pathlib import Path
from typing import NamedTuple

BENCH = Path(__file__).parent / "results" / "bench" / "bench.json"
MILLION, GB, GIB, MIB = 1_000_000, 1e9, 2**30, 2**20
DAY_S, MONTH_DAYS = 86_400, 30

PER_DAY = (1, 10, 100, 500, 1_000)
"""Millions of new events."""

# Measured.
INDEX_BYTES_A_KEY = 38  # results/index_scale.md, at 10 million keys and more
FILTER_BYTES_A_KEY = 5  # README, GATEWAY_INDEX_MEMORY; 9 while a filter is replaced
BASE_MIB = 2 * 256 + 300  # README, "Behind a load balancer": twice GATEWAY_BODY_MEMORY, and the rest

# Assumed.
EVENT_BYTES = 1_000  # as stored: what a web SDK sends has 700 bytes, and records carry 200 of their own
COMPRESSED = 1.0  # gateways do not compress what they store
PEAK = 4.0  # the busiest minute, as a multiple of the day's mean
DUPLICATES = 0.05
BUSY = 0.5  # how much of a core is used at the peak: the rest is for a lost machine, and for restores
WINDOW_DAYS, RETENTION_DAYS, COPIES = 7, 8, 3
DISK_HEADROOM = 2.0  # of an index: room for compactions, write-ahead logs and growth
BROKER_PEAK_BYTES = 20e6  # a small broker's share of writes, which it takes with ease
CORE, GIB_RAM, GB_DISK = 25.0, 3.5, 0.10  # dollars a month, as large clouds' list prices are


class Cost(NamedTuple):
    """CPU of one new event, in microseconds."""

    gateway: float
    broker: float


class Need(NamedTuple):
    """What so many events a day need."""

    events_per_s: float
    peak_per_s: float
    cores: tuple[float, float]  # in batches of 100, and one by one
    gateways: tuple[int, int]
    memory_gib: float
    index_gb: float
    brokers: int
    broker_gb: float
    dollars: tuple[float, float]


def measured_cost(batch_events: int) -> Cost:
    """Return the medians of the benchmark on Kafka, without duplicates."""
    samples = [
        sample["cpu_us"]
        for sample in json.loads(BENCH.read_text())["samples"]
        if sample["contestant"] == "gateway"
        and sample["load"]["batch_events"] == batch_events
        and sample["load"]["duplicate_percent"] == 0
        and sample["load"]["connections"] > 1
    ]
    service, broker = (statistics.median(sample[name] for sample in samples) for name in ("service", "Kafka"))
    return Cost(service, broker)


def need_of(millions_a_day: float) -> Need:
    """Return what so many new events a day need."""
    new_a_day = millions_a_day * MILLION
    per_s = new_a_day * (1 + DUPLICATES) / DAY_S
    peak = per_s * PEAK
    costs = measured_cost(100), measured_cost(1)
    cores = [peak * cost.gateway / 1e6 for cost in costs]
    gateways = [max(1, math.ceil(used / BUSY)) for used in cores]
    keys = new_a_day * WINDOW_DAYS
    memory_gib = keys * FILTER_BYTES_A_KEY / GIB + (512 + BASE_MIB) * MIB / GIB
    index_gb = keys * INDEX_BYTES_A_KEY * DISK_HEADROOM / GB
    broker_gb = new_a_day * RETENTION_DAYS * EVENT_BYTES * COMPRESSED * COPIES / GB
    broker_cores = [peak * cost.broker / 1e6 * COPIES / BUSY for cost in costs]
    write_brokers = math.ceil(peak * EVENT_BYTES * COPIES / BROKER_PEAK_BYTES)
    brokers = max(3, write_brokers)
    dollars = [
        (count + max(brokers, busy)) * CORE
        + (memory_gib + (count - 1) * BASE_MIB * MIB / GIB + brokers * 4) * GIB_RAM
        + (index_gb + broker_gb * 1.3) * GB_DISK
        for count, busy in zip(gateways, broker_cores, strict=True)
    ]
    return Need(
        per_s,
        peak,
        (cores[0], cores[1]),
        (gateways[0], gateways[1]),
        memory_gib,
        index_gb,
        brokers,
        broker_gb,
        (dollars[0], dollars[1]),
    )


def table() -> str:
    """Return the table of docs/capacity.md."""
    lines = [
        "| new events a day | a second, mean and peak | gateways' cores at the peak | gateways "
        "| their memory, GiB | their disk, GB | brokers | their disk, GB | dollars a month |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for millions in PER_DAY:
        need = need_of(millions)
        lines.append(
            f"| {millions:,} million | {need.events_per_s:,.0f}, {need.peak_per_s:,.0f} "
            f"| {need.cores[0]:.2f} to {need.cores[1]:.1f} | {need.gateways[0]} to {need.gateways[1]} "
            f"| {need.memory_gib:,.1f} | {need.index_gb:,.0f} | {need.brokers} | {need.broker_gb:,.0f} "
            f"| {_rounded(need.dollars[0])} to {_rounded(need.dollars[1])} |"
        )
    return "\n".join(lines)


def _rounded(dollars: float) -> str:
    digits = max(0, len(str(int(dollars))) - 2)
    return f"{round(dollars, -digits):,.0f}"


if __name__ == "__main__":
    print(table())
