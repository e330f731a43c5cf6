"""
The cost of an event of a client session, relative to one without: ratios of CPU in one run.

    .venv/bin/python -m loadtests.bench.session_cost [--rounds 9] [--events 10000] [--clients 1000]

Each kind has a gateway of its own on SQLite; in each round they run in a random order, with the same requests
sent twice.
"""

import argparse
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from app.cli.load.connection import request
from loadtests.bench.load import send_all
from loadtests.bench.usage import cpu_seconds
from loadtests.bench.workload import NATIVE_PATH, SessionWorkload, make_bodies
from tests.support.gateway import Gateway

CONNECTIONS = 16
BATCHES = (20, 100)
IDS, SESSIONS, BOTH = "ids alone", "sessions", "sessions and ids"

Requests = Callable[[int, int], list[bytes]]


class Sample(NamedTuple):
    """One kind's turn."""

    kind: str
    batch_events: int
    is_new: bool
    cpu_us: float  # an event


def with_ids(count: int, batch_events: int) -> list[bytes]:
    """Return requests of events that have ids, to the same path."""
    return [request(body, path=NATIVE_PATH) for body in make_bodies(count, batch_events)]


def kinds(clients: int) -> dict[str, Requests]:
    """Return the functions that build the requests of each kind."""
    return {
        IDS: with_ids,
        SESSIONS: SessionWorkload(clients).requests,
        BOTH: SessionWorkload(clients, has_ids=True).requests,
    }


def measure(
    gateways: dict[str, Gateway], made: dict[str, Requests], rounds: int, events: int
) -> Iterator[Sample]:
    """Yield every sample; the first round warms up and is none."""
    rng = random.Random(1)
    for number in range(rounds + 1):
        for batch_events in BATCHES:
            for kind in rng.sample(list(gateways), len(gateways)):
                requests = made[kind](events // batch_events, batch_events)
                for is_new in (True, False):
                    cpu_us = _cpu_us(gateways[kind], requests, batch_events)
                    if number:
                        yield Sample(kind, batch_events, is_new, cpu_us)


def _cpu_us(gateway: Gateway, requests: Sequence[bytes], batch_events: int) -> float:
    pid = gateway.process.pid
    before = cpu_seconds(pid)
    send_all(gateway.port, requests, CONNECTIONS)
    return (cpu_seconds(pid) - before) / len(requests) / batch_events * 1e6


def table(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield the report's lines: medians, and ratios within a round with the lowest and the highest."""
    yield "| batches of | events | kind | CPU us an event | to ids alone (lowest to highest round) |"
    yield "|---|---|---|---|---|"
    for batch_events in BATCHES:
        for is_new in (True, False):
            found = {
                kind: [s.cpu_us for s in samples if s[:3] == (kind, batch_events, is_new)]
                for kind in (IDS, SESSIONS, BOTH)
            }
            for kind, costs in found.items():
                ratios = sorted(cost / alone for cost, alone in zip(costs, found[IDS], strict=True))
                what = f"{batch_events} | {'new' if is_new else 'again'} | {kind}"
                ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
                yield f"| {what} | {statistics.median(costs):.1f} | {ratio} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--events", type=int, default=10_000, help="of one sample")
    parser.add_argument("--clients", type=int, default=1_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        env = {"GATEWAY_LOG": "sqlite", "GATEWAY_LOGGING_LEVEL": "warning"}
        made = kinds(args.clients)
        gateways = {
            kind: stack.enter_context(Gateway(Path(folder) / str(number), env))
            for number, kind in enumerate(made)
        }
        samples = list(measure(gateways, made, args.rounds, args.events))
        for gateway in gateways.values():
            totals = gateway.stats()["totals"]
            assert totals["accepted"] == totals["duplicates"] == totals["received"] / 2, totals
    print("\n".join(table(samples)))


if __name__ == "__main__":
    main()
