"""Recovery: an index is continued only if nothing speaks against it, and gaps of the log are found."""

import pytest

from dedupe.decide.recovery import CheckedRecord, RecordCheck, reason_to_rebuild, sequence_gaps
from dedupe.model.errors import IdentityMismatchError, LogCorruptError
from dedupe.model.identity import Identity
from dedupe.model.record import build_record
from dedupe.model.types import Event, LogRecord
from dedupe.storage.index import EMPTY_STATE, IndexState

IDENTITY = Identity(b"a secret of 24 bytes....")
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
        (checked(49, lane_seq=40), 49, 60, "has deleted the index's last record"),
        (None, 0, 50, "lacks the index's last record"),
        (checked(49, lane_seq=39), 0, 50, "lacks the index's last record"),
        (
            checked(48, lane_seq=39)._replace(identity=checked(47, lane_seq=39).identity),
            0,
            50,
            "lacks the index's last record",
        ),
        # sent again after the log lost its tail, and at the same offset by chance
        (checked(48, lane_seq=39, timestamp_ms=1_001), 0, 50, "lacks the index's last record"),
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


# ---- gaps


def test_gaps_in_the_sequence_are_counted() -> None:
    empty = EMPTY_STATE
    assert (
        sequence_gaps(empty, [checked(0, lane_seq=5), checked(1, lane_seq=6)]) == 0
    )  # a log may begin anywhere
    known = STATE._replace(next_lane_seq=7)

    assert sequence_gaps(known, [checked(2, lane_seq=7)]) == 0
    assert sequence_gaps(known, [checked(2, lane_seq=8), checked(3, lane_seq=9), checked(4, lane_seq=8)]) == 2
