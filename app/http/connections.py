"""
Counts the connections of a port and evicts some when there are too many.

An idle connection goes first: idle sockets cannot keep out clients that send. Where that is not enough, an
address with more than its share loses the connections whose requests it sends slowest, or whose answers it
does not read.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from app.http.client_address import address_group

REFUSED_MAX = 256
"""Connections beyond the limit that get an answer, or still end; of any more the oldest are aborted."""

SHARE = 1 / 16
"""
The part of all connections that one address may keep once there are no others to be had, and the
requests that one behind a trusted proxy may have at once: 1,024 of the default. A company's NAT has
fewer at work at once; a load balancer is a trusted proxy.
"""


class Evictable(Protocol):
    """A connection as the register sees it."""

    def evict(self) -> None:
        """Make room: at once, or within moments after a last answer."""


@dataclass(slots=True, eq=False)
class AddressConnections:
    """The connections of one address group, those longest in their state first."""

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
        self._greedy: dict[str | None, AddressConnections] = {}  # those over the share: a few at most
        self._requests: Counter[str] = Counter()  # behind trusted proxies, by address
        self.open = 0
        self.evicted = 0
        self.refused = 0

    @property
    def idle(self) -> int:
        """How many have no request at the moment."""
        return len(self._idle)

    def enter(self, connection: Evictable, address: str | None) -> bool:
        """
        Count a new connection, an idle one at first; false if its requests have to be refused.

        Args:
            connection: the new one.
            address: of the client; None for a trusted proxy, which has no share.
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
        """Count a connection no more."""
        self.open -= 1
        self._leaving.pop(connection, None)
        self._free_slot(connection)

    def close(self, connection: Evictable) -> None:
        """Give the slot of a connection that is about to end to others."""
        self._free_slot(connection)
        self._leaving[connection] = None

    def busy(self, connection: Evictable) -> None:
        """The gateway works on a request of the connection."""
        owner = self._slots.get(connection)
        if owner is not None:
            self._idle.pop(connection, None)
            owner.idle.pop(connection, None)
            if owner.waiting:
                owner.waiting.pop(connection, None)

    def wait(self, connection: Evictable) -> None:
        """A busy connection waits for its client: for the rest of a body, or for it to read."""
        owner = self._slots.get(connection)
        if owner is not None and connection not in owner.idle:
            owner.waiting[connection] = None

    def rest(self, connection: Evictable) -> None:
        """Everything asked on the connection has been answered."""
        owner = self._slots.get(connection)
        if owner is not None:
            if owner.waiting:
                owner.waiting.pop(connection, None)
            owner.idle[connection] = None
            self._idle[connection] = None

    def enter_request(self, address: str | None) -> bool:
        """
        Count one request of an address behind a trusted proxy; false if it has more than its share at once.

        None: the proxy's own, which has no share. Each call is undone by leave_request, also if it returns
        false.
        """
        if address is None:
            return True
        name = address_group(address)
        self._requests[name] += 1
        has_room = self._requests[name] <= self._share
        if not has_room:
            self.refused += 1
        return has_room

    def leave_request(self, address: str | None) -> None:
        """Undo one enter_request."""
        if address is None:
            return
        name = address_group(address)
        self._requests[name] -= 1
        if not self._requests[name]:
            del self._requests[name]

    def _has_slot(self, owner: AddressConnections) -> bool:
        """Whether there is a slot for a newcomer, made if necessary."""
        if len(self._slots) < self.connections_max:
            return True
        greediest = max(self._greedy.values(), key=lambda greedy: greedy.count, default=None)
        if greediest is None:
            victim = _first(self._idle)
        elif greediest is owner:  # which makes room for itself only
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
