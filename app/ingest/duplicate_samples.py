"""
Samples of duplicates: where the original is, when the copy came, why, and from which library.

Their topic has no events, so that nobody takes a copy for one: who wants the event reads the original.

routes.post_events, InputAdmission.decide -> **DuplicateSamples.note** -> SideTopic.put
"""

from collections.abc import Mapping, Sequence

import orjson

from app.auth.quotas import Bucket
from app.http.refusal_counts import BoundedSources
from app.http.source_use import INPUT_PRODUCT, Cause, cause_of, named, product_of
from app.ingest.side_topic import SideTopic
from dedupe.decide.admission import COPIES, Admission
from dedupe.model.clock import Clock
from dedupe.model.inherited import place_of
from dedupe.model.record import HEADER_GATEWAY, HEADER_SOURCE
from dedupe.model.types import Event, NewRecord, Offset
from dedupe.submission import Outcomes

MINUTE_S = 60
DUPLICATE = b"duplicate"
"""The text of the header `gw`, which is binary in events: no job takes a sample for one."""


class DuplicateSamples:
    """The samples of one process."""

    def __init__(self, topic: SideTopic, clock: Clock, *, per_minute: int) -> None:
        """`per_minute` samples of each source, n >= 1; more sources than have counts share one quota."""
        self.topic = topic
        self._clock = clock
        self._per_minute = per_minute
        self._quotas: dict[str, Bucket] = {}
        self._labels = BoundedSources()
        self.left_out = 0
        """Duplicates beyond the quotas."""

    def note(
        self, events: Sequence[Event], outcomes: Outcomes, headers: Mapping[bytes, bytes] | None
    ) -> None:
        """
        Sample the duplicates among the events of a request. Never raises, never waits.

        Args:
            events: n >= 1.
            outcomes: theirs.
            headers: of the request, by lower-case name; None: they are of an input.
        """
        if COPIES.isdisjoint(outcomes.admissions):
            return
        product = INPUT_PRODUCT if headers is None else product_of(headers)
        for event, admission, original in zip(events, *outcomes, strict=True):
            if admission not in COPIES:
                continue
            if self._has_room(event.source):
                self.topic.put(self._sample(event, admission, original, product, headers))
            else:
                self.left_out += 1

    def _has_room(self, source: str) -> bool:
        source, now_s = self._labels.label_of(source), self._clock.monotonic()
        quota = self._quotas.get(source)
        if quota is None:
            quota = self._quotas[source] = Bucket(self._per_minute / MINUTE_S, self._per_minute, now_s)
        if quota.wait_s(1, now_s):
            return False
        quota.take(1)
        return True

    def _sample(
        self,
        event: Event,
        admission: Admission,
        original: Offset,
        product: bytes,
        headers: Mapping[bytes, bytes] | None,
    ) -> NewRecord:
        cause = Cause.INPUT if headers is None else cause_of(admission, headers)
        library, version = named(product)
        partition, offset = place_of(event.partition, original) if original >= 0 else (None, None)
        now_ms = self._clock.now_ms()
        value = {
            "source": event.source,
            "message_id": event.message_id,
            "original_partition": partition,  # null where only the sequence of a client session is known
            "original_offset": offset,
            "arrived_ms": now_ms,
            "cause": cause.value,
            "library": library,
            "library_version": version,
        }
        of_record = [(HEADER_SOURCE, event.source.encode()), (HEADER_GATEWAY, DUPLICATE)]
        return NewRecord(now_ms, event.message_id.encode(), orjson.dumps(value), of_record)
