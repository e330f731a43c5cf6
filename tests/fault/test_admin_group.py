"""
Claim: the admin port of any worker of a real group tells owner, standby and risk as they are, compares the
index of an owner and of a standby with the log, and drains without a refusal.
"""

import os
import re
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.fault.conftest import kafka_log
from tests.support import forked
from tests.support.http import AUTH, new_event, post
from tests.support.waiting import until_in_thread
from tests.support.workers import Worker, Workers

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def ask(worker: Worker, path: str, method: str = "GET") -> httpx.Response:
    return httpx.request(method, f"{worker.admin_url}/admin/v1/{path}")


def risks_of(worker: Worker) -> set[str]:
    """Return what `gateway group` names as risks of a restart of a worker that is asked itself."""
    done = forked.run(["group", "-o", "json", "--url", worker.admin_url], env=dict(os.environ), timeout_s=60)
    rows = {row["worker"]: row for row in map(orjson.loads, done.stdout.splitlines()) if "worker" in row}
    return set(rows[worker.name]["restart_risks"])


def verified(worker: Worker, partition: int) -> dict[str, Any]:
    lines = ask(worker, f"verify/{partition}?rate=200000").content.splitlines()
    last: dict[str, Any] = orjson.loads(lines[-1])
    return last


async def test_admin_port_of_a_group(kafka_bootstrap: str, tmp_path: Path) -> None:
    workers = Workers(tmp_path, kafka_log(kafka_bootstrap).env, 2)
    try:
        await workers.start()
        await judge(workers)
    finally:
        await workers.stop()


async def judge(workers: Workers) -> None:
    one, two = workers.all
    with httpx.Client(base_url=one.url, auth=AUTH) as client:
        post(client, "/v1/batch", {"batch": [new_event() for _ in range(200)]})
    for lane in one.lanes():
        assert {lane["owner"], lane["standby"]} == {one.name, two.name}
        assert (lane["owner"] == one.name) is (lane["state"] == "active")

    await until_in_thread(lambda: not risks_of(one) and not risks_of(two))
    for worker in workers.all:
        for lane in ask(worker, "partitions").json()["partitions"]:
            assert (lane["worker"], lane["ready"]) == (lane["owner"], [lane["standby"]])
    for worker in workers.all:  # the owner's index, and the standby's
        for partition in range(workers.partitions):
            await until_in_thread(lambda: verified(worker, partition)["records"] > 0)  # noqa: B023 - at once
            assert verified(worker, partition)["verified"] is True

    assert ask(one, "drain", "POST").json() == {"drained": True}
    assert "leaving_worker" in risks_of(two)
    assert "no_standby" in risks_of(two)
    assert ask(one, "undrain", "POST").json() == {"drained": False}
    changes = re.compile(r"action=[\"'](POST /admin/v1/\w+)[\"']")
    expected = ["POST /admin/v1/drain", "POST /admin/v1/undrain"]
    await until_in_thread(lambda: changes.findall(one.log_path.read_text()) == expected)

    await until_in_thread(lambda: not risks_of(one))
    two.kill()
    risks = risks_of(one)
    assert risks & {"silent_worker", "no_standby"}
