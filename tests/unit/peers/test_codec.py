"""Claim: events, outcomes and errors arrive as they were sent, and nothing else is taken for one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.peers.codec import ADMISSIONS, ORDERS, outcomes_body, outcomes_of, submission_body, submission_of
from app.peers.errors import CODES, FrameRefusedError, error_fields, error_of
from app.peers.frames import packed, unpacked
from dedupe import errors
from dedupe.admission import Admission
from dedupe.lane import Outcomes
from dedupe.types import Event, Order, Progress, Session

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
    guard=st.none() | HASHES,
    order=st.sampled_from(Order),
)
EVENT = Event(bytes(16), 1, bytes(8), "source", "id", b"{}")


def body_of(events: list[Event], **more: Any) -> bytes:
    fields: dict[str, int] = {"size_bytes": 2**40, "received_ms": 5, "remaining_ms": 4_500} | more
    return submission_body(7, events, **fields)


@given(st.lists(EVENTS, min_size=1, max_size=6), U64, U64)
def test_events_arrive_as_they_were_sent(events: list[Event], received_ms: int, remaining_ms: int) -> None:
    body = body_of(events, received_ms=received_ms, remaining_ms=remaining_ms)
    submitted = submission_of(memoryview(body), events_max=6)
    assert submitted == (7, received_ms, remaining_ms, 2**40, events)
    assert [list(map(type, event)) for event in submitted.events] == [list(map(type, e)) for e in events]


@given(st.data())
def test_outcomes_arrive_as_they_were_sent(data: st.DataObject) -> None:
    admissions = data.draw(st.lists(st.sampled_from(Admission), min_size=1, max_size=9))
    offsets = data.draw(st.lists(st.integers(-1, 2**63), min_size=len(admissions), max_size=len(admissions)))
    body = memoryview(outcomes_body(Outcomes(admissions, offsets)))
    assert outcomes_of(body, len(admissions)) == Outcomes(admissions, offsets)
    with pytest.raises(FrameRefusedError):
        outcomes_of(body, len(admissions) + 1)


def test_tables_have_every_member_and_are_never_changed() -> None:
    assert [admission.name for admission in ADMISSIONS] == (
        ["NEW", "REPEAT", "DUPLICATE", "CONFLICT", "STALE", "GAP", "TOO_FAR", "FENCED", "EXPIRED"]
    )
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
        err = error_of(unpacked(memoryview(packed(error_fields(kind("text", told="told"))))))
        assert (type(err), str(err), err.told) == (kind, "text", "told")


def test_error_of_a_later_version_or_of_ours_is_one_of_the_gateway() -> None:
    assert type(error_of(["unheard of", "told", "text"])) is errors.GatewayError
    assert error_fields(KeyError("x" * 900))[0] == "internal"
    assert len(error_fields(KeyError("x" * 900))[2]) == 500
    wrong: tuple[Any, ...] = (None, [], ["a", "b"], [1, "b", "c"], ["a", None, "c"], "ab", {})
    for fields in wrong:
        with pytest.raises(FrameRefusedError):
            error_of(fields)


def test_fields_of_a_later_version_are_passed_over() -> None:
    fields = unpacked(memoryview(body_of([EVENT])))
    assert submission_of(memoryview(packed([*fields, "new"])), events_max=1).events == [EVENT]
    outcomes = unpacked(memoryview(outcomes_body(Outcomes([Admission.NEW], [3]))))
    assert outcomes_of(memoryview(packed([*outcomes, "new"])), 1) == Outcomes([Admission.NEW], [3])


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


@pytest.mark.parametrize("place", range(15))
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_wrong_field_is_refused_or_harmless(place: int, wrong: Any) -> None:
    fields = unpacked(memoryview(body_of([EVENT, EVENT._replace(source="other", flags=1, partition=2)])))
    fields[place] = wrong
    try:
        submitted = submission_of(memoryview(packed(fields)), events_max=10)
    except FrameRefusedError:
        return
    assert len(submitted.events) == 2
    for event in submitted.events:
        assert list(map(type, event[:7])) == [bytes, int, bytes, str, str, bytes, int]
        assert (len(event.key), len(event.fingerprint)) == (16, 8)
        assert 0 <= event.flags <= 255
        assert type(event.session) in (Session, type(None))
        assert type(event.reason) in (str, type(None))
        assert type(event.guard) in (bytes, type(None))
        assert type(event.order) is Order


@pytest.mark.parametrize(
    "event",
    [
        EVENT._replace(flags=-1),
        EVENT._replace(flags=256),
        EVENT._replace(partition=2**31),
        EVENT._replace(guard=bytes(17)),
        EVENT._replace(earlier_fingerprints=(bytes(7),)),
        EVENT._replace(session=Session(bytes(15), bytes(16), 1)),
        EVENT._replace(session=Session(bytes(16), bytes(16), -1)),
        EVENT._replace(value=bytes(2**12)),
    ],
)
def test_value_out_of_bounds_is_refused(event: Event) -> None:
    with pytest.raises(FrameRefusedError):
        submission_of(memoryview(body_of([EVENT, event], size_bytes=2**12)), events_max=10)


def test_more_or_fewer_events_than_allowed_are_refused() -> None:
    with pytest.raises(FrameRefusedError):
        submission_of(memoryview(body_of([EVENT] * 3)), events_max=2)
    fields = unpacked(memoryview(body_of([EVENT])))
    fields[4], fields[8] = b"", []
    with pytest.raises(FrameRefusedError):
        submission_of(memoryview(packed(fields)), events_max=2)
