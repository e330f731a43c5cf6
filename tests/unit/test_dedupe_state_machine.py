"""
The dedupe core under crashes, aborts, losses and time, against a plain list of committed records.

The machine below does what a lane and its restorer do, without asyncio: the decisions are the
core's own, and the oracle is nothing but the list.
"""

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dedupe.admission import Admission, Verdict, admit
from dedupe.errors import IndexCorruptError
from dedupe.identity import Identity
from dedupe.index import IndexIdentity
from dedupe.record import build_record, parse_identity
from dedupe.recovery import RecordCheck, Replay, index_update, reason_to_rebuild
from dedupe.sim.memory_index import MemoryIndex, MemoryStore
from dedupe.types import Entry, Event, EventKey, LogRecord, NewRecord, Offset
from dedupe.window import Step, Window, WindowPolicy

IDENTITY = Identity(b"a secret of 24 bytes....")
NAMES = "abcdefghijkl"
KEYS = {name: IDENTITY.message_key("web", name) for name in NAMES}
POLICIES = [
    WindowPolicy(window_ms=640, keys_max=10_000),  # time binds
    WindowPolicy(window_ms=10_000_000, keys_max=15),  # keys bind
    WindowPolicy(window_ms=1_280, keys_max=130),  # both do, in steps of 20 ms or 2 records
]
BATCHES = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from("xy")), min_size=1, max_size=8)
PAUSES = st.sampled_from([0, 0, 7, 150])
OFFSETS = st.sampled_from([0.5, 0.9, 1.0, 1.0, 1.0, 1.3, 2.0])  # see offset_at
MARKER = 1  # a commit or abort marker takes an offset of its own


class Committed(NamedTuple):
    """What the oracle knows of one record."""

    record: LogRecord
    key: EventKey
    fingerprint: bytes
    lane_seq: int


def event_of(name: str, content: str) -> Event:
    return Event(KEYS[name], 0, content.encode() * 8, "web", name, b"{}")


class DedupeMachine(RuleBasedStateMachine):
    """One lane, its index and its log."""

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: WindowPolicy) -> None:
        self.policy = policy
        self.identity = IndexIdentity("log", "events", 0, 1, IDENTITY.check_value)
        self.store = MemoryStore()
        self.log: list[Committed] = []
        self.log_start: Offset = 0
        self.end: Offset = 0
        self.now_ms = 1_000
        self.expected_seq = 0
        self.recover(chunk=1)

    # ---- what a lane does

    def judge(self, events: list[Event]) -> tuple[list[Verdict], list[NewRecord]]:
        """Look up and admit one batch; the verdicts must be the oracle's."""
        known = self.index.lookup([event.key for event in events])
        verdicts = admit(events, known, window_start=max(self.window.start, self.log_start))
        assert verdicts == self.expected_verdicts(events)
        new = [e for e, verdict in zip(events, verdicts, strict=True) if verdict.admission is Admission.NEW]
        state = self.index.state
        timestamp_ms = max(self.now_ms, state.newest_timestamp_ms)
        return verdicts, [
            build_record(event, lane_seq=state.next_lane_seq + i, timestamp_ms=timestamp_ms)
            for i, event in enumerate(new)
        ]

    def append(self, records: list[NewRecord]) -> list[Committed]:
        """Commit records to the log, as one transaction."""
        committed = []
        for i, record in enumerate(records):
            logged = LogRecord(self.end + i, *record)
            found = parse_identity(logged)
            committed.append(Committed(logged, found.key, found.fingerprint, found.lane_seq))
        self.log += committed
        self.end += len(records) + MARKER
        self.expected_seq += len(records)
        return committed

    def apply(self, committed: list[Committed]) -> None:
        """Apply what was just committed, as the lane does after the commit."""
        steps = [Step(one.record.timestamp_ms, one.record.offset, one.lane_seq) for one in committed]
        entries = [(one.key, Entry(one.record.offset, one.fingerprint)) for one in committed]
        applied_offset = committed[-1].record.offset + 1
        self.index.apply(
            index_update(self.window, entries, steps[-1], steps.copy, applied_offset=applied_offset)
        )

    def recover(self, *, chunk: int) -> None:
        """Open the index, prove or rebuild it, and replay the log in chunks, as the restorer does."""
        self.store.crash()
        try:
            self.index = self.store.open(self.identity)
        except IndexCorruptError:
            self.store.discard(self.identity)
            self.index = self.store.open(self.identity)
        self.window = Window(self.policy, self.index.steps)
        if self.must_begin_anew(self.index):
            self.index.reset(self.log_start)
            self.window = Window(self.policy)
        replay = Replay(self.index, self.window, RecordCheck(IDENTITY, 0, 1))
        missing = [one.record for one in self.log if one.record.offset >= self.index.state.applied_offset]
        for first in range(0, len(missing), chunk):
            replay.apply(missing[first : first + chunk])
        replay.finish(self.end, log_start=self.log_start)
        assert replay.records == len(missing)
        assert replay.sequence_gaps == 0
        if not self.log and self.log_start > 0:
            self.expected_seq = self.end

    def must_begin_anew(self, index: MemoryIndex) -> bool:
        state = index.state
        at_last = [one for one in self.log if one.record.offset == state.last_offset]
        if state.last_offset < 0 or (state.last_offset >= self.log_start and not at_last):
            return True
        if at_last and at_last[0].key != state.last_key:
            return True
        reason = reason_to_rebuild(
            index, window_start=self.window.start, log_start=self.log_start, end=self.end
        )
        return reason is not None

    # ---- what happens to it

    @rule(batch=BATCHES, pause_ms=PAUSES)
    def commit(self, batch: list[tuple[str, str]], pause_ms: int) -> None:
        self.now_ms += pause_ms
        _, records = self.judge([event_of(*one) for one in batch])
        if records:
            self.apply(self.append(records))

    @rule(batches=st.lists(BATCHES, min_size=3, max_size=9), pause_ms=PAUSES)
    def commit_often(self, batches: list[list[tuple[str, str]]], pause_ms: int) -> None:
        for batch in batches:
            self.commit(batch, pause_ms)

    @rule(batch=BATCHES, chunk=st.integers(1, 9))
    def abort(self, batch: list[tuple[str, str]], chunk: int) -> None:
        _, records = self.judge([event_of(*one) for one in batch])
        self.end += len(records) + MARKER
        self.recover(chunk=chunk)

    @rule(batch=BATCHES, chunk=st.integers(1, 9), lost=st.integers(0, 5))
    def crash_between_commit_and_apply(self, batch: list[tuple[str, str]], chunk: int, lost: int) -> None:
        _, records = self.judge([event_of(*one) for one in batch])
        if records:
            self.append(records)
        self.store.crash(lost_updates=lost)
        self.recover(chunk=chunk)

    @rule(chunk=st.integers(1, 9), lost=st.integers(0, 9))
    def crash(self, chunk: int, lost: int) -> None:
        self.store.crash(lost_updates=lost)
        self.recover(chunk=chunk)

    @rule(chunk=st.integers(1, 9), is_deleted=st.booleans())
    def lose_the_index(self, chunk: int, is_deleted: bool) -> None:
        if is_deleted:
            self.store.crash()
            self.store.discard(self.identity)
        else:
            self.store.damage(self.identity)
        self.recover(chunk=chunk)

    @rule(milliseconds=st.integers(0, 900))
    def let_time_pass(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule(up_to=OFFSETS)
    def trim_the_log(self, up_to: float) -> None:
        self.log_start = max(self.log_start, self.offset_at(up_to))
        self.log = [one for one in self.log if one.record.offset >= self.log_start]

    @precondition(lambda self: self.log)
    @rule(records=st.integers(1, 5), chunk=st.integers(1, 9), lost=st.integers(0, 3))
    def lose_the_tail_of_the_log(self, records: int, chunk: int, lost: int) -> None:
        first_lost = self.log[-records:][0]
        self.log = self.log[:-records]
        self.end = first_lost.record.offset
        self.expected_seq = first_lost.lane_seq
        self.store.crash(lost_updates=lost)
        self.recover(chunk=chunk)

    @rule(up_to=OFFSETS, chunk=st.integers(1, 9))
    def drop_old_files(self, up_to: float, chunk: int) -> None:
        self.store.drop_before(self.identity, self.offset_at(up_to))
        if not self.index.covers(max(self.window.start, self.log_start)):
            self.store.crash()
            self.recover(chunk=chunk)

    def offset_at(self, place: float) -> Offset:
        """Return a part of the way to the window's start, or beyond 1 of the way from there to the end."""
        start = self.expected_start
        return int(start * min(place, 1.0) + (self.end - start) * max(place - 1, 0.0))

    # ---- what the list says

    @property
    def expected_start(self) -> Offset:
        window = Window(self.policy)
        for one in self.log:
            step = Step(one.record.timestamp_ms, one.record.offset, one.lane_seq)
            window.advance(step, [step].copy)
        return max(window.start, self.log_start)

    def first_record_from(self, start: Offset) -> Offset:
        """Return where the first record at or after `start` is: between records, all starts are one."""
        return next((one.record.offset for one in self.log if one.record.offset >= start), self.end)

    def expected_verdicts(self, events: list[Event]) -> list[Verdict]:
        start = self.expected_start
        originals = {
            one.key: (one.record.offset, one.fingerprint, False)
            for one in self.log
            if one.record.offset >= start
        }
        verdicts = []
        new_count = 0
        for event in events:
            if event.key not in originals:
                originals[event.key] = (new_count, event.fingerprint, True)
                verdicts.append(Verdict(Admission.NEW, new_count, True))
                new_count += 1
                continue
            place, fingerprint, in_batch = originals[event.key]
            copy = Admission.REPEAT if in_batch else Admission.DUPLICATE
            admission = copy if fingerprint == event.fingerprint else Admission.CONFLICT
            verdicts.append(Verdict(admission, place, in_batch))
        return verdicts

    @invariant()
    def no_key_is_committed_twice_inside_the_window(self) -> None:
        start = self.expected_start
        keys = [one.key for one in self.log if one.record.offset >= start]
        assert len(keys) == len(set(keys))

    @invariant()
    def index_is_what_a_rebuild_would_give(self) -> None:
        start = self.expected_start
        assert self.first_record_from(max(self.window.start, self.log_start)) == self.first_record_from(start)
        assert list(self.index.steps) == self.window.steps
        newest = {one.key: Entry(one.record.offset, one.fingerprint) for one in self.log}
        for key, entry in zip(KEYS.values(), self.index.lookup(list(KEYS.values())), strict=True):
            expected = newest.get(key)
            if expected is not None and expected.offset >= start:
                assert entry == expected
            else:
                assert entry is None or entry.offset < start
        if self.log:
            last = self.log[-1]
            state = self.index.state
            assert (state.last_offset, state.last_key) == (last.record.offset, last.key)
            assert state.newest_timestamp_ms == last.record.timestamp_ms
            assert last.record.offset < state.applied_offset <= self.end

    @invariant()
    def lane_seq_has_no_gaps(self) -> None:
        sequences = [one.lane_seq for one in self.log]
        assert self.index.state.next_lane_seq == self.expected_seq
        assert sequences == list(range(self.expected_seq - len(self.log), self.expected_seq))
        assert all(one.lane_seq <= one.record.offset for one in self.log)


TestDedupe = DedupeMachine.TestCase
TestDedupe.settings = settings(max_examples=200, stateful_step_count=40)
