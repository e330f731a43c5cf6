"""Claim: the sessions that clients have ended go first; a source's many sessions cost no other source any."""

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.decide.evictions import ENDED_MAX, USED_SINCE_MAX, EndedSessions, evictions_of
from dedupe.decide.session_update import FORGOTTEN_MAX, UNKNOWN_SESSION, expiry_update
from dedupe.decide.sessions import (
    SessionChange,
    SessionCounts,
    SessionKey,
    SessionPolicy,
    SessionRecord,
    SessionState,
    SessionUpdate,
    session_key,
)
from dedupe.decide.source_sizes import SourceSizes
from dedupe.model.record import EVICTED_MAX
from dedupe.model.types import Session
from dedupe.storage.index import IndexUpdate
from tests.support.sim.memory_index import MemoryIndex
from tests.unit.dedupe.decide.test_sessions import committed, follow, opened, rows_of, source_of

POLICY = SessionPolicy(lease_ms=1_000, sessions_max=4)


def session_of(name: int, source: int = 0, *, sequence: int = 1, epoch: int = 0) -> Session:
    """Return an event of a client's session; source_of has three sources."""
    client = bytes([source]) + name.to_bytes(15, "big")
    return Session(client, b"s" * 16, sequence, epoch)


def key_of(name: int, source: int = 0) -> SessionKey:
    return session_key(session_of(name, source))


class Lane:
    """The sessions of a lane whose owner commits."""

    def __init__(self, sessions_max: int = POLICY.sessions_max) -> None:
        self.policy = POLICY._replace(sessions_max=sessions_max)
        self.index: MemoryIndex = opened()
        self.ended = EndedSessions()
        self.offset = 0

    def use(self, *sessions: Session) -> list[SessionKey]:
        """Commit an event of each session; return what is evicted."""
        records = committed(self.index, sessions, self.policy, self.ended, first=self.offset)
        follow(self.index, records, self.policy)
        self.offset += len(records)
        return [key for record in records for key in record.evicted]

    def end(self, key: SessionKey) -> None:
        """Have a client end its session."""
        (state,) = self.index.sessions([key])
        assert state is not None
        self.ended.note(key, state.last_offset)

    def live(self, source: int) -> int:
        """Return the number of live sessions of a source."""
        return self.index.session_sizes.get(source_of(session_of(0, source)), 0)


def test_nothing_is_evicted_up_to_the_limit() -> None:
    lane = Lane()
    assert lane.use(*map(session_of, range(4))) == []
    assert lane.use(session_of(0, sequence=2), session_of(3, sequence=2)) == []


def test_least_recently_used_is_evicted_first() -> None:
    lane = Lane()
    lane.use(*map(session_of, range(4)))
    lane.use(session_of(0, sequence=2))
    assert lane.use(session_of(4)) == [key_of(1)]
    assert lane.use(session_of(5), session_of(6)) == [key_of(2), key_of(3)]
    assert lane.index.session_counts[:2] == (4, 3)


def test_ended_sessions_are_evicted_before_older_ones() -> None:
    lane = Lane()
    lane.use(*map(session_of, range(4)))
    lane.end(key_of(3))
    lane.end(key_of(2))
    assert lane.use(session_of(4), session_of(5), session_of(6)) == [key_of(3), key_of(2), key_of(0)]


def test_ended_session_with_a_new_event_is_live_again() -> None:
    lane = Lane()
    lane.use(*map(session_of, range(4)))
    lane.end(key_of(3))
    lane.use(session_of(3, sequence=2))
    assert lane.use(session_of(4)) == [key_of(0)]


def test_ended_session_is_not_evicted_by_the_commit_that_uses_it() -> None:
    lane = Lane()
    lane.use(*map(session_of, range(4)))
    lane.end(key_of(3))
    assert lane.use(session_of(3, sequence=2), session_of(4)) == [key_of(0)]
    assert lane.use(session_of(5)) == [key_of(1)]


def test_visits_of_one_source_evict_none_of_the_phones_of_another() -> None:
    lane = Lane(sessions_max=10)
    lane.use(*(session_of(phone, 1) for phone in range(4)))
    evicted = [key for visit in range(200) for key in lane.use(session_of(visit, 2))]
    assert evicted == [key_of(visit, 2) for visit in range(194)]
    assert (lane.live(1), lane.live(2)) == (4, 6)


def test_sources_with_many_sessions_share_what_there_is() -> None:
    lane = Lane(sessions_max=9)
    for name in range(50):
        lane.use(session_of(name, 0), session_of(name, 1), session_of(name, 2))
    assert [lane.live(source) for source in range(3)] == [3, 3, 3]
    for name in range(50, 60):
        lane.use(session_of(name, 1))
    assert [lane.live(source) for source in range(3)] == [3, 3, 3]


@pytest.mark.regression("One update could exceed the bound of sessions.")
def test_limit_holds_for_clients_with_epochs() -> None:
    lane = Lane(sessions_max=100)
    lane.use(*(session_of(name, epoch=1) for name in range(50)))
    assert len(lane.use(*(session_of(name, epoch=1) for name in range(50, 90)))) == 80
    assert lane.index.session_counts[:2] == (100, 80)


@pytest.mark.regression("A commit that evicted looked at every source of a lane.")
@pytest.mark.parametrize("size_of_largest", [1, 3])
def test_few_sources_are_looked_at_for_a_commit(
    size_of_largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, count = 2_000, 20
    rows = [
        (key_of(name), UNKNOWN_SESSION._replace(source_hash=number.to_bytes(8, "big"), last_offset=name))
        for name, number in enumerate([*range(sources), *[7] * (size_of_largest - 1)])
    ]
    sizes = Counter(state.source_hash for _, state in rows)
    changes = [SessionChange(key, None, state) for key, state in rows]
    index, looked_at = opened(), 0
    update = SessionUpdate(changes, SessionCounts(len(rows), 0), sizes)
    index.apply(IndexUpdate((), index.state, sessions=update))
    largest_first, all_of = SourceSizes.largest_first, SourceSizes.__iter__

    def counted(found: Iterator[Any]) -> Iterator[Any]:
        nonlocal looked_at
        for each in found:
            looked_at += 1
            yield each

    monkeypatch.setattr(SourceSizes, "largest_first", lambda sizes: counted(largest_first(sizes)))
    monkeypatch.setattr(SourceSizes, "__iter__", lambda sizes: counted(all_of(sizes)))
    new = [(session_of(10**6 + name), b"new hash") for name in range(count)]
    evicted = evictions_of(index, new, EndedSessions(), POLICY._replace(sessions_max=len(rows))).keys
    assert len(set(evicted)) == count
    assert [dict(rows)[key].source_hash for key in evicted].count(bytes(7) + b"\7") == size_of_largest
    assert looked_at <= count + 2


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), max_size=60))
def test_sizes_of_sources_are_those_put_last_the_largest_first(puts: Sequence[tuple[int, int]]) -> None:
    sizes, expected = SourceSizes(), dict[bytes, int]()
    for number, size in puts:
        source_hash = bytes([number])
        sizes.put(source_hash, size)
        expected[source_hash] = size
    expected = {source_hash: size for source_hash, size in expected.items() if size}
    assert sizes == expected
    listed = list(sizes.largest_first())
    assert dict(listed) == expected
    assert [size for _, size in listed] == sorted(expected.values(), reverse=True)


def test_lower_limit_is_reached_in_steps() -> None:
    lane = Lane(sessions_max=100)
    lane.use(*map(session_of, range(100)))
    lane.policy = POLICY
    assert lane.use(session_of(0, sequence=2)) == [key_of(1), key_of(2)]
    assert len(lane.use(session_of(99, sequence=2), session_of(100))) == 2 * EVICTED_MAX


def test_as_many_evicted_sessions_are_known_as_live_ones() -> None:
    lane = Lane(sessions_max=2)
    for name in range(10):
        lane.use(session_of(name))
    assert lane.index.session_counts[:2] == (2, 2)
    known = lane.index.sessions([key_of(name) for name in range(10)])
    assert [state and state.is_evicted for state in known] == [None] * 6 + [True] * 2 + [False] * 2


def test_what_is_remembered_of_ended_sessions_has_a_limit() -> None:
    ended, lane = EndedSessions(), Lane(sessions_max=10)
    lane.use(session_of(0), session_of(1))
    for name in range(ENDED_MAX + 1):
        ended.note(key_of(name), name)
    assert [key for key, _ in ended.take(lane.index)] == [key_of(1)]


@pytest.mark.regression("Ended sessions that were used again held a lane up.")
def test_few_sessions_that_were_used_again_are_read_for_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane()
    lane.use(*map(session_of, range(4)))
    for name in range(1_000):
        lane.ended.note(key_of(name), -5)
    read = 0

    def sessions(_: MemoryIndex, keys: Sequence[SessionKey]) -> list[SessionState | None]:
        nonlocal read
        read += len(keys)
        return [None] * len(keys)

    monkeypatch.setattr(MemoryIndex, "sessions", sessions)
    assert list(lane.ended.take(lane.index)) == []
    assert read == USED_SINCE_MAX


@pytest.mark.regression("A lower limit of sessions deleted all evicted ones beyond it at once.")
def test_evicted_sessions_beyond_a_lower_limit_are_forgotten_in_steps() -> None:
    lane = Lane(sessions_max=100)
    for name in range(200):
        lane.use(session_of(name))
    lane.policy = POLICY
    lane.use(session_of(200))
    assert lane.index.session_counts[:2] == (99, 102 - 2 * FORGOTTEN_MAX)
    for _ in range(100):
        lane.use(session_of(201))
        lane.use(session_of(202))
    assert lane.index.session_counts[:2] == (4, 4)


def test_eviction_of_an_evicted_session_changes_nothing() -> None:
    index = opened()
    follow(
        index,
        [SessionRecord(0, 0, session_of(0)), SessionRecord(1, 0, session_of(1), evicted=[key_of(0)])],
    )
    before = index.session_counts
    follow(index, [SessionRecord(2, 0, session_of(1, sequence=2), evicted=[key_of(0)])])
    assert index.session_counts == before


def test_eviction_of_a_session_that_is_not_known_tells_nothing_of_it() -> None:
    index = opened()
    follow(index, [SessionRecord(2, 10**12, session_of(1), evicted=[key_of(0)])])
    (state,) = index.sessions([key_of(0)])
    assert index.session_counts[:2] == (1, 1)
    assert POLICY.visible_state(state, 10**12) is None


TIMED_USES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.sampled_from([0, 30, 100]), st.booleans()),
    min_size=10,
    max_size=40,
)


@pytest.mark.regression("A rebuilt index remembered evicted sessions that its owner had forgotten.")
@given(TIMED_USES, st.integers(1, 4), st.randoms(use_true_random=False))
def test_what_is_remembered_does_not_depend_on_where_the_log_begins(
    uses: Sequence[tuple[int, int, int, bool]], sessions_max: int, random: Random
) -> None:
    policy = SessionPolicy(lease_ms=200, sessions_max=sessions_max, expired_ms=50)
    owner, rebuilt, ended, now_ms = opened(), opened(), EndedSessions(), 1_000
    records: list[SessionRecord] = []
    for name, source, pause_ms, is_last in uses:
        now_ms += pause_ms
        session = session_of(name, source, sequence=len(records) + 1)
        (record,) = committed(owner, [session], policy, ended, first=len(records))
        records.append(record._replace(timestamp_ms=now_ms))
        follow(owner, records[-1:], policy)
        if is_last:
            ended.note(key_of(name, source), record.offset)
        if random.random() < 0.3 and (expired := expiry_update(owner, now_ms, policy, 3)):
            owner.apply(IndexUpdate((), owner.state, sessions=expired))
    follow(rebuilt, [r for r in records if now_ms - r.timestamp_ms <= policy.remembered_ms], policy)

    def remembered(index: MemoryIndex) -> dict[SessionKey, tuple[bool, int]]:
        return {
            key: (state.is_evicted, state.last_offset)
            for key, state in rows_of(index).items()
            if policy.remembered(state, now_ms)
        }

    assert remembered(rebuilt) == remembered(owner)


USES = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=1, max_size=5), max_size=30
)


@given(USES, st.integers(2, 8))
def test_smaller_sources_lose_nothing_to_larger_ones(
    uses: Sequence[Sequence[tuple[int, int]]], sessions_max: int
) -> None:
    lane = Lane(sessions_max)
    for number, batch in enumerate(uses):
        evicted = lane.use(*(session_of(*use, sequence=number + 1) for use in dict.fromkeys(batch)))
        sizes, live = lane.index.session_sizes, lane.index.session_counts.live
        own = Counter(source_of(session_of(*use)) for use in set(batch))
        largest = max((size for source, size in sizes.items() if size > own[source]), default=0)
        for key in evicted:
            assert sizes.get(source_of(Session(key[:16], key[16:], 1)), 0) >= largest - 1
        assert live <= max(sessions_max, 5)  # the events of a batch
        assert sum(sizes.values()) == live
    new = [(session_of(0), b"s" * 8)]
    assert evictions_of(lane.index, new, lane.ended, POLICY._replace(sessions_max=99)).keys == ()
