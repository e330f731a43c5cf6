"""
The dedupe core under crashes, aborts, losses, other settings and time, against a plain list of records.

The machine commits as a lane does, without its queue; the recovery is the real one, on the simulated
log and disk. The oracle is nothing but the list.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from random import Random
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from structlog.testing import capture_logs

from dedupe.decide.admission import Admission, Verdicts, admit
from dedupe.decide.committed import Committed as Commit
from dedupe.decide.committed import LastRecord
from dedupe.decide.sessions import SessionPolicy
from dedupe.decide.window import Step, Window, WindowPolicy
from dedupe.model.identity import Identity
from dedupe.model.record import build_record, parse_identity
from dedupe.model.types import Entry, Event, EventKey, LogRecord, NewRecord, Offset
from dedupe.partition.context import LaneContext
from dedupe.partition.index_recovery import IndexRecovery
from dedupe.partition.metrics import LaneMetrics
from dedupe.storage.index import IndexIdentity
from dedupe.storage.pinning import SessionNotes
from tests.support.settings import QUEUE_LIMITS
from tests.support.sim.memory_index import MemoryStore
from tests.support.sim.sim_log import Request, SimStore

IDENTITY = Identity(b"a secret of 24 bytes....")
NAMES = "abcdefghijkl"
KEYS = {name: IDENTITY.message_key("web", name) for name in NAMES}
POLICIES = [
    WindowPolicy(window_ms=640, keys_max=10_000, time_step_ms=10),  # time binds
    WindowPolicy(window_ms=10_000_000, keys_max=15, time_step_ms=10),  # keys bind
    WindowPolicy(window_ms=1_280, keys_max=130, time_step_ms=20),  # both do, in steps of 20 ms or 2 records
]
BATCHES = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from("xy")), min_size=1, max_size=8)
PAUSES = st.sampled_from([0, 0, 7, 150])
OFFSETS = st.sampled_from([0.5, 0.9, 1.0, 1.0, 1.0, 1.3, 2.0])  # see offset_at
TOPIC = "events"

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of restores would print a line each."""
    with capture_logs():
        yield


class Committed(NamedTuple):
    """What the oracle knows of one record."""

    record: LogRecord
    key: EventKey
    fingerprint: bytes
    lane_seq: int


def event_of(name: str, content: str) -> Event:
    return Event(KEYS[name], 0, content.encode() * 8, "web", name, b"{}")


class MachineClock:
    """Log time of the machine."""

    def __init__(self) -> None:
        self.ms = 1_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class DedupeMachine(RuleBasedStateMachine):
    """One lane, its index and its log."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()

    def teardown(self) -> None:
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: WindowPolicy) -> None:
        self.policy = policy
        self.identity = IndexIdentity("log", "events", 0, 1, IDENTITY.check_value)
        self.store = MemoryStore()
        self.log: list[Committed] = []
        self.sim = SimStore()
        self.sim.create_topic(TOPIC, 1)
        self.partition = self.sim.partition(TOPIC, 0)
        self.clock = MachineClock()
        self.expected_seq = 0
        self.has_changed = False
        self.recover()

    @property
    def log_start(self) -> Offset:
        return self.partition.log_start

    @property
    def end(self) -> Offset:
        return self.partition.end

    # ---- what a lane does

    def judge(self, events: list[Event]) -> tuple[Verdicts, list[NewRecord]]:
        """Look up and admit one batch; the verdicts must be the oracle's."""
        known = self.index.lookup([event.key for event in events])
        verdicts = admit(events, known, window_start=max(self.opened.window.start, self.log_start))
        assert verdicts == self.expected_verdicts(events)
        new = [e for e, verdict in zip(events, verdicts.admissions, strict=True) if verdict is Admission.NEW]
        state = self.index.state
        timestamp_ms = max(self.clock.ms, state.newest_timestamp_ms)
        return verdicts, [
            build_record(event, lane_seq=state.next_lane_seq + i, timestamp_ms=timestamp_ms)
            for i, event in enumerate(new)
        ]

    def append(self, records: list[NewRecord]) -> list[Committed]:
        """Commit records to the log, as one batch."""
        base = self.partition.arrive(Request(self.partition.epoch, self.end, records))
        committed = []
        for i, record in enumerate(records):
            logged = LogRecord(base + i, *record)
            found = parse_identity(logged)
            committed.append(Committed(logged, found.key, found.fingerprint, found.lane_seq))
        self.log += committed
        self.expected_seq += len(records)
        return committed

    def apply(self, committed: list[Committed]) -> None:
        """Apply what was just committed, as the lane does after the commit."""
        first = committed[0]
        self.opened.apply(
            Commit(
                first.lane_seq,
                first.record.offset,
                first.record.timestamp_ms,
                LastRecord.of(self.index.state),
                [one.key for one in committed],
                [one.fingerprint for one in committed],
            )
        )

    def recover(self) -> None:
        """Begin a process that opens the index, proves or rebuilds it, and replays what is missing."""
        self.store.crash()
        log = self.sim.partition_log(TOPIC, 0)
        context = LaneContext(
            topic=TOPIC,
            partitions=1,
            log_id="log",
            identity=IDENTITY,
            clock=self.clock,
            store=self.store,
            window_policy=self.policy,
            session_policy=SessionPolicy(0, 1, 0),
            session_notes=SessionNotes(self.sim, TOPIC),
            restore_slots=asyncio.Semaphore(1),
            open_turn=asyncio.Lock(),
            limits=QUEUE_LIMITS,
            rng=Random(0),
        )
        metrics = LaneMetrics()
        recovery = IndexRecovery(0, log, context, metrics)
        self.run(recovery.check())
        self.opened = self.run(recovery.replay(self.run(log.fence()), lambda _entries: None))
        self.index = self.opened.index
        assert metrics.sequence_gaps == 0
        if not self.log and self.log_start > 0:
            self.expected_seq = self.end

    # ---- what happens to it

    @rule(batch=BATCHES, pause_ms=PAUSES)
    def commit(self, batch: list[tuple[str, str]], pause_ms: int) -> None:
        self.clock.ms += pause_ms
        _, records = self.judge([event_of(*one) for one in batch])
        if records:
            self.apply(self.append(records))

    @rule(batches=st.lists(BATCHES, min_size=3, max_size=9), pause_ms=PAUSES)
    def commit_often(self, batches: list[list[tuple[str, str]]], pause_ms: int) -> None:
        for batch in batches:
            self.commit(batch, pause_ms)

    @rule(batch=BATCHES)
    def send_in_vain(self, batch: list[tuple[str, str]]) -> None:
        _, records = self.judge([event_of(*one) for one in batch])
        if records:
            self.partition.send(Request(self.partition.epoch, self.end, records))
        self.partition.fence()  # another process was quicker than the request
        self.recover()

    @rule(batch=BATCHES, lost=st.integers(0, 5))
    def crash_between_commit_and_apply(self, batch: list[tuple[str, str]], lost: int) -> None:
        _, records = self.judge([event_of(*one) for one in batch])
        if records:
            self.append(records)
        self.store.crash(lost_updates=lost)
        self.recover()

    @rule(lost=st.integers(0, 9))
    def crash(self, lost: int) -> None:
        self.store.crash(lost_updates=lost)
        self.recover()

    @rule(is_deleted=st.booleans())
    def lose_the_index(self, is_deleted: bool) -> None:
        if is_deleted:
            self.store.crash()
            self.store.discard(self.identity)
        else:
            self.store.damage(self.identity)
        self.recover()

    @rule(milliseconds=st.integers(0, 900))
    def let_time_pass(self, milliseconds: int) -> None:
        self.clock.ms += milliseconds

    @rule(up_to=OFFSETS)
    def trim_the_log(self, up_to: float) -> None:
        self.sim.trim(TOPIC, 0, self.offset_at(up_to))
        self.log = [one for one in self.log if one.record.offset >= self.log_start]

    @precondition(lambda self: self.log)
    @rule(records=st.integers(1, 5), lost=st.integers(0, 3))
    def lose_the_tail_of_the_log(self, records: int, lost: int) -> None:
        records = min(records, len(self.log))
        first_lost = self.log[-records]
        self.log = self.log[:-records]
        self.sim.lose_tail(TOPIC, 0, records)
        self.expected_seq = first_lost.lane_seq
        self.store.crash(lost_updates=lost)
        self.recover()

    @rule(up_to=OFFSETS)
    def drop_old_files(self, up_to: float) -> None:
        self.store.drop_before(self.identity, self.offset_at(up_to))
        if not self.index.covers(max(self.opened.window.start, self.log_start)):
            self.store.crash()
            self.recover()

    @rule(window_ms=st.sampled_from([320, 640, 1_280, 2_560]), more_keys=st.integers(0, 60))
    def change_the_bounds(self, window_ms: int, more_keys: int) -> None:
        keys_max = self.policy.keys_max // 64 * 64 + more_keys  # in the same steps
        self.has_changed = True
        self.policy = self.policy._replace(window_ms=window_ms, keys_max=max(1, keys_max))
        self.recover()

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
            window.advance(step, [step])
        return max(window.start, self.log_start)

    def first_record_from(self, start: Offset) -> Offset:
        """Return where the first record at or after `start` is: between records, all starts are one."""
        return next((one.record.offset for one in self.log if one.record.offset >= start), self.end)

    def expected_verdicts(self, events: list[Event]) -> Verdicts:
        start = self.expected_start
        originals = {
            one.key: (one.record.offset, one.fingerprint) for one in self.log if one.record.offset >= start
        }
        verdicts = Verdicts([], [])
        new_count = 0
        for event in events:
            if event.key not in originals:
                originals[event.key] = (~new_count, event.fingerprint)
                verdicts.admissions.append(Admission.NEW)
                verdicts.originals.append(~new_count)
                new_count += 1
                continue
            place, fingerprint = originals[event.key]
            copy = Admission.REPEAT if place < 0 else Admission.DUPLICATE
            verdicts.admissions.append(copy if fingerprint == event.fingerprint else Admission.CONFLICT)
            verdicts.originals.append(place)
        return verdicts

    @precondition(lambda self: not self.has_changed)  # a longer window holds what a shorter one let in
    @invariant()
    def no_key_is_committed_twice_inside_the_window(self) -> None:
        start = self.expected_start
        keys = [one.key for one in self.log if one.record.offset >= start]
        assert len(keys) == len(set(keys))

    @invariant()
    def index_is_what_a_rebuild_would_give(self) -> None:
        start = self.expected_start
        found = self.first_record_from(max(self.opened.window.start, self.log_start))
        assert found == self.first_record_from(start)
        assert list(self.index.steps) == self.opened.window.steps
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


TestDedupe = pytest.mark.slow(DedupeMachine.TestCase)
TestDedupe.settings = settings(max_examples=200, stateful_step_count=40)
