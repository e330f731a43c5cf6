"""
Observe-only: a topic of its own gets every decided event, with its verdict in the header `gw`.

It is for a trial beside another pipeline (app.ingest.side_topic).

routes.post_events, InputAdmission.admit -> **Observed.note** -> SideTopic.put
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from app.ingest.side_topic import SideTopic
from dedupe.decide.admission import COPIES, Admission
from dedupe.model.clock import Clock
from dedupe.model.inherited import place_of
from dedupe.model.record import HEADER_GATEWAY, HEADER_REASON, HEADER_SOURCE
from dedupe.model.types import Event, Headers, NewRecord, Offset
from dedupe.submission import Outcomes

HEADER_ORIGINAL = "original"
"""`<partition>/<offset>` in the clean topic of the event that a copy or a conflict has the id of."""

ACCEPTED, DUPLICATE, CONFLICT, REJECTED = "accepted", "duplicate", "conflict", "rejected"
_VERDICTS = dict.fromkeys(COPIES, DUPLICATE) | {Admission.NEW: ACCEPTED, Admission.CONFLICT: CONFLICT}
_LATER = {Admission.GAP, Admission.TOO_FAR}
"""Not stored: the client sends them again."""


class Observed:
    """The decided events of one process."""

    def __init__(self, topic: SideTopic, clock: Clock) -> None:
        """Append to a topic, which somebody runs."""
        self.topic = topic
        self._clock = clock
        self.verdicts: Counter[str] = Counter()
        """Of all events noted."""

    def note(self, events: Sequence[Event], outcomes: Outcomes, rejected: Sequence[Event]) -> None:
        """Take the decided events of a request, or of records of an input. Never raises, never waits."""
        now_ms = self._clock.now_ms()
        for verdict, event, original in _verdicts_of(events, outcomes, rejected):
            self.verdicts[verdict] += 1
            self.topic.put(_record_of(event, verdict, original, now_ms))


def _verdicts_of(
    events: Sequence[Event], outcomes: Outcomes, rejected: Sequence[Event]
) -> Iterator[tuple[str, Event, Offset | None]]:
    for event, admission, offset in zip(events, *outcomes, strict=True):
        if admission not in _LATER:
            verdict = _VERDICTS.get(admission, REJECTED)
            yield verdict, event, offset if verdict in {DUPLICATE, CONFLICT} else None
    for event in rejected:
        yield REJECTED, event, None


def _record_of(event: Event, verdict: str, original: Offset | None, now_ms: int) -> NewRecord:
    headers: Headers = [(HEADER_SOURCE, event.source.encode()), (HEADER_GATEWAY, verdict.encode())]
    if original is not None and original >= 0:
        partition, offset = place_of(event.partition, original)
        headers.append((HEADER_ORIGINAL, f"{partition}/{offset}".encode()))
    if event.reason is not None:
        headers.append((HEADER_REASON, event.reason.encode()))
    return NewRecord(now_ms, event.message_id.encode(), event.value, headers + event.headers)
