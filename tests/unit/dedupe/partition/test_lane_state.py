"""Lane states: every move of the table works, every other raises and changes nothing."""

import asyncio
from typing import cast

import pytest

from dedupe.decide.sessions import SessionPolicy
from dedupe.decide.window import WindowPolicy
from dedupe.model.clock import SystemClock
from dedupe.model.identity import Identity
from dedupe.partition.context import LaneContext
from dedupe.partition.lane import Lane
from dedupe.partition.state import TRANSITIONS, LaneState
from dedupe.storage.log import PartitionLog
from dedupe.storage.pinning import SessionNotes
from tests.support.settings import QUEUE_LIMITS
from tests.support.sim.memory_index import MemoryStore
from tests.support.sim.sim_log import SimStore

UNASSIGNED, FENCING, RESTORING = LaneState.UNASSIGNED, LaneState.FENCING, LaneState.RESTORING
ACTIVE, DRAINING, FAILED = LaneState.ACTIVE, LaneState.DRAINING, LaneState.FAILED
FOLLOWING = LaneState.FOLLOWING

LEGAL = {
    (UNASSIGNED, FENCING),
    (UNASSIGNED, FOLLOWING),
    (FOLLOWING, UNASSIGNED),
    (FOLLOWING, FENCING),
    (FENCING, RESTORING),
    (RESTORING, ACTIVE),
    (ACTIVE, DRAINING),
    (DRAINING, UNASSIGNED),
    (FAILED, FENCING),
    (FAILED, UNASSIGNED),
    *((state, FAILED) for state in LaneState if state is not FAILED),
}
ILLEGAL = [(old, new) for old in LaneState for new in LaneState if (old, new) not in LEGAL]


def new_lane() -> Lane:
    context = LaneContext(
        topic="events",
        partitions=1,
        log_id="log-1",
        identity=Identity(b"x" * 16),
        clock=SystemClock(),
        store=MemoryStore(),
        window_policy=WindowPolicy(1_000, 1_000),
        session_policy=SessionPolicy(0, 1, 0),
        session_notes=SessionNotes(SimStore(log_id="log-1"), "events"),
        restore_slots=asyncio.Semaphore(1),
        open_turn=asyncio.Lock(),
        limits=QUEUE_LIMITS,
    )
    return Lane(0, cast(PartitionLog, None), context)


def lane_in(state: LaneState) -> Lane:
    lane = new_lane()
    lane.state = state
    return lane


def test_table_is_the_one_that_was_designed() -> None:
    assert {(old, new) for old, states in TRANSITIONS.items() for new in states} == LEGAL


@pytest.mark.parametrize(("old", "new"), sorted(LEGAL, key=str))
def test_legal_move_is_made(old: LaneState, new: LaneState) -> None:
    lane = lane_in(old)

    lane._transition_to(new)

    assert lane.state is new


@pytest.mark.parametrize(("old", "new"), ILLEGAL)
def test_illegal_move_raises_and_changes_nothing(old: LaneState, new: LaneState) -> None:
    lane = lane_in(old)
    before = {name: value for name, value in vars(lane).items() if name != "queue"}

    with pytest.raises(AssertionError):
        lane._transition_to(new)

    assert lane.state is old
    assert {name: value for name, value in vars(lane).items() if name != "queue"} == before


def test_new_lane_is_unassigned() -> None:
    assert new_lane().state is UNASSIGNED


def test_assertions_are_on() -> None:
    assert __debug__  # python -O would let illegal moves through


def test_lane_that_is_deleting_its_index_shows_none() -> None:
    assert lane_in(RESTORING).open_index is None
