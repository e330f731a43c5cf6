"""Claim: the verdict on a divided topic finds each record that lies where its key is not at home."""

import pytest

from tests.support.verdict import Committed, SessionPlace, assert_at_home

DIVISION = [
    {"partition": 0, "begins": [{"offset": 0}, {"offset": 10}, {"offset": 20}]},
    {"partition": 4, "begins": [{"offset": 0}, {"offset": 5}]},
]
"""Of a topic of 4 partitions, then 8, then 4 again."""
STAYS, MOVES = 0, 4 * 512
"""Hashes of partition 0's lower half of slots, and of its upper half, which is partition 4's at times."""


def record(partition: int, offset: int, number: int, *, of_session: bool = False) -> Committed:
    key = number.to_bytes(8).ljust(16, b"\0")
    session = SessionPlace(key, b"", 1) if of_session else None
    return Committed(partition, offset, str(0 if of_session else number), 0, b"", session)


def assert_all_at_home(*records: Committed) -> None:
    assert_at_home(records, 4, lambda name: int(name).to_bytes(8), division=DIVISION)


def test_records_at_home_before_between_and_after_two_plans() -> None:
    assert_all_at_home(
        record(0, 9, MOVES),
        record(0, 10, STAYS),
        record(4, 0, MOVES),
        record(0, 20, MOVES),
        record(4, 1, MOVES, of_session=True),
        record(3, 0, 7),
    )


@pytest.mark.parametrize(
    "stray",
    [
        record(0, 10, MOVES),
        record(0, 10, MOVES, of_session=True),
        record(4, 0, STAYS),
        record(4, 0, MOVES + 1),
        record(3, 0, 4),
    ],
)
def test_record_elsewhere_is_found(stray: Committed) -> None:
    with pytest.raises(AssertionError, match="belongs into partition"):
        assert_all_at_home(stray)
