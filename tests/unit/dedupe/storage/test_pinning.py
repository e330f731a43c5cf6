"""
Claim: of two processes that begin one log under different rules, not both go on, and no process takes back
what another has noted.
"""

import pytest

from dedupe.model.errors import IdentityMismatchError
from dedupe.model.identity import Identity
from dedupe.model.types import Topic
from dedupe.storage.notes import BEGUN_EMPTY, PIN, SESSIONS
from dedupe.storage.pinning import SessionNotes, check_pins, pin, renew_notes
from tests.support.sim.sim_log import SimStore

TOPICS = [Topic("events", 2), Topic("events.quarantine", 1)]
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


async def test_pin_that_another_process_replaced_at_once_is_noticed(
    store: SimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = store.note

    async def overtaken(name: str, topic: str, partition: int, text: str) -> None:
        await note(name, topic, partition, text)
        if topic == TOPICS[-1].name:
            monkeypatch.undo()
            store.forget_notes()
            await pin(store, TOPICS, THEIRS)

    monkeypatch.setattr(store, "note", overtaken)
    with pytest.raises(IdentityMismatchError):
        await pin(store, TOPICS, OURS)


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


async def test_session_that_begins_while_notes_are_renewed_is_not_forgotten(
    store: SimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = SessionNotes(store, "events")
    await notes.begin_log(0)
    read = store.notes

    async def overtaken(name: str, topic: str) -> dict[int, str]:
        found = await read(name, topic)
        if name == BEGUN_EMPTY:
            monkeypatch.undo()
            await notes.begin_sessions(0)
        return found

    monkeypatch.setattr(store, "notes", overtaken)
    await renew_notes(store, TOPICS)

    assert await notes.may_have(0)


async def test_only_what_still_counts_is_renewed(store: SimStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka forgets the older note first, and then there may be sessions."""
    notes = SessionNotes(store, "events")
    await notes.begin_log(0)
    await notes.begin_log(1)
    await notes.begin_sessions(0)
    noted: list[tuple[str, int]] = []

    async def note(name: str, _topic: str, partition: int, _text: str) -> None:
        noted.append((name, partition))

    monkeypatch.setattr(store, "note", note)
    await renew_notes(store, TOPICS)

    assert sorted(noted) == [(BEGUN_EMPTY, 1), (SESSIONS, 0)]
