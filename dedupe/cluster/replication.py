"""
Replication: sends each commit of a lane to the workers that follow it.

Lane.run -> **Replication.send** -> PeerLink.notify ~> PeerRequestHandler -> Follower.receive
"""

from collections.abc import Callable

import structlog

from dedupe.cluster.assignment import Assignment
from dedupe.cluster.codec import COMMITTED, encode_committed
from dedupe.cluster.peer_directory import PeerDirectory
from dedupe.decide.committed import Committed

logger = structlog.get_logger(__name__)


class Replication:
    """The commits of all lanes of this worker, for their followers."""

    def __init__(self, directory: PeerDirectory, assignment: Callable[[], Assignment]) -> None:
        """`assignment` returns the newest one."""
        self._directory, self._assignment = directory, assignment

    def send(self, number: int, committed: Committed) -> None:
        """Send a commit to the lane's followers, which read it from the log if this fails. Never raises."""
        for follower in self._assignment().followers_of(number):
            link = self._directory.link(follower)
            if link is None:  # this worker itself after a claim, or one that is down
                continue
            try:
                link.notify(COMMITTED, encode_committed(number, committed))
            except Exception as err:
                logger.error("commit not replicated to the follower", worker=follower, exc_info=err)
