"""PartitionIndex: a replay leaves the same index as the commits that it replays."""

import pytest

from dedupe.decide.committed import Committed, LastRecord
from dedupe.decide.recovery import CheckedRecord
from dedupe.decide.sessions import SessionPolicy
from dedupe.decide.window import Step, WindowPolicy
from dedupe.model.types import Entry
from dedupe.partition.partition_index import PartitionIndex
from dedupe.storage.index import IndexIdentity, IndexState
from tests.support.sim.memory_index import MemoryStore
from tests.unit.dedupe.decide.test_recovery import IDENTITY, checked, key

POLICY = WindowPolicy(window_ms=6_400, keys_max=640, time_step_ms=100)
SESSIONS = SessionPolicy(lease_ms=1_000, sessions_max=10)


def opened(*, partition: int = 0, log_start: int = 0) -> PartitionIndex:
    identity = IndexIdentity("log", "events", partition, 1, IDENTITY.check_value)
    return PartitionIndex(MemoryStore().open(identity), POLICY, SESSIONS, log_start=log_start)


def test_replay_leaves_entries_state_and_steps() -> None:
    index = opened()

    entries = index.replay([checked(3, lane_seq=0), checked(4, lane_seq=1, timestamp_ms=1_150)])

    assert entries == [(key(3), Entry(3, b"f" * 8)), (key(4), Entry(4, b"f" * 8))]
    assert index.index.lookup([key(3), key(4)]) == [Entry(3, b"f" * 8), Entry(4, b"f" * 8)]
    assert index.index.state == IndexState(5, 2, 1_150, 4, key(4))
    assert list(index.index.steps) == [Step(1_000, 3, 0), Step(1_150, 4, 1)]


def test_timestamps_that_run_back_do_not_move_the_window() -> None:
    index = opened()
    index.replay([checked(0, lane_seq=0, timestamp_ms=5_000)])

    index.replay([checked(1, lane_seq=1, timestamp_ms=5_001), checked(2, lane_seq=2, timestamp_ms=1_000)])

    assert index.index.state.newest_timestamp_ms == 5_001
    assert list(index.index.steps) == [Step(5_000, 0, 0)]


def test_timestamp_that_runs_back_before_a_step_begins_none() -> None:
    index = opened()
    index.replay([checked(0, lane_seq=0, timestamp_ms=5_000)])

    index.replay([checked(1, lane_seq=1, timestamp_ms=1_000), checked(2, lane_seq=2, timestamp_ms=5_100)])

    assert list(index.index.steps) == [Step(5_000, 0, 0), Step(5_100, 2, 2)]


@pytest.mark.parametrize(
    ("records", "log_start", "next_lane_seq"),
    [
        ([], 0, 0),  # a log that was always empty
        ([], 30, 90),  # retention left nothing: no sequence below the end can have been missed
        ([checked(40, lane_seq=33)], 30, 34),
    ],
)
def test_finished_replay_declares_everything_applied(
    records: list[CheckedRecord], log_start: int, next_lane_seq: int
) -> None:
    index = opened(log_start=log_start)
    if records:
        index.replay(records)

    index.finish_replay(90)

    assert index.index.state.applied_offset == 90
    assert index.index.state.next_lane_seq == next_lane_seq


def test_commit_and_replay_leave_the_same_index() -> None:
    live, replayed = opened(), opened(partition=1)
    records = [checked(offset, lane_seq=offset, timestamp_ms=2_000) for offset in range(25)]
    steps = [Step(2_000, offset, offset) for offset in (0, 10, 20)]
    before = LastRecord.of(live.index.state)

    live.apply(Committed(0, 0, 2_000, before, [key(offset) for offset in range(25)], [b"f" * 8] * 25))
    replayed.replay(records)

    assert live.index.state == replayed.index.state == IndexState(25, 25, 2_000, 24, key(24))
    assert list(live.index.steps) == list(replayed.index.steps) == steps
    assert live.index.lookup([key(24)]) == replayed.index.lookup([key(24)])
    assert live.known_from == replayed.known_from == 0


def test_ids_before_the_log_are_not_known() -> None:
    index = opened()
    index.replay([checked(3, lane_seq=0)])
    index.log_start = 4

    assert index.known_from == 4
