"""Claim: a gateway without a file descriptor left says so in one line, and serves again once it has some."""

import os
import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.gateway import Gateway
from tests.support.processes import HOST
from tests.support.waiting import PATIENCE_S, until

OUT = "no file descriptor is left"
METRIC = "gateway_file_descriptors_out_checks_total"


def open_files(gateway: Gateway) -> int:
    return len(os.listdir(f"/proc/{gateway.process.pid}/fd"))


def serves(gateway: Gateway) -> bool:
    try:
        return (
            httpx.get(f"{gateway.admin_url}/readyz", timeout=2).status_code == httpx.codes.OK
            and httpx.post(
                f"{gateway.url}/v1/events", content=b'{"type":"track"}', auth=("k", ""), timeout=2
            ).status_code
            == httpx.codes.OK
        )
    except httpx.TransportError:
        return False


def checks_out(gateway: Gateway) -> float:
    lines = httpx.get(f"{gateway.admin_url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{METRIC} "))


@pytest.mark.regression("A process without file descriptors left wrote thousands of tracebacks a second.")
def test_process_without_file_descriptors_says_so_once_and_serves_again(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway, ExitStack() as clients:
        until(lambda: serves(gateway))
        assert checks_out(gateway) == 0
        most = open_files(gateway) + 8
        _, hard = resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (most, hard))

        def is_out() -> bool:
            for port in (gateway.port, gateway.admin_port):
                for _ in range(4):
                    clients.enter_context(socket.create_connection((HOST, port), timeout=PATIENCE_S))
            return OUT in gateway.log_path.read_text()

        until(is_out)
        for _ in range(30):  # each is one more reason to say it
            is_out()
            time.sleep(0.1)
        assert not serves(gateway)
        clients.close()
        until(lambda: serves(gateway))
        assert checks_out(gateway) >= 2
        log = gateway.log_path.read_text()
        assert log.count(OUT) == 1
        assert "Traceback" not in log
