"""Recovery: an index is continued only if nothing speaks against it, and replay leaves what commits leave."""

import pytest

from dedupe.errors import IdentityMismatchError, LogCorruptError
from dedupe.identity import Identity
from dedupe.index import IndexIdentity, IndexState
from dedupe.record import build_record
from dedupe.recovery import CheckedRecord, RecordCheck, Replay, index_update, reason_to_rebuild
from dedupe.sessions import SessionPolicy
from dedupe.sim.memory_index import MemoryStore
from dedupe.types import Entry, Event, LogRecord
from dedupe.window import Step, Window, WindowPolicy

IDENTITY = Identity(b"a secret of 24 bytes....")
POLICY = WindowPolicy(window_ms=6_400, keys_max=640, time_step_ms=100)
SESSIONS = SessionPolicy(lease_ms=1_000, sessions_max=10)
INDEX_IDENTITY = IndexIdentity("log", "events", 0, 1, IDENTITY.check_value)
CHECK = RecordCheck(IDENTITY, partition=0, partitions=1)


def event(name: str) -> Event:
    return Event(IDENTITY.message_key("web", name), 0, b"f" * 8, "web", name, b"{}")


def record(offset: int, *, lane_seq: int, timestamp_ms: int = 1_000) -> LogRecord:
    built = build_record(event(f"id-{offset}"), lane_seq=lane_seq, timestamp_ms=timestamp_ms)
    return LogRecord(offset, *built)


def key(offset: int) -> bytes:
    return IDENTITY.message_key("web", f"id-{offset}")


def checked(offset: int, *, lane_seq: int, timestamp_ms: int = 1_000) -> CheckedRecord:
    return CHECK.checked(record(offset, lane_seq=lane_seq, timestamp_ms=timestamp_ms))


# ---- whether to rebuild

STATE = IndexState(
    applied_offset=50, next_lane_seq=40, newest_timestamp_ms=1_000, last_offset=48, last_key=key(48)
)


@pytest.mark.parametrize(("log_start", "end"), [(0, 50), (0, 90), (48, 50)])
def test_nothing_speaks_against_the_index(log_start: int, end: int) -> None:
    assert reason_to_rebuild(STATE, checked(48, lane_seq=39), log_start=log_start, end=end) is None


@pytest.mark.parametrize(
    ("last", "log_start", "end", "reason"),
    [
        (checked(48, lane_seq=39), 0, 49, "ahead of the log"),
        (checked(49, lane_seq=40), 49, 60, "no longer holds the last record"),
        (None, 0, 50, "does not hold the last record"),
        (checked(49, lane_seq=39), 0, 50, "does not hold the last record"),
        (
            checked(48, lane_seq=39)._replace(identity=checked(47, lane_seq=39).identity),
            0,
            50,
            "does not hold",
        ),
        # sent again after the log lost its tail, and at the same offset by chance
        (checked(48, lane_seq=39, timestamp_ms=1_001), 0, 50, "does not hold"),
    ],
)
def test_index_is_rebuilt(last: CheckedRecord | None, log_start: int, end: int, reason: str) -> None:
    assert reason in (reason_to_rebuild(STATE, last, log_start=log_start, end=end) or "")


# ---- checking records


def test_record_of_ours_gives_its_key() -> None:
    assert CHECK.checked(record(7, lane_seq=7)).identity.key == key(7)


@pytest.mark.parametrize(
    "check",
    [
        RecordCheck(Identity(b"another secret of 32 bytes......"), partition=0, partitions=1),
        RecordCheck(IDENTITY, partition=1, partitions=1),
    ],
)
def test_record_of_another_secret_or_partition_is_refused(check: RecordCheck) -> None:
    with pytest.raises(IdentityMismatchError, match="offset 7"):
        check.checked(record(7, lane_seq=7))


def test_record_that_is_not_ours_is_refused() -> None:
    with pytest.raises(LogCorruptError):
        CHECK.checked(LogRecord(7, 1, b"id", b"{}", []))


# ---- replay


def test_replay_leaves_entries_state_and_steps() -> None:
    index = MemoryStore().open(INDEX_IDENTITY)
    replay = Replay(index, Window(POLICY), SESSIONS)

    entries = replay.apply([checked(3, lane_seq=0), checked(4, lane_seq=1, timestamp_ms=1_150)])

    assert entries == [(key(3), Entry(3, b"f" * 8)), (key(4), Entry(4, b"f" * 8))]
    assert index.lookup([key(3), key(4)]) == [Entry(3, b"f" * 8), Entry(4, b"f" * 8)]
    assert index.state == IndexState(5, 2, 1_150, 4, key(4))
    assert list(index.steps) == [Step(1_000, 3, 0), Step(1_150, 4, 1)]
    assert (replay.records, replay.sequence_gaps) == (2, 0)


def test_timestamps_that_run_back_do_not_move_the_window() -> None:
    index = MemoryStore().open(INDEX_IDENTITY)
    replay = Replay(index, Window(POLICY), SESSIONS)
    replay.apply([checked(0, lane_seq=0, timestamp_ms=5_000)])

    replay.apply([checked(1, lane_seq=1, timestamp_ms=5_001), checked(2, lane_seq=2, timestamp_ms=1_000)])

    assert index.state.newest_timestamp_ms == 5_001
    assert list(index.steps) == [Step(5_000, 0, 0)]


def test_timestamp_that_runs_back_before_a_step_begins_none() -> None:
    index = MemoryStore().open(INDEX_IDENTITY)
    replay = Replay(index, Window(POLICY), SESSIONS)
    replay.apply([checked(0, lane_seq=0, timestamp_ms=5_000)])

    replay.apply([checked(1, lane_seq=1, timestamp_ms=1_000), checked(2, lane_seq=2, timestamp_ms=5_100)])

    assert list(index.steps) == [Step(5_000, 0, 0), Step(5_100, 2, 2)]


def test_gaps_in_the_sequence_are_counted() -> None:
    index = MemoryStore().open(INDEX_IDENTITY)
    replay = Replay(index, Window(POLICY), SESSIONS)

    replay.apply([checked(0, lane_seq=5), checked(1, lane_seq=6)])  # an old log may begin anywhere
    assert replay.sequence_gaps == 0
    replay.apply([checked(2, lane_seq=8), checked(3, lane_seq=9), checked(4, lane_seq=8)])

    assert replay.sequence_gaps == 2
    assert index.state.next_lane_seq == 9


@pytest.mark.parametrize(
    ("records", "log_start", "next_lane_seq"),
    [
        ([], 0, 0),  # a log that was always empty
        ([], 30, 90),  # retention left nothing: no sequence below the end can have been missed
        ([checked(40, lane_seq=33)], 30, 34),
    ],
)
def test_finish_declares_everything_applied(
    records: list[CheckedRecord], log_start: int, next_lane_seq: int
) -> None:
    index = MemoryStore().open(INDEX_IDENTITY)
    replay = Replay(index, Window(POLICY), SESSIONS)
    if records:
        replay.apply(records)

    replay.finish(90, log_start=log_start)

    assert index.state.applied_offset == 90
    assert index.state.next_lane_seq == next_lane_seq


# ---- live commits


def test_live_commit_and_replay_leave_the_same_index() -> None:
    store = MemoryStore()
    live, replayed = store.open(INDEX_IDENTITY), store.open(INDEX_IDENTITY._replace(partition=1))
    records = [checked(offset, lane_seq=offset, timestamp_ms=2_000) for offset in range(25)]
    steps = [Step(2_000, offset, offset) for offset in range(25)]
    entries = [(key(offset), Entry(offset, b"f" * 8)) for offset in range(25)]

    live.apply(index_update(Window(POLICY), entries, steps[-1], steps.copy, applied_offset=25))
    Replay(replayed, Window(POLICY), SESSIONS).apply(records)

    assert live.state == replayed.state == IndexState(25, 25, 2_000, 24, key(24))
    assert list(live.steps) == list(replayed.steps) == [steps[0], steps[10], steps[20]]
    assert live.lookup([key(24)]) == replayed.lookup([key(24)])
