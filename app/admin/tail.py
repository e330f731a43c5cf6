"""
The live tail: events as they are decided, and the newest rejections.

The ingest's thread writes samples, and the admin port's thread reads them. Nothing waits: a slow listener
misses samples, and receives their number. Without a listener, only rejected and conflicting events are noted,
unless the last events are held for the console (app.admin.recent_events).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog

from app.admin.recent_events import Decided, RecentEvents, Sender
from app.admin.recent_rejections import RecentRejections
from app.admin.tail_sample import VALUE_BYTES_MAX, Sample
from app.http.request_context import RequestContext
from dedupe.decide.admission import NEW, Admission
from dedupe.decide.rejection import QUARANTINE_REASONS
from dedupe.model.clock import Clock
from dedupe.model.inherited import place_of
from dedupe.model.record import FLAG_PIECE
from dedupe.model.types import Event
from dedupe.submission import Outcomes

ACCEPTED, DUPLICATE, CONFLICT = "accepted", "duplicate", "conflict"
REJECTED, REFUSED, UNKNOWN = "rejected", "refused", "unknown"
VERDICTS = (ACCEPTED, DUPLICATE, CONFLICT, REJECTED, REFUSED, UNKNOWN)

_VERDICT_OF = {
    Admission.NEW: ACCEPTED,
    Admission.REPEAT: DUPLICATE,
    Admission.DUPLICATE: DUPLICATE,
    Admission.STALE: DUPLICATE,
    Admission.CONFLICT: CONFLICT,
    Admission.GAP: REFUSED,
    Admission.TOO_FAR: REFUSED,
    Admission.FENCED: REJECTED,
    Admission.EXPIRED: REJECTED,
    Admission.TOO_LARGE: REJECTED,
    Admission.REFUSED: REJECTED,
}

_PLACELESS = frozenset({REJECTED, REFUSED, UNKNOWN})
"""Verdicts without a place in the clean topic."""

_UNKNOWN_CODES = frozenset({"outcome_unknown", "deadline_exceeded", "internal"})
"""The codes of requests with events that may be stored."""

LISTENERS_MAX = 8
RATE, BURST = 100.0, 200.0
"""The token bucket of a listener, in samples."""

WAITING_MAX, WAITING_BYTES_MAX = 500, 1024 * 1024
"""The limits of a listener's unsent samples."""

REJECTIONS_A_REQUEST_MAX = 20
"""The limit of noted rejections of one request, the last ones: more would displace those of others."""

logger = structlog.get_logger(__name__)


class Wanted(NamedTuple):
    """The filter of a listener; None: all."""

    source: str | None = None
    message_id: str | None = None
    verdicts: frozenset[str] | None = None


class Listener:
    """The queue of one reader: the ingest's thread puts samples, the admin port's thread takes them."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self._samples: deque[Sample] = deque()
        self._allowance = BURST
        self._allowed_at = 0.0
        # Only one thread writes each of these.
        self._missed = self._bytes_put = 0
        self._missed_reported = self._bytes_taken = 0

    def refill(self, now_s: float) -> None:
        """Refill the token bucket."""
        self._allowance = min(BURST, self._allowance + (now_s - self._allowed_at) * RATE)
        self._allowed_at = now_s

    def wants(self, source: str | None, message_id: str | None, verdict: str) -> bool:
        """Whether an event passes the filter."""
        wanted = self.wanted
        return (
            (wanted.verdicts is None or verdict in wanted.verdicts)
            and (wanted.source is None or wanted.source == source)
            and (wanted.message_id is None or wanted.message_id == message_id)
        )

    def has_room(self) -> bool:
        """Whether there is room for a sample; otherwise count it as missed."""
        has_room = (
            self._allowance >= 1
            and len(self._samples) < WAITING_MAX
            and self._bytes_put - self._bytes_taken < WAITING_BYTES_MAX
        )
        if not has_room:
            self._missed += 1
        return has_room

    def put(self, sample: Sample) -> None:
        """Add a sample; `has_room` must be true."""
        self._allowance -= 1
        self._bytes_put += sample.size_bytes
        self._samples.append(sample)

    def take(self) -> tuple[list[Sample], int]:
        """Remove and return the samples, and the number of those missed since the last call."""
        taken = [self._samples.popleft() for _ in range(len(self._samples))]
        self._bytes_taken += sum([sample.size_bytes for sample in taken])
        missed = self._missed
        new, self._missed_reported = missed - self._missed_reported, missed
        return taken, new


class Tail:
    """The DecisionObserver of app.ingest."""

    def __init__(
        self,
        clock: Clock,
        *,
        codes: Mapping[Admission, str] | None = None,
        reasons: Mapping[str, str] | None = None,
        is_always_held: bool = False,
    ) -> None:
        """
        Use the codes of verdicts, and the sentence of each code, of receipts.

        `is_always_held`: `recent` holds events from the start, also while nobody looks.
        """
        self.rejections = RecentRejections()
        self.recent = RecentEvents(is_always_on=is_always_held)
        self.is_on = is_always_held
        """Whether it has a reader, or holds events for one; an attribute, for the path of each request."""
        self.reasons = reasons or {}
        self._clock = clock
        self._codes = codes or {}
        self._listeners: tuple[Listener, ...] = ()

    # ---- the admin port's thread

    def listen(self, wanted: Wanted) -> Listener | None:
        """Return a new listener; None if there are LISTENERS_MAX."""
        if len(self._listeners) >= LISTENERS_MAX:
            return None
        listener = Listener(wanted)
        self._listeners = (*self._listeners, listener)
        self.is_on = True
        return listener

    def leave(self, listener: Listener) -> None:
        """Remove a listener."""
        self._listeners = tuple(other for other in self._listeners if other is not listener)
        self.is_on = bool(self._listeners) or self.recent.is_on

    def look(self, now_ms: int) -> list[tuple[int, Decided]]:
        """See RecentEvents."""
        self.is_on = True
        return self.recent.look(now_ms)

    def samples_of(self, request: Decided) -> list[Sample]:
        """Return a held request's events as samples, in its order; one sample if they are not known."""
        at_ms, sender, events, outcomes, rejected, refusal = request
        if outcomes is None:
            verdict = _verdict_of_refusal(refusal or "")
            return [sample_of(at_ms, event, verdict, refusal, sender) for event in events or (None,)]
        decided = [
            sample_of(
                at_ms,
                event,
                ACCEPTED if admission is NEW else _VERDICT_OF[admission],
                self._codes.get(admission),
                sender,
                offset,
            )
            for event, admission, offset in zip(events, *outcomes, strict=True)
        ]
        return decided + [sample_of(at_ms, event, REJECTED, event.reason, sender) for event in rejected]

    # ---- the ingest's thread

    def decided(
        self, events: Sequence[Event], outcomes: Outcomes, rejected: Sequence[Event], context: RequestContext
    ) -> None:
        try:
            self._decided(events, outcomes, rejected, context)
        except Exception as err:  # the events are stored, so the client must receive its answer
            logger.error("the live tail missed a request", exc_info=err)

    def refused(self, code: str, context: RequestContext | None) -> None:
        """Offer a request without verdicts; its events one by one if they are known."""
        if not self.is_on or context is None:
            return
        try:
            self._refused(code, context)
        except Exception as err:  # the client must receive its answer
            logger.error("the live tail missed a refusal", exc_info=err)

    def _refused(self, code: str, context: RequestContext) -> None:
        verdict = _verdict_of_refusal(code)
        self._hold(context.watched, None, (), context, code)
        listeners = self._ready()
        for event in context.watched or (None,):
            if event is not None and event.flags & FLAG_PIECE:
                continue
            self._offer(event, verdict, code, context, listeners)

    def _decided(
        self, events: Sequence[Event], outcomes: Outcomes, rejected: Sequence[Event], context: RequestContext
    ) -> None:
        self._hold(events, outcomes, rejected, context)
        listeners = self._ready()
        if (
            not listeners
            and not rejected
            and not any(kind in outcomes.admissions for kind in QUARANTINE_REASONS)
        ):
            return
        rejections: deque[tuple[Event, str, str | None, int | None]] = deque(maxlen=REJECTIONS_A_REQUEST_MAX)
        for event, admission, offset in zip(events, *outcomes, strict=True):
            verdict = ACCEPTED if admission is NEW else _VERDICT_OF[admission]
            code = self._codes.get(admission)
            if listeners:
                self._offer(event, verdict, code, context, listeners, offset)
            if verdict in (CONFLICT, REJECTED):
                rejections.append((event, verdict, code, offset))
        for event in rejected:
            if event.flags & FLAG_PIECE:
                continue
            if listeners:
                self._offer(event, REJECTED, event.reason, context, listeners)
            rejections.append((event, REJECTED, event.reason, None))
        for event, verdict, code, offset_there in rejections:
            self.rejections.note(self._sample(event, verdict, code, context, offset_there))

    def _hold(
        self,
        events: Sequence[Event],
        outcomes: Outcomes | None,
        rejected: Sequence[Event],
        context: RequestContext,
        refusal: str | None = None,
    ) -> None:
        if not self.recent.is_on:
            return
        if self.recent.is_due(now_ms := self._clock.now_ms()):
            sender = Sender(context.source, context.client, context.request_id)
            self.recent.note(Decided(now_ms, sender, events, outcomes, rejected, refusal))
        else:
            self.is_on = bool(self._listeners)

    def _ready(self) -> tuple[Listener, ...]:
        listeners = self._listeners
        if listeners:
            now_s = self._clock.monotonic()
            for listener in listeners:
                listener.refill(now_s)
        return listeners

    def _offer(
        self,
        event: Event | None,
        verdict: str,
        code: str | None,
        context: RequestContext,
        listeners: Sequence[Listener],
        offset: int | None = None,
    ) -> None:
        source, message_id = _named(event, context)
        sample: Sample | None = None
        for listener in listeners:
            if listener.wants(source, message_id, verdict) and listener.has_room():
                sample = sample or self._sample(event, verdict, code, context, offset)
                listener.put(sample)

    def _sample(
        self,
        event: Event | None,
        verdict: str,
        code: str | None,
        context: RequestContext,
        offset: int | None = None,
    ) -> Sample:
        return sample_of(self._clock.now_ms(), event, verdict, code, context, offset)


def sample_of(
    at_ms: int,
    event: Event | None,
    verdict: str,
    code: str | None,
    sender: RequestContext | Sender,
    offset: int | None = None,
) -> Sample:
    """Return the sample of an event, or of a request without known events."""
    source, message_id = _named(event, sender)
    value = event.value if event is not None and len(event.value) <= VALUE_BYTES_MAX else None
    place: tuple[int | None, int | None] = None, None
    if event is not None and verdict not in _PLACELESS and offset is not None and offset >= 0:
        place = place_of(event.partition, offset)
    return Sample(
        at_ms,
        verdict,
        code,
        source,
        message_id,
        sender.client,
        sender.request_id or None,
        partition=place[0],
        offset=place[1],
        sequence=event.session.sequence if event is not None and event.session else None,
        value=value,
        is_wrapped=event is not None and event.reason is not None,
        key=event.key + event.fingerprint if event is not None else b"",
    )


def _verdict_of_refusal(code: str) -> str:
    return UNKNOWN if code in _UNKNOWN_CODES else REFUSED


def _named(event: Event | None, context: RequestContext | Sender) -> tuple[str | None, str | None]:
    """Return the source and the message id, None if unknown."""
    if event is None:
        return context.source, None
    return event.source, event.message_id or None
