"""Claim: events, outcomes and errors arrive as they were sent, and nothing else is taken for one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.peers.codec import (
    ADMISSIONS,
    ORDERS,
    Forwarded,
    outcomes_body,
    outcomes_of,
    submissions_body,
    submissions_of,
)
from app.peers.errors import CODES, FrameRefusedError, error_fields, error_of
from app.peers.frames import packed, unpacked
from dedupe.decide.admission import Admission
from dedupe.model import errors
from dedupe.model.clock import Deadline
from dedupe.model.types import Event, Order, Progress, Session, with_headers
from dedupe.submission import Outcomes, Submission

U64 = st.integers(0, 2**64 - 1)
HASHES = st.binary(min_size=16, max_size=16)
PRINTS = st.binary(min_size=8, max_size=8)
SESSIONS = st.builds(
    Session,
    client_hash=HASHES,
    session_hash=HASHES,
    sequence=U64,
    epoch=U64,
    acknowledged_through=U64,
    before=st.none() | st.builds(Progress, U64, st.integers(0, 2**512 - 1)),
)
EVENTS = st.builds(
    Event,
    key=HASHES,
    partition=st.integers(0, 2**31 - 1),
    fingerprint=PRINTS,
    source=st.text(max_size=20),
    message_id=st.text(max_size=40),
    value=st.binary(max_size=300),
    flags=st.integers(0, 255),
    session=st.none() | SESSIONS,
    reason=st.none() | st.text(max_size=10),
    earlier_fingerprints=st.lists(PRINTS, max_size=3).map(tuple),
    secondary_key=st.none() | HASHES,
    order=st.sampled_from(Order),
)
EVENT = Event(bytes(16), 1, bytes(8), "source", "id", b"{}")


class StoppedClock:
    """A clock on which no time passes."""

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0


CLOCK = StoppedClock()

SUBMISSIONS = st.builds(
    Forwarded,
    number=U64,
    lane=st.integers(0, 2**31 - 1),
    submission=st.builds(
        Submission,
        events=st.lists(EVENTS, min_size=1, max_size=4),
        received_ms=U64,
        deadline=st.floats(0, 10**6).map(lambda timeout_s: Deadline(CLOCK, timeout_s)),
        size_bytes=st.just(2**40),
    ),
)


def body_of(events: list[Event], size_bytes: int = 2**40) -> bytes:
    return submissions_body([Forwarded(1, 7, Submission(events, 5, Deadline(CLOCK, 4.5), size_bytes))])


def decoded(body: bytes, events_max: int = 10) -> list[Forwarded]:
    return submissions_of(memoryview(body), CLOCK, events_max=events_max)


@given(st.lists(SUBMISSIONS, min_size=1, max_size=4))
def test_submissions_arrive_as_they_were_sent(submissions: list[Forwarded]) -> None:
    for arrived, sent in zip(decoded(submissions_body(submissions), 16), submissions, strict=True):
        own, before = arrived.submission, sent.submission
        assert arrived == sent._replace(submission=before._replace(deadline=own.deadline))
        assert before.deadline.remaining_s - 0.002 < own.deadline.remaining_s <= before.deadline.remaining_s
        assert [list(map(type, event)) for event in own.events] == [list(map(type, e)) for e in before.events]


@given(st.data())
def test_outcomes_arrive_as_they_were_sent(data: st.DataObject) -> None:
    numbers = data.draw(st.lists(U64, min_size=1, max_size=5, unique=True))
    counts = {number: data.draw(st.integers(1, 5)) for number in numbers}

    def some(values: st.SearchStrategy[Any], count: int) -> list[Any]:
        return data.draw(st.lists(values, min_size=count, max_size=count))

    decided = [
        (number, Outcomes(some(st.sampled_from(Admission), count), some(st.integers(-1, 2**63), count)))
        for number, count in counts.items()
    ]
    body = memoryview(outcomes_body(decided))
    assert outcomes_of(body, counts.__getitem__) == decided
    with pytest.raises(FrameRefusedError):
        outcomes_of(body, lambda number: counts[number] + 1)


def test_answer_to_one_submission_twice_is_refused() -> None:
    own = Outcomes([Admission.NEW], [1])
    with pytest.raises(FrameRefusedError):
        outcomes_of(memoryview(outcomes_body([(1, own), (1, own)])), lambda _number: 1)


def test_tables_have_every_member_and_are_never_changed() -> None:
    names = "NEW REPEAT DUPLICATE CONFLICT STALE GAP TOO_FAR FENCED EXPIRED TOO_LARGE REFUSED"
    assert [admission.name for admission in ADMISSIONS] == names.split()
    assert set(ADMISSIONS) == set(Admission)
    assert [order.name for order in ORDERS] == ["ANY", "STRICT", "REPLAYED"]
    assert set(ORDERS) == set(Order)


def test_every_error_of_the_core_arrives_as_itself() -> None:
    kinds = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.GatewayError)
    }
    assert kinds <= set(CODES.values())
    for kind in CODES.values():
        err = error_of(unpacked(memoryview(packed(error_fields(kind("text", detail="told"))))))
        assert (type(err), str(err), err.detail) == (kind, "text", "told")


def test_error_of_a_later_version_or_of_ours_is_one_of_the_gateway() -> None:
    assert type(error_of(["unheard of", "told", "text"])) is errors.GatewayError
    assert error_fields(KeyError("x" * 900))[0] == "internal"
    assert len(error_fields(KeyError("x" * 900))[2]) == 500
    wrong: tuple[Any, ...] = (None, [], ["a", "b"], [1, "b", "c"], ["a", None, "c"], "ab", {})
    for fields in wrong:
        with pytest.raises(FrameRefusedError):
            error_of(fields)


def test_headers_arrive_with_their_events() -> None:
    headed = with_headers(EVENT, [("origin", b"raw:raw/1/2"), ("h", b"\xff")])
    fields = unpacked(memoryview(body_of([EVENT])))
    assert fields == unpacked(memoryview(body_of([headed])))[: len(fields)], (
        "an earlier version reads the rest"
    )
    (submitted,) = decoded(body_of([EVENT, headed]), 2)
    assert [event.headers for event in submitted.submission.events] == [[], headed.headers]
    assert [tuple(event) for event in submitted.submission.events] == [tuple(EVENT)] * 2


@pytest.mark.parametrize("column", [[[["h"]]], [[["h", "x"]]], [[[1, b"x"]]], [["hx"]], ["h"], [[], []], 1])
def test_headers_that_are_none_are_refused(column: object) -> None:
    fields = unpacked(memoryview(body_of([EVENT])))
    with pytest.raises(FrameRefusedError):
        decoded(packed([*fields, column]), 1)


def test_fields_of_a_later_version_are_passed_over() -> None:
    event = EVENT._replace(session=Session(bytes(16), bytes(16), 1, before=Progress(0, 0)))
    fields = unpacked(memoryview(body_of([event])))
    *_, (session,), _, _, _, _ = fields
    session[-1].append("new")
    session.append("new")
    (submitted,) = decoded(packed([*fields, None, "new"]), 1)
    assert submitted.submission.events == [event]
    decided = [(1, Outcomes([Admission.NEW], [3]))]
    outcomes = unpacked(memoryview(outcomes_body(decided)))
    assert outcomes_of(memoryview(packed([*outcomes, "new"])), lambda _number: 1) == decided


WRONG: tuple[Any, ...] = (
    None,
    -1,
    2**63,
    1.5,
    True,
    "text",
    b"bytes",
    b"",
    [],
    [None],
    [[]],
    [-1],
    [b"x"],
    ["x"],
    [1],
    {},
    {1: 2},
)


@pytest.mark.parametrize("place", range(12))
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_wrong_field_is_refused_or_harmless(place: int, wrong: Any) -> None:
    fields = unpacked(memoryview(body_of([EVENT, EVENT._replace(source="other", flags=1, partition=2)])))
    fields[place] = wrong
    try:
        (submitted,) = decoded(packed(fields))
    except FrameRefusedError:
        return
    assert len(submitted.submission.events) == 2
    for event in submitted.submission.events:
        assert list(map(type, event[:7])) == [bytes, int, bytes, str, str, bytes, int]
        assert (len(event.key), len(event.fingerprint)) == (16, 8)
        assert 0 <= event.flags <= 255
        assert type(event.session) in (Session, type(None))
        assert type(event.reason) in (str, type(None))
        assert type(event.secondary_key) in (bytes, type(None))
        assert type(event.order) is Order


@pytest.mark.parametrize(
    "heads",
    [
        [],
        [1, 7, 5, 5, 99],
        [1, 7, 5, 5, 99, 1],
        [1, 7, 5, 5, 99, 3],
        [1, 7, 5, 5, 99, 2, 2, 7, 5, 5, 99, 0],
        [1, 7, 5, 5, 99, 3, 2, 7, 5, 5, 99, -1],
        [1, 2**31, 5, 5, 99, 2],
        [1, 7, 5, 5, 99, 1, 2, 7, 5, 5, 1, 1],
        [1, 7, 5, None, 99, 2],
        [-1, 7, 5, 5, 99, 2],
    ],
)
def test_heads_that_do_not_fit_the_events_are_refused(heads: list[Any]) -> None:
    fields = unpacked(memoryview(body_of([EVENT, EVENT])))
    with pytest.raises(FrameRefusedError):
        decoded(packed([heads, *fields[1:]]))


@pytest.mark.parametrize(
    "event",
    [
        EVENT._replace(flags=-1),
        EVENT._replace(flags=256),
        EVENT._replace(partition=2**31),
        EVENT._replace(secondary_key=bytes(17)),
        EVENT._replace(earlier_fingerprints=(bytes(7),)),
        EVENT._replace(session=Session(bytes(15), bytes(16), 1)),
        EVENT._replace(session=Session(bytes(16), bytes(16), -1)),
        EVENT._replace(value=bytes(2**12)),
    ],
)
def test_value_out_of_bounds_is_refused(event: Event) -> None:
    with pytest.raises(FrameRefusedError):
        decoded(body_of([EVENT, event], size_bytes=2**12))


def test_more_or_fewer_events_than_allowed_are_refused() -> None:
    with pytest.raises(FrameRefusedError):
        decoded(body_of([EVENT] * 3), 2)
    fields = unpacked(memoryview(body_of([EVENT])))
    fields[1], fields[5] = b"", []
    with pytest.raises(FrameRefusedError):
        decoded(packed(fields), 2)
