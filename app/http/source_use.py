"""
Of each source: which libraries send, and why events come again. Since the start of the process.

What a client calls itself is a label of metrics, so names are those of a known list, versions are numbers,
and there are at most SENDERS_MAX of both together.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from app.http.refusal_counts import BoundedSources
from app.http.sdk_library import OTHER, library_of
from dedupe.decide.admission import COPIES, DUPLICATE, REPEAT, STALE, Admission
from dedupe.metrics import counts_of
from dedupe.model.types import Event

DAY_MS = 24 * 3600 * 1000

SENDERS_MAX = 1_000
PRODUCT_BYTES_MAX = 64

RETRY_COUNT = b"x-retry-count"
RECOVERED = b"rsa-recovered"
"""Segment's SDKs count their retries, RudderStack's for pages says that it sends what another tab left."""

NAMES_WITHOUT_VERSION = frozenset({OTHER, "android", "browser", "ios"})
"""Whose User-Agent has the version of something else."""

INPUT_PRODUCT, INPUT_LIBRARY = b"\0input", "input topic"
"""Stands for the User-Agent that records of inputs do not have; no header has the byte 0."""

_VERSION = re.compile(r"\d{1,5}(?:\.\d{1,5}){0,3}")


class Cause(StrEnum):
    """Why a duplicate came."""

    RETRY = "retry"  # the client says that it sends again
    SAME_REQUEST = "same_request"  # twice in one request
    INPUT = "input"  # from an input topic: its producer has sent it again, or it was read again
    OTHER = "other"  # clients that do not say it, proxies, browsers, users


class Sender(NamedTuple):
    """A library of a source; `version` is "" if it does not tell."""

    source: str
    library: str
    version: str


class SourceUse:
    """Counts requests and duplicates; used in the ingest's loop."""

    def __init__(self) -> None:
        self._requests: defaultdict[tuple[str, bytes], int] = defaultdict(int)  # by source and product
        self._labels = BoundedSources()
        self._day_ends_ms = 0
        self.duplicates: Counter[tuple[str, Cause]] = Counter()
        """By source and cause."""
        self._copies: Counter[tuple[str, bytes, Cause]] = Counter()  # by source, product and cause
        self.on_new_day: Callable[[int], None] = lambda _began_ms: None
        """Called with the begin of each day, in UTC, once it is over midnight."""

    def turn_day(self, now_ms: int) -> None:
        """Begin a new day if the last one is over."""
        if now_ms >= self._day_ends_ms:
            began_ms = now_ms - now_ms % DAY_MS
            self._day_ends_ms = began_ms + DAY_MS
            self.on_new_day(began_ms)

    def note(
        self, events: Sequence[Event], admissions: Sequence[Admission], headers: Mapping[bytes, bytes]
    ) -> None:
        """
        Count a request.

        Args:
            events: n >= 1 of one request.
            admissions: theirs.
            headers: its headers, by lower-case name.
        """
        product = product_of(headers)
        sender = events[0].source, product
        if sender in self._requests or len(self._requests) < SENDERS_MAX:
            self._requests[sender] += 1
        else:
            product = b""
            self._requests[self._labels.label_of(sender[0]), b""] += 1
        if COPIES.isdisjoint(admissions):
            return
        cause_of_known = cause_of(DUPLICATE, headers)
        self._note_of_sources(events, admissions, product, cause_of_known)

    def note_input(self, events: Sequence[Event], admissions: Sequence[Admission]) -> None:
        """Count n >= 1 events of records of an input, which are no request."""
        if not COPIES.isdisjoint(admissions):
            self._note_of_sources(events, admissions, INPUT_PRODUCT, Cause.INPUT)

    def _note_of_sources(
        self, events: Sequence[Event], admissions: Sequence[Admission], product: bytes, cause_of_known: Cause
    ) -> None:
        sources = dict.fromkeys([event.source for event in events])
        for source in sources:
            own = admissions
            if len(sources) > 1:
                own = [kind for event, kind in zip(events, admissions, strict=True) if event.source == source]
            self._note_copies(source, counts_of(own), product, cause_of_known)

    def _note_copies(
        self, source: str, counts: Mapping[Admission, int], product: bytes, cause_of_known: Cause
    ) -> None:
        known = counts.get(DUPLICATE, 0) + counts.get(STALE, 0)
        for cause, count in ((Cause.SAME_REQUEST, counts.get(REPEAT, 0)), (cause_of_known, known)):
            if count:
                label = self._labels.label_of(source)
                self.duplicates[label, cause] += count
                self._copies[label, product, cause] += count

    def requests(self) -> Counter[Sender]:
        """Return the requests with an event by source, library and version."""
        requests: Counter[Sender] = Counter()
        for (source, product), count in self._requests.items():
            requests[Sender(source, *named(product))] += count
        return requests

    def copies(self) -> Counter[tuple[Sender, Cause]]:
        """Return the duplicates by source, library, version and cause."""
        copies: Counter[tuple[Sender, Cause]] = Counter()
        for (source, product, cause), count in self._copies.items():
            copies[Sender(source, *named(product)), cause] += count
        return copies


def is_retry(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request says that it was sent before."""
    return headers.get(RETRY_COUNT, b"0") != b"0" or RECOVERED in headers


def cause_of(admission: Admission, headers: Mapping[bytes, bytes]) -> Cause:
    """Return why a duplicate came in a request with these headers."""
    if admission is REPEAT:
        return Cause.SAME_REQUEST
    return Cause.RETRY if is_retry(headers) else Cause.OTHER


def product_of(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the first product of the User-Agent, of at most PRODUCT_BYTES_MAX."""
    return headers.get(b"user-agent", b"")[:PRODUCT_BYTES_MAX].partition(b" ")[0]


def named(product: bytes) -> tuple[str, str]:
    """Return a product's library, and its version, "" if it does not tell."""
    if product == INPUT_PRODUCT:
        return INPUT_LIBRARY, ""
    library = library_of({b"user-agent": product})
    version = _VERSION.match(product.partition(b"/")[2].decode("ascii", "replace"))
    return library, "" if version is None or library in NAMES_WITHOUT_VERSION else version[0]
