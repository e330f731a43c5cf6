"""
Claim: on Kafka, production refuses every topic and broker setting that would break the promise, with one
sentence each and all at once; development creates what is missing and warns once of each; and neither
starts against another partition count.
"""

import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from structlog.testing import capture_logs

from dedupe.model.errors import ConfigurationError, NotAppendedError, RetriableError
from dedupe.model.types import NewRecord
from dedupe.storage.kafka import topics as kafka_topics
from dedupe.storage.kafka.setting_rules import Demands
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.kafka.topics import TopicSpec, prepare_topics
from tests.conftest import TopicFactory
from tests.support.client import Client
from tests.support.gateway import Gateway
from tests.support.http import cli
from tests.support.kafka import KafkaBroker
from tests.support.settings import kafka_config
from tests.support.verdict import assert_exactly_once, read_kafka

DAY_MS = 86_400_000
DEMANDS = Demands(retention_ms=8 * DAY_MS, batch_bytes_max=900 * 1024, transaction_timeout_ms=30_000)
SAFE = {
    "retention.ms": str(8 * DAY_MS),
    "min.insync.replicas": "2",
    "message.timestamp.before.max.ms": str(DAY_MS // 2),
}

REPLICATION = "replication factor is 1, must be at least 3"
BROKER = [
    "broker 1: transaction.state.log.replication.factor is 1, must be at least 3: ",
    "broker 1: transaction.state.log.min.isr is 1, must be at least 2: ",
]
"""What the single broker of the tests cannot do better."""

REPLICATED = {
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "offsets.topic.replication.factor": "3",
}

Prepare: TypeAlias = Callable[..., Coroutine[Any, Any, None]]


@pytest.fixture
async def store(kafka_bootstrap: str) -> AsyncIterator[KafkaStore]:
    store = await KafkaStore.open(kafka_config(kafka_bootstrap, request_timeout_s=60))
    yield store
    await store.close()


@pytest.fixture
def prepare(store: KafkaStore) -> Prepare:
    """Check topics of the broker: `prepare(specs, is_development=...)`."""

    async def run(*specs: TopicSpec, is_development: bool, demands: Demands = DEMANDS) -> None:
        await prepare_topics(store, specs, demands, is_development=is_development)

    return run


def now_ms() -> int:
    return int(time.time() * 1000)


def spec_of(topic: str, partitions: int = 1) -> TopicSpec:
    return TopicSpec(topic, partitions, "GATEWAY_PARTITIONS")


async def refusals(prepare: Prepare, *specs: TopicSpec, **more: Any) -> list[str]:
    """Return the sentences with which production refuses topics."""
    with pytest.raises(ConfigurationError) as caught:
        await prepare(*specs, is_development=False, **more)
    return without_kafkas_own(str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("name", "value", "demand"),
    [
        ("cleanup.policy", "compact", "must be delete: "),
        ("cleanup.policy", "compact,delete", "must be delete: "),
        ("retention.ms", str(8 * DAY_MS - 1), f"must be at least {8 * DAY_MS} (GATEWAY_RETENTION): "),
        ("retention.bytes", "1000000000", "must be -1: "),
        ("message.timestamp.type", "LogAppendTime", "must be CreateTime: "),
        ("message.timestamp.after.max.ms", "3600001", "must be at most 3600000: "),
        ("message.timestamp.before.max.ms", "43200001", "must be at most 43200000: "),
        ("max.message.bytes", "921599", "must be at least 921600 (it follows GATEWAY_EVENT_BYTES_MAX): "),
        ("unclean.leader.election.enable", "true", "must be false: "),
        ("min.insync.replicas", "1", "must be at least 2: "),
    ],
)
async def test_unsafe_topic_setting_is_refused_or_warned_of(
    name: str, value: str, demand: str, topic: TopicFactory, prepare: Prepare
) -> None:
    unsafe = await topic(configs={**SAFE, name: value})
    expected = [f"topic {unsafe}: {REPLICATION}", f"topic {unsafe}: {name} is {value}, {demand}", *BROKER]
    assert_sentences(await refusals(prepare, spec_of(unsafe)), expected)
    assert_sentences(await warnings(prepare, spec_of(unsafe)), expected)


async def test_endless_retention_is_safe(topic: TopicFactory, prepare: Prepare) -> None:
    endless = await topic(configs={**SAFE, "retention.ms": "-1"})
    assert_sentences(await refusals(prepare, spec_of(endless)), [f"topic {endless}: {REPLICATION}", *BROKER])


async def test_everything_that_is_wrong_is_said_at_once(topic: TopicFactory, prepare: Prepare) -> None:
    first = await topic(partitions=2, configs={"cleanup.policy": "compact", "retention.bytes": "1"})
    demands = Demands(DEMANDS.retention_ms, 2**21, transaction_timeout_ms=900_001)
    assert_sentences(
        await refusals(prepare, spec_of(first, 3), spec_of("nobody-made-this"), demands=demands),
        [
            f"topic {first} has 2 partitions but GATEWAY_PARTITIONS says 3: ",
            "topic nobody-made-this does not exist: create it with 1 partitions and replication factor 3",
            f"topic {first}: {REPLICATION}",
            f"topic {first}: cleanup.policy is compact, ",
            f"topic {first}: retention.ms is 604800000, ",
            f"topic {first}: retention.bytes is 1, ",
            f"topic {first}: message.timestamp.before.max.ms is 9223372036854775807, ",
            f"topic {first}: max.message.bytes is 1048588, ",
            f"topic {first}: min.insync.replicas is 1, ",
            "broker 1: transaction.max.timeout.ms is 900000, must be at least 900001: ",
            *BROKER,
        ],
    )


async def test_development_creates_what_is_missing_and_as_safe_as_one_broker_can(prepare: Prepare) -> None:
    name = f"made-{uuid.uuid4().hex[:12]}"
    demands = Demands(3 * DAY_MS, 2**21, transaction_timeout_ms=30_000)
    expected = [f"topic {name}: {REPLICATION}", f"topic {name}: min.insync.replicas is 1, ", *BROKER]
    for _ in range(2):
        assert_sentences(await warnings(prepare, spec_of(name, 3), demands=demands), expected)
    assert_sentences(await refusals(prepare, spec_of(name, 3), demands=demands), expected)


@pytest.mark.parametrize("off_ms", [-9 * DAY_MS, -2 * 3_600_000, 2 * 3_600_000])
async def test_record_of_a_wrong_clock_is_refused_and_the_clock_blamed(
    off_ms: int, prepare: Prepare, store: KafkaStore
) -> None:
    name = f"made-{uuid.uuid4().hex[:12]}"
    await prepare(spec_of(name), is_development=True)
    log = store.partition_log(name, 0)
    await log.fence()

    with pytest.raises(NotAppendedError, match="the clock of this machine or of the broker is wrong"):
        await log.append([NewRecord(now_ms() + off_ms, b"id", b"", [])])

    end = await log.fence()
    base = await log.append([NewRecord(now_ms() - 1_800_000, b"id", b"", [])])
    assert base == end
    await log.close()


@pytest.mark.parametrize("is_development", [True, False])
async def test_other_partition_count_is_refused_in_every_mode(
    is_development: bool, topic: TopicFactory, prepare: Prepare
) -> None:
    name = await topic(partitions=2, configs=SAFE)
    for partitions in (1, 3):
        with pytest.raises(ConfigurationError) as caught:
            await prepare(spec_of(name, partitions), is_development=is_development)
        assert str(caught.value).startswith(
            f"topic {name} has 2 partitions but GATEWAY_PARTITIONS says {partitions}: "
        )


@pytest.mark.regression("Brokers that forget owners within hours were used without a word.")
@pytest.mark.kafka
async def test_broker_that_forgets_owners_early_is_warned_of_once(tmp_path: Path) -> None:
    properties = {"producer.id.expiration.ms": "50399999", "transactional.id.expiration.ms": "7199999"}
    with KafkaBroker(tmp_path / "kafka", properties=properties) as broker:
        gateway = Gateway(tmp_path / "gateway", kafka_env(broker))
        with gateway:
            lines = gateway.log_path.read_text().splitlines()
            warned = [line for line in lines if "unsafe for" in line and "topic __" not in line]
        assert [line.count("replication factor is 1") for line in warned] == [1, 0, 1, 0, 1, 0, 0, 0, 0, 0]
        assert [line.count("min.insync.replicas is 1") for line in warned] == [0, 1, 0, 1, 0, 1, 0, 0, 0, 0]
        assert "producer.id.expiration.ms is 50399999, must be at least 50400000" in warned[6]
        assert "transactional.id.expiration.ms is 7199999, must be at least 7200000" in warned[7]
        refused = cli(production(gateway.folder, broker), "serve")
    said = [line for line in refused.stderr.decode().splitlines() if line.startswith("gateway: ")]
    own = "topic __transaction_state: min.insync.replicas is 1, must be at least 2"
    assert any(own in line for line in said)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert len([line for line in said if "topic __" not in line]) == 10
    assert b"Traceback" not in refused.stderr


async def test_setting_that_brokers_do_not_know_is_told_with_a_way_out(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_now = Demands.configs

    def of_a_later_time(demands: Demands, replication_factor: int, *, keeps_all: bool) -> dict[str, str]:
        return of_now(demands, replication_factor, keeps_all=keeps_all) | {
            "message.timestamp.sooner.max.ms": "1"
        }

    monkeypatch.setattr(Demands, "configs", of_a_later_time)
    with pytest.raises(ConfigurationError, match=r"error 40 .*sooner.*before Kafka 3\.6 .* docs/kafka\.md"):
        await prepare(spec_of(f"old-{uuid.uuid4().hex[:8]}"), is_development=True)


@pytest.mark.regression("A start failed on a topic that it had just created.")
async def test_topic_just_created_that_a_broker_does_not_know_yet_is_waited_for(
    store: KafkaStore, prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(f"late-{uuid.uuid4().hex[:8]}")

    async def partitions_as_another_broker_says(_topic: str) -> int:
        return 0

    with monkeypatch.context() as late:
        late.setattr(store, "partitions_of", partitions_as_another_broker_says)
        with pytest.raises(RetriableError, match="not known to every broker yet"):
            await prepare(spec, is_development=True)
    await prepare(spec, is_development=True)


@pytest.mark.kafka
async def test_production_starts_on_three_brokers_and_survives_one(tmp_path: Path) -> None:
    with (
        KafkaBroker(tmp_path / "1", properties=REPLICATED) as broker,
        broker.joined_by(tmp_path / "2", node_id=2),
        broker.joined_by(tmp_path / "3", node_id=3) as third,
    ):
        gateway = production(tmp_path / "gateway", broker)
        created = cli(gateway, "topics", "create")
        assert (created.returncode, created.stdout) == (0, b""), created.stderr.decode()
        with gateway:
            checked = cli(gateway, "check", "-o", "table")
            assert checked.returncode == 0, checked.stdout.decode()
            third.kill()
            client = Client(gateway.url, seed=1, source="web")
            for _ in range(3):
                await client.deliver(client.new_body())
            await client.deliver_again()
            await client.close()
            assert "unsafe for production" not in gateway.log_path.read_text()
            assert_exactly_once(await read_kafka(broker.bootstrap_servers, "events", 2), [client])


def kafka_env(broker: KafkaBroker) -> dict[str, str]:
    return {
        "GATEWAY_LOG": "kafka",
        "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "GATEWAY_PARTITIONS": "2",
    }


def production(folder: Path, broker: KafkaBroker) -> Gateway:
    """Return a gateway that is not started yet, in production."""
    folder.mkdir(exist_ok=True)
    keys = folder / "keys.yaml"
    keys.write_text("- {key: web, source: web}\n")
    env = {
        "GATEWAY_MODE": "production",
        "GATEWAY_IDENTITY_SECRET": "public development secret",
        "GATEWAY_WRITE_KEYS_FILE": str(keys),
    }
    return Gateway(folder, kafka_env(broker) | env)


async def warnings(prepare: Prepare, *specs: TopicSpec, **more: Any) -> list[str]:
    """Return what development warns of."""
    with capture_logs() as logged:
        await prepare(*specs, is_development=True, **more)
    found = [entry["problem"] for entry in logged if entry["event"] == "unsafe for production"]
    return without_kafkas_own(found)


def without_kafkas_own(sentences: Sequence[str]) -> list[str]:
    """Leave out what is said of Kafka's own topics, which exist from somebody's first use on."""
    return [sentence for sentence in sentences if not sentence.startswith("topic __")]


def assert_sentences(found: Sequence[str], beginnings: Sequence[str]) -> None:
    """Each sentence begins as the hand-written one in the same place, and there are no others."""
    assert len(found) == len(beginnings), found
    for sentence, beginning in zip(found, beginnings, strict=True):
        assert sentence.startswith(beginning), found


async def test_partitions_without_leaders_are_waited_for(
    store: KafkaStore, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await topic(partitions=2)

    await kafka_topics._wait_for_leaders(store, name, 2)
    monkeypatch.setattr(store, "config", replace(store.config, request_timeout_s=1))
    with pytest.raises(RetriableError, match=name):
        await kafka_topics._wait_for_leaders(store, name, 3)


@pytest.mark.regression("A start failed on a topic that not every broker knew yet.")
async def test_topic_that_a_broker_does_not_know_yet_is_waited_for(store: KafkaStore) -> None:
    with pytest.raises(RetriableError, match="not-there"):
        await kafka_topics._topic_problems(store, spec_of("not-there"), DEMANDS)
