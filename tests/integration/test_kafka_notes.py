"""
Claim: on Kafka a note lasts as long as the routing topic, whatever happens to the broker; one that this
process may not keep is refused with the name of the missing right; and a routing topic that is not this
log's, or has lost records, is told of and not gone on with.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from dedupe.decide.resharding import Decision, Plan, Routing, spread_over
from dedupe.model.errors import ConfigurationError, IdentityMismatchError, RetriableError
from dedupe.model.types import Topic
from dedupe.storage.kafka.log import KafkaLog
from dedupe.storage.kafka.older_gateways import old_notes, stop_older_gateways
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.notes import PIN, Pin
from dedupe.storage.routing_records import Seal
from tests.contract.log_contract import keep
from tests.support.kafka import KafkaBroker, create_topic, delete_records, delete_topics
from tests.support.kafka_acls import AUTHORIZED, DESCRIBE, allow_on_topic
from tests.support.settings import kafka_config, routing_key
from tests.support.waiting import PATIENCE_S

TOPIC, ROUTING = "events", "events.routing"

Answer = TypeVar("Answer")


async def create_both(bootstrap_servers: str, topic: str = TOPIC) -> None:
    await create_topic(bootstrap_servers, topic, partitions=2)
    await create_topic(bootstrap_servers, f"{topic}.routing", partitions=3)


async def open_store(bootstrap_servers: str, topic: str = TOPIC) -> KafkaStore:
    return await KafkaStore.open(kafka_config(bootstrap_servers), routing=routing_key(topic))


async def answered(ask: Callable[[], Awaitable[Answer]], said: list[str] | None = None) -> Answer:
    """Ask as a gateway does: again, while the log does not answer; `said` gets what it says then."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await ask()
            except RetriableError as err:
                if said is not None:
                    said.append(str(err))
                await asyncio.sleep(0.05)


async def notes_of(store: KafkaStore, name: str, topic: str) -> dict[int, str]:
    return await answered(partial(store.notes, name, topic))


@pytest.fixture
async def stores(private_kafka_broker: KafkaBroker) -> AsyncIterator[Sequence[KafkaStore]]:
    """Two processes' connections to a topic of two partitions with its routing topic."""
    bootstrap = private_kafka_broker.bootstrap_servers
    await create_both(bootstrap)
    stores = [await open_store(bootstrap) for _ in range(2)]
    yield stores
    for store in stores:
        await store.close()


async def test_notes_survive_the_end_of_the_broker(
    private_kafka_broker: KafkaBroker, stores: Sequence[KafkaStore]
) -> None:
    first, second = stores
    await keep(first, "pin", TOPIC, 0, "a")
    await keep(first, "pin", TOPIC, 1, "b")

    await asyncio.to_thread(private_kafka_broker.kill)
    with pytest.raises(RetriableError):
        await first.notes("pin", TOPIC)
    await asyncio.to_thread(private_kafka_broker.start)

    for store in (first, second):
        assert await notes_of(store, "pin", TOPIC) == {0: "a", 1: "b"}


async def test_notes_of_a_topic_that_was_made_anew_are_refused(
    private_kafka_broker: KafkaBroker, stores: Sequence[KafkaStore]
) -> None:
    first, second = stores
    bootstrap = private_kafka_broker.bootstrap_servers
    await keep(first, "pin", TOPIC, 0, "a")
    await delete_topics(bootstrap, [TOPIC])
    await create_topic(bootstrap, TOPIC, partitions=2)

    with pytest.raises(IdentityMismatchError, match=r"offset 0 of the routing topic .* another topic"):
        await second.notes("pin", TOPIC)


async def test_lost_routing_topic_is_told_of(
    private_kafka_broker: KafkaBroker, stores: Sequence[KafkaStore]
) -> None:
    first, second = stores
    bootstrap = private_kafka_broker.bootstrap_servers
    assert await second.notes("pin", TOPIC) == {}
    await keep(first, "pin", TOPIC, 0, "a")
    await keep(first, "pin", TOPIC, 1, "b")
    assert await first.notes("pin", TOPIC) == {0: "a", 1: "b"}

    await delete_records(bootstrap, ROUTING, {0: 1})
    for store in stores:
        with pytest.raises(ConfigurationError, match=f"topic {ROUTING} has lost records"):
            await store.notes("pin", TOPIC)


async def test_routing_topic_that_was_made_anew_is_told_of(
    private_kafka_broker: KafkaBroker, stores: Sequence[KafkaStore]
) -> None:
    bootstrap = private_kafka_broker.bootstrap_servers
    await keep(stores[0], "pin", TOPIC, 0, "a")
    assert await stores[0].notes("pin", TOPIC) == {0: "a"}

    await delete_topics(bootstrap, [ROUTING])
    await create_topic(bootstrap, ROUTING, partitions=3)

    with pytest.raises(ConfigurationError, match=f"topic {ROUTING} has lost records"):
        await notes_of(stores[0], "pin", TOPIC)


async def test_decision_that_the_log_has_lost_is_not_remembered(private_kafka_broker: KafkaBroker) -> None:
    bootstrap, topic = private_kafka_broker.bootstrap_servers, "lost"
    await create_topic(bootstrap, topic, partitions=4)
    await create_topic(bootstrap, f"{topic}.routing", partitions=5)
    store, other = [await open_store(bootstrap, topic) for _ in range(2)]
    plan = Plan(1, 4, spread_over(Routing.begun_with(2), 4))
    await answered(partial(store.routing_topic.write_plan, plan))
    await answered(partial(decide, store.deciding_log(topic, 0), await store.routing_topic.seal()))
    routing, _ = await answered(partial(store.routing_topic.routing, 2))
    assert routing.decisions.keys() == {0}

    await delete_topics(bootstrap, [f"{topic}.routing"])
    await create_topic(bootstrap, f"{topic}.routing", partitions=5)
    await answered(partial(other.routing_topic.write_plan, plan))
    said: list[str] = []
    routing, _ = await answered(partial(store.routing_topic.routing, 2), said)

    assert "and was read to" in " ".join(said)
    assert not routing.decisions
    for each in (store, other):
        await each.close()


async def decide(log: KafkaLog, seal: Seal) -> None:
    try:
        await log.fence()
        if not log.decisions:
            await log.decide(seal.record_of(Decision(1, 0, 0), now_ms=1))
    finally:
        await log.close()


async def test_store_without_the_routing_topic_has_no_notes(private_kafka_broker: KafkaBroker) -> None:
    bootstrap = private_kafka_broker.bootstrap_servers
    await create_topic(bootstrap, TOPIC)
    store = await open_store(bootstrap)

    assert await store.notes("pin", TOPIC) == {}
    with pytest.raises(RetriableError, match=f"topic {ROUTING} does not exist"):
        await store.note("pin", TOPIC, 0, "a")
    await store.close()


@pytest.mark.kafka
async def test_missing_right_on_the_routing_topic_is_named(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka", properties=AUTHORIZED) as broker:
        await create_both(broker.bootstrap_servers)
        store = await open_store(broker.bootstrap_servers)
        await keep(store, "pin", TOPIC, 0, "a")
        await allow_on_topic(store, ROUTING, "User:ANONYMOUS", DESCRIBE)

        with pytest.raises(ConfigurationError, match=f"topic {ROUTING}: .* allow Write on"):
            await store.note("pin", TOPIC, 0, "c")
        with pytest.raises(ConfigurationError, match=f"topic {ROUTING}: .* allow Read on"):
            await store.notes("pin", TOPIC)
        await store.close()


@pytest.mark.kafka
async def test_older_gateways_find_a_pin_that_they_refuse_for_ever(
    private_kafka_broker: KafkaBroker, stores: Sequence[KafkaStore]
) -> None:
    cluster = stores[0].cluster
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await stop_older_gateways(cluster, [Topic(TOPIC, 2)], bytes(16))
                break
            except RetriableError:
                await asyncio.sleep(0.05)

    assert Pin.decode((await old_notes(cluster, PIN, TOPIC))[0]) == (2, bytes(16).hex(), 2)
