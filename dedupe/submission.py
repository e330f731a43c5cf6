"""
Submission: the events of one request for one partition, which a lane decides.

routes.post_events -> Router.submit -> **SubmissionTarget.submit** -> admit -> PartitionLog.append
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dedupe.decide.admission import Admission
from dedupe.model.clock import Deadline
from dedupe.model.types import Event, Offset


class Outcomes(NamedTuple):
    """The admissions of n events, in their order, and the offsets of their originals."""

    admissions: list[Admission]
    offsets: list[Offset]


class Submission(NamedTuple):
    """The events of one request for one partition."""

    events: Sequence[Event]  # n >= 1, all of one source and one partition, in request order
    received_ms: int  # log time of the request's arrival
    deadline: Deadline  # of the answer; the events may be committed later
    size_bytes: int  # dedupe.model.types.size_of the events


class SubmissionTarget(Protocol):
    """A lane that decides submissions: one of this process, or one of another worker."""

    def check_capacity(self, submission: Submission) -> None:
        """
        Raise the error that `submit` would raise now; accept nothing.

        Raises:
            LaneNotActiveError: the lane does not serve.
            LaneSaturatedError: the lane has no room for this submission.
        """

    def submit(self, submission: Submission) -> "asyncio.Future[Outcomes]":
        """
        Accept a submission; `check_capacity` has passed in this turn of the event loop.

        Returns:
            A future of the n outcomes in the events' order. It fails with a RetriableError: nothing was
            accepted if that is a LaneNotActiveError, LaneSaturatedError or DiskFullError. Neither the
            deadline nor a cancellation of the future withdraws the submission.

        Raises:
            RetriableError: nothing was accepted.
        """
