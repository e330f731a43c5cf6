"""
Neighbours: what one worker knows of the others, who answers and what they say they serve.

All of it is hearsay, and may be out of date.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from dedupe.clock import Clock
from dedupe.errors import RetriableError
from dedupe.group.assignment import WorkerId
from dedupe.group.links import Link, Links, Status


class Neighbours:
    """The other members of the group, once there are links to them."""

    def __init__(self, lanes: int, clock: Clock, *, connect_s: float, steady_s: float) -> None:
        """
        Know nobody yet.

        Args:
            lanes: how many there are.
            clock: for how long somebody is absent.
            connect_s: to reach a worker that was never reached, before it counts as gone.
            steady_s: to reach one that was gone, before it is missed no more.
        """
        self.gone: frozenset[WorkerId] = frozenset()
        """Members that do not answer any more, or never did."""
        self._clock = clock
        self._connect_s = connect_s
        self._steady_s = steady_s
        self._links: Links | None = None
        self._members: frozenset[WorkerId] = frozenset()
        self._heard: dict[WorkerId, Status] = {}
        self._servers: list[WorkerId | None] = [None] * lanes
        self._absent_since: dict[WorkerId, float] = {}
        self._missed_at: dict[WorkerId, float] = {}  # when it was gone last
        self._changed = asyncio.Event()

    def join(self, links: Links) -> None:
        """Reach them by these links."""
        self._links = links

    def set_members(self, addresses: Mapping[WorkerId, str]) -> None:
        """Know these, and no others any more."""
        self._members = frozenset(addresses)
        self._heard = {name: status for name, status in self._heard.items() if name in addresses}
        if self._links is not None:
            self._links.set_members(addresses)
            self._links.announce()

    def announce(self) -> None:
        """Tell all of them this worker's status."""
        if self._links is not None:
            self._links.announce()

    def hear(self, worker: WorkerId, told: object) -> None:
        """Take a status; None says that the worker is down, as its link does. Raises ValueError."""
        if told is not None:
            self._heard[worker] = Status.heard(told)
        self.find_servers()

    # ---- one of them

    def link(self, worker: WorkerId) -> Link | None:
        """Return the link to a worker that answers, None if it does not."""
        link = self._links.link(worker) if self._links is not None else None
        return link if link is not None and link.is_up else None

    def is_up(self, worker: WorkerId) -> bool:
        """Whether a worker answers."""
        return self.link(worker) is not None

    def ask(self, worker: WorkerId, kind: str, body: Any, timeout_s: float) -> Awaitable[Any]:
        """Put a question to a worker. Raises what it answers, or RetriableError."""
        link = self._links.link(worker) if self._links is not None else None
        if link is None:
            raise RetriableError(f"there is no link to {worker}")
        return link.ask(kind, body, timeout_s)

    def heard(self, worker: WorkerId) -> Status | None:
        """Return what a member said last, even if it is gone; None if it was never heard."""
        return self._heard.get(worker)

    def absent_s(self, worker: WorkerId) -> float:
        """Return for how long a member has not answered, in seconds; 0 if it does."""
        since = self._absent_since.get(worker)
        return 0.0 if since is None else self._clock.monotonic() - since

    # ---- all of them

    def up(self) -> dict[WorkerId, Status]:
        """Return those that answer, and have said what they own."""
        return {name: status for name, status in self._heard.items() if self.is_up(name)}

    def are_known(self) -> bool:
        """Whether every one of them has said what it owns, or is gone."""
        return self._members <= {*self.up(), *self.gone}

    def server_of(self, lane: int) -> WorkerId | None:
        """Return who says that it serves a lane; of several, who has heard of the newest generation."""
        return self._servers[lane]

    def find_servers(self) -> None:
        """Look anew who serves what, and wake everybody who waits for it."""
        servers: list[WorkerId | None] = [None] * len(self._servers)
        for name, status in sorted(self.up().items(), key=lambda of: (of[1].generation, of[0])):
            for number in status.active:
                if 0 <= number < len(servers):
                    servers[number] = name
        self._servers = servers
        self.tell_change()

    def note_absence(self) -> None:
        """A link that was lost has been mended in vain; one that was never there may still be on its way."""
        now = self._clock.monotonic()
        absent = self._members - self.up().keys()
        self._absent_since = {name: self._absent_since.get(name, now) for name in absent}
        self.gone = frozenset(
            name
            for name, since in self._absent_since.items()
            if name in self._heard or now - since >= self._connect_s
        )
        self._missed_at.update(dict.fromkeys(self.gone, now))

    def missed(self) -> tuple[WorkerId, ...]:
        """Return which members are not reached, or were not a moment ago: nothing moves each time."""
        since = self._clock.monotonic() - self._steady_s
        return tuple(
            sorted(name for name, at in self._missed_at.items() if at > since and name in self._members)
        )

    # ---- changes

    def tell_change(self) -> None:
        """Wake everybody who waits for a change, once."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self, timeout_s: float) -> None:
        """Wait until something may have changed, at most so long, in seconds."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return
