"""
Admission: the first copy is new, later ones follow it, and nothing else is ever concluded; what a client
session adds to that, rule by rule.
"""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupe.decide.admission import NO_ORIGINAL, Admission, SessionAdmission, Verdicts, admit
from dedupe.decide.sessions import NO_SESSION, SessionPolicy, SessionState, keys_of
from dedupe.metrics import counts_of
from dedupe.model.types import Entry, Event, Order, Progress, Session

EXAMPLES = settings(max_examples=300)

NEW, REPEAT, DUPLICATE, CONFLICT = Admission.NEW, Admission.REPEAT, Admission.DUPLICATE, Admission.CONFLICT


def event(key: str, content: str = "x") -> Event:
    return Event(key.encode(), 0, content.encode(), "source", key, b"{}")


def known(offset: int, content: str = "x") -> Entry:
    return Entry(offset, content.encode())


@pytest.mark.parametrize(
    ("events", "entries", "verdicts"),
    [
        pytest.param([], [], [], id="nothing"),
        pytest.param([event("a")], [None], [(NEW, ~0)], id="new"),
        pytest.param(
            [event("a"), event("b"), event("c")],
            [None, None, None],
            [(NEW, ~0), (NEW, ~1), (NEW, ~2)],
            id="places count the new ones",
        ),
        pytest.param([event("a")], [known(70)], [(DUPLICATE, 70)], id="known"),
        pytest.param([event("a", "y")], [known(70)], [(CONFLICT, 70)], id="known, other content"),
        pytest.param([event("a")], [known(50)], [(DUPLICATE, 50)], id="known at the window's start"),
        pytest.param([event("a")], [known(49)], [(NEW, ~0)], id="known before the window"),
        pytest.param([event("a", "y")], [known(49)], [(NEW, ~0)], id="other content before the window"),
        pytest.param(
            [event("a"), event("a")],
            [None, None],
            [(NEW, ~0), (REPEAT, ~0)],
            id="copy in the batch",
        ),
        pytest.param(
            [event("a"), event("a", "y"), event("a")],
            [None, None, None],
            [(NEW, ~0), (CONFLICT, ~0), (REPEAT, ~0)],
            id="conflict in the batch leaves the original in place",
        ),
        pytest.param(
            [event("a"), event("b"), event("c"), event("b"), event("a", "y")],
            [known(60), None, None, None, known(60)],
            [
                (DUPLICATE, 60),
                (NEW, ~0),
                (NEW, ~1),
                (REPEAT, ~0),
                (CONFLICT, 60),
            ],
            id="one duplicate drops nothing else",
        ),
        pytest.param(
            [event("a"), event("a")],
            [known(49), known(49)],
            [(NEW, ~0), (REPEAT, ~0)],
            id="copies of a forgotten one",
        ),
    ],
)
def test_verdicts(
    events: Sequence[Event], entries: Sequence[Entry | None], verdicts: list[tuple[Admission, int]]
) -> None:
    admitted = admit(events, entries, window_start=50)
    assert list(zip(*admitted, strict=True)) == verdicts


def test_originals_in_the_batch_are_where_the_new_ones_begin() -> None:
    verdicts = Verdicts([DUPLICATE, NEW, NEW, REPEAT, CONFLICT], [60, ~0, ~1, ~0, 61])
    assert verdicts.offsets(100) == [60, 100, 101, 100, 61]


@pytest.mark.parametrize(
    ("verdicts", "counts"),
    [
        ([], {}),
        ([DUPLICATE] * 3, {DUPLICATE: 3}),
        ([NEW, CONFLICT, NEW, DUPLICATE], {NEW: 2, CONFLICT: 1, DUPLICATE: 1}),
    ],
)
def test_counts_are_those_of_the_verdicts_that_occur(
    verdicts: Sequence[Admission], counts: dict[Admission, int]
) -> None:
    assert counts_of(verdicts) == counts


def test_entries_must_match_the_events() -> None:
    with pytest.raises(AssertionError):
        admit([event("a")], [], window_start=0)


@EXAMPLES
@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xy")), max_size=40),
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 9), st.sampled_from("xy"))),
    st.integers(0, 10),
)
def test_verdicts_are_those_of_one_event_after_the_other(
    sent: list[tuple[str, str]], index: dict[str, tuple[int, str]], window_start: int
) -> None:
    events = [event(key, content) for key, content in sent]
    entries = [known(*index[key]) if key in index else None for key, _ in sent]

    verdicts = zip(*admit(events, entries, window_start=window_start), strict=True)

    # The model keeps one dictionary of originals and judges event by event, as if each were a batch.
    originals = {key: entry for key, entry in index.items() if entry[0] >= window_start}
    new_count = 0
    for (key, content), verdict in zip(sent, verdicts, strict=True):
        if key not in originals:
            originals[key] = (~new_count, content)
            assert verdict == (NEW, ~new_count)
            new_count += 1
            continue
        place, original = originals[key]
        copy = REPEAT if place < 0 else DUPLICATE
        assert verdict == (copy if content == original else CONFLICT, place)


# ---- client sessions

STALE, GAP, TOO_FAR = (
    (Admission.STALE, NO_ORIGINAL),
    (Admission.GAP, NO_ORIGINAL),
    (Admission.TOO_FAR, NO_ORIGINAL),
)
FENCED, EXPIRED = (Admission.FENCED, NO_ORIGINAL), (Admission.EXPIRED, NO_ORIGINAL)

POLICY = SessionPolicy(lease_ms=1_000, sessions_max=10, expired_ms=500)
NOW_MS = 10_000
TEN = SessionState(10, 0b1010, 4, 0, NOW_MS - 1_000, 90)  # 1 to 10, 12 and 14 are stored, 4 acknowledged
AT_12 = {12: known(90)}


def sent(
    sequence: int,
    content: str = "x",
    *,
    acknowledged: int = 0,
    epoch: int = 0,
    secondary_key: str = "",
    name: str = "s",
) -> Event:
    session = Session(b"c" * 16, name.encode() * 16, sequence, epoch, acknowledged)
    return event(f"{name}{sequence}", content)._replace(
        session=session, secondary_key=secondary_key.encode() or None
    )


def strict(sequence: int) -> Event:
    return sent(sequence)._replace(order=Order.STRICT)


def replayed(sequence: int, epoch: int = 0) -> Event:
    return sent(sequence, epoch=epoch)._replace(order=Order.REPLAYED)


def case(  # type: ignore[no-untyped-def]
    name: str, events, verdicts, *, state=None, index=None, secondary_keys=None, client_epoch=0
):
    """Return a row: what the index knows of session "s", its secondary keys, and of its client."""
    return pytest.param(events, verdicts, state, index or {}, secondary_keys or {}, client_epoch, id=name)


@pytest.mark.parametrize(
    ("events", "verdicts", "state", "index", "secondary_keys", "client_epoch"),
    [
        case("first of a session", [sent(1)], [(NEW, ~0)]),
        case("next", [sent(11)], [(NEW, ~0)], state=TEN),
        case("left out before", [sent(13)], [(NEW, ~0)], state=TEN),
        # acknowledged
        case("acknowledged before", [sent(4)], [STALE], state=TEN, index={4: known(80)}),
        case("not acknowledged", [sent(5)], [(DUPLICATE, 80)], state=TEN, index={5: known(80)}),
        case("acknowledged by the request itself", [sent(5, acknowledged=5)], [STALE], index={5: known(80)}),
        case("acknowledged, other content", [sent(4, "y")], [STALE], state=TEN, index={4: known(80)}),
        case("acknowledged and never stored", [sent(7, acknowledged=9)], [STALE]),
        case(
            "acknowledged by what is no record",
            [sent(11), sent(12, acknowledged=11), sent(11), sent(9)],
            [(NEW, ~0), (DUPLICATE, 90), (REPEAT, ~0), STALE],
            state=TEN,
            index=AT_12,
        ),
        case(
            "acknowledged by a new record of the batch",
            [sent(11, acknowledged=9), sent(9), sent(11)],
            [(NEW, ~0), STALE, (REPEAT, ~0)],
            state=TEN,
            index={9: known(80)},
        ),
        # in the window
        case("known", [sent(12)], [(DUPLICATE, 90)], state=TEN, index=AT_12),
        case("known, other content", [sent(12, "y")], [(CONFLICT, 90)], state=TEN, index=AT_12),
        case("known, and the session forgotten", [sent(12)], [(DUPLICATE, 90)], index=AT_12),
        case("copy in the batch", [sent(1), sent(1)], [(NEW, ~0), (REPEAT, ~0)]),
        case("conflict in the batch", [sent(1), sent(1, "y")], [(NEW, ~0), (CONFLICT, ~0)]),
        # beyond the window
        case("up to the watermark", [sent(10)], [STALE], state=TEN, index={10: known(49)}),
        case("above the watermark", [sent(12)], [STALE], state=TEN),
        case(
            "stored, and its secondary_key known",
            [sent(12, secondary_key="g")],
            [STALE],
            state=TEN,
            secondary_keys={"g": known(60)},
        ),
        # the client's own id
        case(
            "own id known", [sent(1, secondary_key="g")], [(DUPLICATE, 60)], secondary_keys={"g": known(60)}
        ),
        case(
            "own id known, other content",
            [sent(1, "y", secondary_key="g")],
            [(CONFLICT, 60)],
            secondary_keys={"g": known(60)},
        ),
        case(
            "own id before the window",
            [sent(1, secondary_key="g")],
            [(NEW, ~0)],
            secondary_keys={"g": known(49)},
        ),
        case(
            "own id at the window's start",
            [sent(1, secondary_key="g")],
            [(DUPLICATE, 50)],
            secondary_keys={"g": known(50)},
        ),
        case(
            "own id twice",
            [sent(1, secondary_key="g"), sent(2, secondary_key="g")],
            [(NEW, ~0), (REPEAT, ~0)],
        ),
        case(
            "own id twice, other content",
            [sent(1, secondary_key="g"), sent(2, "y", secondary_key="g")],
            [(NEW, ~0), (CONFLICT, ~0)],
        ),
        case(
            "place of the original, not of the copy",
            [sent(1), sent(2, secondary_key="g"), sent(3, secondary_key="g"), sent(4)],
            [(NEW, ~0), (NEW, ~1), (REPEAT, ~1), (NEW, ~2)],
        ),
        case(
            "own id, old epoch",
            [sent(1, secondary_key="g", epoch=1)],
            [(DUPLICATE, 60)],
            secondary_keys={"g": known(60)},
            client_epoch=2,
        ),
        # epochs
        case("older epoch", [sent(11, epoch=1)], [FENCED], state=TEN, client_epoch=2),
        case("same epoch", [sent(11, epoch=2)], [(NEW, ~0)], state=TEN, client_epoch=2),
        case("newer epoch", [sent(11, epoch=3)], [(NEW, ~0)], state=TEN, client_epoch=2),
        case("no epoch", [sent(11)], [(NEW, ~0)], state=TEN, client_epoch=2),
        case(
            "older epoch, stored",
            [sent(12, epoch=1)],
            [(DUPLICATE, 90)],
            state=TEN,
            index=AT_12,
            client_epoch=2,
        ),
        case(
            "epochs of one batch",
            [sent(1, epoch=1), sent(1, epoch=2, name="t"), sent(2, epoch=1), sent(1, epoch=1)],
            [(NEW, ~0), (NEW, ~1), FENCED, (REPEAT, ~0)],
        ),
        case(
            "fenced before expired",
            [sent(11, epoch=1)],
            [FENCED],
            state=TEN._replace(last_used_ms=8_999),
            client_epoch=2,
        ),
        # lease and eviction
        case("lease over", [sent(11)], [EXPIRED], state=TEN._replace(last_used_ms=8_999)),
        case("lease over, stored", [sent(12)], [STALE], state=TEN._replace(last_used_ms=8_999)),
        case("lease over long ago", [sent(11)], [(NEW, ~0)], state=TEN._replace(last_used_ms=8_499)),
        case("lease over almost long ago", [sent(11)], [EXPIRED], state=TEN._replace(last_used_ms=8_500)),
        case("evicted", [sent(11)], [EXPIRED], state=TEN._replace(above=0, is_evicted=True)),
        case("evicted, stored", [sent(10)], [STALE], state=TEN._replace(above=0, is_evicted=True)),
        case("expired before too far", [sent(999)], [EXPIRED], state=TEN._replace(is_evicted=True)),
        # how far ahead
        case("as far as may be", [sent(522)], [(NEW, ~0)], state=TEN),
        case("too far", [sent(523)], [TOO_FAR], state=TEN),
        case("too far in a new session", [sent(512), sent(513)], [(NEW, ~0), TOO_FAR]),
        case("not too far, by what is acknowledged", [sent(523, acknowledged=11)], [(NEW, ~0)], state=TEN),
        case("acknowledged below the watermark", [sent(523, acknowledged=9)], [TOO_FAR], state=TEN),
        case(
            "acknowledgement slides over what is stored", [sent(525, acknowledged=11)], [TOO_FAR], state=TEN
        ),
        case("and no further", [sent(524, acknowledged=11)], [(NEW, ~0)], state=TEN),
        case(
            "no longer too far", [sent(523), sent(11), sent(523)], [TOO_FAR, (NEW, ~0), (NEW, ~1)], state=TEN
        ),
        case(
            "a whole window and more at once",
            [sent(n) for n in range(1, 700)],
            [(NEW, ~n) for n in range(699)],
        ),
        case("largest", [sent(2**64 - 1, acknowledged=2**64 - 2)], [(NEW, ~0)], state=TEN),
        # order
        case("next, strictly", [strict(11)], [(NEW, ~0)], state=TEN),
        case("not the next, strictly", [strict(13)], [GAP], state=TEN),
        case("stored, strictly", [strict(12), strict(10)], [STALE, STALE], state=TEN),
        case(
            "next after those stored",
            [strict(11), strict(13), strict(15)],
            [(NEW, ~0), (NEW, ~1), (NEW, ~2)],
            state=TEN,
        ),
        case("too far before a gap", [strict(523)], [TOO_FAR], state=TEN),
        case(
            "gap in the batch",
            [strict(1), strict(3), strict(2), strict(3)],
            [(NEW, ~0), GAP, (NEW, ~1), (NEW, ~2)],
        ),
        # sent again by whoever may
        case("replayed", [replayed(9_000), replayed(8_999)], [(NEW, ~0), (NEW, ~1)], state=TEN),
        case("replayed, old epoch", [replayed(11, epoch=1)], [(NEW, ~0)], state=TEN, client_epoch=2),
        case("replayed, stored", [replayed(12)], [STALE], state=TEN),
    ],
)
def test_session_verdicts(
    events: list[Event],
    verdicts: list[tuple[Admission, int]],
    state: SessionState | None,
    index: dict[int, Entry],
    secondary_keys: dict[str, Entry],
    client_epoch: int,
) -> None:
    sessions = [event.session for event in events if event.session is not None]
    states: dict[bytes, SessionState | None] = dict.fromkeys(keys_of(sessions))
    states[b"c" * 16 + b"s" * 16] = state
    if client_epoch:
        states[b"c" * 16 + NO_SESSION] = SessionState(0, 0, 0, client_epoch, NOW_MS, 95)
    admission = SessionAdmission(
        states,
        {
            event.secondary_key: secondary_keys.get(event.secondary_key.decode())
            for event in events
            if event.secondary_key
        },
        POLICY,
        now_ms=NOW_MS,
    )
    entries = [index.get(session.sequence) for session in sessions]

    said = admit(events, entries, window_start=50, sessions=admission)

    assert list(zip(*said, strict=True)) == verdicts


def test_records_say_what_was_stored_before_them() -> None:
    events = [sent(13), sent(11, acknowledged=8), sent(1, name="t"), event("plain"), sent(15)]
    entries: list[Entry | None] = [None] * 5
    states = {b"c" * 16 + b"s" * 16: TEN, b"c" * 16 + b"t" * 16: None}
    admission = SessionAdmission(states, {}, POLICY, now_ms=NOW_MS)
    admit(events, entries, window_start=50, sessions=admission)

    assert [one and (one.before, one.acknowledged_through) for one in admission.recorded] == [
        (Progress(10, 0b1010), 4),
        (Progress(10, 0b1110), 8),
        (Progress(0, 0), 0),
        None,
        (Progress(14, 0), 8),
    ]
