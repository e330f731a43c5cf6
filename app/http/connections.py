"""
Counts the connections of a port, and evicts some when there are too many.

Idle connections are evicted first. Without any, an address with more than its share loses the connections
that have waited longest for the rest of a body, for their client to read, or for the delay of a refusal.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from app.http.client_address import address_group

REFUSED_MAX = 256
"""The limit of connections beyond connections_max, which are answered with a refusal or closing."""

SHARE = 1 / 16
"""
The part of all connections that one address may keep when there are too many, and the limit of concurrent
requests of an address behind a trusted proxy once there are many: 1,024 of the default. A company's NAT has
fewer.
"""

CROWDED = 1 / 2
"""
The part of all connections that has requests from behind trusted proxies before addresses are limited: many
people behind one address harm nobody while there is room.
"""


class Evictable(Protocol):
    """A connection that can be evicted."""

    def evict(self) -> None:
        """Close the connection at once, or soon after a last answer."""


@dataclass(slots=True, eq=False)
class AddressConnections:
    """The connections of one address group, in the order of their last change of state."""

    name: str | None
    count: int = 0
    idle: dict[Evictable, None] = field(default_factory=dict)
    waiting: dict[Evictable, None] = field(default_factory=dict)  # for their client, amid a request


class Connections:
    """All connections of one port."""

    def __init__(self, *, connections_max: int, refused_max: int = REFUSED_MAX) -> None:
        self.connections_max = connections_max
        self._sockets_max = connections_max + refused_max
        self._share = max(1, int(connections_max * SHARE))
        self._slots: dict[Evictable, AddressConnections] = {}
        self._idle: dict[Evictable, None] = {}  # longest idle first
        self._leaving: dict[Evictable, None] = {}  # without a slot: refused, evicted or closing
        self._addresses: dict[str | None, AddressConnections] = {}
        self._greedy: dict[str | None, AddressConnections] = {}  # over the share
        self._requests: Counter[str] = Counter()  # behind trusted proxies, by address
        self._requests_now = 0
        self.open = 0
        self.evicted = 0
        self.refused = 0

    @property
    def idle(self) -> int:
        """The number of connections without a request."""
        return len(self._idle)

    def enter(self, connection: Evictable, address: str | None) -> bool:
        """
        Count a new idle connection; return False if its requests must be refused.

        Args:
            connection: the new connection.
            address: the client's address; None for a trusted proxy, which has no share.
        """
        self.open += 1
        owner = self._join(address)
        has_room = self._has_slot(owner)
        if has_room:
            self._slots[connection] = owner
            self.rest(connection)
        else:
            self.refused += 1
            self._part(owner)
            self._leaving[connection] = None
        if self.open > self._sockets_max:
            self._abort_oldest()
        return has_room

    def leave(self, connection: Evictable) -> None:
        """Stop counting a connection that has ended."""
        self.open -= 1
        self._leaving.pop(connection, None)
        self._free_slot(connection)

    def close(self, connection: Evictable) -> None:
        """Free the slot of a connection that is closing."""
        self._free_slot(connection)
        self._leaving[connection] = None

    def busy(self, connection: Evictable) -> None:
        """Note that the gateway processes a request of the connection."""
        owner = self._slots.get(connection)
        if owner is not None:
            self._idle.pop(connection, None)
            owner.idle.pop(connection, None)
            if owner.waiting:
                owner.waiting.pop(connection, None)

    def wait(self, connection: Evictable) -> None:
        """Note that a busy connection waits: for its client to send or to read, or with a delayed answer."""
        owner = self._slots.get(connection)
        if owner is not None and connection not in owner.idle:
            owner.waiting[connection] = None

    def rest(self, connection: Evictable) -> None:
        """Note that all requests of the connection are answered."""
        owner = self._slots.get(connection)
        if owner is not None:
            if owner.waiting:
                owner.waiting.pop(connection, None)
            owner.idle[connection] = None
            self._idle[connection] = None

    def enter_request(self, address: str | None) -> bool:
        """
        Count a request of an address behind a trusted proxy; return False above the share once it is crowded.

        Unknown clients (None) have no share, since all of them would be one. leave_request must follow each
        call, False or not.
        """
        self._requests_now += 1
        if address is None:
            return True
        name = address_group(address)
        self._requests[name] += 1
        is_crowded = self._requests_now > self.connections_max * CROWDED
        has_room = not is_crowded or self._requests[name] <= self._share
        if not has_room:
            self.refused += 1
        return has_room

    def leave_request(self, address: str | None) -> None:
        """Undo one enter_request."""
        self._requests_now -= 1
        if address is None:
            return
        name = address_group(address)
        self._requests[name] -= 1
        if not self._requests[name]:
            del self._requests[name]

    def _has_slot(self, owner: AddressConnections) -> bool:
        """Whether there is a slot for a new connection, after an eviction if necessary."""
        if len(self._slots) < self.connections_max:
            return True
        greediest = max(self._greedy.values(), key=lambda greedy: greedy.count, default=None)
        if greediest is None:
            victim = _first(self._idle)
        elif greediest is owner:  # its own new connection evicts only its own
            victim = _first(owner.idle)
        else:
            victim = _first(greediest.idle) or _first(greediest.waiting) or _first(self._idle)
        if victim is None:
            return False
        self.evicted += 1
        self.close(victim)
        victim.evict()
        return True

    def _abort_oldest(self) -> None:
        oldest = _first(self._leaving)
        if oldest is not None:
            del self._leaving[oldest]
            oldest.evict()

    def _join(self, address: str | None) -> AddressConnections:
        name = None if address is None else address_group(address)
        owner = self._addresses.get(name)
        if owner is None:
            owner = self._addresses[name] = AddressConnections(name)
        owner.count += 1
        if owner.count > self._share and name is not None:
            self._greedy[name] = owner
        return owner

    def _part(self, owner: AddressConnections) -> None:
        owner.count -= 1
        if owner.count <= self._share:
            self._greedy.pop(owner.name, None)
        if owner.count == 0:
            del self._addresses[owner.name]

    def _free_slot(self, connection: Evictable) -> None:
        owner = self._slots.pop(connection, None)
        if owner is not None:
            self._idle.pop(connection, None)
            owner.idle.pop(connection, None)
            owner.waiting.pop(connection, None)
            self._part(owner)


def _first(connections: Iterable[Evictable]) -> Evictable | None:
    return next(iter(connections), None)
