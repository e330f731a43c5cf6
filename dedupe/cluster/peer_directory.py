"""PeerDirectory: the latest status of each other worker, and which of them are reachable."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from dedupe.cluster.assignment import WorkerId
from dedupe.cluster.links import PeerLink, Peers, Status
from dedupe.model.clock import Clock, Deadline
from dedupe.model.errors import RetriableError

CONNECT_S = 2.0
"""The time to connect to a new member before it counts as down."""
PAUSE_POLL_S = 0.01
"""Between two looks whether a connection has ended, while clients wait for a plan."""
STEADY_S = 3.0
"""How long a member stays `unreachable` after it was down, so that a flapping link moves no lanes."""


class PeerDirectory:
    """The other members of the group; its contents may be out of date."""

    def __init__(self, lanes: int, peers: Peers, clock: Clock) -> None:
        self.down: frozenset[WorkerId] = frozenset()
        """Members whose link was lost, or was not established within CONNECT_S."""
        self.is_paused = False
        """Whether this worker waits for a plan, and has no request under way at another one."""
        self._peers = peers
        self._clock = clock
        self._members: frozenset[WorkerId] = frozenset()
        self._statuses: dict[WorkerId, Status] = {}
        self._servers: list[WorkerId | None] = [None] * lanes
        self._absent_since: dict[WorkerId, float] = {}
        self._last_down: dict[WorkerId, float] = {}
        self._changed = asyncio.Event()

    def set_members(self, addresses: Mapping[WorkerId, str]) -> None:
        """Replace the members, keep links to them, and send them this worker's status."""
        self._members = frozenset(addresses)
        self._statuses = {name: status for name, status in self._statuses.items() if name in addresses}
        self._peers.set_members(addresses)
        self._peers.announce()

    def update_status(self, worker: WorkerId, fields: object) -> None:
        """Store an encoded status; None means that the worker's link is down. Raises ValueError."""
        if fields is not None:
            self._statuses[worker] = Status.decode(fields)
        self.update_servers()

    def announce(self) -> None:
        """Send this worker's status to all others."""
        self._peers.announce()

    async def pause(self, limit_s: float) -> None:
        """Say that no request of this worker is under way, and wait at most `limit_s` s until all do."""
        self.is_paused = True
        self.announce()
        deadline = Deadline(self._clock, limit_s)
        while not deadline.is_over and not all(map(self._is_paused, self.alive())):
            await self.wait_for_change(min(deadline.remaining_s, PAUSE_POLL_S))

    def _is_paused(self, worker: WorkerId) -> bool:
        """Whether a worker has no request under way here; its word for it may be lost with its connection."""
        link = self.link(worker)
        return link is None or not link.can_send or self._statuses[worker].is_paused

    # ---- one member

    def link(self, worker: WorkerId) -> PeerLink | None:
        """Return the link to a worker if it is up."""
        link = self._peers.link(worker)
        return link if link is not None and link.is_up else None

    def is_up(self, worker: WorkerId) -> bool:
        """Whether the link to a worker is up."""
        return self.link(worker) is not None

    def request(self, worker: WorkerId, kind: str, body: Any, timeout_s: float) -> Awaitable[Any]:
        """Send a request to a worker; see PeerLink.request. Raises RetriableError if it is no member."""
        link = self._peers.link(worker)
        if link is None:
            raise RetriableError(f"there is no link to {worker}")
        return link.request(kind, body, timeout_s)

    def last_status(self, worker: WorkerId) -> Status | None:
        """Return a member's last status, even if it is down; None if it has sent none."""
        return self._statuses.get(worker)

    def absent_s(self, worker: WorkerId) -> float:
        """Return how long a member has been out of reach, in seconds; 0 if it is reachable."""
        since = self._absent_since.get(worker)
        return 0.0 if since is None else self._clock.monotonic() - since

    # ---- all members

    def alive(self) -> dict[WorkerId, Status]:
        """Return the status of each member whose link is up."""
        return {name: status for name, status in self._statuses.items() if self.is_up(name)}

    def are_known(self) -> bool:
        """Whether each member has sent a status or is down."""
        return self._members <= {*self.alive(), *self.down}

    def server_of(self, lane: int) -> WorkerId | None:
        """Return the worker that reports the lane active; of several, the one of the newest generation."""
        return self._servers[lane]

    def server_link(self, lane: int) -> PeerLink | None:
        """Return an open link to another worker that serves the lane; None if there is none."""
        worker = self._servers[lane]
        link = self.link(worker) if worker is not None else None
        return link if link is not None and link.can_send else None

    def update_servers(self) -> None:
        """Recompute which worker serves which lane, and wake all waiters."""
        servers: list[WorkerId | None] = [None] * len(self._servers)
        for name, status in sorted(self.alive().items(), key=lambda of: (of[1].generation, of[0])):
            for number in status.active:
                if 0 <= number < len(servers):
                    servers[number] = name
        self._servers = servers
        self.signal_change()

    def update_down(self) -> None:
        """Recompute `down`: a known member at once, since its link has tried to reconnect already."""
        now = self._clock.monotonic()
        absent = self._members - self.alive().keys()
        self._absent_since = {name: self._absent_since.get(name, now) for name in absent}
        self.down = frozenset(
            name
            for name, since in self._absent_since.items()
            if name in self._statuses or now - since >= CONNECT_S
        )
        self._last_down.update(dict.fromkeys(self.down, now))

    def unreachable(self) -> tuple[WorkerId, ...]:
        """Return members that are down, or were within STEADY_S."""
        since = self._clock.monotonic() - STEADY_S
        return tuple(
            sorted(name for name, at in self._last_down.items() if at > since and name in self._members)
        )

    def why_unreachable(self, worker: WorkerId) -> str:
        """Return why a member is out of reach, as far as it is known."""
        link = self._peers.link(worker)
        return "" if link is None else link.why

    # ---- waiting

    def signal_change(self) -> None:
        """Wake all waiters of `wait_for_change`."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_for_change(self, timeout_s: float) -> None:
        """Wait until the directory or this worker's lanes may have changed, or for `timeout_s` seconds."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return
