"""What bounds the connections between workers, how long each wait is, and what is counted of them."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from app.peers.errors import refuse

KIB, MIB = 1024, 1024 * 1024


VERSION, OLDEST_VERSION = 1, 1
"""
Of frames and bodies. A worker speaks its own version and the one before, so that a group can be renewed one
worker at a time. Fields that a version adds stand behind those of the one before, which passes them over.
"""


class Versions(NamedTuple):
    """What a worker speaks."""

    newest: int = VERSION
    oldest: int = OLDEST_VERSION

    def agreed(self, other: "Versions") -> int:
        """Return the newest version that both speak. Raises FrameRefusedError."""
        version = min(self.newest, other.newest)
        if version < max(self.oldest, other.oldest):
            refuse("version")
        return version


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Bounds of one connection, the same on both of its sides."""

    frame_bytes_max: int = 36 * MIB  # of a submission: what a lane's queue takes, and its encoding
    message_bytes_max: int = 4 * MIB  # of a status, a question, an answer or a message
    events_max: int = 20_000  # submitted and not answered
    bytes_max: int = 32 * MIB  # submitted and not answered
    asks_max: int = 64  # questions that are not answered
    unread_bytes_max: int = MIB  # written and not taken by the other side, before writing pauses
    strangers_max: int = 64  # connections to a worker that have not proved yet whose they are
    versions: Versions = field(default_factory=Versions)


@dataclass(frozen=True, slots=True)
class PeerTimes:
    """Every wait of a connection, in seconds."""

    handshake_s: float = 2.0  # to connect, and to prove who one is
    ping_s: float = 0.5  # a side that has sent nothing for so long says that it is there
    dead_s: float = 2.0  # a connection on which nothing was heard for so long is dead
    retry_s: float = 0.5  # between two tries to connect, jittered by half of it either way
    mend_s: float = 0.5  # for the one try to connect again before a lost connection counts as down


@dataclass(slots=True)
class PeerMetrics:
    """What was counted since the process began."""

    frames_refused: Counter[str] = field(default_factory=Counter)
    """Why connections were closed, or messages passed over: what came on them, by reason."""
    accepted: int = 0  # connections of other workers, proved
    connected: int = 0  # connections to other workers, proved
    reconnects: int = 0  # tries to connect again after a connection was lost
    events_forwarded: int = 0
    events_received: int = 0
    tells_dropped: int = 0  # one-way messages to whoever was not there or read too slowly
