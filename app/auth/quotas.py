"""
Quotas of write keys, measured by token buckets.

A request passes as a whole, before any of its events is submitted. It passes once its buckets are full, so a
batch larger than a burst is delayed, but not refused forever.

Requests, events and bytes count with every verdict, duplicates included, since they cost CPU. Bytes are those
sent or stored, whichever is more; bytes stored beyond those sent are charged as a debt. The limit of the
index is charged after the verdict, since only accepted events count. So are the bytes of conflicting events
in the limit of quarantine: while they are a debt, no request passes. Rejected events are charged before.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from app.http.errors import QuotaExceededError
from app.http.refusal_counts import BoundedSources
from app.settings.units import MIB

QUARANTINE = "quarantine"
"""The name of the limit of rejected and conflicting events."""

INDEX_BURST = 1 / 8
"""
The part of its share of the index that a key may take at once; the rest it gets evenly over a window. So it
never takes more than its share within any window, and about a day's worth of a week may come in one go.
"""

QUARANTINE_SHARE = 1 / 4
"""
The part of a key's bytes that rejected and conflicting events may be. Write keys are public, and what fills
the quarantine serves nobody; an app whose events are all bad usually sends less than a quarter of its quota.
"""

REPORT_INTERVAL_S = 60.0
"""The interval of log lines on one limit of a key."""

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of one key; None is no limit."""

    requests: float | None = None  # a second
    events: float | None = None  # a second
    bytes: float | None = None  # a second, stored or inflated
    burst_s: float = 10.0  # the burst in seconds of the rate
    index_share: float | None = None  # 0..1, of the ids that the index remembers

    @property
    def is_unlimited(self) -> bool:
        """Whether there is no limit."""
        return self.requests is self.events is self.bytes is self.index_share is None


PRODUCTION_QUOTA = Quota(requests=1_000, events=10_000, bytes=16 * MIB, index_share=0.5)
"""
The quota of a key without its own, unless the key file has other defaults: a multiple of the load of a large
app, which leaves room for other keys. Half of an index of 500 million ids and 7 days is 31 million new events
at once, and 361 a second, 250 million in a window.
"""


class Bucket:
    """A token bucket."""

    __slots__ = ("_at", "_capacity", "_level", "_rate")

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        """Begin full; `rate` is in tokens a second, `now` in seconds of the same clock as later calls."""
        self._rate = rate
        self._capacity = capacity
        self._level = capacity
        self._at = now

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds until the amount, at most the capacity, is available."""
        self._level = min(self._capacity, self._level + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (min(amount, self._capacity) - self._level) / self._rate)

    def use(self, now: float) -> tuple[float, float]:
        """Return the rate a second, and the part of the capacity that is used: above 1 it is a debt."""
        self.wait_s(0, now)
        return self._rate, 1 - self._level / self._capacity

    def take(self, amount: float) -> None:
        """Charge the amount; more than the level becomes a debt."""
        self._level -= amount


class Allowance:
    """The rest of one key's quota."""

    __slots__ = ("_buckets", "_growth", "_policy", "_quarantine", "_source", "_unreported", "quota")

    def __init__(self, quota: Quota, policy: "QuotaPolicy", source: str) -> None:
        """Begin with the whole quota; `source` is for log lines."""
        self.quota = quota
        self._policy = policy
        self._source = source
        self._unreported: dict[str, tuple[float, int]] = {}  # by limit: reported when, refused since
        now = policy.clock()
        self._buckets = [
            (name, Bucket(rate, max(1.0, rate * quota.burst_s), now))
            for name, rate in (("requests", quota.requests), ("events", quota.events), ("bytes", quota.bytes))
            if rate is not None
        ]
        self._quarantine: Bucket | None = None
        if quota.bytes is not None:
            rate = quota.bytes * QUARANTINE_SHARE
            self._quarantine = Bucket(rate, max(1.0, rate * quota.burst_s), now)
        self._growth: Bucket | None = None
        if quota.index_share is not None:
            share = quota.index_share * policy.index_keys_max
            rate = share * (1 - INDEX_BURST) / policy.window_s
            self._growth = Bucket(rate, max(1.0, share * INDEX_BURST), now)

    def take(self, *, events: int, size_bytes: int) -> None:
        """Charge one request as a whole. Raises QuotaExceededError."""
        self.check(events=events, size_bytes=size_bytes)
        amounts = {"requests": 1, "events": events, "bytes": size_bytes}
        for name, bucket in self._buckets:
            bucket.take(amounts[name])

    def check(self, *, events: int, size_bytes: int) -> None:
        """Raise QuotaExceededError, with the wait, if a request would not pass now."""
        now = self._policy.clock()
        wait_s, limit = self._longest_wait(events, size_bytes, now)
        self._refuse(limit, wait_s, now)

    def wait_s(self) -> float:
        """Return the seconds until an event would pass."""
        return self._longest_wait(1, 0, self._policy.clock())[0]

    def charge(self, *, events: int, size_bytes: int, quarantine_bytes: int, accepted: int) -> None:
        """Charge events that are decided already, as those of one request; what exceeds is a debt."""
        amounts = {"requests": 1, "events": events, "bytes": size_bytes}
        for name, bucket in self._buckets:
            bucket.take(amounts[name])
        self.owe_quarantine(quarantine_bytes)
        self.grow(accepted)

    def _longest_wait(self, events: int, size_bytes: int, now: float) -> tuple[float, str]:
        """Return the longest wait of a request, and the name of its limit."""
        amounts = {"requests": 1, "events": events, "bytes": size_bytes}
        waits = [(bucket.wait_s(amounts[name], now), name) for name, bucket in self._buckets]
        if self._growth is not None:
            waits.append((self._growth.wait_s(events, now), "index"))
        if self._quarantine is not None:
            waits.append((self._quarantine.wait_s(0, now), QUARANTINE))
        return max(waits, default=(0.0, ""))

    def check_quarantine(self, size_bytes: int) -> None:
        """Raise QuotaExceededError if the rejected events of a request would not pass now."""
        if self._quarantine is not None and size_bytes:
            now = self._policy.clock()
            self._refuse(QUARANTINE, self._quarantine.wait_s(size_bytes, now), now)

    def take_quarantine(self, size_bytes: int) -> None:
        """Charge the rejected events of a request, before it has any effect. Raises QuotaExceededError."""
        self.check_quarantine(size_bytes)
        self.owe_quarantine(size_bytes)

    def owe_quarantine(self, size_bytes: int) -> None:
        """Charge events that are stored: conflicting ones are known late."""
        if self._quarantine is not None:
            self._quarantine.take(size_bytes)

    def _refuse(self, limit: str, wait_s: float, now: float) -> None:
        """Raise QuotaExceededError if there is a wait."""
        if wait_s > 0:
            self._policy.note_refusal(self._source, limit)
            self._report(limit, now)
            raise QuotaExceededError(limit, wait_s)

    def _report(self, limit: str, now: float) -> None:
        """Log a refusal by a limit, and the number of those since the last line."""
        reported_at, refused = self._unreported.get(limit, (now - REPORT_INTERVAL_S, 0))
        refused += 1
        if now - reported_at >= REPORT_INTERVAL_S:
            logger.warning(
                "a write key has used up a quota", source=self._source, limit=limit, refused=refused
            )
            reported_at, refused = now, 0
        self._unreported[limit] = reported_at, refused

    def uses(self) -> list[tuple[str, float, float]]:
        """Return each limit: its name, its rate a second, and the used part of what may come at once."""
        slow = ("index", self._growth), (QUARANTINE, self._quarantine)
        buckets = [*self._buckets, *((name, bucket) for name, bucket in slow if bucket is not None)]
        now = self._policy.clock()
        return [(name, *bucket.use(now)) for name, bucket in buckets]

    def owe(self, size_bytes: int) -> None:
        """Charge bytes that a request stores beyond those sent; a negative number charges nothing."""
        for name, bucket in self._buckets:
            if name == "bytes" and size_bytes > 0:
                bucket.take(size_bytes)

    def grow(self, accepted: int) -> None:
        """Charge events that were added to the index."""
        if self._growth is not None:
            self._growth.take(accepted)


@dataclass(frozen=True, slots=True)
class QuotaPolicy:
    """The common parameters of all allowances of a process."""

    default: Quota  # of keys without one, unless the key file has other defaults
    index_keys_max: int
    window_s: float  # how long the index remembers them
    clock: Callable[[], float]  # seconds, never set
    refusals: Counter[str] = field(default_factory=Counter)  # requests, by limit
    source_refusals: Counter[tuple[str, str]] = field(default_factory=Counter)  # by source and limit
    _sources: BoundedSources = field(default_factory=BoundedSources)

    def note_refusal(self, source: str, limit: str) -> None:
        """Count a request over a limit of its key."""
        self.refusals[limit] += 1
        self.source_refusals[self._sources.label_of(source), limit] += 1

    def allowance(self, quota: Quota, source: str) -> Allowance | None:
        """Return a full allowance of a source's key, None if nothing is limited."""
        if quota.is_unlimited:
            return None
        return Allowance(quota, self, source)
