"""
Claim: a worker that is told to stop while it waits for others to decide of a plan stops at once, answers the
requests that wait, and leaves the plan to the others.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.fault.conftest import PARTITIONS, kafka_log
from tests.support.constants import Constants, command_with
from tests.support.gateway import Gateway
from tests.support.http import AUTH, division_of, new_event
from tests.support.processes import HOST
from tests.support.waiting import until_in_thread

PATIENT: Constants = {"dedupe.storage.settling:OTHERS_S": 600.0}
"""It leaves all that others own to them."""
BLIND: Constants = {**PATIENT, "app.process.plan_watch:PLAN_POLL_S": 600.0}
"""It sees no plan either, until it is fenced."""


@pytest.fixture
def workers(kafka_bootstrap: str, tmp_path: Path) -> Iterator[list[Gateway]]:
    times = {"GATEWAY_ANSWER_TIMEOUT": "20s", "GATEWAY_KAFKA_REQUEST_TIMEOUT": "25s"}
    env = {**kafka_log(kafka_bootstrap).env, **times, "GATEWAY_PEER_LISTEN": f"{HOST}:0"}
    workers = [
        Gateway(tmp_path / name, {**env, "GATEWAY_WORKER_ID": name}, constants=constants)
        for name, constants in {"patient": PATIENT, "blind": BLIND, "other": {}}.items()
    ]
    yield workers
    for worker in workers:
        worker.stop()


def has_shared_lanes(workers: list[Gateway]) -> bool:
    owned = [[lane["state"] for lane in worker.stats()["partitions"]].count("active") for worker in workers]
    return sum(owned) == PARTITIONS and min(owned) > 0


def has_decided_what_is_its_own(worker: Gateway) -> bool:
    states = [row["state"] for row in division_of(worker)]
    return 0 < states.count("will be divided") < PARTITIONS


def post(worker: Gateway) -> int:
    body = {"batch": [new_event()]}
    return httpx.post(f"{worker.url}/v1/events", json=body, auth=AUTH, timeout=120.0).status_code


def post_until_it_is_gone(worker: Gateway) -> list[int]:
    statuses: list[int] = []
    with suppress(httpx.TransportError):
        while True:
            statuses.append(post(worker))
    return statuses


@pytest.mark.kafka
@pytest.mark.regression(
    "A worker that was stopped while it waited for others to decide of a plan stopped minutes later."
)
async def test_worker_stops_while_it_waits_for_others(workers: list[Gateway]) -> None:
    patient, blind, other = workers
    patient.start()
    blind.start()
    await until_in_thread(lambda: has_shared_lanes([patient, blind]), patient.log_tail)
    arguments = ("reshard", "plan", "--partitions", str(2 * PARTITIONS), "--notice", "0", "--now", "--force")
    command = await asyncio.create_subprocess_exec(
        *command_with(PATIENT), *arguments, env=patient.environment
    )
    try:
        with ThreadPoolExecutor() as thread:
            posting = thread.submit(post_until_it_is_gone, patient)
            await until_in_thread(lambda: has_decided_what_is_its_own(patient), patient.log_tail)
            assert patient.stop() == 0
        statuses = posting.result()
        assert set(statuses) == {httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE}
        assert statuses[-1] == httpx.codes.SERVICE_UNAVAILABLE
        other.start()
        assert post(other) == httpx.codes.OK
    finally:
        command.kill()
        await command.wait()
