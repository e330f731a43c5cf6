"""Claim: an operator lets pass what is there to be looked at, and nothing that is written later."""

import pytest

from app.cli.record_skips import skip
from dedupe.model.errors import ConfigurationError
from dedupe.model.types import NewRecord, Topic
from dedupe.storage.notes import SKIPS
from dedupe.storage.pinning import load_skips
from tests.support.settings import make_settings
from tests.support.sim.sim_log import SimStore

STREAM = Topic("events", 1)
SETTINGS = make_settings(mode="development")
FOREIGN = NewRecord(1, b"not ours", b"{}", [])


def store_with(records: int) -> SimStore:
    store = SimStore()
    store.create_topic(*STREAM)
    for _ in range(records):
        store.partition(STREAM.name, 0).intrude(FOREIGN)
    return store


@pytest.mark.regression("An operator could skip records that were not written yet.")
async def test_range_ends_where_the_log_ends() -> None:
    store = store_with(3)

    assert await skip(store, SETTINGS, STREAM, 0, range(1, 10**9)) == 2

    assert (await load_skips(store, STREAM.name, 0)).ranges == [(1, 2)]


@pytest.mark.parametrize("span", [range(3, 4), range(7, 9)])
async def test_nothing_is_noted_where_no_record_is_yet(span: range) -> None:
    store = store_with(3)

    with pytest.raises(ConfigurationError, match="there is no record"):
        await skip(store, SETTINGS, STREAM, 0, span)

    assert not store.noted(SKIPS, STREAM.name)
