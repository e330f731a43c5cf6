"""Claim: a line of the log is written at once, so that processes which share a stderr never mingle theirs."""

import subprocess
import sys
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET, socketpair

import pytest

from tests.support.waiting import PATIENCE_S

REPOSITORY = Path(__file__).parents[3]

LOGGING_PROCESS = """
import logging, structlog
from app.telemetry.logging_setup import configure_logging
from app.telemetry.stderr import protect_stderr

protect_stderr()
configure_logging(level="info", is_json=False)
structlog.get_logger().info("ours", partition=1)
logging.getLogger("library").warning("a library's")
"""


@pytest.mark.regression("Log lines of workers mingled.")
def test_each_line_is_written_at_once() -> None:
    ours, stderr = socketpair(AF_UNIX, SOCK_SEQPACKET)  # keeps apart what was written apart
    with ours, stderr:
        subprocess.run(
            [sys.executable, "-c", LOGGING_PROCESS],
            cwd=REPOSITORY,
            stderr=stderr.fileno(),
            check=True,
            timeout=PATIENCE_S,
        )
        stderr.close()
        packets = list(iter(lambda: ours.recv(65_536).decode(), ""))
    assert len(packets) == 2
    assert all(packet.endswith("\n") for packet in packets)
    assert "ours" in packets[0]
    assert "a library's" in packets[1]
