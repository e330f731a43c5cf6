"""What workers send one another is decoded as it was, through the encoding of their links."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.cluster import codec
from dedupe.cluster.links import Status
from dedupe.decide.committed import Committed, LastRecord
from dedupe.decide.sessions import SessionState
from dedupe.model.types import Entry, Progress, Session

U64 = st.integers(0, 2**64 - 1)
OFFSETS = st.integers(0, 2**63 - 1)
KEYS = st.binary(min_size=16, max_size=16)
ABOVE = st.integers(0, 2**512 - 1)
PROGRESS = st.none() | st.builds(Progress, U64, ABOVE)
SESSIONS = st.builds(Session, KEYS, KEYS, U64, U64, U64, PROGRESS)
HASHES = st.binary(min_size=8, max_size=8)
STATES = st.builds(SessionState, U64, ABOVE, U64, U64, OFFSETS, OFFSETS, st.booleans(), HASHES, OFFSETS)


def carried(encoded: Any) -> Any:
    return msgpack.unpackb(msgpack.packb(encoded), strict_map_key=False)


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
        column(HASHES) if has_sessions else [],
        column(st.lists(st.binary(min_size=32, max_size=32), max_size=2)) if has_sessions else [],
    )


@given(st.integers(0, 1_000), commits())
def test_commit_is_decoded_as_it_was(lane: int, committed: Committed) -> None:
    assert codec.decode_committed(carried(codec.encode_committed(lane, committed))) == (lane, committed)


@pytest.mark.parametrize(
    "encoded",
    [
        None,
        [],
        [0, 0, 0, 0, [0, b"", 0], b"", b"", [], []],
        [0, 0, 0, 0, [0, b"", 0], b"k" * 15, b"f" * 8, [], []],
        [0, 0, 0, 0, [0, b"", 0], b"k" * 32, b"f" * 8, [], []],
        [0, 0, 0, 0, [0, b"", 0], b"k" * 16, b"f" * 8, [None, None], []],
        [0, 0, 0, 0, [0, b"", 0], b"k" * 16, b"f" * 8, [], [[1, 2]]],
        [0, 0, 0, 0, [0, b"", 0], b"k" * 16, b"f" * 8, [], [], [b"w" * 7], []],
        [0, 0, 0, 0, [0, b"", 0], b"k" * 16, b"f" * 8, [], [], [], [[b"e" * 31]]],
    ],
)
def test_what_is_no_commit_is_refused(encoded: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        codec.decode_committed(encoded)


@given(st.lists(st.tuples(KEYS, STATES), max_size=3))
def test_sessions_are_decoded_as_they_were(rows: list[tuple[bytes, SessionState]]) -> None:
    assert codec.decode_rows(carried(codec.encode_rows(rows))) == rows
    assert [codec.decode_state(carried(codec.encode_state(state))) for _, state in rows] == [
        state for _, state in rows
    ]
    assert codec.decode_state(carried(codec.encode_state(None))) is None


@given(st.none() | st.builds(Entry, OFFSETS, st.binary(min_size=8, max_size=8)))
def test_entry_is_decoded_as_it_was(entry: Entry | None) -> None:
    assert codec.decode_entry(carried(codec.encode_entry(entry))) == entry


def with_more(encoded: Any) -> Any:
    """Return what a later version would encode: each row has one more field."""
    return [*map(with_more, encoded), "new"] if isinstance(encoded, list) else encoded


@pytest.mark.regression("A worker of a later version with one more field was not understood.")
def test_fields_of_a_later_version_are_passed_over() -> None:
    session = Session(b"c" * 16, b"s" * 16, 3, 1, 0, Progress(2, 0))
    keys, prints = [b"k" * 16], [b"f" * 8]
    committed = Committed(
        1, 2, 3, LastRecord(1, b"k" * 16, 3), keys, prints, [], [session], [b"w" * 8], [[b"e" * 32]]
    )
    encoded = carried(codec.encode_committed(0, committed))
    *_, sessions, source_hashes, evicted = encoded
    later = [
        *encoded[:4],
        [*encoded[4], "new"],
        *encoded[5:8],
        [with_more(session) for session in sessions],
        source_hashes,
        evicted,
        "new",
    ]
    assert codec.decode_committed(later) == (0, committed)
    earlier = committed._replace(source_hashes=[], evicted=[])
    assert codec.decode_committed(encoded[:9]) == (0, earlier)
    entry = Entry(5, b"f" * 8)
    assert codec.decode_entry(with_more(carried(codec.encode_entry(entry)))) == entry
    state = SessionState(1, 2, 3, 4, 5, 6)
    assert codec.decode_state(with_more(carried(codec.encode_state(state)))) == state
    rows = [(b"k" * 16, state)]
    assert codec.decode_rows([with_more(row) for row in carried(codec.encode_rows(rows))]) == rows


def test_status_is_decoded_by_the_version_before_and_nothing_else_is_one() -> None:
    status = Status(3, frozenset({1, 2}), frozenset({2}), frozenset(), is_leaving=True)
    assert Status.decode(carried([*status.encode(), "of a later version"])) == status
    for encoded in (None, 5, [], [1, 2, 3, 4, 5], ["x", [], [], [], False], [1, ["x"], [], [], False]):
        with pytest.raises(ValueError, match="not a status"):
            Status.decode(encoded)


@pytest.mark.parametrize("unserved", [None, frozenset(), frozenset({3})])
@pytest.mark.parametrize("given_up", [frozenset(), frozenset({1})])
@pytest.mark.parametrize("handed_over", [frozenset(), frozenset({2})])
@pytest.mark.parametrize("commit_ms", [{}, {"one:9092": 5, "two:9092": 700}])
@pytest.mark.parametrize("without_index", [frozenset(), frozenset({4})])
def test_status_tells_what_is_said_and_an_earlier_version_reads_what_it_knows(
    unserved: frozenset[int] | None,
    given_up: frozenset[int],
    handed_over: frozenset[int],
    commit_ms: dict[str, int],
    without_index: frozenset[int],
) -> None:
    before = Status(3, given_up=given_up, unserved=unserved, handed_over=handed_over, commit_ms=commit_ms)
    status = before._replace(without_index=without_index)
    encoded = carried(status.encode())
    assert Status.decode(encoded) == status
    assert Status.decode(encoded[:9]) == before
    assert Status.decode(encoded[:7]) == before._replace(handed_over=frozenset(), commit_ms={})
    assert Status.decode(encoded[:5]) == Status(3)


@pytest.mark.parametrize("times", [5, "x", [5], [["x"]], [[1, 2]], [["x", 1.5]], [["x", 1, 2], None]])
def test_times_of_a_status_that_are_something_else_are_left_out(times: object) -> None:
    decoded = Status.decode(carried([*Status(3).encode(), [], None, [], times]))
    assert decoded.commit_ms in ({}, {"x": 1})
