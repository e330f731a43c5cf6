"""
Claim: on a real broker that forgets producers after 3 s, the first event after a silence is stored, and an
owner that goes on keeps older ones out; a broker with a byte quota makes the gateway pause, one whose logins
end makes it log in again, and neither costs an unknown outcome.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dedupe.model.errors import NotAppendedError, RetriableError
from dedupe.model.types import NewRecord
from dedupe.storage.kafka import log as kafka_log
from dedupe.storage.kafka import producer as kafka_producer
from dedupe.storage.kafka.log import KafkaLog
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.kafka.transactions import INVALID_PRODUCER_EPOCH
from tests.contract.log_contract import read_all
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.kafka_tools import run_tool
from tests.support.processes import HOST, free_port
from tests.support.settings import kafka_config
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.kafka

TOPIC = "quiet"
SECONDS = float(os.environ.get("KAFKA_FIELD_SECONDS", "15"))
"""How long a quota and ending logins are borne."""
FORGETS_S = 3.0
QUOTA_BYTES_S = 20_000
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="gw" password="pw" user_gw="pw";'
)


@pytest.fixture(scope="module")
def sasl_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, sasl_port: int) -> Iterator[KafkaBroker]:
    folder: Path = tmp_path_factory.mktemp("quiet")
    properties = {
        "producer.id.expiration.ms": str(round(FORGETS_S * 1000)),
        "producer.id.expiration.check.interval.ms": "500",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
        "connections.max.reauth.ms": "4000",
        "listener.security.protocol.map": (
            "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
        ),
    }
    with KafkaBroker(folder, properties=properties, listeners={"SASL_PLAINTEXT": sasl_port}) as broker:
        asyncio.run(create_topic(broker.bootstrap_servers, TOPIC, partitions=5))
        yield broker


@pytest.fixture
async def store(broker: KafkaBroker) -> AsyncIterator[KafkaStore]:
    store = await KafkaStore.open(kafka_config(broker.bootstrap_servers, request_timeout_s=60))
    yield store
    await store.close()


def record(key: str, size: int = 5) -> NewRecord:
    return NewRecord(time.time_ns() // 1_000_000, key.encode(), bytes(size), [])


async def fenced(log: KafkaLog) -> None:
    """Fence, again while the broker begins."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(RetriableError):
                await log.fence()
                return


async def appended(log: KafkaLog, key: str) -> None:
    """Append; a broker's first transactions are refused for a moment."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await log.append([record(key)])
                return
            except NotAppendedError:
                await fenced(log)


async def keys(log: KafkaLog) -> list[str]:
    _, end = await log.bounds()
    return [found.key.decode() for found in await read_all(log, 0, end)]


@pytest.mark.regression("The first event of a partition that had been silent for a day was answered 503.")
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "open"])
async def test_first_event_after_a_silence_is_stored(store: KafkaStore, *, is_closed: bool) -> None:
    log = store.partition_log(TOPIC, int(is_closed))
    await fenced(log)
    await appended(log, "a")
    await log.append([record("b")])
    await asyncio.sleep(2 * FORGETS_S)
    if is_closed:
        assert log._producer is not None
        log._producer._connections.close()
        log._producer._connections._is_closed = False

    await log.append([record("c")])
    await log.append([record("d")])

    assert await keys(log) == ["a", "b", "c", "d"]
    await log.close()


@pytest.mark.regression(
    "A worker that was frozen for long could append again once the leader had forgotten both owners."
)
async def test_owner_that_renews_keeps_a_thawed_one_out(
    store: KafkaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (kafka_log, kafka_producer):
        monkeypatch.setattr(module, "RENEW_S", FORGETS_S / 3)
    monkeypatch.setattr(kafka_log, "RENEW_AGAIN_S", FORGETS_S / 6)
    zombie, owner = store.partition_log(TOPIC, 2), store.partition_log(TOPIC, 2)
    await fenced(zombie)
    await appended(zombie, "a")
    frozen = zombie._producer
    assert frozen is not None
    assert zombie._renew_timer is not None
    zombie._renew_timer.cancel()
    await fenced(owner)
    await asyncio.sleep(3 * FORGETS_S)

    connection = await frozen._connections.connect(frozen._leader)
    request = frozen._produce.encode(frozen._batch_of([record("zombie")]))
    assert frozen._produce.decode(await connection.send_encoded(request)).code == INVALID_PRODUCER_EPOCH

    await owner.append([record("b")])
    assert await keys(owner) == ["a", "b"]
    await owner.close()
    await zombie.close()


async def test_broker_passes_the_fences_own_test_beside_an_owner(store: KafkaStore) -> None:
    owner = store.partition_log(TOPIC, 0)
    await fenced(owner)
    await appended(owner, "a")
    for _ in range(2):
        now_ms = time.time_ns() // 1_000_000
        await asyncio.gather(*(store.check_fencing(TOPIC, now_ms=now_ms) for _ in range(3)))
        await owner.append([record("b")])
    assert (await keys(owner))[-3:] == ["a", "b", "b"]
    await owner.close()


@pytest.mark.regression("A login that ended in the middle of an append made its outcome unknown.")
async def test_logins_that_end_cost_nothing(broker: KafkaBroker, sasl_port: int) -> None:
    config = kafka_config(
        f"{HOST}:{sasl_port}",
        request_timeout_s=60,
        security_protocol="SASL_PLAINTEXT",
        sasl_username="gw",
        sasl_password="pw",
    )
    store = await KafkaStore.open(config)
    log = store.partition_log(TOPIC, 3)
    await fenced(log)
    await appended(log, "0")
    number, until = 1, time.monotonic() + SECONDS
    while time.monotonic() < until:
        await log.append([record(str(number))])
        number += 1
        await asyncio.sleep(0.05)

    assert await keys(log) == [str(n) for n in range(number)]
    print(f"{number} appends in {SECONDS:.0f} s of logins of 4 s")
    await log.close()
    await store.close()


@pytest.mark.regression("A quota of the brokers made outcomes unknown.")
async def test_byte_quota_is_a_pause(broker: KafkaBroker, store: KafkaStore) -> None:
    log = store.partition_log(TOPIC, 4)
    await fenced(log)
    await appended(log, "0")
    quota = f"--entity-type clients --entity-name gateway --add-config producer_byte_rate={QUOTA_BYTES_S}"
    await asyncio.to_thread(
        run_tool, f"kafka-configs.sh --bootstrap-server x --alter {quota}", broker.bootstrap_servers
    )
    number, until = 1, time.monotonic() + SECONDS
    while time.monotonic() < until:
        await log.append([record(str(number), 60_000)])
        number += 1
        await asyncio.sleep(min(log.pause_after_append_s, max(until - time.monotonic(), 0)))

    assert log.throttled_s > 1
    print(f"{number} appends in {SECONDS:.0f} s, throttled for {log.throttled_s:.1f} s")
    await log.close()
    reader = store.partition_log(TOPIC, 4)
    assert await keys(reader) == [str(n) for n in range(number)]
