"""What one worker of a group has besides a gateway that is alone: its links, and who keeps its lanes."""

import asyncio
import socket
from collections.abc import Callable, Sequence

from app.config.settings import Settings
from app.peers import Peers, PeerTLS, SocketNetwork
from dedupe.clock import Clock
from dedupe.group import GroupHost, GroupRoute, Keeper, Member, Membership
from dedupe.lane import Lane
from dedupe.route import Route


class GroupLanes:
    """The lanes of a worker, as its group assigns them; see Lanes of app.process."""

    def __init__(
        self,
        settings: Settings,
        lanes: Sequence[Lane],
        membership: Membership,
        listener: socket.socket,
        clock: Clock,
        has_disk_room: Callable[[], bool],
    ) -> None:
        """Take all lanes, quarantine's last, none running, where others connect, and the disk's guard."""
        assert settings.group.peer_listen is not None
        bound = settings.group.peer_listen._replace(port=listener.getsockname()[1])
        member = Member(
            settings.group.worker_id,
            settings.group.peer_address or str(bound),
            zone=settings.group.zone,
            can_follow=settings.group.standby,
            started_ms=clock.now_ms(),
        )
        self.keeper = Keeper(member, lanes, membership, clock)
        self.host = GroupHost(self.keeper, clock, has_disk_room)
        self.peers = Peers(
            settings.group.worker_id,
            self.host,
            secret=settings.gateway.identity_key,
            clock=clock,
            network=network_of(settings),
        )
        self.routes: list[Route] = [
            GroupRoute(number, lane, self.keeper) for number, lane in enumerate(lanes)
        ]
        self.membership = membership
        self._listener = listener

    async def run(self) -> None:
        """See Lanes; leaves the group in the end."""
        try:
            async with asyncio.TaskGroup() as running:
                running.create_task(self.peers.run(self._listener))
                running.create_task(self.keeper.run(self.peers))
        finally:
            await self.membership.leave()

    async def hand_over(self) -> bool:
        """See Lanes."""
        return await self.keeper.hand_over()

    async def finish(self, limit_s: float) -> None:
        """See Lanes."""
        await self.keeper.finish(limit_s)


def network_of(settings: Settings) -> SocketNetwork:
    """Return TCP, or TLS with certificates on both sides. Raises ConfigurationError."""
    cert, key, ca = (
        settings.group.peer_tls_cert_file,
        settings.group.peer_tls_key_file,
        settings.group.peer_tls_ca_file,
    )
    if cert is None or key is None or ca is None:
        return SocketNetwork()
    return SocketNetwork(PeerTLS(cert, key, ca))
