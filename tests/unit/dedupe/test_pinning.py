"""Claim: of two processes that begin one log under different rules, not both go on."""

import pytest

from dedupe.errors import IdentityMismatchError
from dedupe.identity import Identity
from dedupe.notes import PIN
from dedupe.pinning import check_pins, pin
from dedupe.sim.sim_log import SimStore
from dedupe.types import Stream

STREAMS = [Stream("events", 2), Stream("events.quarantine", 1)]
OURS, THEIRS = Identity(b"a secret of this process"), Identity(b"a secret of another process")


@pytest.fixture
def store() -> SimStore:
    store = SimStore()
    for stream in STREAMS:
        store.create_topic(*stream)
    return store


async def test_pin_of_another_process_is_not_replaced(store: SimStore) -> None:
    await pin(store, STREAMS, THEIRS)

    with pytest.raises(IdentityMismatchError):
        await pin(store, STREAMS, OURS)

    assert await check_pins(store, STREAMS, THEIRS)


async def test_pin_that_another_process_replaced_at_once_is_noticed(
    store: SimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = store.note

    async def overtaken(name: str, topic: str, partition: int, text: str) -> None:
        await note(name, topic, partition, text)
        if topic == STREAMS[-1].topic:
            monkeypatch.undo()
            store.forget_notes()
            await pin(store, STREAMS, THEIRS)

    monkeypatch.setattr(store, "note", overtaken)
    with pytest.raises(IdentityMismatchError):
        await pin(store, STREAMS, OURS)


async def test_pin_that_was_interrupted_is_completed(store: SimStore) -> None:
    await pin(store, STREAMS, OURS)
    store.noted(PIN, STREAMS[1].topic).clear()
    assert not await check_pins(store, STREAMS, OURS)

    await pin(store, STREAMS, OURS)

    assert await check_pins(store, STREAMS, OURS)
