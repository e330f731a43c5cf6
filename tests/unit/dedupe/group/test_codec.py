"""What workers tell one another comes back as it was, through the encoding that their links use."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.committed import Committed, LastRecord
from dedupe.group import codec
from dedupe.group.links import Status
from dedupe.sessions import SessionState
from dedupe.types import Entry, Progress, Session

U64 = st.integers(0, 2**64 - 1)
OFFSETS = st.integers(0, 2**63 - 1)
KEYS = st.binary(min_size=16, max_size=16)
ABOVE = st.integers(0, 2**512 - 1)
PROGRESS = st.none() | st.builds(Progress, U64, ABOVE)
SESSIONS = st.builds(Session, KEYS, KEYS, U64, U64, U64, PROGRESS)
STATES = st.builds(SessionState, U64, ABOVE, U64, U64, OFFSETS, OFFSETS, st.booleans())


def carried(told: Any) -> Any:
    return msgpack.unpackb(msgpack.packb(told), strict_map_key=False)


@st.composite
def commits(draw: st.DrawFn) -> Committed:
    count = draw(st.integers(1, 5))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=count, max_size=count))

    has_sessions = draw(st.booleans())
    return Committed(
        draw(OFFSETS),
        draw(OFFSETS),
        draw(OFFSETS),
        LastRecord(draw(OFFSETS), draw(KEYS), draw(OFFSETS)),
        column(KEYS),
        column(st.binary(min_size=8, max_size=8)),
        column(st.none() | KEYS) if has_sessions else [],
        column(st.none() | SESSIONS) if has_sessions else [],
    )


@given(st.integers(0, 1_000), commits())
def test_commit_is_heard_as_it_was(lane: int, committed: Committed) -> None:
    assert codec.heard_committed(carried(codec.told_committed(lane, committed))) == (lane, committed)


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        [0, 0, 0, 0, [0, b"", 0], b"", b"", [], []],
        [0, 0, 0, 0, [0, b"", 0], b"k" * 15, b"f" * 8, [], []],
        [0, 0, 0, 0, [0, b"", 0], b"k" * 32, b"f" * 8, [], []],
        [0, 0, 0, 0, [0, b"", 0], b"k" * 16, b"f" * 8, [None, None], []],
        [0, 0, 0, 0, [0, b"", 0], b"k" * 16, b"f" * 8, [], [[1, 2]]],
    ],
)
def test_what_is_no_commit_is_refused(told: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        codec.heard_committed(told)


@given(st.lists(st.tuples(KEYS, STATES), max_size=3))
def test_sessions_are_heard_as_they_were(rows: list[tuple[bytes, SessionState]]) -> None:
    assert codec.heard_rows(carried(codec.told_rows(rows))) == rows
    assert [codec.heard_state(carried(codec.told_state(state))) for _, state in rows] == [
        state for _, state in rows
    ]
    assert codec.heard_state(carried(codec.told_state(None))) is None


@given(st.none() | st.builds(Entry, OFFSETS, st.binary(min_size=8, max_size=8)))
def test_entry_is_heard_as_it_was(entry: Entry | None) -> None:
    assert codec.heard_entry(carried(codec.told_entry(entry))) == entry


def with_more(told: Any) -> Any:
    """Return what a later version would tell: each row has a field more."""
    return [*map(with_more, told), "new"] if isinstance(told, list) else told


def test_fields_of_a_later_version_are_passed_over() -> None:
    session = Session(b"c" * 16, b"s" * 16, 3, 1, 0, Progress(2, 0))
    keys, prints = [b"k" * 16], [b"f" * 8]
    committed = Committed(1, 2, 3, LastRecord(1, b"k" * 16, 3), keys, prints, [], [session])
    told = carried(codec.told_committed(0, committed))
    *_, sessions = told
    later = [*told[:4], [*told[4], "new"], *told[5:8], [with_more(session) for session in sessions], "new"]
    assert codec.heard_committed(later) == (0, committed)
    entry = Entry(5, b"f" * 8)
    assert codec.heard_entry(with_more(carried(codec.told_entry(entry)))) == entry
    state = SessionState(1, 2, 3, 4, 5, 6)
    assert codec.heard_state(with_more(carried(codec.told_state(state)))) == state
    rows = [(b"k" * 16, state)]
    assert codec.heard_rows([with_more(row) for row in carried(codec.told_rows(rows))]) == rows


def test_status_is_heard_by_the_version_before_and_nothing_else_is_one() -> None:
    status = Status(3, frozenset({1, 2}), frozenset({2}), frozenset(), is_leaving=True)
    assert Status.heard(carried([*status.told(), "of a later version"])) == status
    for told in (None, 5, [], [1, 2, 3, 4, 5], ["x", [], [], [], False], [1, ["x"], [], [], False]):
        with pytest.raises(ValueError, match="not a status"):
            Status.heard(told)
