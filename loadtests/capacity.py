"""
The table of docs/capacity.md: resources and cost by events a day. The figures are in app.cli.sizing.

    .venv/bin/python -m loadtests.capacity

prints it; `make docs` writes it.
"""

import json
import statistics
from pathlib import Path

from app.cli.sizing import Load, dollars_of, need_of

BENCH = Path(__file__).parent / "results" / "bench" / "bench.json"
MILLION = 1_000_000

PER_DAY = (1, 10, 100, 500, 1_000)
"""Millions of new events."""
BATCHES = (100, 1)
"""Apps that send batches, and apps that send each event by itself."""


def measured_us(batch_events: int) -> tuple[float, float]:
    """Return the CPU of a new event in the gateway and in Kafka: the benchmark's medians, in microseconds."""
    samples = [
        sample["cpu_us"]
        for sample in json.loads(BENCH.read_text())["samples"]
        if sample["contestant"] == "gateway"
        and sample["load"]["batch_events"] == batch_events
        and sample["load"]["duplicate_percent"] == 0
        and sample["load"]["connections"] > 1
    ]
    service, broker = (statistics.median(sample[name] for sample in samples) for name in ("service", "Kafka"))
    return service, broker


def table() -> str:
    """Return the table of docs/capacity.md."""
    lines = [
        "| new events a day | a second, mean and peak | gateways' cores at the peak | gateways "
        "| their memory, GiB | their disk, GB | partitions | brokers | their cores "
        "| their disk, GB | dollars a month |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for millions in PER_DAY:
        loads = [Load(millions * MILLION, batch_events=batch_events) for batch_events in BATCHES]
        needs = batched, single = [need_of(load) for load in loads]
        dollars = [_rounded(dollars_of(need)) for need in needs]
        lines.append(
            f"| {millions:,} million | {loads[0].mean_per_s:,.0f}, {loads[0].peak_per_s:,.0f} "
            f"| {batched.cores:.2f} to {single.cores:.1f} | {batched.gateways} to {single.gateways} "
            f"| {batched.memory_gib:,.1f} to {single.memory_gib:,.1f} "
            f"| {batched.disk_gb:,.0f} to {single.disk_gb:,.0f} "
            f"| {batched.partitions} to {single.partitions} "
            f"| {batched.brokers} | {batched.broker_cores:.2f} to {single.broker_cores:.1f} "
            f"| {batched.broker_gb:,.0f} | {dollars[0]} to {dollars[1]} |"
        )
    return "\n".join(lines)


def _rounded(dollars: float) -> str:
    digits = max(0, len(str(int(dollars))) - 2)
    return f"{round(dollars, -digits):,.0f}"


if __name__ == "__main__":
    print(table())
