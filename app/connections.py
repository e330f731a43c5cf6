"""
Counts the connections of the ingest port and decides who has to go when there are too many.

A connection on which nothing is asked costs its owner nothing, so it is the first to make room: a
crowd of idle sockets cannot keep out clients that send.
"""

from collections import Counter
from typing import Protocol

from app.client_address import crowd_of

REFUSED_MAX = 256
"""Connections beyond the limit that are told so; any more are closed without a word."""


class Evictable(Protocol):
    """A connection as the register sees it."""

    def evict(self) -> None:
        """Close it: nothing is asked on it."""


class Connections:
    """All connections of the ingest port."""

    def __init__(self, *, connections_max: int, per_address_max: int | None) -> None:
        """Take the limits; None is none."""
        self.connections_max = connections_max
        self._per_address_max = per_address_max
        self._idle: dict[Evictable, None] = {}  # longest idle first
        self._by_crowd: Counter[str] = Counter()
        self.open = 0
        self.evicted = 0
        self.refused = 0

    @property
    def idle(self) -> int:
        """How many have no request at the moment."""
        return len(self._idle)

    @property
    def is_overrun(self) -> bool:
        """Whether not even a refusal can be afforded."""
        return self.open > self.connections_max + REFUSED_MAX

    def enter(self, connection: Evictable) -> bool:
        """Count a new connection, an idle one at first; false if its requests have to be refused."""
        self.open += 1
        has_room = self.open <= self.connections_max or self._evict_one()
        self._idle[connection] = None
        if not has_room:
            self.refused += 1
        return has_room

    def leave(self, connection: Evictable) -> None:
        """Count a connection no more."""
        self.open -= 1
        self._idle.pop(connection, None)

    def busy(self, connection: Evictable) -> None:
        """A request has begun on the connection."""
        self._idle.pop(connection, None)

    def rest(self, connection: Evictable) -> None:
        """Everything asked on the connection has been answered."""
        self._idle[connection] = None

    def enter_crowd(self, address: str) -> bool:
        """
        Count one more of an address: a connection, or behind a proxy a request; false if that is too many.

        Each call, whatever it returns, is undone by leave_crowd.
        """
        if self._per_address_max is None:
            return True
        crowd = crowd_of(address)
        self._by_crowd[crowd] += 1
        has_room = self._by_crowd[crowd] <= self._per_address_max
        if not has_room:
            self.refused += 1
        return has_room

    def leave_crowd(self, address: str) -> None:
        """Undo one enter_crowd."""
        if self._per_address_max is None:
            return
        crowd = crowd_of(address)
        self._by_crowd[crowd] -= 1
        if self._by_crowd[crowd] == 0:
            del self._by_crowd[crowd]

    def _evict_one(self) -> bool:
        connection = next(iter(self._idle), None)
        if connection is None:
            return False
        del self._idle[connection]
        self.evicted += 1
        connection.evict()
        return True
