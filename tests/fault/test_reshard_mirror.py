"""
Claim: a mirror of a topic that was divided is never served as if nothing were amiss: with other offsets or
with the same ones, with the routing topic or without it, gateways and commands say why not.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import ConsumerRecord

from dedupe.storage.kafka.store import KafkaStore
from tests.fault.conftest import PARTITIONS, kafka_log
from tests.fault.test_reshard import EVENTS, answers, copied, divide, written_back
from tests.support.gateway import Gateway
from tests.support.http import cli, new_event
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.settings import kafka_config

Records = list[ConsumerRecord[bytes, bytes]]
DIVIDED = 2 * PARTITIONS
OF_ANOTHER = "was written under another GATEWAY_IDENTITY_SECRET, for another cluster or for another topic"
NOWHERE = "has records, and it is written nowhere under which secret and partition count"
OTHER_COUNT = f"GATEWAY_PARTITIONS says {PARTITIONS}: the number decides where copies of an event meet"
USED = f"has, or had, records, and these settings say {PARTITIONS} partitions"
PROVED_WRONG = "written with another GATEWAY_IDENTITY_SECRET or another number of partitions"


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path / "mirror-broker") as broker:
        yield broker


async def mirrored(bootstrap_servers: str, topic: str, records: Records, *, keeps_offsets: bool) -> None:
    """Write records as a mirror does: behind each other, or each at its offset, with markers in between."""
    if not keeps_offsets:
        await written_back(bootstrap_servers, topic, records)
        return
    store = await KafkaStore.open(kafka_config(bootstrap_servers))
    for record in records:
        log = store.partition_log(topic, record.partition)
        while (await log.bounds())[1] < record.offset:
            await log.fence()
        await log.close()
        await written_back(bootstrap_servers, topic, [record])
    await store.close()


def places(records: Records) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


def refusal(gateway: Gateway, *arguments: str) -> str:
    done = cli(gateway, *arguments)
    assert done.returncode in (2, 3), (done.returncode, done.stderr.decode())
    return done.stderr.decode()


@pytest.mark.kafka
@pytest.mark.parametrize("keeps_offsets", [False, True], ids=["other offsets", "the same offsets"])
async def test_mirror_of_a_divided_topic_is_refused(
    keeps_offsets: bool, mirror: KafkaBroker, kafka_bootstrap: str, tmp_path: Path
) -> None:
    log = kafka_log(kafka_bootstrap)
    topic = log.env["GATEWAY_TOPIC"]
    with Gateway(tmp_path / "original", log.env) as original:
        answers(original, [new_event() for _ in range(EVENTS)], 1)
        divide(original, DIVIDED)
        answers(original, [new_event() for _ in range(EVENTS)], 2)
    events = await copied(kafka_bootstrap, topic, DIVIDED)
    routing = await copied(kafka_bootstrap, f"{topic}.routing")
    there = mirror.bootstrap_servers
    for name, partitions in {
        topic: DIVIDED,
        f"{topic}.quarantine": 1,
        f"{topic}.routing": DIVIDED + 1,
    }.items():
        await create_topic(there, name, partitions=partitions, configs={"retention.ms": "-1"})
    await mirrored(there, topic, events, keeps_offsets=keeps_offsets)
    assert (places(await copied(there, topic, DIVIDED)) == places(events)) is keeps_offsets
    env = {**log.env, "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": there}
    gateway = Gateway(tmp_path / "begun with", env)
    with_all = Gateway(tmp_path / "with all", {**env, "GATEWAY_PARTITIONS": str(DIVIDED)})

    for each, start, why in ((gateway, OTHER_COUNT, USED), (with_all, NOWHERE, PROVED_WRONG)):
        assert start in await asyncio.to_thread(refusal, each, "serve")
        assert why in await asyncio.to_thread(refusal, each, "reshard", "adopt")
    await written_back(there, f"{topic}.routing", routing)
    for each in (gateway, with_all):
        for command in (("serve",), ("reshard", "adopt"), ("reshard", "status")):
            assert OF_ANOTHER in await asyncio.to_thread(refusal, each, *command)
    assert len(await copied(there, topic, DIVIDED)) == len(events), "something was stored there"
