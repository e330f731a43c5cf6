"""The parts of the proof: what each one tries, within its share of the time, and what it needs."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from aiokafka.admin import AIOKafkaAdminClient

from app.settings.model import DEVELOPMENT_SECRET
from loadtests.group_faults import brokers_of
from tests.fault.test_reshard_kills import GROWTH, SHRINK, cells_of
from tests.support import switch
from tests.support.kafka import LIBS
from tools.mutants.catalogue import all_mutants
from tools.prove.run import BROKEN, HELD, LEFT_OUT, ROOT, Proof, Ran, Result, missed_in

HISTORIES = 100
MUTANTS_AT_ONCE = 10
KILL_S, KILLS_BEGIN_S = 8.0, 45.0  # what a kill takes, and what comes before the first
INPUT_FAULTS_MAX, INPUT_EVENTS_MAX = 40, 10_000_000
INPUT_EVENTS_A_SECOND = 3_000  # that a group of two cores reads and is read, through kills
CASE_S = 75.0  # of one network fault
CELL_S = 14.0  # of one kill during a plan
KILLS_OF_PLANS = "tests/fault/test_reshard_kills.py"
TIME = "gap_s"
"""In the message of a network test whose bound of time was missed, which a busy machine does, too."""

EMPTY = "there is not one record to audit"
"""What the audit says of a topic of workers that were killed before their first event."""

CRASHES = [
    "tests/sim/test_crash_points.py",
    "tests/fault/test_crash_points.py",
    "tests/fault/test_kill_under_load.py",
]
DISK = [
    "tests/integration/test_rocks_index.py",
    "tests/integration/test_rocks_wal.py",
    "tests/integration/test_rocks_replay.py",
    "tests/integration/test_rocks_recovery.py",
    "tests/integration/test_sqlite_writer.py",
    "tests/integration/test_failing_stderr.py",
    "tests/integration/test_process.py::test_full_disk_refuses_before_any_effect",
    "tests/fault/test_drills.py::test_disk_full",
]


def simulate(proof: Proof, budget_s: float) -> Result:
    """Simulated histories, in rounds of fresh seeds."""
    first = proof.rng.randrange(10**6, 10**9)
    began, rounds, passed, took_s = time.monotonic(), 0, 0, 0.0
    while not rounds or time.monotonic() - began + took_s <= budget_s:
        seed, at = first + rounds * HISTORIES, time.monotonic()
        env = {"SIM_SEED": str(seed), "SIM_HISTORIES": str(HISTORIES)}
        arguments = ["-n", "2", "-k", "seed", "tests/sim"]  # those without seeds show nothing new
        ran, count = proof.tests(f"simulation-{rounds}", arguments, budget_s, **env)
        rounds, passed, took_s = rounds + 1, passed + count, time.monotonic() - at
        if ran.status != 0:
            return Result(BROKEN, f"{passed:,} histories", f"SIM_SEED={seed}\n\n{ran.tail}")
    seeds = f"SIM_SEED={first}, SIM_HISTORIES={rounds * HISTORIES}"
    return Result(HELD, f"{passed:,} histories", seeds)


def crash_points(proof: Proof, budget_s: float) -> Result:
    """kill -9 behind each step of a commit, and at random under load, on both logs."""
    ran, count = proof.tests("crash-points", CRASHES, budget_s)
    return _of_tests(ran, f"{count} crash points and runs")


def mutants(proof: Proof, budget_s: float) -> Result:
    """The code broken on purpose: the tests must notice. A sample."""
    paths = [mutant.path for mutant in all_mutants()]
    proof.rng.shuffle(paths)
    began, tried, took_s = time.monotonic(), 0, 0.0
    while tried < len(paths) and (not tried or time.monotonic() - began + took_s <= budget_s):
        at, sample = time.monotonic(), paths[tried : tried + MUTANTS_AT_ONCE]
        ran = proof.run(f"mutants-{tried}", [sys.executable, "-m", "tools.mutants", *sample], budget_s)
        tried, took_s = tried + len(sample), time.monotonic() - at
        if ran.status != 0:
            return Result(BROKEN, f"{tried} of {len(paths)} mutants", ran.tail)
    return Result(HELD, f"{tried} of {len(paths)} mutants, all noticed")


def kills(proof: Proof, budget_s: float, *, brokers: int) -> Result:
    """Workers of a group killed and frozen under load, on real brokers."""
    rounds = max(1, min(60, int((budget_s - KILLS_BEGIN_S) / KILL_S)))
    scenarios = ["kill-3", "roll-3"] if brokers == 3 else ["kill", "freeze"]
    command = [sys.executable, "-m", "loadtests.group_faults", *scenarios, "--rounds", str(rounds)]
    ran = proof.run(f"kills-{brokers}", [*command, "--folder", str(proof.folder / "kills")], budget_s)
    rows = [line for line in ran.output.splitlines() if line.startswith("| ")]
    if ran.status != 0:
        return Result(BROKEN, f"{rounds} kills", ran.tail)
    table = list(dict.fromkeys(rows))
    events = sum(int(row.split("|")[9].replace(",", "")) for row in table if "lost" not in row)
    table.sort(key=lambda row: "lost" not in row)
    table.insert(1, "|---" * (table[0].count("|") - 1) + "|")
    what = "kills, then a rolling restart" if brokers == 3 else "kills, then a freeze"
    return Result(HELD, f"{rounds} {what}; {events:,} events, 0 lost, 0 twice", "\n".join(table))


def inputs(proof: Proof, budget_s: float) -> Result:
    """A topic read by a group through kills and moves: input and clean topic are compared id by id."""
    usable_s = max(0.0, budget_s - KILLS_BEGIN_S)
    faults = max(4, min(INPUT_FAULTS_MAX, int(usable_s / KILL_S)))
    events = max(20_000, min(INPUT_EVENTS_MAX, int(usable_s) * INPUT_EVENTS_A_SECOND))
    seed = str(proof.rng.randrange(10**6))
    env = {"INPUT_EVENTS": str(events), "INPUT_FAULTS": str(faults), "INPUT_SEED": seed}
    ran, _ = proof.tests("inputs", ["tests/fault/test_inputs_drill.py"], 2 * budget_s + CASE_S, **env)
    return _of_tests(ran, f"{events:,} events, {faults} kills and moves, 0 lost, 0 twice, seed {seed}")


def network(proof: Proof, budget_s: float) -> Result:
    """Real workers in network namespaces, under faults that let something pass."""
    within = [] if os.geteuid() == 0 else ["unshare", "-rn"]
    listed = proof.run("network-cases", [sys.executable, "-m", "pytest", "--co", "-q", "tests/network"], 60)
    cases = [line for line in listed.output.splitlines() if "::" in line]
    count = max(1, min(len(cases), int(budget_s / CASE_S)))
    sample = proof.rng.sample(cases, count)
    ran, passed = proof.tests("network", [*sample, "-s"], budget_s, within=within)
    output, note = ran.output, ""
    missed = missed_in(proof.results("network"))
    load = os.getloadavg()[0]
    if missed and load > (os.cpu_count() or 1) and all(TIME in message for message in missed.values()):
        note = f"\n\n{len(missed)} missed their bounds of time at a load of {load:.0f}, and were tried again."
        ran, held = proof.tests("network-again", [*missed, "-s"], budget_s, within=within)
        passed, output = passed + held, output + ran.output
    lines = [line for line in output.splitlines() if line.startswith("case ")]
    seen = "\n".join(f"- {line.removeprefix('case ')}" for line in lines)
    result = _of_tests(ran, f"{passed} of {len(cases)} faults")
    return result._replace(detail=f"{seen}{note}\n\n{result.detail}".strip())


def reshard(proof: Proof, budget_s: float) -> Result:
    """Workers, the broker and the command killed at the steps of plans, there and back."""
    everything = sum(len(cells_of(way)) for way in (GROWTH, SHRINK))
    count = max(2, min(everything, int(budget_s / CELL_S)))
    seed = str(proof.rng.randrange(10**6))
    env = {"RESHARD_CELLS": "all" if count == everything else str(count), "RESHARD_SEED": seed}
    ran, _ = proof.tests("reshard", ["-rA", KILLS_OF_PLANS], budget_s, **env)
    held = {line for line in ran.output.splitlines() if line.startswith("held: ")}
    how = f"RESHARD_SEED={seed}, RESHARD_CELLS={env['RESHARD_CELLS']}"
    result = _of_tests(ran, f"{len(held)} of {everything} kills at steps of a plan, 0 lost, 0 twice")
    return result._replace(detail=f"{how}\n\n{result.detail}".strip())


def disk(proof: Proof, budget_s: float) -> Result:
    """A full disk, a standard error that fails, damaged and lost files of the index and of the log."""
    ran, count = proof.tests("disk", ["-n", "2", *DISK], budget_s)
    return _of_tests(ran, f"{count} faults of disks")


def audit(proof: Proof, budget_s: float) -> Result:
    """The Spark audit of every topic that the kills have left: each event once, in order, without gaps."""
    began, topics, left, records = time.monotonic(), 0, 0, []
    for count in (1, 3):
        folder = proof.folder / "kills" / f"{count}-brokers"
        if not folder.exists():
            continue
        with ExitStack() as stack:
            servers, has_audited = brokers_of(stack, folder, count), False
            for topic in asyncio.run(_topics(servers)):
                if has_audited and time.monotonic() - began > budget_s:
                    left += 1
                    continue
                report = proof.folder / "audit" / topic
                command = [
                    sys.executable,
                    "-m",
                    "pipeline",
                    "audit",
                    "--source",
                    f"kafka://{servers}/{topic}",
                ]
                command += ["--deep", "--report", str(report)]
                env = {"GATEWAY_IDENTITY_SECRET": DEVELOPMENT_SECRET}
                ran = proof.run(f"audit-{topic}", command, budget_s, env)
                if EMPTY in ran.output:
                    continue
                topics, has_audited = topics + 1, True
                records.append(f"- `{topic}`, {count} brokers: {report.relative_to(proof.folder)}/audit.html")
                if ran.status != 0:
                    return Result(BROKEN, f"{topics} topics", ran.tail)
    if not topics:
        return Result(LEFT_OUT, "-", "no kills have left a topic")
    return Result(HELD, f"{topics} of {topics + left} topics", "\n".join(records))


async def _topics(servers: str) -> list[str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        names = await admin.list_topics()
    finally:
        await admin.close()
    suffixes = (".quarantine", ".routing")  # other formats, which the audit of events does not read
    return sorted(name for name in names if name.startswith("events-") and not name.endswith(suffixes))


def _of_tests(ran: Ran, count: str) -> Result:
    return Result(HELD, count) if ran.status == 0 else Result(BROKEN, count, ran.tail)


# ---- what they need


def _no_kafka() -> str | None:
    if shutil.which("java") is None or not any(LIBS.glob("kafka_*.jar")):
        return "it needs Java and build/kafka, which `make kafka` brings"
    return None


def _no_namespaces() -> str | None:
    if shutil.which("ip") is None:
        return "it needs the program ip of iproute2"
    if os.geteuid() == 0:
        return switch.why_not()
    code = "from tests.support import switch; import sys; sys.exit(switch.why_not())"
    tried = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return None if tried.returncode == 0 else tried.stderr.strip() or "unshare failed"


def _no_spark() -> str | None:
    return None if any((ROOT / "build" / "spark").glob("jars/*.jar")) else "it needs `make pipeline`"


def _nothing() -> str | None:
    return None


@dataclass(frozen=True)
class Part:
    """A part of the proof."""

    name: str
    share: float  # of the time
    run: Callable[[Proof, float], Result]
    lacks: Callable[[], str | None] = _nothing
    about: str = ""

    @property
    def claim(self) -> str:
        """What it tries."""
        return self.about or (self.run.__doc__ or "").strip()


PARTS = [
    Part("simulation", 20, simulate),
    Part("crash points", 6, crash_points, _no_kafka),
    Part("mutants", 14, mutants, _no_kafka),
    Part("kills, one broker", 12, partial(kills, brokers=1), _no_kafka, (kills.__doc__ or "").strip()),
    Part(
        "kills, three brokers",
        13,
        partial(kills, brokers=3),
        _no_kafka,
        (kills.__doc__ or "").strip(),
    ),
    Part("inputs", 5, inputs, _no_kafka),
    Part("reshard", 66, reshard, _no_kafka),  # all of them in an hour
    Part("network", 22, network, lambda: _no_kafka() or _no_namespaces()),
    Part("disks", 7, disk),
    Part("audit", 6, audit, lambda: _no_kafka() or _no_spark()),
]
