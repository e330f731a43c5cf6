"""What every index owes its lane, whatever it is made of. Subclasses say what, and how its process dies."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dedupe.decide.session_update import UNKNOWN_SESSION
from dedupe.decide.sessions import (
    EVICTED,
    LIVE,
    NO_SESSIONS,
    OF_SOURCE,
    SessionChange,
    SessionCounts,
    SessionKey,
    SessionState,
    SessionUpdate,
)
from dedupe.decide.window import Step
from dedupe.model.errors import IndexCorruptError, IndexDisprovedError, RetriableError
from dedupe.model.types import Entry, EventKey
from dedupe.storage.index import EMPTY_STATE, DedupeIndex, IndexIdentity, IndexState, IndexStore, IndexUpdate

IDENTITY = IndexIdentity(
    log_id="log-1",
    topic="events",
    partition=3,
    partitions=8,
    key_check=b"\x01" * 16,
)
KEYS_MAX = 1_000_000
"""How many keys a lane under the contract must remember."""

OTHER_IDENTITIES = {
    "log_id": IDENTITY._replace(log_id="log-2"),
    "partitions": IDENTITY._replace(partitions=9),
    "key_check": IDENTITY._replace(key_check=b"\x02" * 16),
    "format_version": IDENTITY._replace(format_version=1),
}


def key_of(number: int) -> EventKey:
    """Return the number's event key: spread like real ones, the same in every run."""
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=16).digest()


def entry_of(offset: int) -> Entry:
    """Return the entry of the record at `offset`."""
    return Entry(offset, hashlib.blake2b(offset.to_bytes(8, "big"), digest_size=8).digest())


def update_of(first: int, count: int, *, new_steps: Sequence[Step] = ()) -> IndexUpdate:
    """Return the update for the records at offsets [first, first + count), each with a key of its own."""
    end = first + count
    entries = [(key_of(offset), entry_of(offset)) for offset in range(first, end)]
    return IndexUpdate(entries, IndexState(end, end, 1_000 + end, end - 1, key_of(end - 1)), new_steps)


def session_key_of(number: int) -> SessionKey:
    """Return the key of a session."""
    return key_of(number) + key_of(number + 1)


def session_of(offset: int, *, evicted_at: int = -1, source_hash: bytes = b"web-hash") -> SessionState:
    """Return a session whose newest record is at `offset`: nothing of it is 0, its bits reach far."""
    above = 1 << 511 | 1 << offset % 500 + 1 if evicted_at < 0 else 0
    return SessionState(
        offset + 1,
        above,
        offset,
        2**64 - 1,
        10**13 + offset,
        offset,
        evicted_at >= 0,
        source_hash,
        evicted_at,
    )


def sessions_of(first: int, count: int) -> IndexUpdate:
    """Return the update for the records at offsets [first, first + count), each of a session of its own."""
    changes = [
        SessionChange(session_key_of(offset), None, session_of(offset))
        for offset in range(first, first + count)
    ]
    return update_of(first, count)._replace(sessions=SessionUpdate(changes, SessionCounts(count, 0)))


def open_anew(store: IndexStore) -> DedupeIndex:
    """Discard the index of IDENTITY and open it: either may say that it could not be discarded."""
    store.discard(IDENTITY)
    return store.open(IDENTITY)


class IndexContract:
    """Inherit it, and say how a store is made and how a process ends without closing anything."""

    def make_store(self, root: Path) -> IndexStore:
        """Return a store on this disk; again for the process after a restart."""
        raise NotImplementedError

    def apply_and_die(self, root: Path, updates: Sequence[IndexUpdate]) -> None:
        """Open the index of IDENTITY in a process of its own, apply all, and kill the process."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> IndexStore:
        return self.make_store(tmp_path)

    @pytest.fixture
    def index(self, store: IndexStore) -> Iterator[DedupeIndex]:
        index = store.open(IDENTITY)
        yield index
        index.close()

    # ---- new

    def test_new_index_is_empty(self, index: DedupeIndex) -> None:
        assert index.state == EMPTY_STATE
        assert list(index.steps) == []
        assert index.lookup([key_of(0), key_of(1)]) == [None, None]
        assert index.covers(0)
        assert index.keys_estimate == 0

    def test_new_index_is_still_empty_when_reopened(self, store: IndexStore, index: DedupeIndex) -> None:
        index.close()

        reopened = store.open(IDENTITY)

        assert reopened.state == EMPTY_STATE
        assert reopened.lookup([key_of(0)]) == [None]
        reopened.close()

    # ---- lookup and apply

    def test_lookup_keeps_order_and_length(self, index: DedupeIndex) -> None:
        index.apply(update_of(0, 3))

        found = index.lookup([key_of(2), key_of(9), key_of(0), key_of(2)])

        assert found == [entry_of(2), None, entry_of(0), entry_of(2)]

    def test_lookup_of_nothing_finds_nothing(self, index: DedupeIndex) -> None:
        assert index.lookup([]) == []

    def test_lookup_finds_extreme_values(self, index: DedupeIndex) -> None:
        smallest, largest = b"\x00" * 16, b"\xff" * 16
        last = Entry(2**63 - 2, b"\xff" * 8)
        state = IndexState(2**63 - 1, 2**63 - 1, 2**53, last.offset, largest)

        index.apply(IndexUpdate([(smallest, Entry(0, b"\x00" * 8)), (largest, last)], state))

        assert index.lookup([smallest, largest]) == [Entry(0, b"\x00" * 8), last]
        assert index.state == state

    def test_batch_of_a_thousand_is_found_whole(self, index: DedupeIndex) -> None:
        index.apply(update_of(0, 1_000))
        index.apply(update_of(1_000, 1_000))

        assert index.lookup([key_of(i) for i in range(2_000)]) == [entry_of(i) for i in range(2_000)]
        assert index.lookup([key_of(i) for i in range(2_000, 3_000)]) == [None] * 1_000

    def test_later_entry_replaces_earlier_one(self, index: DedupeIndex) -> None:
        index.apply(update_of(0, 2))

        index.apply(IndexUpdate([(key_of(0), entry_of(2))], IndexState(3, 3, 5, 2, key_of(0))))

        assert index.lookup([key_of(0), key_of(1)]) == [entry_of(2), entry_of(1)]

    def test_later_entry_of_one_update_replaces_earlier_one(self, index: DedupeIndex) -> None:
        entries = [(key_of(7), entry_of(0)), (key_of(7), entry_of(1))]

        index.apply(IndexUpdate(entries, IndexState(2, 2, 5, 1, key_of(7))))

        assert index.lookup([key_of(7)]) == [entry_of(1)]

    def test_update_without_entries_moves_the_state(self, index: DedupeIndex) -> None:
        index.apply(update_of(0, 2))
        moved = index.state._replace(applied_offset=10)

        index.apply(IndexUpdate((), moved))

        assert index.state == moved
        assert index.lookup([key_of(1)]) == [entry_of(1)]

    # ---- steps

    def test_steps_are_kept_in_order(self, index: DedupeIndex) -> None:
        first, second, third = Step(10, 0, 0), Step(20, 256, 256), Step(30, 70_000, 70_000)
        index.apply(update_of(0, 1, new_steps=[first]))
        index.apply(update_of(256, 1, new_steps=[second]))
        state = update_of(70_000, 1).state

        index.apply(IndexUpdate((), state, new_steps=[third], dropped_steps=[first]))

        assert list(index.steps) == [second, third]

    def test_step_added_and_dropped_at_once_is_not_kept(self, index: DedupeIndex) -> None:
        passing, kept = Step(10, 0, 0), Step(20, 1, 1)

        index.apply(update_of(0, 2)._replace(new_steps=[passing, kept], dropped_steps=[passing]))

        assert list(index.steps) == [kept]

    # ---- reopening

    def test_reopened_index_holds_everything(self, store: IndexStore, index: DedupeIndex) -> None:
        steps = [Step(10, 0, 0), Step(20, 256, 256), Step(30, 70_000, 70_000)]
        index.apply(update_of(0, 500, new_steps=steps[:1]))
        update = update_of(500, 500)._replace(new_steps=steps[1:], dropped_steps=steps[:1])
        index.apply(update)
        index.close()

        reopened = store.open(IDENTITY)

        assert reopened.state == update.state
        assert list(reopened.steps) == steps[1:]
        assert reopened.lookup([key_of(i) for i in range(1_000)]) == [entry_of(i) for i in range(1_000)]
        reopened.close()

    def test_killed_process_leaves_every_applied_update(self, tmp_path: Path) -> None:
        steps = [Step(i, i * 1_000, i * 1_000) for i in range(5)]
        updates = [update_of(i * 1_000, 1_000, new_steps=[steps[i]]) for i in range(5)]
        self.apply_and_die(tmp_path, updates)

        index = self.make_store(tmp_path).open(IDENTITY)

        assert index.state == updates[-1].state
        assert list(index.steps) == steps
        assert index.lookup([key_of(i) for i in range(5_000)]) == [entry_of(i) for i in range(5_000)]
        index.close()

    def test_indexes_of_other_lanes_are_apart(self, store: IndexStore, index: DedupeIndex) -> None:
        neighbour = store.open(IDENTITY._replace(partition=4))
        namesake = store.open(IDENTITY._replace(topic="quarantine"))

        index.apply(update_of(0, 1))

        assert neighbour.lookup([key_of(0)]) == [None]
        assert namesake.lookup([key_of(0)]) == [None]
        neighbour.close()
        namesake.close()

    def test_close_may_be_repeated(self, index: DedupeIndex) -> None:
        index.close()
        index.close()

    # ---- sessions

    def test_new_index_knows_no_session(self, index: DedupeIndex) -> None:
        assert index.session_counts == NO_SESSIONS
        assert index.sessions([session_key_of(1), session_key_of(2)]) == [None, None]
        assert index.sessions([]) == []
        assert index.oldest_sessions(9, LIVE) == index.oldest_sessions(9, EVICTED) == []

    def test_sessions_are_found_as_they_were_stored(self, index: DedupeIndex) -> None:
        index.apply(sessions_of(0, 3))

        found = index.sessions([session_key_of(2), session_key_of(9), session_key_of(0)])

        assert found == [session_of(2), None, session_of(0)]
        assert index.session_counts[:2] == (3, 0)

    def test_sessions_are_ordered_by_their_newest_records(self, index: DedupeIndex) -> None:
        index.apply(sessions_of(0, 4))
        used, evicted = session_key_of(0), session_key_of(2)
        changes = [
            SessionChange(used, session_of(0), session_of(7)),
            SessionChange(evicted, session_of(2), session_of(2, evicted_at=7)),
        ]
        assert index.oldest_sessions(1, LIVE) == [(used, session_of(0))]

        index.apply(update_of(7, 1)._replace(sessions=SessionUpdate(changes, SessionCounts(3, 1))))

        oldest = [
            (session_key_of(1), session_of(1)),
            (session_key_of(3), session_of(3)),
            (used, session_of(7)),
        ]
        assert index.oldest_sessions(9, LIVE) == oldest
        assert index.oldest_sessions(2, LIVE) == oldest[:2]
        assert index.oldest_sessions(0, LIVE) == []
        assert index.oldest_sessions(9, EVICTED) == [(evicted, session_of(2, evicted_at=7))]
        assert index.session_counts[:2] == (3, 1)

    def test_sessions_evicted_first_are_found_first(self, index: DedupeIndex) -> None:
        index.apply(sessions_of(0, 2))
        found = []
        for offset, evicted_at in ((1, 7), (0, 8)):
            key, gone = session_key_of(offset), session_of(offset, evicted_at=evicted_at)
            update = SessionUpdate(
                [SessionChange(key, session_of(offset), gone)], SessionCounts(offset, 2 - offset)
            )
            index.apply(IndexUpdate((), index.state, sessions=update))
            found.append((key, gone))
            assert index.oldest_sessions(9, EVICTED) == found

    def test_evicted_session_of_which_nothing_is_known_is_stored(self, index: DedupeIndex) -> None:
        key, gone = session_key_of(0), UNKNOWN_SESSION._replace(is_evicted=True, evicted_at=7)
        update = SessionUpdate([SessionChange(key, None, gone)], SessionCounts(0, 1))
        index.apply(IndexUpdate((), index.state, sessions=update))
        assert index.oldest_sessions(9, EVICTED) == [(key, gone)]

    def test_sessions_are_listed_and_counted_by_source(self, store: IndexStore, index: DedupeIndex) -> None:
        of_app = {n: session_of(n, source_hash=b"app-hash") for n in (0, 2)}
        of_web = {n: session_of(n) for n in (1, 3)}
        changes = [SessionChange(session_key_of(n), None, state) for n, state in (of_app | of_web).items()]
        sizes = {b"app-hash": 2, b"web-hash": 2}
        update = SessionUpdate(changes, SessionCounts(4, 0), sizes)
        index.apply(update_of(0, 4)._replace(sessions=update))
        index.close()
        index = store.open(IDENTITY)

        assert index.session_sizes == sizes
        for source_hash, states in ((b"app-hash", of_app), (b"web-hash", of_web)):
            rows = [(session_key_of(n), state) for n, state in states.items()]
            assert index.oldest_sessions(9, OF_SOURCE + source_hash) == rows
            assert index.oldest_sessions(1, OF_SOURCE + source_hash) == rows[:1]
        used = SessionChange(session_key_of(0), of_app[0], session_of(5, source_hash=b"app-hash"))
        gone = SessionChange(session_key_of(1), of_web[1], session_of(1, evicted_at=5))
        deleted = SessionChange(session_key_of(3), of_web[3], None)
        update = SessionUpdate([used, gone, deleted], SessionCounts(2, 1), {b"web-hash": 0})
        index.apply(update_of(5, 1)._replace(sessions=update))
        assert index.session_sizes == {b"app-hash": 2}
        assert index.oldest_sessions(9, OF_SOURCE + b"web-hash") == []
        (oldest, _), _ = index.oldest_sessions(9, OF_SOURCE + b"app-hash")
        assert oldest == session_key_of(2)
        index.close()

    def test_counts_of_sessions_outlive_a_reopening(self, store: IndexStore, index: DedupeIndex) -> None:
        update = sessions_of(0, 1)
        assert update.sessions
        index.apply(update._replace(sessions=update.sessions._replace(counts=SessionCounts(1, 2, 3, 4))))
        index.close()

        reopened = store.open(IDENTITY)

        assert reopened.session_counts == SessionCounts(live=1, evicted=2, since_ms=3, with_gaps=4)
        reopened.close()

    def test_rows_of_one_client_are_found_by_it_alone(self, index: DedupeIndex) -> None:
        clients = [b"\x00" * 16, b"\xff" * 15 + b"\xfe", b"\xff" * 16]
        keys = [client + bytes([name]) * 16 for client in clients for name in (0, 7, 255)]
        changes = [SessionChange(key, None, session_of(offset)) for offset, key in enumerate(keys)]
        index.apply(update_of(0, 9)._replace(sessions=SessionUpdate(changes, SessionCounts(9, 0))))

        for place, client in enumerate(clients):
            rows = [(keys[3 * place + name], session_of(3 * place + name)) for name in range(3)]
            assert index.sessions_of(client, 9) == rows
            assert index.sessions_of(client, 2) == rows[:2]
        assert index.sessions_of(b"\x01" * 16, 9) == index.sessions_of(clients[0], 0) == []

    def test_deleted_session_is_gone(self, index: DedupeIndex) -> None:
        index.apply(sessions_of(0, 2))
        deleted = SessionUpdate([SessionChange(session_key_of(0), session_of(0), None)], SessionCounts(1, 0))

        index.apply(IndexUpdate((), index.state, sessions=deleted))

        assert index.sessions([session_key_of(0), session_key_of(1)]) == [None, session_of(1)]
        assert index.oldest_sessions(9, LIVE) == [(session_key_of(1), session_of(1))]

    def test_sessions_outlive_a_killed_process(self, tmp_path: Path) -> None:
        update = SessionUpdate((), SessionCounts(600, 0, 1_700_000_000_000))
        self.apply_and_die(tmp_path, [sessions_of(0, 600), update_of(600, 10)._replace(sessions=update)])

        index = self.make_store(tmp_path).open(IDENTITY)

        assert index.session_counts == update.counts
        assert index.sessions([session_key_of(n) for n in range(600)]) == [session_of(n) for n in range(600)]
        assert [state.last_offset for _, state in index.oldest_sessions(600, LIVE)] == list(range(600))
        index.close()

    def test_record_is_found_by_its_guard_too(self, store: IndexStore, index: DedupeIndex) -> None:
        secondary_key = key_of(50)
        index.apply(update_of(0, 1)._replace(secondary_keys=[(secondary_key, entry_of(0))]))
        index.close()

        reopened = store.open(IDENTITY)

        assert reopened.lookup([secondary_key, key_of(0)]) == [entry_of(0)] * 2
        reopened.close()

    # ---- reset

    def test_reset_forgets_everything(self, store: IndexStore, index: DedupeIndex) -> None:
        index.apply(sessions_of(0, 10)._replace(new_steps=[Step(10, 0, 0)]))

        index.reset(40)

        assert index.session_counts == NO_SESSIONS
        assert index.sessions([session_key_of(0)]) == [None]
        assert index.oldest_sessions(1, LIVE) == []
        assert index.state == EMPTY_STATE._replace(applied_offset=40)
        assert list(index.steps) == []
        assert index.lookup([key_of(i) for i in range(10)]) == [None] * 10

    def test_reset_survives_reopening(self, store: IndexStore, index: DedupeIndex) -> None:
        index.apply(update_of(0, 10, new_steps=[Step(10, 0, 0)]))
        index.reset(40)
        index.close()

        reopened = store.open(IDENTITY)

        assert reopened.state == EMPTY_STATE._replace(applied_offset=40)
        assert list(reopened.steps) == []
        assert reopened.lookup([key_of(0)]) == [None]
        reopened.close()

    def test_reset_index_is_used_like_a_new_one(self, index: DedupeIndex) -> None:
        index.apply(update_of(0, 10))
        index.reset(40)

        index.apply(update_of(40, 10))

        assert index.lookup([key_of(0), key_of(40)]) == [None, entry_of(40)]
        assert index.state == update_of(40, 10).state

    # ---- another identity, discard, lock

    @pytest.mark.parametrize("other", OTHER_IDENTITIES.values(), ids=OTHER_IDENTITIES.keys())
    def test_index_of_another_identity_is_refused_until_discarded(
        self, store: IndexStore, index: DedupeIndex, other: IndexIdentity
    ) -> None:
        index.apply(update_of(0, 10))
        index.close()

        with pytest.raises(IndexCorruptError):
            store.open(other)
        store.discard(other)
        fresh = store.open(other)

        assert fresh.state == EMPTY_STATE
        assert fresh.lookup([key_of(0)]) == [None]
        fresh.close()

    def test_index_that_the_log_disproved_is_refused_until_discarded(
        self, store: IndexStore, index: DedupeIndex
    ) -> None:
        index.apply(update_of(0, 10))
        index.note_disproved()
        index.note_disproved()
        assert index.lookup([key_of(9)]) == [entry_of(9)]
        index.close()
        for _ in range(2):
            with pytest.raises(IndexDisprovedError) as refused:
                store.open(IDENTITY)
            assert refused.value.lineage == index.lineage != b""

        store.discard(IDENTITY)

        again = store.open(IDENTITY)
        assert again.state == EMPTY_STATE
        again.close()

    def test_refused_index_is_unharmed(self, store: IndexStore, index: DedupeIndex) -> None:
        index.apply(update_of(0, 10))
        index.close()
        with pytest.raises(IndexCorruptError):
            store.open(OTHER_IDENTITIES["log_id"])

        reopened = store.open(IDENTITY)

        assert reopened.lookup([key_of(9)]) == [entry_of(9)]
        reopened.close()

    def test_discard_of_a_missing_index_does_nothing(self, store: IndexStore) -> None:
        store.discard(IDENTITY)

    def test_open_index_cannot_be_opened_or_discarded_by_others(
        self, store: IndexStore, index: DedupeIndex
    ) -> None:
        index.apply(update_of(0, 1))

        with pytest.raises(RetriableError):
            store.open(IDENTITY)
        with pytest.raises(IndexCorruptError):
            open_anew(store)

        assert index.lookup([key_of(0)]) == [entry_of(0)]
        index.apply(update_of(1, 1))

    # ---- covers and figures

    def test_index_covers_what_is_not_below_its_beginning(
        self, store: IndexStore, index: DedupeIndex
    ) -> None:
        index.reset(100)
        assert [index.covers(offset) for offset in (0, 99, 100, 101)] == [False, False, True, True]
        index.apply(update_of(100, 1_000))
        assert [index.covers(offset) for offset in (0, 99, 100, 1_000_000)] == [False, False, True, True]
        index.close()

        reopened = store.open(IDENTITY)

        assert [reopened.covers(offset) for offset in (0, 99, 100, 1_000_000)] == [False, False, True, True]
        reopened.close()

    def test_index_of_the_whole_log_covers_everything(self, index: DedupeIndex) -> None:
        index.apply(update_of(0, 1_000))

        assert index.covers(0)
        assert index.covers(1_000_000)

    def test_figures_follow_the_entries(self, store: IndexStore, index: DedupeIndex) -> None:
        index.apply(update_of(0, 1_000))
        assert 1_000 <= index.keys_estimate <= 1_010
        index.close()

        reopened = store.open(IDENTITY)

        assert 1_000 <= reopened.keys_estimate <= 1_010
        assert 32_000 <= reopened.size_bytes <= 64_000
        reopened.close()
