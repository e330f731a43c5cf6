"""
Runs each profile against a gateway of its own on the embedded log, and writes the results; or, with
--workers, against workers of one machine on Kafka, of which one is killed in the middle, unless the profile
divides their topic then.

    .venv/bin/python -m loadtests.load.record [--seconds 60] [--events-per-s 1000]
        [--workers 3] [--out build/load]
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadtests.bench.usage import cpu_seconds, rss_mib
from loadtests.load.profiles import PROFILES
from tests.support.gateway import Gateway
from tests.support.kafka import KafkaBroker
from tests.support.processes import children_of
from tests.support.verdict import read_kafka

ROOT = Path(__file__).resolve().parents[2]
COST = (
    "Locust takes {cost} us of CPU a request here, and the gateway {gateway}: locust makes events and judges"
    " answers. Where only the gateway's figures count, `loadtests/bench` sends for 25 us a request."
)
KEYS = """
- {key: load-0, source: a}
- {key: load-1, source: b}
- {key: load-2, source: c}
- {key: load-3, source: d}
- {key: hostile, source: e, quotas: {requests: 20, events: 1000, bytes: 2MiB, burst: 2s}}
"""
COLUMNS: Sequence[tuple[str, str]] = (
    ("profile", "{profile}"),
    ("requests", "{all_requests:,}"),
    ("refused", "{refused:,}"),
    ("wrong or missing", "{failures:,}"),
    ("events received", "{received:,}"),
    ("accepted", "{accepted:,}"),
    ("p50 ms", "{p50_ms:,.0f}"),
    ("p99 ms", "{p99_ms:,.0f}"),
    ("gateway us an event", "{gateway_us:,.0f}"),
    ("gateway, of a core", "{gateway_share:.0%}"),
    ("RSS MiB", "{rss_mib:,.0f}"),
    ("locust us a request", "{locust_cpu_us_per_request:,}"),
    ("late", "{late:,}"),
    ("limits", "{verdict}"),
)


PARTITIONS = 8
CUT_OFF_MAX = 0.02
"""The share of answers that may be missing when a worker is killed; its clients retry."""


class Group:
    """Workers of one machine on Kafka, for one profile."""

    def __init__(self, bootstrap_servers: str, workers: int) -> None:
        self.workers = workers
        self.topic = f"events-{uuid.uuid4().hex[:12]}"
        self.settings = {
            "GATEWAY_LOG": "kafka",
            "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers,
            "GATEWAY_TOPIC": self.topic,
            "GATEWAY_PARTITIONS": str(PARTITIONS),
            "GATEWAY_PEER_LISTEN": "127.0.0.1:0",
        }
        self._bootstrap_servers = bootstrap_servers

    def stored(self, partitions: int) -> int:
        """Return how many events the log has in so many partitions."""
        return len(asyncio.run(read_kafka(self._bootstrap_servers, self.topic, partitions)))


def kill_one(parent: int) -> None:
    """Kill the first worker."""
    os.kill(children_of(parent)[0], signal.SIGKILL)


def measure(
    profile: str, seconds: float, events_per_s: float, folder: Path, group: Group | None
) -> dict[str, Any]:
    """Run one profile; return its summary, and the resources of the gateway."""
    keys = folder / "keys.yaml"
    keys.write_text(KEYS)
    settings = {"GATEWAY_LOGGING_LEVEL": "warning", "GATEWAY_WRITE_KEYS_FILE": str(keys)}
    options = ["--workers", str(group.workers)] if group is not None else []
    settings |= group.settings if group is not None else {}
    with Gateway(folder / profile, settings, options=options) as gateway:
        cpu_before, began = cpu_seconds(gateway.process.pid), time.monotonic()
        summary = folder / f"{profile}.json"
        command = [sys.executable, "-m", "loadtests.load", "--host", gateway.url, "--load-profile", profile]
        command += ["--seconds", str(seconds), "--events-per-s", str(events_per_s)]
        command += ["--summary", str(summary), "--html", str(folder / f"{profile}.html")]
        divides = PROFILES[profile].divides
        if group is not None:
            command += ["--failures-max", str(CUT_OFF_MAX)]
        if group is not None and not divides:
            middle = threading.Timer(seconds / 2, kill_one, [gateway.process.pid])
            middle.start()
        subprocess.run(command, cwd=ROOT, env=os.environ | gateway.environment, check=False)
        found: dict[str, Any] = json.loads(summary.read_text())
        cpu_s = cpu_seconds(gateway.process.pid) - cpu_before
        if group is None:
            totals = gateway.stats()["totals"]
        else:  # what the killed worker counted is gone
            stored = group.stored(2 * PARTITIONS if divides else PARTITIONS)
            totals = {"received": found["events_acknowledged"], "accepted": stored}
        return found | {
            "all_requests": found["requests"] + found["hostile"],
            "received": totals["received"],
            "accepted": totals["accepted"],
            "gateway_us": cpu_s / max(1, totals["received"]) * 1e6,
            "gateway_us_per_request": cpu_s / max(1, found["requests"] + found["hostile"]) * 1e6,
            "gateway_share": cpu_s / (time.monotonic() - began),
            "rss_mib": rss_mib(gateway.process.pid),
            "verdict": "; ".join(found["broken"]) or "kept",
        }


def as_markdown(head: Mapping[str, object], found: Sequence[Mapping[str, Any]]) -> str:
    """Return the report."""
    lines = ["# Load profiles", "", *(f"- {name}: {value}" for name, value in head.items()), ""]
    steady = found[0]
    cost, gateway = steady["locust_cpu_us_per_request"], steady["gateway_us_per_request"]
    lines += [COST.format(cost=f"{cost:,}", gateway=f"{gateway:,.0f}"), ""]
    lines += ["| " + " | ".join(name for name, _ in COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    lines += ["| " + " | ".join(text.format(**row) for _, text in COLUMNS) + " |" for row in found]
    lines += ["", *(f"- `{name}`: {profile.text}" for name, profile in PROFILES.items())]
    lines += ["", "What the log says of a sample of the receipts, one a request:", ""]
    lines += [f"- `{row['profile']}`: {row['log']}" for row in found]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--events-per-s", type=float, default=1000)
    parser.add_argument("--workers", type=int, default=0, help="so many on Kafka; one of them is killed")
    parser.add_argument(
        "--only", action="append", choices=list(PROFILES), help="this profile; may be given often"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "load")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found, gateways, servers = [], "embedded log, one process", ""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-load-")))
        if args.workers:
            servers = stack.enter_context(KafkaBroker(folder / "kafka")).bootstrap_servers
            middle = "in the middle one is killed by kill -9, or the topic is divided"
            gateways = f"{args.workers} workers on one Kafka broker, {middle}"
        possible = [name for name, profile in PROFILES.items() if args.workers or not profile.divides]
        for name in args.only or possible:
            group = Group(servers, args.workers) if args.workers else None
            found.append(measure(name, args.seconds, args.events_per_s, folder, group))
    head = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": described.stdout.strip(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
        "python": platform.python_version(),
        "gateway": f"{gateways}, a quota for the hostile key; locust on the same cores",
        "load": f"{args.events_per_s:,.0f} events/s as basic pace, batches of 20, {args.seconds:g} s each",
        "load of the machine before and after": f"{load_before:.1f} and {os.getloadavg()[0]:.1f}",
    }
    args.out.mkdir(parents=True, exist_ok=True)
    report = as_markdown(head, found)
    (args.out / "load_profiles.md").write_text(report)
    print(report)


if __name__ == "__main__":
    main()
