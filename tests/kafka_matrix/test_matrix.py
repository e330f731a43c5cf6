"""
Claim: on each supported release of Kafka topics are made and checked, the brokers fence, a group of workers
takes over and survives kills of workers and broker with every event stored once, a quota is a pause, and
settings that colleagues change are told.

KAFKA_RELEASES names the releases: `make kafka-matrix` tries all, one after the other, and `make test` the
oldest, since all other tests run on the newest.
"""

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dedupe.model.errors import ConfigurationError
from dedupe.storage.kafka.broker_connection import BrokerConnection
from dedupe.storage.kafka.config import Address
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.kafka.wire import PRODUCE, PRODUCE_VERSIONS
from tests.fault.conftest import LogUnderTest, kafka_log
from tests.integration.test_kafka_fencing import (
    TOPIC,
    appended,
    fenced,
    is_refused,
    keys,
    record,
    zombie_and_owner,
)
from tests.support.documents import ROOT, blocks_of
from tests.support.gateway import Gateway
from tests.support.http import cli
from tests.support.kafka import CLASSES, LIBS, QUICK_START_FLAGS, KafkaBroker, create_topic, libs_of
from tests.support.kafka_tools import lines_of, run_tool
from tests.support.processes import HOST
from tests.support.settings import kafka_config
from tests.support.verdict import assert_exactly_once
from tests.support.workers import Workers

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PAGE = ROOT / "docs" / "kafka.md"
RELEASES = os.environ.get("KAFKA_RELEASES", "3.6").split()
NEWEST = "4.2"
"""The release of all other tests, whose jars are where theirs are."""
WITHOUT_ELR = "4.0"
"""The release that has eligible leader replicas and does not turn them on by itself."""

LOAD_S = 0.7  # the load, not a wait for a condition
QUOTA_BYTES_S = 20_000
QUOTA_SECONDS = 5.0


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def libs(release: str) -> Path:
    return LIBS if release == NEWEST else libs_of(release)


@pytest.fixture(scope="module")
def broker(release: str, libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker of this release; the archive of classes is the newest one's."""
    flags = [flag for flag in QUICK_START_FLAGS if release == NEWEST or not flag.endswith(str(CLASSES))]
    with KafkaBroker(tmp_path_factory.mktemp(f"kafka-{release}"), libs=libs, jvm_flags=flags) as broker:
        yield broker


@pytest.fixture
async def store(broker: KafkaBroker) -> AsyncIterator[KafkaStore]:
    store = await KafkaStore.open(kafka_config(broker.bootstrap_servers, request_timeout_s=60))
    yield store
    await store.close()


@pytest.fixture(scope="module")
def log(broker: KafkaBroker) -> LogUnderTest:
    return kafka_log(broker.bootstrap_servers)


@pytest.fixture
async def workers(log: LogUnderTest, tmp_path: Path) -> AsyncIterator[Workers]:
    """Two workers that have shared the lanes out."""
    workers = Workers(tmp_path, {**log.env, "GATEWAY_KAFKA_REQUEST_TIMEOUT": "5s"}, 2)
    try:
        await workers.start()
        yield workers
    finally:
        await workers.stop()


def test_release_is_the_one_that_is_named(libs: Path, release: str) -> None:
    (jar,) = libs.glob("kafka_2.13-*.jar")
    assert jar.name.startswith(f"kafka_2.13-{release}.")


def test_topics_are_created_and_checked_and_a_change_is_told(
    broker: KafkaBroker, release: str, libs: Path, log: LogUnderTest, tmp_path: Path
) -> None:
    gateway = Gateway(tmp_path / "gateway", log.env)
    created = cli(gateway, "topics", "create", "--replicas", "1")
    assert f"topic {log.env['GATEWAY_TOPIC']} created, 4 partitions" in created.stderr.decode()
    assert all(b"must be at least" in line for line in created.stdout.splitlines())  # a single broker
    advice = b"kafka-features.sh upgrade --feature eligible.leader.replicas.version=1"
    assert (advice in created.stderr) == (release == WITHOUT_ELR)
    if release == WITHOUT_ELR:
        (line,) = lines_of(blocks_of(PAGE, "sh", "What brokers must have")[0])
        run_tool(line, broker.bootstrap_servers, libs=libs)
        assert advice not in cli(gateway, "topics", "check").stderr

    change = f"--entity-type topics --entity-name {log.env['GATEWAY_TOPIC']} --alter"
    configs = "kafka-configs.sh --bootstrap-server x"
    run_tool(f"{configs} {change} --add-config retention.ms=3600000", broker.bootstrap_servers, libs=libs)
    checked = cli(gateway, "topics", "check")
    told = set(checked.stdout.splitlines()) - set(created.stdout.splitlines())
    told = {line for line in told if b"topic __" not in line}  # Kafka's own, which are made in the meantime
    assert [line for line in told if b"retention.ms is 3600000" in line] == [*told]
    assert (checked.returncode, len(told)) == (2, 1)
    run_tool(f"{configs} {change} --add-config retention.ms=691200000", broker.bootstrap_servers, libs=libs)


async def test_versions_that_do_not_meet_are_told(broker: KafkaBroker, store: KafkaStore) -> None:
    connection = await BrokerConnection.open(store.config, Address(HOST, broker.port))
    assert connection.version_of(PRODUCE, *PRODUCE_VERSIONS) == PRODUCE_VERSIONS[-1]
    with pytest.raises(
        ConfigurationError, match=rf"^broker {HOST}:\d+ speaks Produce \d to \d+, this gateway 99$"
    ):
        connection.version_of(PRODUCE, 99)
    connection.close()


async def test_brokers_fence(broker: KafkaBroker, store: KafkaStore) -> None:
    await create_topic(broker.bootstrap_servers, TOPIC)
    await store.check_fencing(TOPIC, now_ms=time.time_ns() // 1_000_000)
    zombie, owner = await zombie_and_owner(store)

    assert await is_refused(zombie)
    await appended(owner, "second")
    assert owner._producer is not None
    owner._producer._connections.close()
    owner._producer._connections._is_closed = False
    await owner.append([record("third")])  # over a new connection, after its epoch was confirmed
    assert await keys(owner) == ["first", "second", "third"]
    await owner.close()


async def test_group_survives_five_kills(workers: Workers, broker: KafkaBroker, log: LogUnderTest) -> None:
    first, second = workers.all
    async with workers.load(clients=3):
        for victim in (first, broker, second, broker, first):
            await asyncio.sleep(LOAD_S)
            victim.kill()
            await asyncio.to_thread(victim.start)
    await workers.settle()
    await workers.repeat()
    committed = await log.read(first)
    assert_exactly_once(committed, workers.clients)
    assert {record.partition for record in committed} == set(range(workers.partitions))


async def test_quota_is_a_pause(broker: KafkaBroker, libs: Path, store: KafkaStore) -> None:
    topic = f"quota-{uuid.uuid4().hex[:12]}"
    await create_topic(broker.bootstrap_servers, topic)
    log = store.partition_log(topic, 0)
    await fenced(log)
    await appended(log, "0")
    quota = f"--entity-type clients --entity-name gateway --add-config producer_byte_rate={QUOTA_BYTES_S}"
    line = f"kafka-configs.sh --bootstrap-server x --alter {quota}"
    await asyncio.to_thread(run_tool, line, broker.bootstrap_servers, libs=libs)

    number, until = 1, time.monotonic() + QUOTA_SECONDS
    while time.monotonic() < until:
        await log.append([record(str(number))._replace(value=os.urandom(60_000))])
        number += 1
        await asyncio.sleep(min(log.pause_after_append_s, max(until - time.monotonic(), 0)))

    assert log.throttled_s > 1
    await log.close()
    assert await keys(store.partition_log(topic, 0)) == [str(each) for each in range(number)]
