"""Claim: a log is taken over once its records have proved the settings, and is left alone otherwise."""

import pytest

from app.cli.adoption import adopt
from dedupe.model.errors import ConfigurationError, IdentityMismatchError, LogCorruptError
from dedupe.model.identity import Identity
from dedupe.model.record import build_record
from dedupe.model.routing import partition_of
from dedupe.model.types import Event, NewRecord
from dedupe.storage.notes import PIN, SKIPS, Skips
from dedupe.storage.pinning import check_pins
from tests.support.settings import make_settings
from tests.support.sim.sim_log import SimStore

SETTINGS = make_settings(mode="development", partitions=2)
TOPICS = SETTINGS.log.topics
IDENTITY = Identity(SETTINGS.gateway.identity_key)
FOREIGN = NewRecord(1, b"not ours", b"{}", [])


def store_with(records: int, *, partitions: int = 2, identity: Identity = IDENTITY) -> SimStore:
    """Return a log of some events, spread over its partitions, without a note."""
    store = SimStore()
    store.create_topic(TOPICS[0].name, partitions)
    store.create_topic(*TOPICS[1])
    for number in range(records):
        key = identity.message_key("web", f"id-{number}")
        event = Event(key, partition_of(key, partitions), bytes(8), "web", f"id-{number}", b"{}")
        record = build_record(event, lane_seq=number, timestamp_ms=1)
        store.partition(TOPICS[0].name, event.partition).intrude(record)
    return store


async def test_log_is_adopted_after_its_records_have_proved_the_settings() -> None:
    store = store_with(40)

    assert await adopt(store, SETTINGS) == 40

    assert await check_pins(store, TOPICS, IDENTITY)


async def test_log_that_says_its_rules_is_left_alone() -> None:
    store = store_with(3)
    await adopt(store, SETTINGS)
    store.partition(TOPICS[0].name, 0).intrude(FOREIGN)

    assert await adopt(store, SETTINGS) is None


@pytest.mark.parametrize(
    "store",
    [
        store_with(40, identity=Identity(b"a secret of somebody else")),
        store_with(40, partitions=3),
    ],
    ids=["another secret", "more partitions"],
)
async def test_log_of_other_settings_is_not_adopted(store: SimStore) -> None:
    with pytest.raises((IdentityMismatchError, ConfigurationError)):
        await adopt(store, SETTINGS)

    assert not store.noted(PIN, TOPICS[0].name)


async def test_log_with_records_in_other_partitions_is_not_adopted() -> None:
    store = store_with(0, partitions=3)
    store.partition(TOPICS[0].name, 2).intrude(FOREIGN)

    with pytest.raises(ConfigurationError, match="partition 2 of topic events has, or had, records"):
        await adopt(store, SETTINGS)


async def test_topic_with_too_few_partitions_is_not_adopted() -> None:
    with pytest.raises(ConfigurationError, match="has 1 partitions, and these settings say 2"):
        await adopt(store_with(0, partitions=1), SETTINGS)


async def test_foreign_record_stops_the_adoption_until_it_is_skipped() -> None:
    store = store_with(10)
    store.partition(TOPICS[0].name, 1).intrude(FOREIGN)
    end = store.partition(TOPICS[0].name, 1).end
    with pytest.raises(LogCorruptError):
        await adopt(store, SETTINGS)

    await store.note(SKIPS, TOPICS[0].name, 1, Skips([(end - 1, end - 1)]).encoded())

    assert await adopt(store, SETTINGS) == 10
