"""
Claim: a gateway with another identity secret or another number of partitions than its log is refused in
a sentence, before any of its lanes serves and without disturbing the one that is right.
"""

import uuid
from collections.abc import Mapping
from pathlib import Path

import httpx
import orjson
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from app.settings.model import DEVELOPMENT_SECRET
from dedupe.model.identity import Identity
from dedupe.model.routing import partition_of
from tests.fault.conftest import PARTITIONS, LogUnderTest, kafka_log
from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli

MORE_PARTITIONS = PARTITIONS + 2


def misplaced_event() -> bytes:
    """Return an event that belongs to another partition once there are more of them."""
    identity = Identity(DEVELOPMENT_SECRET.encode())
    while True:
        message_id = str(uuid.uuid4())
        key = identity.message_key(AUTH[0], message_id)
        if partition_of(key, PARTITIONS) != partition_of(key, MORE_PARTITIONS):
            return orjson.dumps({"messageId": message_id, "type": "track", "event": "Tested"})


def begin_log(gateway: Gateway) -> None:
    """Store one event: one lane has a record, all others are empty."""
    answer = httpx.post(f"{gateway.url}/v1/events", content=misplaced_event(), auth=AUTH)
    assert answer.status_code == 200


def assert_refused(folder: Path, env: Mapping[str, str], code: int, sentence: str) -> None:
    done = cli(Gateway(folder, {**env, "GATEWAY_LOGGING_LEVEL": "debug"}), "serve")
    said = [line for line in done.stderr.decode().splitlines() if line.startswith("gateway: ")]
    assert (done.returncode, done.stdout, len(said)) == (code, b"", 1), done.stderr.decode()
    assert sentence in said[0]
    assert b"Traceback" not in done.stderr
    assert b"lane state" not in done.stderr


def assert_undisturbed(gateway: Gateway) -> None:
    partitions = gateway.stats()["partitions"]
    assert [(lane["state"], lane["fenced"], lane["failures"]) for lane in partitions] == [
        ("active", 0, 0)
    ] * PARTITIONS


def files_of(gateway: Gateway) -> dict[Path, int]:
    """Return when each file of the indexes was written last."""
    return {path: path.stat().st_mtime_ns for path in (gateway.data / "index").rglob("*") if path.is_file()}


@pytest.mark.regression("A start with a wrong secret touched the indexes before it was refused.")
def test_other_secret_or_partition_count_is_refused(gateway: Gateway, log_under_test: LogUnderTest) -> None:
    with gateway:
        begin_log(gateway)
    files = files_of(gateway)
    for partitions in (PARTITIONS - 1, MORE_PARTITIONS):
        env = {**log_under_test.env, "GATEWAY_PARTITIONS": str(partitions)}
        assert_refused(gateway.folder, env, 3, f"begun with {PARTITIONS} partitions")
    for index_is_lost in (False, True):
        if index_is_lost:
            assert files_of(gateway) == files
            gateway.delete_index()
        env = {**log_under_test.env, "GATEWAY_IDENTITY_SECRET": "a secret of somebody else"}
        assert_refused(gateway.folder, env, 3, "GATEWAY_IDENTITY_SECRET")


async def test_raised_partition_count_of_a_topic_is_refused_and_the_right_one_goes_on(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    env = kafka_log(kafka_bootstrap).env
    with Gateway(tmp_path / "right", env) as right:
        begin_log(right)
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
        await admin.start()
        await admin.create_partitions({env["GATEWAY_TOPIC"]: NewPartitions(MORE_PARTITIONS)})
        await admin.close()
        raised = {**env, "GATEWAY_PARTITIONS": str(MORE_PARTITIONS)}
        assert_refused(tmp_path / "wrong", raised, 3, f"begun with {PARTITIONS} partitions")
        assert_undisturbed(right)
    with right:
        assert_undisturbed(right)


def test_gateway_with_another_secret_does_not_disturb_the_right_one(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    env = kafka_log(kafka_bootstrap).env
    with Gateway(tmp_path / "right", env) as right:
        begin_log(right)
        wrong = {**env, "GATEWAY_IDENTITY_SECRET": "a secret of somebody else"}
        assert_refused(tmp_path / "wrong", wrong, 3, "GATEWAY_IDENTITY_SECRET")
        assert_undisturbed(right)
