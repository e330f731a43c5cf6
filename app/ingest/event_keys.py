"""
Write keys of single events, in a request that has none in its head, its query or its body's top level.

Each event belongs to the source of its own key. An event without a key belongs to the source of the first
good one, and an event whose key is not good is quarantined there.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from app.auth.write_keys import INGEST, REPLAY, Source, own_key
from app.http.errors import InvalidWriteKeyError, ScopeMissingError
from app.ingest.event_limits import quarantined_bytes
from app.ingest.identified import Identified, Ownership
from app.ingest.items import Fragment, Oversize, Packed
from dedupe.decide.admission import NEW, Admission
from dedupe.decide.rejection import QUARANTINE_REASONS

KEYS_MAX = 16
"""The limit of distinct keys of a request that are looked up; further ones count as unknown."""

_UNPARSED = (Oversize, Packed, Fragment)


class Share:
    """The part of a request that belongs to one good key."""

    __slots__ = ("items", "source", "write_key")

    def __init__(self, source: Source, write_key: str) -> None:
        self.source = source
        self.write_key = write_key
        self.items = 0
        """The number of its items, quarantined ones included."""


class Sole(NamedTuple):
    """A request whose items all belong to one key: the same as Shares, without looking at each item."""

    source: Source
    items: int
    ownership: None = None
    failed_log_ins: int = 0
    has_several_sources: bool = False

    def take(self, size_bytes: int) -> None:
        """Charge the items and bytes of a request. Raises QuotaExceededError."""
        if self.source.allowance is not None:
            self.source.allowance.take(events=self.items, size_bytes=size_bytes)

    def store(self, identified: Identified, size_bytes: int) -> None:
        """Charge the rejected items, and what is stored beyond the bytes sent. Raises QuotaExceededError."""
        if self.source.allowance is not None:
            self.source.allowance.take_quarantine(quarantined_bytes(identified.quarantined))
            self.source.allowance.owe(identified.size_bytes - size_bytes)

    def grow(self, identified: Identified, admissions: Sequence[Admission]) -> None:
        """Charge new events, which the index remembers, and conflicting ones, which go to quarantine."""
        if self.source.allowance is None:
            return
        new = admissions.count(NEW)
        self.source.allowance.grow(new)
        if new < len(admissions):
            conflicting = [
                event
                for event, admission in zip(identified.events, admissions, strict=True)
                if admission in QUARANTINE_REASONS
            ]
            self.source.allowance.owe_quarantine(quarantined_bytes(conflicting))


class Shares(NamedTuple):
    """Which item of a request belongs to which key."""

    shares: Sequence[Share]
    """Of n >= 1 good keys, in the order of their first items."""
    ownership: Ownership
    failed_log_ins: int
    """The unknown keys among those that were looked up."""

    @property
    def source(self) -> Source:
        """The source of the first good key."""
        return self.shares[0].source

    @property
    def has_several_sources(self) -> bool:
        """Whether not all keys are of one source."""
        return len(set(self.ownership.sources)) > 1

    def take(self, size_bytes: int) -> None:
        """Charge every key its part of a request's items and bytes, or none. Raises QuotaExceededError."""
        for is_taken in (False, True):
            for share in self.shares:
                if (allowance := share.source.allowance) is not None:
                    charge = allowance.take if is_taken else allowance.check
                    charge(events=share.items, size_bytes=self._part_of(share, size_bytes))

    def store(self, identified: Identified, size_bytes: int) -> None:
        """Charge every key its rejected items, or none, and what is stored. Raises QuotaExceededError."""
        self._take_quarantine(identified)
        self._owe(identified, size_bytes)

    def _take_quarantine(self, identified: Identified) -> None:
        owners, rejected = self._owners(), [0] * len(self.shares)
        for rejection in identified.rejections:
            rejected[owners[rejection.item_index]] += quarantined_bytes(rejection.events)
        for is_taken in (False, True):
            for share, size_bytes in zip(self.shares, rejected, strict=True):
                if (allowance := share.source.allowance) is not None:
                    charge = allowance.take_quarantine if is_taken else allowance.check_quarantine
                    charge(size_bytes)

    def _owe(self, identified: Identified, size_bytes: int) -> None:
        owners, stored = self._owners(), [0] * len(self.shares)
        for index, event in zip(identified.indexes(), identified.events, strict=True):
            stored[owners[index]] += len(event.value)
        for rejection in identified.rejections:
            stored[owners[rejection.item_index]] += sum([len(event.value) for event in rejection.events])
        for share, stored_bytes in zip(self.shares, stored, strict=True):
            if (allowance := share.source.allowance) is not None:
                allowance.owe(stored_bytes - self._part_of(share, size_bytes))

    def grow(self, identified: Identified, admissions: Sequence[Admission]) -> None:
        """Charge every key its new events, which the index remembers, and its conflicting ones."""
        new, conflicting = [0] * len(self.shares), [0] * len(self.shares)
        for index, event, admission in zip(identified.indexes(), identified.events, admissions, strict=True):
            new[self.ownership.shares[index]] += admission is NEW
            if admission in QUARANTINE_REASONS:
                conflicting[self.ownership.shares[index]] += quarantined_bytes([event])
        for share, count, size_bytes in zip(self.shares, new, conflicting, strict=True):
            if (allowance := share.source.allowance) is not None:
                allowance.grow(count)
                allowance.owe_quarantine(size_bytes)

    def _owners(self) -> list[int]:
        """Return the share of each item, and last that of batch-level fields that are a rejection."""
        return [*self.ownership.shares, 0]

    def _part_of(self, share: Share, size_bytes: int) -> int:
        return size_bytes * share.items // max(1, len(self.ownership.shares))


def keys_of(items: Sequence[object]) -> list[str]:
    """Return the own key of each item, "" without one."""
    return [item.write_key if isinstance(item, _UNPARSED) else own_key(item) for item in items]


def shares_of(keys: Sequence[str], log_in: Callable[[str], Source], *, is_replay: bool) -> Shares:
    """
    Divide the items of a request by their keys.

    Args:
        keys: of the items, "" for none; at least one item has one.
        log_in: returns the source of a key. Raises InvalidWriteKeyError.
        is_replay: whether the request needs the scope replay, instead of ingest.

    Raises:
        InvalidWriteKeyError: no key is good.
        ScopeMissingError: each key is known, but for something else.
    """
    owner_of: dict[str, int] = {"": 0}
    shares: list[Share] = []
    failed, lacks_scope = 0, None
    for key in _distinct(keys):
        try:
            source = log_in(key)
            source.check(REPLAY if is_replay else INGEST)
        except InvalidWriteKeyError:
            failed += 1
        except ScopeMissingError as err:
            lacks_scope = err
        else:
            owner_of[key] = len(shares)
            shares.append(Share(source, key))
    if not shares and not failed and lacks_scope is not None:
        raise lacks_scope
    if not shares:
        refusal = InvalidWriteKeyError()
        refusal.keys = failed
        raise refusal
    owners = [owner_of.get(key, 0) for key in keys]
    for owner in owners:
        shares[owner].items += 1
    refused = {
        index: hashlib.sha256(key.encode()).digest() for index, key in enumerate(keys) if key not in owner_of
    }
    ownership = Ownership([share.source.id for share in shares], owners, refused)
    return Shares(shares, ownership, failed)


def _distinct(keys: Sequence[str]) -> Iterator[str]:
    """Yield the first KEYS_MAX distinct keys."""
    distinct: dict[str, Any] = dict.fromkeys(keys)
    distinct.pop("", None)
    for _, key in zip(range(KEYS_MAX), distinct, strict=False):
        yield key
