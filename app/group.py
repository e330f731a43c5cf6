"""The parts that only a worker of a group has."""

import asyncio
import socket
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from app.peers.network import SocketNetwork
from app.peers.peers import Peers
from app.peers.tls import PeerTLS
from app.settings.model import Settings
from dedupe.cluster.assignment import Assignment, Member, carried_over
from dedupe.cluster.input_shares import GroupShares
from dedupe.cluster.lane_manager import LaneManager
from dedupe.cluster.membership import MemberPlace, Membership
from dedupe.cluster.request_handler import PeerRequestHandler
from dedupe.cluster.route import GroupRoute
from dedupe.model.clock import Clock
from dedupe.partition.lane import Lane
from dedupe.route import Route
from dedupe.router import Router

PEERS_S = 2.0
"""How long other workers may take to have all their requests answered, before lanes end here for a plan."""

LaneName: TypeAlias = tuple[str, int]
"""A topic and a partition."""


class GroupBefore(NamedTuple):
    """The group as a round of this process has left it."""

    assignment: Assignment
    lanes: Sequence[LaneName]
    place: MemberPlace

    def carried_over(self, lanes: Sequence[Lane]) -> Assignment:
        """Return how the lanes of the next round are assigned until the group says so."""
        numbers = {name: number for number, name in enumerate(self.lanes)}
        return carried_over(
            self.assignment, [numbers.get(_name_of(lane), numbers.get(_origin_of(lane))) for lane in lanes]
        )


class GroupLanes:
    """Runs the lanes that the group assigns to this worker; see app.process.life.Lanes."""

    def __init__(
        self,
        settings: Settings,
        router: Router,
        membership: Membership,
        peers: Peers,
        listener: socket.socket,
        clock: Clock,
        *,
        before: GroupBefore | None = None,
    ) -> None:
        """
        Compose the parts.

        Args:
            settings: the gateway's settings.
            router: with all lanes.
            membership: of the group.
            peers: connections to its workers.
            listener: bound; it stays open.
            clock: this machine's clock.
            before: how the last round of this process has left the group; None: this is the first one.
        """
        own, lanes = settings.group, router.all_lanes
        assert own.peer_listen is not None
        member = Member(
            own.worker_id,
            own.peer_address or str(own.peer_listen._replace(port=listener.getsockname()[1])),
            zone=own.zone,
            can_follow=own.standby,
            started_ms=clock.now_ms(),
            plan=router.layout.plan,
            lanes=len(lanes),
        )
        self.membership = membership
        self.input_shares = GroupShares(membership, own.worker_id)
        self.can_follow = own.standby
        self.peers = peers
        self.manager = LaneManager(
            member,
            lanes,
            self.input_shares,
            self.peers,
            clock,
            has_disk_room=lambda: router.has_disk_room,
            begun=before and before.carried_over(lanes),
        )
        self.handler = PeerRequestHandler(self.manager, clock, lambda: router.has_disk_room)
        self.routes: list[Route] = [
            GroupRoute(number, lane, self.manager) for number, lane in enumerate(lanes)
        ]
        self._listener = listener
        self._goes_on = False

    async def run(self) -> None:
        """Be a worker of the group until cancelled, then leave it, unless the process goes on."""
        try:
            async with asyncio.TaskGroup() as running:
                running.create_task(self.peers.run(self._listener.dup(), self.handler))
                running.create_task(self.manager.run())
        finally:
            if not self._goes_on:
                await self.membership.leave()

    async def leave(self) -> None:
        """Leave the group, if the last round has kept its place for a next one, which does not begin."""
        if self._goes_on:
            await self.membership.leave()

    async def go_on(self) -> None:
        self._goes_on = True
        await self.manager.directory.pause(PEERS_S)

    @property
    def left(self) -> GroupBefore | None:
        """How this round has left the group for the next one; None if it has no place in it."""
        place, manager = self.membership.place, self.manager
        if not (self._goes_on and place and manager.worker in manager.assignment.addresses):
            return None
        return GroupBefore(manager.assignment, [_name_of(lane) for lane in manager.lanes], place)

    async def hand_over(self) -> bool:
        return await self.manager.hand_over()

    async def finish(self, limit_s: float) -> None:
        await self.manager.finish(limit_s)


def _name_of(lane: Lane) -> LaneName:
    return lane.topic, lane.partition


def _origin_of(lane: Lane) -> LaneName:
    """Return the partition that gave a lane's its slots, one of several; its own if it was given none."""
    levels = () if lane.lineage is None else lane.lineage.levels
    return lane.topic, levels[-1].partition if levels else lane.partition


def network_of(settings: Settings) -> SocketNetwork:
    """Return TCP, with TLS where certificates are configured. Raises ConfigurationError."""
    own = settings.group
    cert, key, ca = own.peer_tls_cert_file, own.peer_tls_key_file, own.peer_tls_ca_file
    if cert is None or key is None or ca is None:
        return SocketNetwork()
    return SocketNetwork(PeerTLS(cert, key, ca))
