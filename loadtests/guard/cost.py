"""
The cost of an event in units that are equal on all machines, by the best method of this machine.

Instructions are counted by `perf` if the processor allows it, else by valgrind. Without either, CPU time is a
multiple of that of a fixed loop in the same process, both repeated until the smallest are stable.
"""

import asyncio
import gc
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import orjson

from app.cli.load.events import event
from loadtests.guard.workload import BATCH_EVENTS, Post, bodies, gateway

LOOP = "loop"
OFF, REQUIRED = "off", "required"
"""Of GATEWAY_NATIVE."""
ROOT = Path(__file__).resolve().parents[2]

FEW, MANY, AGAIN = 5, 20, 15
"""Batches: what starting costs, and what is not yet warm, is the same in all runs and cancels out."""

PAIRS = (f"{FEW}:0", f"{MANY}:0", f"{MANY}:{AGAIN}")

ROUNDS_MAX, STEADY_ROUNDS, ROUND_BATCHES = 200, 30, 2
"""A smallest time that this number of rounds did not lower is the undisturbed cost."""


class CostError(Exception):
    """It could not be counted."""


class Cost(NamedTuple):
    """Of one event, in the units of its way."""

    new: float
    again: float


def ways(native: str = OFF) -> dict[str, Callable[[], Cost]]:
    """Return the ways that work on this machine, the best one first; `native`: GATEWAY_NATIVE."""
    found: dict[str, Callable[[], Cost]] = {}
    if shutil.which("perf") and _perf(["true"], native) is not None:
        found["perf"] = partial(by_perf, native)
    if shutil.which("valgrind"):
        found["valgrind"] = partial(by_valgrind, native)
    return found if native != OFF else found | {LOOP: by_loop}


def by_perf(native: str) -> Cost:
    """Count instructions by the processor's own counters."""
    counts = [_perf([*_WORKLOAD, pair], native) for pair in PAIRS]
    return _cost([count for count in counts if count is not None])


def _perf(command: Sequence[str], native: str) -> int | None:
    """Return the number of a command's instructions; None if this machine cannot count them."""
    counting = ["perf", "stat", "-x,", "-e", "instructions:u", "--", *command]
    done = subprocess.run(counting, cwd=ROOT, env=env_of(native), capture_output=True, text=True, check=False)
    found = re.search(r"^(\d+),.*instructions", done.stderr, flags=re.MULTILINE)
    return int(found[1]) if found and done.returncode == 0 else None


def by_valgrind(native: str) -> Cost:
    """Count instructions by running each of them in a simulator: 20 s of CPU."""
    with tempfile.TemporaryDirectory() as folder:
        counting = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
        counting.append(f"--log-file={folder}/%p")
        done = subprocess.run(
            [*counting, *_WORKLOAD, *PAIRS], cwd=ROOT, env=env_of(native), capture_output=True, check=False
        )
        if done.returncode != 0:
            raise CostError(done.stderr.decode(errors="replace"))
        logs = sorted(Path(folder).iterdir(), key=lambda path: path.stat().st_mtime_ns)
        counts = [instructions_in(log.read_text()) for log in logs]
    return _cost(counts[:-1])  # the parent ended last


def instructions_in(log: str) -> int:
    """Return the number that valgrind has written. Raises CostError."""
    found = re.search(r"I\s+refs:\s+([\d,]+)", log)
    if found is None:
        raise CostError(log)
    return int(found[1].replace(",", ""))


def _cost(counts: Sequence[int]) -> Cost:
    if len(counts) != len(PAIRS):
        raise CostError(f"{len(counts)} runs were counted, not {len(PAIRS)}")
    few, many, again = counts
    return Cost((many - few) / (MANY - FEW) / BATCH_EVENTS, (again - many) / AGAIN / BATCH_EVENTS)


def by_loop() -> Cost:
    """Compare CPU times with those of a fixed loop."""
    gc.collect()
    gc.disable()
    try:
        return asyncio.run(_by_loop())
    finally:
        gc.enable()


async def _by_loop() -> Cost:
    fresh = iter(bodies(ROUNDS_MAX * ROUND_BATCHES))
    smallest = [float("inf")] * 3
    steady = 0
    async with gateway() as post:
        for _ in range(ROUNDS_MAX):
            batches = [next(fresh) for _ in range(ROUND_BATCHES)]
            seconds = [_loop_seconds(), await _seconds(post, batches), await _seconds(post, batches)]
            is_lower = any(new < 0.99 * old for new, old in zip(seconds, smallest, strict=True))
            smallest = [min(pair) for pair in zip(seconds, smallest, strict=True)]
            steady = 0 if is_lower else steady + 1
            if steady == STEADY_ROUNDS:
                break
    loop, new, again = smallest
    return Cost(new / loop, again / loop)


async def _seconds(post: Post, batches: Sequence[bytes]) -> float:
    began = time.process_time()
    for batch in batches:
        await post(batch)
    return time.process_time() - began


def _loop_seconds() -> float:
    """Return the CPU time of work of the same kind that never changes."""
    began = time.process_time()
    seen: dict[bytes, object] = {}
    for number in range(ROUND_BATCHES * BATCH_EVENTS):
        document = orjson.loads(event(number))
        canonical = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
        seen[hashlib.blake2b(canonical, digest_size=16).digest()] = document
    return time.process_time() - began


_WORKLOAD = (sys.executable, "-m", "loadtests.guard.workload")


def env_of(native: str) -> dict[str, str]:
    """Return the environment of a process whose steps are counted."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    return own | {"PYTHONHASHSEED": "0", "GATEWAY_NATIVE": native}
