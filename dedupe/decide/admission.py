"""
Admission: decides which events of a batch of one partition are new. Pure.

The same calls in the same order give the same verdicts, so a replay of the log rebuilds the same state.

Lane.submit -> **admit** -> PartitionLog.append -> DedupeIndex.apply
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

from dedupe.decide.sessions import (
    SEQUENCES_AHEAD_MAX,
    SessionKey,
    SessionPolicy,
    SessionRecord,
    SessionState,
    client_key,
    session_key,
    with_acknowledgement,
    with_epoch,
    with_progress,
    with_record,
)
from dedupe.model.types import Entry, Event, EventKey, Fingerprint, Offset, Order, Session


class Admission(Enum):
    """The verdict on one event."""

    NEW = "new"  # append it with this batch
    REPEAT = "repeat"  # an earlier event of this batch is the original
    DUPLICATE = "duplicate"  # the index knows the original
    CONFLICT = "conflict"  # known id, other content: keep the original, quarantine this one
    # Of events with a client session alone:
    STALE = "stale"  # stored or acknowledged, its offset is unknown: a success without an offset
    GAP = "gap"  # not the next sequence, and the client requires it: not accepted, retriable
    TOO_FAR = "too far"  # too far above the watermark: not accepted, retriable
    FENCED = "fenced"  # the client uses a newer epoch: quarantine
    EXPIRED = "expired"  # its session is over, so it may be stored or not: quarantine
    # Of an event whose record the log refuses, alone in its batch: quarantine
    TOO_LARGE = "too large"
    REFUSED = "refused"

    __hash__ = object.__hash__  # Enum's own is a function of Python


NEW, REPEAT, DUPLICATE, STALE = Admission.NEW, Admission.REPEAT, Admission.DUPLICATE, Admission.STALE
CONFLICT = Admission.CONFLICT
COPIES = frozenset({REPEAT, DUPLICATE, STALE})
"""The verdicts on an event that is stored already, which are successes."""
_STRICT, _REPLAYED = Order.STRICT, Order.REPLAYED
"""For code that runs for every event: Python 3.11 calls a function to read a member of an Enum."""

NO_ORIGINAL = 0
"""Instead of an offset, if the original's is unknown."""


Decision: TypeAlias = tuple[Admission, int]
"""The decision on one event, as in Verdicts."""


class Verdicts(NamedTuple):
    """The decisions on one batch, event by event in arrival order."""

    admissions: list[Admission]
    originals: list[int]
    """The original's offset; ~n if it is new in this batch and follows n other new events; or NO_ORIGINAL."""

    def offsets(self, base: Offset) -> list[Offset]:
        """Return each original's offset, once the first new event of the batch is at `base`."""
        return [base + ~original if original < 0 else original for original in self.originals]


class SessionAdmission:
    """The states of the client sessions of a batch, after each of its events."""

    def __init__(
        self,
        states: Mapping[SessionKey, SessionState | None],
        secondary_keys: Mapping[EventKey, Entry | None],
        policy: SessionPolicy,
        *,
        now_ms: int,
    ) -> None:
        """
        Begin with the states of the index.

        Args:
            states: the state of each key of dedupe.decide.sessions.keys_of.
            secondary_keys: the entry of each event's secondary_key.
            policy: how long and how many sessions are remembered.
            now_ms: the timestamp of the batch's records.
        """
        self._states = {key: policy.remembered(state, now_ms) for key, state in states.items()}
        self._secondary_keys = secondary_keys
        self._new_secondary_keys: dict[EventKey, tuple[int, Fingerprint]] = {}
        self.recorded: list[Session | None] = []
        """The session as recorded, for each new event in order."""
        self._policy = policy
        self._now_ms = now_ms

    def judge(self, event: Event, place: int, window_start: Offset) -> Decision:
        """
        Decide on an event whose key neither the index nor this batch has.

        Args:
            event: an event with or without a session.
            place: ~n, where n new events of the batch precede it.
            window_start: see admit.
        """
        session = event.session
        if session is None:
            self.recorded.append(None)
            return NEW, place
        key = session_key(session)
        state = self._states[key]
        if state is not None and state.has(session.sequence):
            return STALE, NO_ORIGINAL
        secondary_key = event.secondary_key
        if secondary_key is not None:
            entry = self._secondary_keys[secondary_key]
            if entry is not None and entry.offset >= window_start:
                return _of_copy(event, entry.fingerprint, DUPLICATE), entry.offset
            if (first := self._new_secondary_keys.get(secondary_key)) is not None:
                original, fingerprint = first
                return _of_copy(event, fingerprint, REPEAT), original
        refusal = self._refusal(session, state, event.order)
        if refusal is not None:
            return refusal, NO_ORIGINAL
        recorded = with_progress(state, session)
        record = SessionRecord(-1, self._now_ms, recorded)
        self._states[key] = with_record(state, record)
        if session.epoch:
            key = client_key(session)
            self._states[key] = with_epoch(self._states[key], record)
        self.recorded.append(recorded)
        if secondary_key is not None:
            self._new_secondary_keys[secondary_key] = (place, event.fingerprint)
        return NEW, place

    def is_acknowledged(self, session: Session) -> bool:
        """Return whether the client has acknowledged the event, with it or before."""
        sequence = session.sequence
        if sequence <= session.acknowledged_through:
            return True
        state = self._states[session_key(session)]
        return state is not None and sequence <= state.acknowledged_through

    def _refusal(self, session: Session, state: SessionState | None, order: Order) -> Admission | None:
        """Return why a new sequence is not accepted, or None."""
        if order is _REPLAYED:
            return None
        client = self._states[client_key(session)] if session.epoch else None
        if client is not None and client.epoch > session.epoch:
            return Admission.FENCED
        if state is not None and self._policy.is_expired(state, self._now_ms):
            return Admission.EXPIRED
        if state is None or session.sequence > state.watermark + 1:
            state = with_acknowledgement(state, session)
        ahead = session.sequence - state.watermark
        if ahead > SEQUENCES_AHEAD_MAX:
            return Admission.TOO_FAR
        if order is _STRICT and ahead > 1:
            return Admission.GAP
        return None


def admit(
    events: Sequence[Event],
    known: Sequence[Entry | None],
    *,
    window_start: Offset,
    sessions: SessionAdmission | None = None,
) -> Verdicts:
    """
    Classify one batch in arrival order.

    Args:
        events: n >= 0, copies allowed.
        known: the index's entry for each event, or None; same order and length.
        window_start: entries at offsets below it are forgotten, even if still on disk.
        sessions: required if any event has a session.

    Returns:
        n verdicts, same order. Of equal keys only the first can be NEW.
    """
    assert len(events) == len(known)
    if sessions is None and not any(known) and len({event.key for event in events}) == len(events):
        return Verdicts([NEW] * len(events), [~place for place in range(len(events))])  # most batches
    if sessions is None and all(known):
        offsets, fingerprints = zip(*known, strict=True)  # those of retries
        if min(offsets) >= window_start and fingerprints == tuple([event.fingerprint for event in events]):
            return Verdicts([DUPLICATE] * len(events), list(offsets))
    new: dict[EventKey, tuple[int, Fingerprint]] = {}
    admissions: list[Admission] = []
    originals: list[int] = []
    for event, entry in zip(events, known, strict=True):
        session = event.session
        if session is not None and sessions is not None and sessions.is_acknowledged(session):
            admission, original = STALE, NO_ORIGINAL
        elif entry is not None and entry.offset >= window_start:
            admission, original = _of_copy(event, entry.fingerprint, DUPLICATE), entry.offset
        elif (first := new.get(event.key)) is not None:
            original, fingerprint = first
            admission = _of_copy(event, fingerprint, REPEAT)
        else:
            admission, original = NEW, ~len(new)
            if sessions is not None:
                admission, original = sessions.judge(event, original, window_start)
            if admission is NEW:
                new[event.key] = (original, event.fingerprint)
        admissions.append(admission)
        originals.append(original)
    return Verdicts(admissions, originals)


def _of_copy(event: Event, fingerprint: Fingerprint, copy: Admission) -> Admission:
    """Return `copy` if the original's fingerprint is one of the event's, CONFLICT otherwise."""
    is_copy = fingerprint == event.fingerprint or fingerprint in event.earlier_fingerprints
    return copy if is_copy else Admission.CONFLICT
