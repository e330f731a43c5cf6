"""
A simulated deployment: the real router, lanes and recovery on a simulated log and index disk.

`boot` starts a "process", `crash` ends it without a goodbye; log and disk stay. What clients were
told is remembered, and `judge` compares it with the log. `seen` counts what befell lanes in which state.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, NamedTuple, TypeAlias

from dedupe.decide.admission import Admission
from dedupe.decide.layout import Layout
from dedupe.decide.recovery import RecordCheck
from dedupe.decide.sessions import SessionPolicy
from dedupe.decide.window import WindowPolicy
from dedupe.model.clock import Deadline
from dedupe.model.errors import (
    DiskFullError,
    LaneNotActiveError,
    LaneSaturatedError,
    NotAppendedError,
    RetriableError,
)
from dedupe.model.identity import Identity, fingerprint_of
from dedupe.model.inherited import place_of
from dedupe.model.quarantine import Quarantine
from dedupe.model.record import HEADER_GATEWAY, parse_identity
from dedupe.model.types import Event, Fingerprint, LogRecord, NewRecord, Offset, Topic
from dedupe.partition.context import LaneContext, LaneTimes
from dedupe.partition.lane import Lane
from dedupe.partition.partition_index import PartitionIndex
from dedupe.partition.queue import QueueLimits
from dedupe.partition.state import LaneState
from dedupe.partition.supervisor import keep_running
from dedupe.router import Router
from dedupe.storage.dividing import Division
from dedupe.storage.index import IndexIdentity
from dedupe.storage.inheriting_log import inheriting
from dedupe.storage.log import Crashpoint, no_crashpoint
from dedupe.storage.notes import PIN, SKIPS, Pin, Skips
from dedupe.storage.pinning import SessionNotes, load_skips
from dedupe.submission import Outcomes
from tests.sim.crashes import SimulatedCrashError
from tests.support.settings import QUEUE_LIMITS
from tests.support.sim.faults import SimFaults
from tests.support.sim.memory_index import MemoryStore
from tests.support.sim.sim_log import SimStore
from tests.support.sim.snapshots import SimBucket, SimSnapshots

CLEAN = Topic("events", 2)
QUARANTINE = Topic("events.quarantine", 1)
SOURCE = "sim"
QUICK = LaneTimes(backoff_s=1e-4, backoff_max_s=1e-3, refence_s=(1e-4, 1e-3), fenced_again_s=0)
LIMITS = replace(QUEUE_LIMITS, batch_events_max=7)
FOREVER_S = 1e9
PAUSE_S = 1e-3
"""Of a client after a refusal, and of whoever waits for a lane: as long as a lane's longest pause."""
PATIENCE_S = 120.0
"""How long a lane may need until it serves, of virtual time: whoever waits longer would wait for ever."""
SLACK_S = 0.01
"""What others may do first when a deadline is over."""
UNTAKEN = (LaneNotActiveError, LaneSaturatedError, DiskFullError, NotAppendedError)
"""Answers which say that the request has left no trace."""

STOPPED = "stopped"
"""Stands for the state of a lane while no process runs."""

Seen: TypeAlias = Counter[tuple[str, str]]
"""How often which fault befell a lane in which state, and which answer was given ("answers")."""

Submit: TypeAlias = Callable[..., Awaitable[Outcomes]]
"""See Router.submit."""

Content: TypeAlias = tuple[str, Fingerprint]
"""An id with one of its contents."""


class ManualClock:
    """Log time stands still unless a test moves it; the other clock is the loop's, and moves along."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000 + asyncio.get_running_loop().time()


class Place(NamedTuple):
    """Where a receipt says an event is."""

    partition: int
    offset: int


class World:
    """One deployment with all its clients."""

    def __init__(
        self,
        *,
        faults: SimFaults | None = None,
        policy: WindowPolicy | None = None,
        times: LaneTimes = QUICK,
        limits: QueueLimits = LIMITS,
        seen: Seen | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.layout = Layout(CLEAN.partitions)
        """Of the clean topic, as the next process finds it."""
        self.identity = Identity(b"a secret of the simulation")
        self.log = SimStore(faults or SimFaults())
        self.connection = self.log
        """Of the process that was built last."""
        self.disk = MemoryStore(self.log.rng)
        self.spare_disk = MemoryStore(self.log.rng)
        self.policy = policy or WindowPolicy(window_ms=7 * 86_400_000, keys_max=1_000_000)
        self.sessions = SessionPolicy(lease_ms=self.policy.window_ms, sessions_max=1_000, expired_ms=0)
        self.times = times
        self.limits = limits
        self.seen: Seen = Counter() if seen is None else seen
        self.told: dict[str, Place] = {}
        self.conflicts: dict[Content, Place] = {}  # and where the original is
        self.in_quarantine: set[Content] = set()
        self.possible: set[Content] = set()  # all but what was never sent, or always refused untaken
        self.foreign: set[Place] = set()
        self.standing: Callable[[Lane], str] = lambda lane: lane.state.value
        """What a lane is when something befalls it, for `seen`."""
        self.on_log_time_refused: Callable[[], None] = lambda: None
        self.router: Router | None = None
        self._tasks: list[asyncio.Task[None]] = []
        for topic in (CLEAN, QUARANTINE):
            self.log.create_topic(*topic)

    def beside(self) -> "World":
        """Return another machine on the same log, with the same clients and a disk of its own."""
        other = copy(self)
        other.disk, other.router, other._tasks = MemoryStore(self.log.rng), None, []
        return other

    # ---- processes

    def boot(self, crashpoint: Crashpoint = no_crashpoint) -> Router:
        """Start a process on what log and disk hold. Raises IdentityMismatchError, as the process does."""
        for topic in (CLEAN, QUARANTINE):
            noted = self.log.noted(PIN, topic.name).setdefault(0, self.pin_of(topic).encoded())
            Pin.decode(noted).check(topic, self.identity.check_value)
        self.router = self.build(crashpoint)
        self._tasks = [asyncio.ensure_future(keep_running(lane, pause_s=0)) for lane in self.router.all_lanes]
        return self.router

    async def start(self) -> Router:
        """Start a process and wait until it serves."""
        router = self.boot()
        await self.wait_until_active()
        return router

    def pin_of(self, topic: Topic) -> Pin:
        """Return the rules by which this process writes a topic."""
        return Pin(topic.partitions, self.identity.check_value.hex())

    def build(self, crashpoint: Crashpoint = no_crashpoint, store: SimStore | None = None) -> Router:
        """Return a process's router whose lanes do not run yet, on a connection that it has, or a new one."""
        lane_at: dict[tuple[str, int], Lane] = {}

        def note_fault(fault: str, topic: str, partition: int) -> None:
            self.seen[fault, self.standing(lane_at[topic, partition])] += 1

        store = self.connection = store or self.log.another(crashpoint=crashpoint)
        store.on_fault = note_fault
        self.disk.on_fault = note_fault
        slots, open_turn = asyncio.Semaphore(2), asyncio.Lock()

        def lanes_of(topic: Topic, division: Division, crashpoint: Crashpoint) -> list[Lane]:
            layout = division.layout
            context = LaneContext(
                topic=topic.name,
                partitions=layout.base,
                layout=layout,
                check_fence=division.check if division.seal else None,
                log_id=store.log_id,
                identity=self.identity,
                clock=self.clock,
                store=self.disk,
                window_policy=self.policy,
                session_policy=self.sessions,
                restore_slots=slots,
                open_turn=open_turn,
                session_notes=SessionNotes(store, topic.name),
                load_skips=partial(load_skips, store, topic.name),
                on_log_time_refused=self.on_log_time_refused,
                limits=self.limits,
                times=self.times,
                rng=Random(0),
                crashpoint=crashpoint,
            )
            log_of = partial(store.deciding_log if division.seal else store.partition_log, topic.name)
            return [
                Lane(n, inheriting(log_of(n), layout.lineage_of(n), log_of), context)
                for n in range(layout.partitions)
            ]

        lanes = lanes_of(CLEAN, self.division(), crashpoint)
        quarantine_lanes = lanes_of(QUARANTINE, Division(Layout(QUARANTINE.partitions)), no_crashpoint)
        lane_at.update({(lane.topic, lane.partition): lane for lane in [*lanes, *quarantine_lanes]})
        return Router(lanes, quarantine_lanes, Quarantine(self.identity, QUARANTINE), self.layout)

    def division(self) -> Division:
        """Return how a process that begins now knows the clean topic."""
        return Division(self.layout)

    async def wait_until_active(self) -> None:
        """Wait until every lane serves, or raise what one of them has ended with."""
        assert self.router is not None
        async with asyncio.timeout(PATIENCE_S):
            while not all(lane.state is LaneState.ACTIVE for lane in self.router.all_lanes):
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(PAUSE_S)

    def check_queues(self) -> None:
        """No lane has more waiting than it may."""
        assert self.router is not None
        for lane in self.router.all_lanes:
            assert lane.queue.events <= self.limits.queue_events_max, "a lane has taken too much"

    def end_lane(self, number: int) -> None:
        """Cancel one lane, as a shutdown does when the time for it is over."""
        self._tasks[number].cancel()

    def note(self, fault: str) -> None:
        """Count what befalls a whole process, or its log and disk while there is none."""
        lanes = self.router.all_lanes if self.router else []
        for state in {self.standing(lane) for lane in lanes} or {STOPPED}:
            self.seen[fault, state] += 1

    async def crash(self, *, lost_updates: int = 0) -> None:
        """End the process; the tail of the index may be lost with it."""
        self.note("crash")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.disk.crash(lost_updates=lost_updates)
        self._forget()  # an answer may have come after its record was trimmed
        self.router = None

    @property
    def has_crashed(self) -> bool:
        """Whether a crash point has ended a lane."""
        return any(
            task.done() and not task.cancelled() and isinstance(task.exception(), SimulatedCrashError)
            for task in self._tasks
        )

    # ---- what befalls the log

    def intrude(self, partition: int) -> Offset:
        """Have somebody else write a record to a clean partition; return its offset."""
        null: Any = None  # as any client may send
        headers = [(HEADER_GATEWAY, null)] if len(self.foreign) % 2 else []
        foreign = NewRecord(self.clock.ms, b"not ours", b"{}", headers)
        offset = self.log.partition(CLEAN.name, partition).intrude(foreign)
        self.foreign.add(Place(partition, offset))
        return offset

    def note_skips(self) -> None:
        """Do what the operator does about it."""
        for partition in {place.partition for place in self.foreign}:
            ranges = [(place.offset, place.offset) for place in self.foreign if place.partition == partition]
            self.log.noted(SKIPS, CLEAN.name)[partition] = Skips(ranges).encoded()

    def trim(self, partition: int, log_start: Offset) -> None:
        """Have retention delete the oldest records; nobody may count on them any more."""
        self.log.trim(CLEAN.name, partition, log_start)
        self._forget()

    def lose_tail(self, partition: int, records: int) -> None:
        """Have the log lose its last n >= 0 records, acknowledged ones too, and reuse their offsets."""
        if records:
            self.log.lose_tail(CLEAN.name, partition, records)
            self.clock.ms += 1  # no other broker takes over within the millisecond in which they were written
        self._forget()
        self.foreign -= {place for place in self.foreign if not self._is_in_log(place)}

    def _forget(self) -> None:
        """Forget what clients were told of records that the log has no more, for all machines."""
        told: list[dict[Any, Place]] = [self.told, self.conflicts]
        for places in told:
            for what in [what for what, place in places.items() if not self._is_in_log(place)]:
                del places[what]

    def _is_in_log(self, place: Place) -> bool:
        partition = self.log.partition(CLEAN.name, place.partition)
        return partition.log_start <= place.offset < partition.end

    def use_snapshots(self, rng: Random) -> None:
        """Have both machines restore lost indexes from one bucket."""
        bucket = SimBucket(rng)
        for disk in (self.disk, self.spare_disk):
            disk.snapshots = SimSnapshots(bucket, disk)

    def index_identity(self, partition: int) -> IndexIdentity:
        """Return what names the index of one clean lane."""
        return IndexIdentity(
            log_id=self.log.log_id,
            topic=CLEAN.name,
            partition=partition,
            partitions=CLEAN.partitions,
            key_check=self.identity.check_value,
            plan=self.layout.index_plan_of(partition),
        )

    # ---- clients

    def event(self, message_id: str, content: str = "", source: str = SOURCE) -> Event:
        """Return an event; another content makes it a conflict."""
        key = self.identity.message_key(source, message_id)
        value = f'{{"messageId":"{message_id}","content":"{content}"}}'.encode()
        return Event(key, self.layout.map.of(key), fingerprint_of(value), source, message_id, value)

    def rejected(self, content: str) -> Event:
        """Return an event that the edge has refused, for the quarantine."""
        value = f'"{content}"'.encode()
        (event,) = Quarantine(self.identity, QUARANTINE).events(
            source=SOURCE,
            message_id="",
            fingerprint=fingerprint_of(value),
            content=value,
            reason="not_an_object",
        )
        return event

    async def send(
        self,
        events: Sequence[Event],
        rejected: Sequence[Event] = (),
        deadline_s: float = FOREVER_S,
        *,
        by: Submit | None = None,
    ) -> bool:
        """
        Send one request once, to the router unless `by` something else.

        Returns:
            True if it was answered, with what earlier answers had said.
        """
        if by is None:
            assert self.router is not None
            by = self.router.submit
        deadline = Deadline(self.clock, deadline_s)
        began = asyncio.get_running_loop().time()
        try:
            outcomes = await by(events, rejected, received_ms=self.clock.now_ms(), deadline=deadline)
        except BaseException as err:
            self.seen["answers", type(err).__name__] += 1
            if not isinstance(err, UNTAKEN):
                self.possible.update(_content(event) for event in [*events, *rejected])
            if isinstance(err, RetriableError):
                return False
            raise
        finally:
            assert asyncio.get_running_loop().time() - began <= deadline_s + SLACK_S, "answered late"
        self.seen["answers", "ok"] += 1
        for event, admission, offset in zip(events, *outcomes, strict=True):
            self._remember(event, admission, offset)
        self.possible.update(_content(event) for event in [*events, *rejected])
        self.in_quarantine.update(_content(event) for event in rejected)
        return True

    async def deliver(self, events: Sequence[Event]) -> None:
        """Send one request until it is answered."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self.send(events):
                await asyncio.sleep(PAUSE_S)

    def _remember(self, event: Event, admission: Admission, offset: Offset) -> None:
        place, content = Place(*place_of(event.partition, offset)), _content(event)
        if admission is Admission.CONFLICT:
            self.in_quarantine.add(content)
            self.conflicts[content] = place
            return
        if admission in (Admission.TOO_LARGE, Admission.REFUSED):
            self.in_quarantine.add(content)
            assert not self._is_told(self.told, event.message_id), "a stored event was refused"
            return
        assert not self._is_told(self.conflicts, content), "a conflict became a success"
        if place.offset < self.log.partition(CLEAN.name, place.partition).log_start:
            return  # of a gateway that does not know yet what the log has deleted
        if self._is_told(self.told, event.message_id):
            assert self.told[event.message_id] == place, f"{event.message_id} has moved"
        self.told[event.message_id] = place

    def _is_told(self, told: dict[Any, Place], what: object) -> bool:
        """Whether an earlier answer binds this one: not where its record has been trimmed meanwhile."""
        return what in told and self._is_in_log(told[what])

    # ---- the verdict

    def committed(self, topic: Topic = CLEAN) -> list[list[LogRecord]]:
        """Return the committed records of each partition, without those of somebody else."""
        return [
            [
                record
                for record in self.log.partition(topic.name, n).records
                if topic != CLEAN or Place(n, record.offset) not in self.foreign
            ]
            for n in range(self.layout.partitions_of_log if topic == CLEAN else topic.partitions)
        ]

    def judge(self) -> None:
        """Everything acknowledged is where it was said to be, once; counters and sequences agree."""
        self.judge_log()
        assert self.router is not None
        self.judge_counters(self.router)

    def judge_log(self) -> None:
        """Judge all but a process's counters, which cannot know yet what another one has written."""
        places: dict[str, Place] = {}
        for partition, records in enumerate(self.committed()):
            for number, record in enumerate(records):
                message_id = record.key.decode()
                assert message_id not in places, f"{message_id} is committed twice"
                places[message_id] = Place(partition, record.offset)
                assert record.timestamp_ms >= records[max(number - 1, 0)].timestamp_ms
                assert parse_identity(record).lane_seq == parse_identity(records[0]).lane_seq + number
                assert _content_of(record) in self.possible, f"{message_id} was refused untaken"
        for message_id, place in self.told.items():
            assert places.get(message_id) == place, f"{message_id} was acknowledged at {place}"
        quarantined = [_content_of(record) for records in self.committed(QUARANTINE) for record in records]
        assert len(quarantined) == len(set(quarantined))
        assert self.in_quarantine <= set(quarantined) <= self.possible

    def judge_index(self, lane: Lane) -> None:
        """The index of a clean lane is that of a replay, as far as the log reaches back."""
        live, identity = lane.partition_index, self.index_identity(lane.partition)
        end = live.index.state.applied_offset
        committed = self.committed()[lane.partition]
        records = [record for record in committed if record.offset < end]
        assert records == committed or lane.state is LaneState.FOLLOWING
        if not records:
            return
        empty = MemoryStore().open(identity)
        replayed = PartitionIndex(empty, self.policy, self.sessions, log_start=live.log_start)
        check = RecordCheck(self.identity, lane.partition, CLEAN.partitions)
        entries = replayed.replay([check.checked(record) for record in records])
        first = records[0].offset
        known_from = max(first, replayed.known_from)
        assert live.index.state == replayed.index.state._replace(applied_offset=end)
        assert max(first, live.known_from) == known_from
        assert list(live.index.steps) == live.window.steps
        assert [step for step in live.window.steps if step.offset > first] == replayed.window.steps[1:]
        kept = {key: entry for key, entry in entries if entry.offset >= known_from}
        assert live.index.lookup(list(kept)) == list(kept.values())

    def judge_counters(self, router: Router) -> None:
        assert router.in_flight == 0
        for lane, records in zip(router.lanes, self.committed(), strict=True):
            assert lane.counts.since_offset is not None
            since = sum(record.offset >= lane.counts.since_offset for record in records)
            assert lane.metrics.tally.accepted == since
            assert min(lane.metrics.tally.unknown + lane.metrics.earlier.unknown, since) >= 0


def _content(event: Event) -> Content:
    return event.message_id, event.fingerprint


def _content_of(record: LogRecord) -> Content:
    return record.key.decode(), parse_identity(record).fingerprint
