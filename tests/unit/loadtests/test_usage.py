"""Claim: a process's CPU time includes that of its children, while they live and after they ended."""

import os
import subprocess
import sys

from loadtests.bench.usage import cpu_seconds, open_files, rss_mib

BURNT_S, STEPS_S = 0.2, 0.02  # of children that ended, Linux tells 10 ms steps, user and system each
BURN = f"""
import time
while time.process_time() < {BURNT_S}: pass
print("burnt", flush=True)
import sys
sys.stdin.read()
"""


def test_cpu_of_children_counts_alive_and_ended() -> None:
    pid = os.getpid()
    before = cpu_seconds(pid)
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"burnt\n"
        assert cpu_seconds(pid) - before >= BURNT_S
        assert rss_mib(pid) > rss_mib(child.pid) > 1
        assert open_files(child.pid) == 3
        child.stdin.close()
    assert cpu_seconds(pid) - before >= BURNT_S - STEPS_S


def test_child_that_ended_has_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

        assert rss_mib(child.pid) == 0
