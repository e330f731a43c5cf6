"""
Claim: whatever befalls log, disk, clock and processes, each sequence of a client session is stored once at
most, for as long as the session is known and however long ago that was; nobody is told that anything is
stored which is not; a retry is answered as the first try was, until its answer is acknowledged or forgotten;
what a lane knows of sessions is what a plain list of all records says; and every event is counted once.

Others are drawn with SIM_SEED and SIM_HISTORIES, see tests/sim/seeds.py.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from random import Random

import pytest

from dedupe.decide.admission import Admission
from dedupe.decide.rejection import QUARANTINE_REASONS
from dedupe.decide.sessions import NO_SESSION, SEQUENCES_AHEAD_MAX, SessionPolicy, SessionState
from dedupe.decide.window import WindowPolicy
from dedupe.model.errors import RetriableError
from dedupe.model.record import RecordIdentity, parse_identity
from dedupe.model.types import Event, Order
from tests.sim.seeds import ARE_AS_PLANNED, each_seed
from tests.sim.session_world import DAY_MS, SessionWorld, Verdict, key_of
from tests.sim.test_histories import faults_of
from tests.sim.world import CLEAN, LIMITS, PAUSE_S, QUARANTINE, Place
from tests.support.sim.faults import NO_FAULTS

ONE_IN = 5
ROUNDS = 5
REQUESTS = 14
CLIENTS = 4
SESSIONS_MAX = 4  # of a client

Told = dict[tuple[bytes, bytes], Place]
"""The newest place that was told of an event, by its key and fingerprint."""

FOREVER_MS = 10_000 * DAY_MS
POLICIES = [
    SessionPolicy(FOREVER_MS, 1_000),
    SessionPolicy(FOREVER_MS, CLIENTS * (SESSIONS_MAX + 1) // 2),  # evicts, and knows all that it evicted
    SessionPolicy(40_000, 1_000, FOREVER_MS),  # expires
]
WINDOWS = [
    WindowPolicy(window_ms=7 * DAY_MS, keys_max=1_000_000),
    WindowPolicy(window_ms=20_000, keys_max=1_000_000, time_step_ms=1_000),
    WindowPolicy(window_ms=7 * DAY_MS, keys_max=20, time_step_ms=1_000),
]


class ClientSession:
    """A session as its client keeps it."""

    def __init__(self, name: str, epoch: int) -> None:
        self.name = name
        self.epoch = epoch
        self.next = 1
        self.acknowledged = 0
        self.answered: set[int] = set()
        self.names: dict[int, str] = {}  # of events that have ids of their own

    @property
    def answered_through(self) -> int:
        """Up to where every answer has arrived."""
        return next(n for n in count() if n + 1 not in self.answered)


class Client:
    """One installation: what it sends, and again, in old sessions and new ones."""

    def __init__(self, name: str, rng: Random) -> None:
        self.name = name
        self.rng = rng
        self.has_own_ids = rng.random() < 0.5
        self.has_epochs = rng.random() < 0.5
        self.lies = rng.random() < 0.2
        self.sessions: list[ClientSession] = []
        self.begin_session()

    def begin_session(self) -> None:
        epoch = len(self.sessions) // 2 + 1 if self.has_epochs else 0
        self.sessions.append(ClientSession(f"s{len(self.sessions)}", epoch))

    def request(self, world: SessionWorld) -> tuple[ClientSession, list[Event]]:
        """Return some events of one session: new ones, old ones, overtaking one another."""
        rng = self.rng
        if len(self.sessions) < SESSIONS_MAX and rng.random() < 0.1:
            self.begin_session()
        session = self.sessions[-1] if rng.random() < 0.7 else rng.choice(self.sessions)
        if rng.random() < 0.3:
            session.acknowledged = max(session.acknowledged, session.answered_through)
        said = rng.choice((session.acknowledged, session.acknowledged, 0))
        if self.lies and rng.random() < 0.2:
            said = rng.randrange(session.next + 20)
        order = Order.STRICT if rng.random() < 0.1 else Order.ANY
        sequences = [self._sequence(session) for _ in range(rng.choice((1, 1, 2, 5, 12)))]
        if rng.random() < 0.3:
            rng.shuffle(sequences)
        return session, [self._event(world, session, n, said, order) for n in sequences]

    def _sequence(self, session: ClientSession) -> int:
        draw = self.rng.random()
        if draw < 0.02:
            return session.next + SEQUENCES_AHEAD_MAX + self.rng.randrange(200)
        if draw < 0.4:
            return self.rng.randint(1, session.next)
        session.next += 2 if draw < 0.45 else 1  # one is left out, until a retry sends it
        return session.next - 1

    def _event(
        self, world: SessionWorld, session: ClientSession, sequence: int, said: int, order: Order
    ) -> Event:
        own_id = None
        if self.has_own_ids:
            fresh = f"{session.name}-{sequence}"
            earlier = [name for before in self.sessions[:-1] for name in before.names.values()]
            again = self.rng.choice(earlier) if earlier and self.rng.random() < 0.2 else fresh
            own_id = session.names.setdefault(sequence, again)
        return world.sent(
            sequence,
            session.name,
            self.name,
            own_id=own_id,
            content="" if self.rng.random() < 0.97 else "other",
            epoch=session.epoch,
            acknowledged=said,
            order=order,
        )


class Oracle:
    """Every record that was ever committed, every answer, and what follows from them."""

    def __init__(self, world: SessionWorld, seen: Counter[Admission]) -> None:
        self.world = world
        self.seen = seen
        self.records: dict[Place, RecordIdentity] = {}
        self.places: dict[bytes, Place] = {}
        self.told: Told = {}
        self.accepted: set[Place] = set()
        self.acknowledged: dict[bytes, int] = {}
        self.submitted = 0

    def learn(self) -> None:
        """Read what was committed since the last time; no sequence may be stored twice."""
        for partition, records in enumerate(self.world.committed()):
            for record in records:
                place, found = Place(partition, record.offset), parse_identity(record)
                if place in self.records:
                    continue
                assert found.key not in self.places, f"{found.message_id} is committed twice"
                self.records[place] = found
                self.places[found.key] = place

    def heard(self, events: list[Event]) -> None:
        """Note what a client has acknowledged, whatever becomes of its request."""
        self.submitted += len(events)
        for event in events:
            assert event.session is not None
            key, said = key_of(event), event.session.acknowledged_through
            self.acknowledged[key] = max(self.acknowledged.get(key, 0), said)

    def judge(self, event: Event, verdict: Verdict, before: dict[bytes, Place], told: Told) -> None:
        """Judge one answer; `before` is what was stored when it was asked for, `told` what was answered."""
        admission, offset = verdict
        self.seen[admission] += 1
        place, session = Place(event.partition, offset), event.session
        assert session is not None
        match admission:
            case Admission.NEW | Admission.REPEAT | Admission.DUPLICATE:
                self._judge_receipt(event, place, told)
                if admission is Admission.NEW:
                    assert place not in self.accepted, "it was accepted before"
                    self.accepted.add(place)
            case Admission.CONFLICT:
                original = self.records[place]
                assert original.key == event.key or original.message_id == event.message_id
                assert original.fingerprint != event.fingerprint
            case Admission.STALE:
                assert event.key in self.places or session.sequence <= self.acknowledged[key_of(event)]
            case Admission.FENCED:
                assert session.epoch < self._newest_epoch(session.client_hash)
                assert event.key not in before or self._is_forgotten(before[event.key])
            case Admission.EXPIRED:
                assert self.world.sessions != POLICIES[0]
                assert event.key not in before or self._is_forgotten(before[event.key])
            case Admission.GAP:
                assert event.order is Order.STRICT
                assert event.key not in before
            case Admission.TOO_FAR:
                assert session.sequence > SEQUENCES_AHEAD_MAX
                assert event.key not in before

    def _newest_epoch(self, client_hash: bytes) -> int:
        sessions = [found.session for found in self.records.values() if found.session]
        return max(session.epoch for session in sessions if session.client_hash == client_hash)

    def _judge_receipt(self, event: Event, place: Place, told: Told) -> None:
        original, name = self.records[place], (event.key, event.fingerprint)
        assert original.key == event.key or original.message_id == event.message_id
        assert original.fingerprint == event.fingerprint
        before, meanwhile = told.get(name), self.told.get(name, place)
        assert before in (None, place) or self._is_forgotten(before)
        assert meanwhile == place or self._is_forgotten(min(meanwhile, place))  # answers overtake one another
        self.told[name] = max(meanwhile, place)

    def _is_forgotten(self, place: Place | None) -> bool:
        assert self.world.router is not None
        assert place is not None
        return place.offset < self.world.router.lanes[place.partition].partition_index.known_from

    def judge_states(self) -> None:
        """What the lanes know of sessions, and which are evicted, is what the records say."""
        self.learn()
        for partition, states in enumerate(self.world.states()):
            used: dict[bytes, int] = {}
            done: dict[bytes, set[int]] = {}
            evicted: set[bytes] = set()
            for place, found in self.records.items():
                session = found.session
                if place.partition != partition or session is None:
                    continue
                key = session.client_hash + session.session_hash
                done.setdefault(key, set()).update(range(1, session.acknowledged_through + 1))
                done[key].add(session.sequence)
                used[key] = place.offset
                if session.epoch:
                    used[session.client_hash + NO_SESSION] = place.offset
                assert not {key for key in found.evicted if used[key] == place.offset}
                evicted = (evicted | {*found.evicted}) - {k for k, at in used.items() if at == place.offset}
            assert {key for key, state in states.items() if state.is_evicted} == evicted
            assert set(states) == set(used)
            assert len(used) - len(evicted) <= self.world.sessions.sessions_max
            for key, state in states.items():
                assert state.last_offset == used[key]
                if not key.endswith(NO_SESSION):
                    _judge_state(state, done[key])

    def last_needed(self, partition: int) -> int:
        """Return up to where the log may be trimmed with each session's newest record left in it."""
        newest = {
            found.session[:2]: place.offset
            for place, found in self.records.items()
            if place.partition == partition and found.session
        }
        return min(newest.values(), default=0)


def _judge_state(state: SessionState, done: set[int]) -> None:
    watermark = next(n for n in count() if n + 1 not in done)
    assert state.watermark == watermark
    if not state.is_evicted:
        assert {n for n in range(1, max(done) + 1) if state.has(n)} == done
        missing = [n for first, last in state.missing() for n in range(first, last + 1)]
        assert missing == [n for n in range(1, max(done)) if n not in done]


@pytest.fixture(scope="module")
def seen() -> Counter[Admission]:
    """How often all histories of this run gave each answer."""
    return Counter()


@each_seed(one_in=ONE_IN)
async def test_sessions_keep_every_promise(seed: int, seen: Counter[Admission]) -> None:
    rng = Random(seed)
    world = SessionWorld(
        sessions=rng.choice(POLICIES),
        policy=rng.choice(WINDOWS),
        faults=faults_of(seed),
        limits=rng.choice((LIMITS, replace(LIMITS, batch_events_max=3))),
    )
    oracle = Oracle(world, seen)
    clients = [Client(f"{'web' * (number % 2)}{number}", rng) for number in range(CLIENTS)]
    for _ in range(ROUNDS):
        world.boot()
        if rng.random() < 0.8:
            await world.wait_until_active()
        sending = [
            asyncio.ensure_future(_send(world, oracle, rng.choice(clients), rng)) for _ in range(REQUESTS)
        ]
        for _ in range(rng.randint(1, 80)):
            await asyncio.sleep(0)
        world.clock.ms += rng.choice((0, 1_000, 30_000))
        await asyncio.sleep(rng.choice((0, 0, 0.002, 0.2)))
        await _end(sending)
        await world.crash(lost_updates=rng.choice((0, 0, 1, 4)))
        _befall_stopped(world, oracle, rng)

    world.log.rng.faults = NO_FAULTS
    await world.start()
    oracle.submitted = 0
    for client in clients * 3:
        await _send(world, oracle, client, rng)
        world.clock.ms += rng.choice((0, 1_000, 30_000))
    oracle.judge_states()
    assert world.router is not None
    assert world.router.totals.received == oracle.submitted
    world.judge_counters(world.router)
    continued = world.states()
    await world.lose_indexes()
    await world.start()
    assert world.states() == continued


if ARE_AS_PLANNED:

    def test_histories_see_every_answer(seen: Counter[Admission]) -> None:
        assert set(seen) == set(Admission) - {Admission.TOO_LARGE, Admission.REFUSED}  # test_refused_records


async def _send(world: SessionWorld, oracle: Oracle, client: Client, rng: Random) -> None:
    """Send one request of a client, which may not wait for its answer, and judge that."""
    await asyncio.sleep(rng.choice((0, 0, PAUSE_S)))
    session, events = client.request(world)
    oracle.heard(events)
    is_lost = rng.random() < 0.2
    oracle.learn()
    before, told = dict(oracle.places), dict(oracle.told)
    try:
        answers = await world.ask(*events)
    except RetriableError:
        return
    oracle.learn()
    quarantined = {parse_identity(r)[:2] for records in world.committed(QUARANTINE) for r in records}
    for event, answer in zip(events, answers, strict=True):
        oracle.judge(event, answer, before, told)
    apart = sum(admission in QUARANTINE_REASONS for admission, _ in answers)
    assert len(quarantined) >= min(1, apart)
    if rng.random() < 0.1:
        with suppress(RetriableError):
            await world.state_of(events[-1], is_ended=True)
    if not is_lost:
        session.answered.update(_final(events, answers))


def _final(events: list[Event], answers: list[Verdict]) -> Iterator[int]:
    for event, (admission, _) in zip(events, answers, strict=True):
        if admission not in (Admission.GAP, Admission.TOO_FAR) and event.session is not None:
            yield event.session.sequence


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for end in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(end, Exception):
            raise end


def _befall_stopped(world: SessionWorld, oracle: Oracle, rng: Random) -> None:
    """Let something happen while no process runs, now and then."""
    oracle.learn()
    partition = rng.randrange(CLEAN.partitions)
    if rng.random() < 0.3:
        world.clock.ms += rng.choice((-3_600_000, -30_000, 30_000))
    if rng.random() < 0.3:
        world.disk.discard(world.index_identity(partition))
    if rng.random() < 0.3:
        world.disk, world.spare_disk = world.spare_disk, world.disk
    if rng.random() < 0.1:
        world.log.forget_sessions(CLEAN.name)
    if rng.random() < 0.3:
        world.trim(partition, oracle.last_needed(partition))
