"""Limits, time limits and counters of the connections between workers."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from app.peers.errors import refuse

MIB = 1024 * 1024

HANDSHAKE_S = 2.0
"""To connect and to prove the identity."""
PING_S = 0.5
"""Idle time after which a side sends a ping."""
DEAD_S = 2.0
"""Silence after which a connection is dead: several pings, so that a delayed one ends nothing."""
TICKS = 16
"""
Checks of a connection within DEAD_S. It is dead after this many checks without a byte, not by the clock,
since a suspended process receives nothing.
"""
CHECK_S = DEAD_S / TICKS
ANSWER_S = 4.0
"""
For a submission, or an echo behind it, to be answered. A path of 3.5 s there and back is slow, not broken;
with a longer one, an answer would miss the deadline of its request.
"""
ANSWER_BYTES_PER_S = MIB
"""More time for what is under way: a few large bodies do not end a link of 10 Mbit/s."""
RETRY_S = 0.5
"""Between two attempts to connect, plus or minus half of it."""
REPLACE_S = 0.5
"""For the one attempt to replace a lost connection before the link is down."""
REPLACED_MAX = 2
"""Replacements within REPLACED_S seconds; a link that is lost once more is down."""
REPLACED_S = 10.0
UNANSWERED_PAUSE_S, UNANSWERED_PAUSE_MAX_S = 10.0, 30.0
"""
Before a link is dialled again that did not answer, doubled each time: such a path may pass the handshake, and
lanes would move to and fro with each attempt.
"""
UNANSWERED_AGAIN_S = 60.0
"""A connection that lasted as long begins the pauses anew."""

PING_BYTES = 1_500
"""Fills a packet, so that a path that drops full packets is silent even while nothing is submitted."""
PATH_BYTES = 9_000
"""Fills the largest usual packet (jumbo frames), both ways, before a connection is used."""

VERSION, OLDEST_VERSION = 1, 1
"""
Versions of frames and bodies. A worker speaks its own version and the one before, so that workers can be
upgraded one at a time. Fields that a version adds follow those of the version before, which ignores them.
"""


class Versions(NamedTuple):
    """The range of versions that a worker speaks."""

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

    frame_bytes_max: int = 36 * MIB  # of a submission: a full queue of a lane, encoded
    message_bytes_max: int = 4 * MIB  # of a status, request, response or notification
    events_max: int = 20_000  # submitted and not answered
    bytes_max: int = 32 * MIB  # submitted and not answered
    requests_max: int = 64  # not answered
    unread_bytes_max: int = MIB  # written and not read by the other side, before writing pauses
    unauthenticated_max: int = 64  # accepted connections whose worker is not proved yet
    versions: Versions = field(default_factory=Versions)


@dataclass(slots=True)
class PeerMetrics:
    """Counters since the process began."""

    frames_refused: Counter[str] = field(default_factory=Counter)
    """Connections closed, and frames ignored, because of what was received, by reason."""
    accepted: int = 0  # accepted connections, proved
    connected: int = 0  # dialled connections, proved
    reconnects: int = 0  # attempts to replace a lost connection
    events_forwarded: int = 0
    events_received: int = 0
    messages_dropped: int = 0  # notifications to a worker that was down or read too slowly
