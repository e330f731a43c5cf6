"""
Claim: of two processes that begin one log under different rules, not both go on, and no process takes back
what another has noted.
"""

import pytest

from dedupe.model.errors import ConfigurationError, IdentityMismatchError
from dedupe.model.identity import Identity
from dedupe.model.types import NewRecord, Topic
from dedupe.storage.notes import PIN, Pin
from dedupe.storage.pinning import SessionNotes, begin_log, check_pins, pin
from tests.support.sim.sim_log import SimLog, SimStore

TOPICS = [Topic("events", 2), Topic("events.quarantine", 1)]
RECORD = NewRecord(1, b"a key", b"{}", [])
OURS, THEIRS = Identity(b"a secret of this process"), Identity(b"a secret of another process")


@pytest.fixture
def store() -> SimStore:
    store = SimStore()
    for topic in TOPICS:
        store.create_topic(*topic)
    return store


@pytest.mark.regression("Two first starts replaced each other's pin.")
async def test_pin_of_another_process_is_not_replaced(store: SimStore) -> None:
    await pin(store, TOPICS, THEIRS)

    with pytest.raises(IdentityMismatchError):
        await pin(store, TOPICS, OURS)

    assert await check_pins(store, TOPICS, THEIRS)


async def test_of_two_pins_at_once_the_first_counts(store: SimStore, monkeypatch: pytest.MonkeyPatch) -> None:
    note = store.note

    async def overtaken(name: str, topic: str, partition: int, text: str, *, once: bool = False) -> None:
        monkeypatch.undo()
        await pin(store, TOPICS, THEIRS)
        await note(name, topic, partition, text, once=once)

    monkeypatch.setattr(store, "note", overtaken)
    with pytest.raises(IdentityMismatchError):
        await pin(store, TOPICS, OURS)

    assert await check_pins(store, TOPICS, THEIRS)


async def test_pin_that_was_interrupted_is_completed(store: SimStore) -> None:
    await pin(store, TOPICS, OURS)
    store.noted(PIN, TOPICS[1].name).clear()
    assert not await check_pins(store, TOPICS, OURS)

    await pin(store, TOPICS, OURS)

    assert await check_pins(store, TOPICS, OURS)


# ---- notes of sessions


async def test_log_that_was_never_empty_may_have_sessions(store: SimStore) -> None:
    assert await SessionNotes(store, "events").may_have(0)


async def test_log_has_no_session_from_its_beginning_until_the_first(store: SimStore) -> None:
    notes = SessionNotes(store, "events")
    await notes.begin_log(0)
    await notes.begin_log(1)

    await notes.begin_sessions(0)

    assert [await notes.may_have(0), await notes.may_have(1)] == [True, False]


@pytest.mark.regression("A gateway took back the note that a log has sessions.")
async def test_gateway_that_found_the_log_empty_a_while_ago_takes_no_session_back(store: SimStore) -> None:
    notes = SessionNotes(store, "events")
    await notes.begin_log(0)
    await notes.begin_sessions(0)

    await SessionNotes(store, "events").begin_log(0)  # of another one, that was slow

    assert await notes.may_have(0)


# ---- the beginning of a log


async def test_log_without_a_record_is_pinned(store: SimStore) -> None:
    await begin_log(store, TOPICS, OURS)

    assert await check_pins(store, TOPICS, OURS)


@pytest.mark.parametrize(("topic", "partition"), [("events", 1), ("events.quarantine", 0)])
@pytest.mark.parametrize("is_trimmed", [True, False])
async def test_log_with_records_and_without_a_pin_is_not_begun_anew(
    store: SimStore, topic: str, partition: int, is_trimmed: bool
) -> None:
    store.partition(topic, partition).intrude(RECORD)
    if is_trimmed:
        store.trim(topic, partition, 1)

    with pytest.raises(ConfigurationError, match="gateway reshard adopt"):
        await begin_log(store, TOPICS, OURS)

    assert not store.noted(PIN, topic)


async def test_log_with_records_and_a_pin_is_gone_on_with(store: SimStore) -> None:
    await begin_log(store, TOPICS, OURS)
    store.partition("events", 1).intrude(RECORD)

    await begin_log(store, TOPICS, OURS)


async def test_log_that_another_process_begins_meanwhile_is_gone_on_with(
    store: SimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition_log = store.partition_log

    def overtaken(topic: str, partition: int) -> SimLog:
        if not store.noted(PIN, "events"):
            for each in TOPICS:
                store.noted(PIN, each.name)[0] = Pin(each.partitions, OURS.check_value.hex()).encoded()
            store.partition("events", 0).intrude(RECORD)
        return partition_log(topic, partition)

    monkeypatch.setattr(store, "partition_log", overtaken)

    await begin_log(store, TOPICS, OURS)
