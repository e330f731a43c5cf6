"""
Which client sessions a lane's owner evicts, so that no more than the limit are live. Pure.

The records of a commit name the sessions that it evicts; see dedupe.decide.session_update. So the choice may
use what only the owner knows: which sessions their clients have ended.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import NamedTuple

from dedupe.decide.sessions import (
    OF_SOURCE,
    SessionKey,
    SessionPolicy,
    SessionRows,
    SessionState,
    client_key,
    session_key,
)
from dedupe.model.record import EVICTED_MAX
from dedupe.model.types import Offset, Session

ENDED_MAX = 16_384
"""The limit of ended sessions to remember, 4 MB; of more the first ones count as not ended."""

USED_SINCE_MAX = 100
"""So many that were used since, and are read in vain, are the most for one commit."""

READ_MIN = 4
"""How many rows of a source are read at first; each further read has twice as many."""


class Evictions(NamedTuple):
    """The sessions that a commit evicts."""

    keys: Sequence[SessionKey] = ()
    ended: int = 0  # so many of them were ended by their clients


NO_EVICTIONS = Evictions()


class EndedSessions:
    """The sessions of a lane that their clients have ended: a hint, which a change of owner loses."""

    def __init__(self) -> None:
        self._offsets = OrderedDict[SessionKey, Offset]()  # a dict finds its first key slower and slower

    def note(self, key: SessionKey, last_offset: Offset) -> None:
        """Note that a session, whose newest record is at `last_offset`, has no more events."""
        self._offsets.pop(key, None)
        if len(self._offsets) >= ENDED_MAX:
            self._offsets.popitem(last=False)
        self._offsets[key] = last_offset

    def clear(self) -> None:
        """Forget all."""
        self._offsets.clear()

    def take(self, rows: SessionRows) -> Iterator[tuple[SessionKey, SessionState]]:
        """
        Yield the live sessions that were not used since, the first ended first; forget them.

        Ends early after USED_SINCE_MAX others, which are forgotten as well.
        """
        others = 0
        while self._offsets and others < USED_SINCE_MAX:
            key, last_offset = self._offsets.popitem(last=False)
            (state,) = rows.sessions([key])
            if state is not None and not state.is_evicted and state.last_offset == last_offset:
                yield key, state
            else:
                others += 1


def evictions_of(
    rows: SessionRows,
    sessions: Sequence[tuple[Session, bytes]],
    ended: EndedSessions,
    policy: SessionPolicy,
) -> Evictions:
    """
    Return the sessions to evict with a commit: those ended first, then the oldest of the largest source.

    A source with fewer sessions than another one loses none to it. Sessions of the commit are not evicted.

    Args:
        rows: the lane's sessions before the commit.
        sessions: the sessions of its records, each with the hash of its source.
        ended: the sessions that clients have ended; those that are returned are forgotten.
        policy: has the limit. One that was lowered is reached in steps, EVICTED_MAX a record.
    """
    live, count_max = rows.session_counts.live, EVICTED_MAX * len(sessions)
    if live + count_max <= policy.sessions_max:
        return NO_EVICTIONS
    own = {session_key(session): source_hash for session, source_hash in sessions}
    own |= {client_key(session): source_hash for session, source_hash in sessions if session.epoch}
    states = rows.sessions(list(own))
    added = [
        source_hash
        for source_hash, state in zip(own.values(), states, strict=True)
        if state is None or state.is_evicted
    ]
    count = min(live + len(added) - policy.sessions_max, count_max)
    if count <= 0:
        return NO_EVICTIONS
    changes, chosen = Counter(added), list[SessionKey]()
    for key, state in ended.take(rows):
        if key not in own:
            chosen.append(key)
            changes[state.source_hash] -= 1
        if len(chosen) == count:
            break
    by_clients = len(chosen)
    chosen += islice(_oldest(rows, changes, {*own, *chosen}), count - len(chosen))
    return Evictions(chosen, by_clients)


def _oldest(
    rows: SessionRows, changes: Mapping[bytes, int], excluded: Collection[SessionKey]
) -> Iterator[SessionKey]:
    """
    Yield the least recently used session of the source that has the most, again and again.

    Of the other sources than those with `changes` of their size only the largest are looked at, and one more.
    """
    sources, sizes = dict[bytes, Iterator[SessionKey]](), rows.session_sizes
    largest_first = [
        (-sizes.get(source_hash, 0) - change, source_hash) for source_hash, change in changes.items()
    ]
    heapify(largest_first)
    others = (of_source for of_source in sizes.largest_first() if of_source[0] not in changes)
    other = next(others, None)
    while largest_first or other:
        if other and (not largest_first or other[1] > -largest_first[0][0]):
            heappush(largest_first, (-other[1], other[0]))
            other = next(others, None)
        negative_size, largest = largest_first[0]
        if largest not in sources:
            sources[largest] = _sessions_of(rows, largest, excluded)
        if (key := next(sources[largest], None)) is None:
            heappop(largest_first)
        else:
            heapreplace(largest_first, (negative_size + 1, largest))
            yield key


def _sessions_of(
    rows: SessionRows, source_hash: bytes, excluded: Collection[SessionKey]
) -> Iterator[SessionKey]:
    """Yield the sessions of a source, the least recently used first."""
    count, seen = READ_MIN, 0
    while True:
        found = rows.oldest_sessions(count, OF_SOURCE + source_hash)
        for key, _ in found[seen:]:
            if key not in excluded:
                yield key
        if len(found) < count:
            return
        count, seen = 2 * count, len(found)
