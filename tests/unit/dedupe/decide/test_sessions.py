"""Claim: a session's state is what its records say, in a fixed size, however they are grouped."""

from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.decide.admission import SessionAdmission, admit
from dedupe.decide.evictions import EndedSessions, evictions_of
from dedupe.decide.session_update import expiry_update, session_update
from dedupe.decide.sessions import (
    DAY_MS,
    EVICTED,
    LIVE,
    NO_SESSIONS,
    SEQUENCES_AHEAD_MAX,
    SessionPolicy,
    SessionRecord,
    SessionState,
    client_key,
    keys_of,
    session_key,
    with_record,
)
from dedupe.model.record import EVICTED_MAX
from dedupe.model.types import Event, Progress, Session
from dedupe.storage.index import IndexIdentity, IndexState, IndexUpdate
from tests.support.sim.memory_index import MemoryIndex, MemoryStore

T = TypeVar("T")

POLICY = SessionPolicy(lease_ms=1_000, sessions_max=100)


def session_of(
    sequence: int, name: int = 1, *, client: int = 1, epoch: int = 0, acknowledged: int = 0
) -> Session:
    return Session(bytes([client]) * 16, bytes([name]) * 16, sequence, epoch, acknowledged)


def state_after(*sessions: Session) -> SessionState:
    state = None
    for offset, session in enumerate(sessions):
        state = with_record(state, SessionRecord(offset, offset, session))
    assert state is not None
    return state


def opened() -> MemoryIndex:
    return MemoryStore().open(IndexIdentity("log", "events", 0, 1, b""))


def follow(index: MemoryIndex, records: Sequence[SessionRecord], policy: SessionPolicy = POLICY) -> None:
    index.apply(IndexUpdate((), IndexState(0, 0, 0, 0, b""), sessions=session_update(index, records, policy)))


def rows_of(index: MemoryIndex) -> dict[bytes, SessionState]:
    return {key: state for listing in (LIVE, EVICTED) for key, state in index.oldest_sessions(1_000, listing)}


# ---- one session


@pytest.mark.parametrize(
    ("sequences", "watermark", "missing"),
    [
        ([1], 1, []),
        ([1, 2, 3], 3, []),
        ([3], 0, [(1, 2)]),
        ([3, 1], 1, [(2, 2)]),
        ([3, 1, 2], 3, []),
        ([1, 3, 4, 9], 1, [(2, 2), (5, 8)]),
        ([512], 0, [(1, 511)]),
        ([2, 2, 2], 0, [(1, 1)]),
    ],
)
def test_watermark_is_where_the_first_gap_begins(
    sequences: list[int], watermark: int, missing: list[tuple[int, int]]
) -> None:
    state = state_after(*map(session_of, sequences))

    assert (state.watermark, state.missing(), state.highest) == (watermark, missing, max(sequences))


def test_acknowledgement_ends_what_is_missing_below_it() -> None:
    state = state_after(session_of(1), session_of(4), session_of(8, acknowledged=5))

    assert (state.watermark, state.missing(), state.acknowledged_through) == (5, [(6, 7)], 5)


def test_acknowledgement_slides_over_what_is_stored_above_it() -> None:
    state = state_after(session_of(1), session_of(4), session_of(5), session_of(9, acknowledged=3))

    assert (state.watermark, state.missing()) == (5, [(6, 8)])


@pytest.mark.parametrize("later", [3, 4])
def test_acknowledgement_never_goes_back(later: int) -> None:
    state = state_after(session_of(1), session_of(2, acknowledged=1), session_of(later))

    assert state.acknowledged_through == 1


def test_acknowledgement_of_what_nobody_sent_harms_its_own_session_only() -> None:
    state = state_after(session_of(1, acknowledged=2**64 - 1))

    assert (state.watermark, state.above, state.highest) == (2**64 - 1, 0, 2**64 - 1)


def test_state_of_a_log_whose_beginning_is_gone_knows_what_admission_knew() -> None:
    state = state_after(session_of(5_000))

    assert state.watermark == 5_000 - SEQUENCES_AHEAD_MAX
    assert state.highest == 5_000


def test_epoch_is_the_newest() -> None:
    assert state_after(session_of(1, epoch=3), session_of(2, epoch=2), session_of(3)).epoch == 3


@given(st.lists(st.integers(1, 40), max_size=60), st.lists(st.integers(0, 40), max_size=60))
def test_state_says_what_a_set_of_sequences_would(sequences: list[int], acknowledged: list[int]) -> None:
    stored: set[int] = set()
    acknowledged_through = 0
    state = None
    for offset, sequence in enumerate(sequences):
        own = acknowledged[offset] if offset < len(acknowledged) else 0
        stored.add(sequence)
        acknowledged_through = max(acknowledged_through, own)
        state = with_record(state, SessionRecord(offset, offset, session_of(sequence, acknowledged=own)))
    if state is None:
        return
    done = stored | set(range(1, acknowledged_through + 1))
    highest = max(done)
    assert state.highest == highest
    assert state.watermark == next(n for n in range(0, 100) if n + 1 not in done)
    assert [n for first, last in state.missing() for n in range(first, last + 1)] == [
        n for n in range(1, highest) if n not in done
    ]
    assert all(state.has(n) == (n in done) for n in range(1, 60))
    assert state.above < 2**SEQUENCES_AHEAD_MAX


# ---- many sessions


def test_live_sessions_with_something_missing_are_counted() -> None:
    index = opened()
    policy = SessionPolicy(lease_ms=1_000, sessions_max=2)
    steps = [
        (session_of(2, 1), 1),
        (session_of(1, 2), 1),
        (session_of(5, 2), 2),
        (session_of(1, 3), 1),  # evicts the first one
        (session_of(6, 2, acknowledged=4), 0),
        (session_of(9, 3), 1),
    ]
    for offset, (session, with_gaps) in enumerate(steps):
        evicted = [session_key(session_of(1, 1))] if offset == 3 else []
        follow(index, [SessionRecord(offset, 0, session, evicted=evicted)], policy)
        assert index.session_counts.with_gaps == with_gaps
    expired = expiry_update(index, policy.remembered_ms + 1, policy, 10)
    assert expired is not None
    assert expired.counts == NO_SESSIONS._replace(since_ms=1)


def test_those_who_ask_are_told_that_a_lease_is_over() -> None:
    state = state_after(session_of(1))
    for now_ms, expired in ((POLICY.lease_ms, False), (POLICY.lease_ms + 1, True)):
        told = POLICY.visible_state(state, now_ms)
        assert told is not None
        assert told.is_evicted is expired
    assert POLICY.visible_state(state, POLICY.remembered_ms + 1) is None
    assert POLICY.visible_state(None, 0) is None


def test_client_that_uses_epochs_is_a_row_of_its_own() -> None:
    index = opened()

    follow(
        index, [SessionRecord(0, 5, session_of(1, epoch=7)), SessionRecord(1, 6, session_of(1, 2, epoch=3))]
    )

    (client,) = index.sessions([client_key(session_of(1))])
    assert client is not None
    assert client.epoch == 7
    assert index.session_counts[:2] == (3, 0)


def test_session_too_old_to_be_known_begins_anew() -> None:
    index = opened()
    follow(index, [SessionRecord(0, 0, session_of(7))])

    follow(index, [SessionRecord(1, POLICY.lease_ms + DAY_MS + 1, session_of(1))])

    (state,) = index.sessions([session_key(session_of(1))])
    assert state is not None
    assert (state.watermark, state.highest) == (1, 1)
    assert index.session_counts[:2] == (1, 0)


def test_what_is_too_old_to_be_known_is_deleted_in_steps() -> None:
    index = opened()
    policy = SessionPolicy(lease_ms=1_000, sessions_max=3)
    records = [SessionRecord(n, n, session_of(1, n)) for n in range(5)]
    evicted = [session_key(session_of(1, n)) for n in range(2)]
    follow(index, [*records[:4], records[4]._replace(evicted=evicted)], policy)
    now_ms = policy.remembered_ms + 4

    first = expiry_update(index, now_ms, policy, 2)
    assert first is not None
    index.apply(IndexUpdate((), index.state, sessions=first))
    assert index.session_counts[:2] == (1, 2)
    second = expiry_update(index, now_ms, policy, 10)
    assert second is not None
    index.apply(IndexUpdate((), index.state, sessions=second))

    assert [key[-1] for key in rows_of(index)] == [4]
    assert expiry_update(index, now_ms, policy, 10) is None


SENT = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 20), st.integers(0, 2), st.integers(0, 5)),
    max_size=40,
)


def admitted(index: MemoryIndex, sent: Sequence[Session], policy: SessionPolicy) -> list[Session]:
    """Return what is new of a batch, as its records say it."""
    events = [Event(repr(session).encode(), 0, b"f" * 8, "s", "", b"", session=session) for session in sent]
    keys = keys_of(sent)
    sessions = SessionAdmission(dict(zip(keys, index.sessions(keys), strict=True)), {}, policy, now_ms=0)
    admit(events, [None] * len(events), window_start=0, sessions=sessions)
    return [recorded for recorded in sessions.recorded if recorded is not None]


def committed(
    index: MemoryIndex,
    new: Sequence[Session],
    policy: SessionPolicy,
    ended: EndedSessions | None = None,
    *,
    first: int,
) -> list[SessionRecord]:
    """Return the records of a commit, with the sessions that its lane's owner evicts."""
    own = [(session, source_of(session)) for session in new]
    keys = iter(evictions_of(index, own, ended or EndedSessions(), policy).keys)
    return [
        SessionRecord(first + i, 0, session, source_of(session), list(islice(keys, EVICTED_MAX)))
        for i, session in enumerate(new)
    ]


def source_of(session: Session) -> bytes:
    """Return the hash of a client's source, of which there are three."""
    return bytes([session.client_hash[0] % 3]) * 8


@given(SENT, st.integers(1, 12), st.randoms(use_true_random=False))
def test_sessions_do_not_depend_on_how_records_are_grouped(sent, sessions_max, random) -> None:  # type: ignore[no-untyped-def]
    """Live commits and a replay group records differently."""
    ended = EndedSessions()
    policy = SessionPolicy(lease_ms=1_000, sessions_max=sessions_max)
    live, replayed = opened(), opened()
    records: list[SessionRecord] = []
    for batch in groups(sent, random):
        new = admitted(
            live,
            [session_of(s, name, client=c, epoch=e, acknowledged=a) for name, c, s, e, a in batch],
            policy,
        )
        commit = committed(live, new, policy, ended, first=len(records))
        follow(live, commit, policy)
        records += commit
        for record in random.sample(commit, len(commit) // 2):
            (state,) = live.sessions([session_key(record.session)])
            assert state is not None
            ended.note(session_key(record.session), state.last_offset)
    for group in groups(records, random):
        follow(replayed, group, policy)

    assert rows_of(replayed) == rows_of(live)
    assert replayed.session_counts == live.session_counts


@pytest.mark.parametrize(
    ("epochs", "times_ms"),
    [
        ((7, 7, 7), (0, 0, 0)),
        ((0, 7, 0), (0, 0, 0)),
        ((7, 0, 0), (0, POLICY.remembered_ms, POLICY.remembered_ms + 1)),
    ],
    ids=["alike", "an epoch, then none", "the last one alone would find the session forgotten"],
)
def test_records_taken_at_once_change_what_they_change_one_by_one(
    epochs: Sequence[int], times_ms: Sequence[int]
) -> None:
    records = [
        SessionRecord(n, time_ms, session_of(n + 1, epoch=epoch)._replace(before=Progress(n, 0)))
        for n, (epoch, time_ms) in enumerate(zip(epochs, times_ms, strict=True))
    ]
    one_by_one, at_once = opened(), opened()
    for record in records:
        follow(one_by_one, [record])
    follow(at_once, records[:1])
    follow(at_once, records[1:])

    assert rows_of(at_once) == rows_of(one_by_one)


@given(SENT, st.integers(0, 39), st.randoms(use_true_random=False))
def test_newest_records_are_enough(sent, first, random) -> None:  # type: ignore[no-untyped-def]
    """A log that has lost its beginning knows as much of each session of which it has a record."""
    live, rebuilt = opened(), opened()
    records: list[SessionRecord] = []
    for name, _, sequence, _, acknowledged in sent:
        for session in admitted(live, [session_of(sequence, name, acknowledged=acknowledged)], POLICY):
            records.append(SessionRecord(len(records), 0, session))
            follow(live, records[-1:])

    for group in groups(records[first:], random):
        follow(rebuilt, group)

    rows = rows_of(live)
    assert rows_of(rebuilt) == {key: state for key, state in rows.items() if state.last_offset >= first}


def groups(items: Sequence[T], random: Random) -> Iterator[Sequence[T]]:
    """Yield neighbours together, as chance has it."""
    start = 0
    while start < len(items):
        end = start + random.randint(1, 8)
        yield items[start:end]
        start = end


def test_nothing_is_changed_by_no_records() -> None:
    assert session_update(opened(), [], POLICY) is None
    assert opened().session_counts == NO_SESSIONS
