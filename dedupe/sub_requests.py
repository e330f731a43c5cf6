"""
SubRequest: the events of a request for one lane.

Router.submit -> **decide** -> Lane.submit -> admit -> PartitionLog.append
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from dedupe.decide.admission import Admission
from dedupe.model.clock import Deadline
from dedupe.model.errors import (
    DeadlineExceededError,
    DiskFullError,
    LaneNotActiveError,
    LaneSaturatedError,
    NotAppendedError,
    OutcomeUnknownError,
    RetriableError,
)
from dedupe.model.types import Event, size_of
from dedupe.route import Route
from dedupe.submission import Outcomes, Submission

RESUBMIT_PAUSE_S = 0.02
"""The pause before a part is submitted a third time: a worker may not know yet that it lost a lane."""

UNTAKEN = (LaneNotActiveError, LaneSaturatedError, DiskFullError, NotAppendedError)
"""The errors of a request without any effect."""


class SubRequest:
    """The part of a request for one partition, from its submission to its outcomes."""

    __slots__ = ("_answer", "_is_in_doubt", "_submissions", "places", "route", "submission")

    def __init__(self, route: Route, submission: Submission, places: list[int]) -> None:
        """`places` are those of the events in the request."""
        self.route = route
        self.submission = submission
        self.places = places
        self._answer: asyncio.Future[Outcomes] | None = None
        self._submissions = 0
        self._is_in_doubt = False  # an earlier submission may be committed

    def check_capacity(self) -> None:
        """Raise LaneNotActiveError or LaneSaturatedError if the lane would not accept it now."""
        self.route.check_capacity(self.submission)

    def submit(self) -> None:
        """Submit it; an error is stored as the outcome, since other lanes may have accepted their parts."""
        self._submissions += 1
        try:
            self._answer = self.route.submit(self.submission)
        except RetriableError as err:
            self._answer = asyncio.get_running_loop().create_future()
            self._answer.set_exception(err)

    async def decide(self) -> None:
        """Wait for outcomes or a final error; submit again while the route allows it."""
        while True:
            assert self._answer is not None
            try:
                await self._answer
                return
            except Exception as err:
                if not await self._may_submit_again(err):
                    return
            self.submit()

    @property
    def error(self) -> Exception | None:
        """The final error."""
        assert self._answer is not None
        err = self._answer.exception()
        return err if isinstance(err, Exception) else None

    @property
    def outcomes(self) -> Outcomes:
        """The outcomes; raises the final error."""
        assert self._answer is not None
        return self._answer.result()

    @property
    def is_untaken(self) -> bool:
        """Whether it has failed without any effect."""
        return not self._is_in_doubt and isinstance(self.error, UNTAKEN)

    def end_waiting(self) -> None:
        """Fail with DeadlineExceededError unless there is an outcome; a later one is ignored."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(DeadlineExceededError("no verdict in time"))

    def release(self) -> None:
        """
        Cancel the answer, or mark its error as retrieved, and drop it.

        The error refers to the frames that wait for it, and so to this object: the cycle would keep the
        request's events in memory until the garbage collector runs.
        """
        answer, self._answer = self._answer, None
        if answer is not None and not answer.cancel() and not answer.cancelled():
            answer.exception()

    async def _may_submit_again(self, err: Exception) -> bool:
        """Wait until a lane serves; return False if the error is final."""
        deadline = self.submission.deadline
        self._is_in_doubt = self._is_in_doubt or not isinstance(err, UNTAKEN)
        if isinstance(err, DeadlineExceededError) or not self.route.may_submit_again(err):
            return False
        if self._submissions > 1:
            await asyncio.sleep(min(RESUBMIT_PAUSE_S, deadline.remaining_s))
        if not await self.route.wait(deadline) or deadline.is_over:
            return False
        try:
            self.check_capacity()
        except RetriableError:
            return False
        return True


def parts_of(
    routes: Sequence[Route], events: Sequence[Event], received_ms: int, deadline: Deadline
) -> list[SubRequest]:
    """Split the events of a request and one source by partition, keeping their order."""
    by_partition: defaultdict[int, list[int]] = defaultdict(list)
    for place, partition in enumerate([event.partition for event in events]):
        by_partition[partition].append(place)
    parts = []
    for partition, places in by_partition.items():
        own = [events[place] for place in places] if len(places) < len(events) else events
        parts.append(
            SubRequest(routes[partition], Submission(own, received_ms, deadline, size_of(own)), places)
        )
    return parts


def parts_of_each(
    routes: Sequence[Route], events: Sequence[Event], received_ms: int, deadline: Deadline
) -> list[SubRequest]:
    """Split the events of a request by source and partition, since a submission has one source."""
    by_source: dict[str, list[int]] = {}
    for place, event in enumerate(events):
        by_source.setdefault(event.source, []).append(place)
    return [
        SubRequest(part.route, part.submission, [places[place] for place in part.places])
        for places in by_source.values()
        for part in parts_of(routes, [events[place] for place in places], received_ms, deadline)
    ]


async def decide(parts: Sequence[SubRequest], count: int, deadline: Deadline) -> Outcomes:
    """Submit all parts of a request to their lanes; return the outcomes of its `count` events in order."""
    outcomes = admissions, offsets = Outcomes([Admission.NEW] * count, [-1] * count)
    if not parts:
        return outcomes
    for part in parts:
        part.submit()
    # Not asyncio.wait, which is slower with several lanes.
    timer = asyncio.get_running_loop().call_later(deadline.remaining_s, _end_waiting, parts)
    try:
        for part in parts:
            await part.decide()
        if any([part.error for part in parts]):
            raise _error_of(parts)
        if len(parts) == 1:
            return parts[0].outcomes
        for part in parts:
            for place, admission, offset in zip(part.places, *part.outcomes, strict=True):
                admissions[place] = admission
                offsets[place] = offset
    finally:
        timer.cancel()
        for part in parts:
            part.release()
    return outcomes


def _end_waiting(parts: Sequence[SubRequest]) -> None:
    for part in parts:
        part.end_waiting()


def _error_of(parts: Sequence[SubRequest]) -> Exception:
    """Return the error of a request with failed parts; one of UNTAKEN only if no part had an effect."""
    errors = [err for part in parts if (err := part.error) is not None]
    for err in errors:
        if isinstance(err, DeadlineExceededError):
            return err
    if all(part.is_untaken for part in parts):
        return errors[0]
    unknown = OutcomeUnknownError("some of the request's events may be committed")
    unknown.__cause__ = errors[0]
    return unknown
