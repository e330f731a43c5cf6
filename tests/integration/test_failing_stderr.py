"""Claim: a gateway whose stderr fails or is not read serves, recovers from errors and stops in order."""

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import httpx
import orjson
import pytest

from tests.support.forked import COMMAND
from tests.support.gateway import Gateway
from tests.support.http import AUTH, new_event
from tests.support.waiting import until


@contextmanager
def pipe_without_reader() -> Iterator[int]:
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@contextmanager
def full_pipe() -> Iterator[int]:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
    yield writing
    os.close(writing)
    os.close(reading)


@contextmanager
def full_disk() -> Iterator[int]:
    disk = os.open("/dev/full", os.O_WRONLY)
    yield disk
    os.close(disk)


def accepts_another(gateway: Gateway) -> bool:
    body = orjson.dumps(new_event())
    return httpx.post(f"{gateway.url}/v1/events", content=body, auth=AUTH).status_code == 200


def has_failed(gateway: Gateway) -> bool:
    failures: int = gateway.stats()["partitions"][0]["failures"]
    return failures > 0


def lines_lost(gateway: Gateway) -> float:
    metrics = httpx.get(f"{gateway.admin_url}/metrics").text
    (line,) = [line for line in metrics.splitlines() if line.startswith("gateway_log_lines_lost_total ")]
    return float(line.split()[1])


@contextmanager
def held(gateway: Gateway) -> Iterator[None]:
    """Let every append of the gateway fail, as when another process holds its log."""
    with closing(sqlite3.connect(gateway.data / "log.sqlite", isolation_level=None)) as other_process:
        other_process.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.regression("A standard error that failed stopped lanes.")
def test_errors_that_cannot_be_told_stop_nothing(tmp_path: Path) -> None:
    kinds = (pipe_without_reader, full_disk, full_pipe)
    quick = {"GATEWAY_PARTITIONS": "1", "GATEWAY_ANSWER_TIMEOUT": "500ms"}
    gateways = [Gateway(tmp_path / kind.__name__, quick) for kind in kinds]
    with ExitStack() as stack:
        for kind, gateway in zip(kinds, gateways, strict=True):
            stack.callback(gateway.stop)
            gateway.start(wait=False, stderr=stack.enter_context(kind()))
        for gateway in gateways:
            gateway.wait_until_ready()
            until(partial(accepts_another, gateway))

        with ExitStack() as holding:
            for gateway in gateways:
                holding.enter_context(held(gateway))
            assert not any([accepts_another(gateway) for gateway in gateways])
            for gateway in gateways:
                until(partial(has_failed, gateway))

        for gateway in gateways:
            until(partial(accepts_another, gateway))
        assert [lines_lost(gateway) > 0 for gateway in gateways] == [True, True, False]
        for gateway in gateways:
            assert gateway.stop() == 0


def test_start_without_stderr_still_ends_with_its_exit_code(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    gateway.data.mkdir()
    (gateway.data / "FORMAT").write_text("2\n")

    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {COMMAND} serve 2>&-"],
        env=gateway.environment,
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, b"")
