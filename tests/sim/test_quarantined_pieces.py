"""Claim: a long event is quarantined whole once, wherever a crash comes between its pieces."""

import pytest

from app.ingest.whole_search import WholeSearch
from dedupe.model.identity import fingerprint_of
from dedupe.model.quarantine import PIECE_BYTES, Quarantine
from dedupe.storage.quarantine_reader import Place, parse_kept
from tests.sim.world import QUARANTINE, SOURCE, World

CONTENT = b"\xff{" * (2 * PIECE_BYTES)
PIECES = 4


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["indexed", "forgotten"])
@pytest.mark.parametrize("committed", [[0], [1], [0, 1, 2], [3, 1], [3, 2, 1, 0]])
async def test_retry_adds_the_pieces_that_a_crash_left_out(committed: list[int], is_forgotten: bool) -> None:
    world = World()
    pieces = Quarantine(world.identity, QUARANTINE).events(
        source=SOURCE,
        message_id="",
        fingerprint=fingerprint_of(CONTENT),
        content=CONTENT,
        reason="unreadable",
        position=0,
        is_json=False,
    )
    assert len(pieces) == PIECES
    world.boot()
    await world.wait_until_active()
    assert await world.send([], [pieces[number] for number in committed])
    await world.crash()

    world.boot()
    await world.wait_until_active()
    assert world.router is not None
    search = WholeSearch(world.router, world.identity, world.log, QUARANTINE, world.clock)
    whole = await search.at(Place(0, world.committed(QUARANTINE)[0][0].offset))
    assert whole is not None
    assert whole.missing == sorted(set(range(PIECES)) - set(committed))
    for _ in range(2):
        assert await world.send([world.event("good")], pieces)
    world.judge()
    records = world.committed(QUARANTINE)[0]
    kept = [parse_kept(record, 0) for record in records]
    assert sorted(each.piece for each in kept if each is not None) == list(range(PIECES))
    if is_forgotten:
        for route in world.router.quarantine_lanes:
            route.partition_index.index.lookup = lambda keys: [None] * len(keys)  # type: ignore[method-assign]
    for record in records:
        whole = await search.at(Place(0, record.offset))
        assert whole is not None
        assert (whole.problem, whole.content, whole.kept.piece) == (None, CONTENT, 0)
    assert await search.at(Place(0, records[-1].offset + 99)) is None
