"""The parts that only a worker of a group has."""

import asyncio
import socket
from collections.abc import Callable, Sequence

from app.peers.network import SocketNetwork
from app.peers.peers import Peers
from app.peers.tls import PeerTLS
from app.settings.model import Settings
from dedupe.cluster.assignment import Member
from dedupe.cluster.input_shares import GroupShares
from dedupe.cluster.lane_manager import LaneManager
from dedupe.cluster.membership import Membership
from dedupe.cluster.request_handler import PeerRequestHandler
from dedupe.cluster.route import GroupRoute
from dedupe.model.clock import Clock
from dedupe.partition.lane import Lane
from dedupe.route import Route


class GroupLanes:
    """Runs the lanes that the group assigns to this worker; see app.process.life.Lanes."""

    def __init__(
        self,
        settings: Settings,
        lanes: Sequence[Lane],
        membership: Membership,
        listener: socket.socket,
        clock: Clock,
        has_disk_room: Callable[[], bool],
    ) -> None:
        """Compose the parts; `lanes` are all lanes, those of quarantine last, and `listener` is bound."""
        own = settings.group
        assert own.peer_listen is not None
        member = Member(
            own.worker_id,
            own.peer_address or str(own.peer_listen._replace(port=listener.getsockname()[1])),
            zone=own.zone,
            can_follow=own.standby,
            started_ms=clock.now_ms(),
        )
        self.membership = membership
        self.input_shares = GroupShares(membership, own.worker_id)
        self.can_follow = own.standby
        self.peers = Peers(
            own.worker_id, secret=settings.gateway.identity_key, clock=clock, network=network_of(settings)
        )
        self.manager = LaneManager(
            member, lanes, self.input_shares, self.peers, clock, has_disk_room=has_disk_room
        )
        self.handler = PeerRequestHandler(self.manager, clock, has_disk_room)
        self.routes: list[Route] = [
            GroupRoute(number, lane, self.manager) for number, lane in enumerate(lanes)
        ]
        self._listener = listener

    async def run(self) -> None:
        """Be a worker of the group until cancelled, then leave it."""
        try:
            async with asyncio.TaskGroup() as running:
                running.create_task(self.peers.run(self._listener, self.handler))
                running.create_task(self.manager.run())
        finally:
            await self.membership.leave()

    async def hand_over(self) -> bool:
        return await self.manager.hand_over()

    async def finish(self, limit_s: float) -> None:
        await self.manager.finish(limit_s)


def network_of(settings: Settings) -> SocketNetwork:
    """Return TCP, with TLS where certificates are configured. Raises ConfigurationError."""
    own = settings.group
    cert, key, ca = own.peer_tls_cert_file, own.peer_tls_key_file, own.peer_tls_ca_file
    if cert is None or key is None or ca is None:
        return SocketNetwork()
    return SocketNetwork(PeerTLS(cert, key, ca))
