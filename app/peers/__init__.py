"""Connections between the workers of a group: events to their owners, questions, and who is there."""

from app.peers.errors import UnknownKindError
from app.peers.host import Host
from app.peers.limits import PeerLimits, PeerMetrics, PeerTimes, Versions
from app.peers.link import PeerLink
from app.peers.network import Network, SocketNetwork
from app.peers.peers import Peers
from app.peers.tls import PeerTLS

__all__ = [
    "Host",
    "Network",
    "PeerLimits",
    "PeerLink",
    "PeerMetrics",
    "PeerTLS",
    "PeerTimes",
    "Peers",
    "SocketNetwork",
    "UnknownKindError",
    "Versions",
]
