"""
Claim: a log that does not say by which rules it was written is served by nobody until an operator has them
proved by its records; then every known event is known again, and older gateways stay out.
"""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from aiokafka.protocol.commit import OffsetCommitRequest_v3

from app.settings.model import DEVELOPMENT_SECRET
from dedupe.model.errors import IdentityMismatchError
from dedupe.model.identity import Identity
from dedupe.model.types import Topic
from dedupe.storage.kafka.older_gateways import old_notes
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.notes import PIN, SKIPS, Pin
from tests.fault.conftest import PARTITIONS, LogUnderTest, kafka_log
from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event
from tests.support.kafka import delete_topics
from tests.support.settings import kafka_config, routing_key

EVENTS = [new_event() for _ in range(40)]


def answer_of(gateway: Gateway) -> httpx.Response:
    """Post all events once more."""
    answer = httpx.post(f"{gateway.url}/v1/events", json={"batch": EVENTS}, auth=AUTH)
    return answer.raise_for_status()


def lose_notes(gateway: Gateway, log: LogUnderTest) -> None:
    if "GATEWAY_TOPIC" in log.env:
        servers, topic = log.env["GATEWAY_KAFKA_BOOTSTRAP_SERVERS"], log.env["GATEWAY_TOPIC"]
        asyncio.run(delete_topics(servers, [f"{topic}.routing"]))
    else:
        with closing(sqlite3.connect(gateway.data / "log.sqlite")) as file, file:
            file.execute("DELETE FROM meta WHERE key LIKE 'note/%'")


def test_log_whose_notes_are_lost_is_refused_until_it_is_adopted(
    gateway: Gateway, log_under_test: LogUnderTest
) -> None:
    with gateway:
        before = answer_of(gateway)
    lose_notes(gateway, log_under_test)

    refused = cli(gateway, "serve")
    assert refused.returncode == 2, refused.stderr.decode()
    assert b"`gateway reshard adopt` proves" in refused.stderr
    wrong = {**log_under_test.env, "GATEWAY_IDENTITY_SECRET": "a secret of somebody else"}
    assert cli(Gateway(gateway.folder, wrong), "reshard", "adopt").returncode == 3
    wrong = {**log_under_test.env, "GATEWAY_PARTITIONS": str(PARTITIONS - 1)}
    assert cli(Gateway(gateway.folder, wrong), "reshard", "adopt").returncode in (2, 3)
    adopted = cli(gateway, "reshard", "adopt")
    assert (adopted.returncode, adopted.stdout) == (0, b""), adopted.stderr.decode()
    assert f"{len(EVENTS)} records prove these settings".encode() in adopted.stderr
    assert b"nothing to do" in cli(gateway, "reshard", "adopt").stderr

    with gateway:
        after = answer_of(gateway)
    assert after.content == before.content
    assert len(before.json()["receipts"]) == len(EVENTS)


async def note_as_of_old(store: KafkaStore, name: str, topic: str, partition: int, text: str) -> None:
    """Write a note as gateways of before the routing topic did."""
    group = f"gateway-{topic}-{name}"
    request = OffsetCommitRequest_v3(group, -1, "", -1, [(topic, [(partition, 0, text)])])
    response = await store.cluster.send_to_coordinator(group, request)
    assert response.topics == [(topic, [(partition, 0)])]


async def test_what_an_older_gateway_noted_is_compared_and_taken_along(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    log = kafka_log(kafka_bootstrap)
    topic, gateway = log.env["GATEWAY_TOPIC"], Gateway(tmp_path / "gateway", log.env)
    with gateway:
        await asyncio.to_thread(answer_of, gateway)
    await delete_topics(kafka_bootstrap, [f"{topic}.routing"])
    store = await KafkaStore.open(kafka_config(kafka_bootstrap), routing=routing_key(topic))
    ours = Identity(DEVELOPMENT_SECRET.encode()).check_value.hex()

    await note_as_of_old(store, PIN, topic, 0, Pin(PARTITIONS, "another", 1).encoded())
    for command in (["serve"], ["reshard", "adopt"]):
        refused = await asyncio.to_thread(cli, gateway, *command)
        assert refused.returncode == 3
        assert b"begun with another GATEWAY_IDENTITY_SECRET" in refused.stderr
    await note_as_of_old(store, PIN, topic, 0, Pin(PARTITIONS, ours, 1).encoded())
    await note_as_of_old(store, SKIPS, topic, 2, "[[7,9]]")
    assert (await asyncio.to_thread(cli, gateway, "serve")).returncode == 2
    adopted = await asyncio.to_thread(cli, gateway, "reshard", "adopt")

    assert adopted.returncode == 0, adopted.stderr.decode()
    assert await store.notes(SKIPS, topic) == {2: "[[7,9]]"}
    assert Pin.decode((await old_notes(store.cluster, PIN, topic))[0]).record_version == 2
    await store.close()


async def test_older_gateway_refuses_a_log_of_this_version(kafka_bootstrap: str, tmp_path: Path) -> None:
    log = kafka_log(kafka_bootstrap)
    topic = log.env["GATEWAY_TOPIC"]
    with Gateway(tmp_path / "gateway", log.env) as gateway:
        identity = Identity(b"a secret of the tests")
        store = await KafkaStore.open(kafka_config(kafka_bootstrap))
        for name in (topic, f"{topic}.quarantine"):
            (text,) = (await old_notes(store.cluster, PIN, name)).values()
            with pytest.raises(IdentityMismatchError, match="run the newer gateway"):
                Pin.decode(text)._replace(record_version=2).check(Topic(name, 1), identity.check_value)
            assert Pin.decode(text).record_version == 2  # the one before knows 1
        await store.close()
        assert gateway.stats()
