"""Claim: a record of somebody else stops one partition, until an operator lets the gateways pass over it."""

import subprocess
from pathlib import Path

import httpx
import orjson
import pytest
from aiokafka import AIOKafkaProducer

from tests.fault.conftest import kafka_log
from tests.support.constants import IMPATIENT
from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event
from tests.support.waiting import until


def last_errors(gateway: Gateway) -> dict[int, str]:
    lanes = gateway.stats()["partitions"]
    return {lane["partition"]: lane["last_error"] for lane in lanes if lane["last_error"]}


def send(gateway: Gateway, count: int = 40) -> int:
    """Send events, one request each; return how many were taken."""
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        answers = [client.post("/v1/events", content=orjson.dumps(new_event())) for _ in range(count)]
    assert {answer.status_code for answer in answers} <= {200, 503}
    return sum(answer.status_code == 200 for answer in answers)


def skip(gateway: Gateway, *arguments: object) -> "subprocess.CompletedProcess[bytes]":
    return cli(gateway, "partitions", "skip", *map(str, arguments))


@pytest.mark.regression("A record that no gateway wrote stopped its partition for ever.")
async def test_foreign_record_is_passed_over_once_the_operator_says_so(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    env = kafka_log(kafka_bootstrap).env
    with Gateway(tmp_path, env, constants=IMPATIENT) as gateway:
        assert send(gateway) == 40
        producer = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap)
        await producer.start()
        foreign = await producer.send_and_wait(env["GATEWAY_TOPIC"], b"not an event of ours", partition=0)
        await producer.stop()

        assert 0 < send(gateway) < 40
        until(lambda: "LogCorruptError" in last_errors(gateway).get(0, ""))
        assert set(last_errors(gateway)) == {0}
        assert f"gateway partitions skip 0 {foreign.offset}" in last_errors(gateway)[0]
        beside = skip(gateway, 0, 1)
        assert (beside.returncode, b"this log's own" in beside.stderr) == (2, True), beside.stderr

        assert skip(gateway, 0, foreign.offset).returncode == 0
        until(lambda: not last_errors(gateway))
        assert send(gateway) == 40

        gateway.stop()
        gateway.delete_index()
        gateway.start()
        assert send(gateway) == 40
        assert gateway.stats()["partitions"][0]["skipped_records"] > 0
    done = cli(gateway, "events")
    assert (done.returncode, done.stderr.count(b"record skipped")) == (0, 1), done.stderr
    lines = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len({line["messageId"] for line in lines})
