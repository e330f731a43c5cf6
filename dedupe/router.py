"""
Router: hands each event of a request to the lane of its partition and brings the verdicts back.

It decides only whether a request is taken at all, before any of its events is; what cannot go into
the clean stream goes to quarantine, and the answer waits for that too. Whether a lane lives in this
process or in another worker's, only its route knows.

routes.post_events -> **Router.submit** -> Lane.submit -> admit -> PartitionLog.append
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from dedupe.admission import Admission
from dedupe.clock import Deadline
from dedupe.errors import (
    DeadlineExceededError,
    DiskFullError,
    GatewayError,
    LaneNotActiveError,
    LaneSaturatedError,
    OutcomeUnknownError,
    RetriableError,
)
from dedupe.lane.lane import Lane
from dedupe.metrics import AnswerCounts, Tally
from dedupe.quarantine import Quarantine
from dedupe.rejection import QUARANTINE_REASONS
from dedupe.route import Route
from dedupe.routing import partition_of
from dedupe.sessions import SessionState
from dedupe.submission import Outcomes, Submission
from dedupe.types import Event, size_of

RESUBMIT_PAUSE_S = 0.02
"""Between submitting again and again: a worker says that it serves a lane until it has noticed otherwise."""

UNTAKEN = (LaneNotActiveError, LaneSaturatedError, DiskFullError)
"""What `submit` raises when a request has left no trace."""

CUT_OFF = "cut_off"
"""Counted as the code of a request whose client left, or that nobody foresaw."""


@dataclass(slots=True)
class Share:
    """The part of a request that belongs to one partition."""

    route: Route
    submission: Submission
    places: list[int]  # of its events among those of the request
    submissions: int = 0
    is_in_doubt: bool = False  # an earlier submission may have been taken

    def submit(self) -> "asyncio.Future[Outcomes]":
        """Submit it; a refusal fails the future, since other shares of the request may be taken already."""
        self.submissions += 1
        try:
            return self.route.submit(self.submission)
        except RetriableError as err:
            return _refused(err)


class Router:
    """All lanes of this process, clean and quarantine, behind one call."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        quarantine_lanes: Sequence[Lane],
        quarantine: Quarantine,
    ) -> None:
        """Take the lanes, each list indexed by partition."""
        self.lanes = lanes
        self.quarantine_lanes = quarantine_lanes
        self.quarantine = quarantine
        self.routes: Sequence[Route] = lanes
        self.quarantine_routes: Sequence[Route] = quarantine_lanes
        self.answers = AnswerCounts()
        """What clients were answered: all events of a request that failed are unknown, or refused untaken."""
        self.in_flight = 0
        self.is_draining = False
        self.is_leaving = False  # nobody new should come, but whoever does is answered
        self.has_disk_room = True

    @property
    def totals(self) -> Tally:
        """What clients were answered in all."""
        return self.answers.totals

    def reach_by(self, routes: Sequence[Route]) -> None:
        """Reach the lanes by these from now on, one for each of `all_lanes`."""
        self.routes, self.quarantine_routes = routes[: len(self.lanes)], routes[len(self.lanes) :]

    @property
    def all_lanes(self) -> list[Lane]:
        """Clean lanes, then quarantine lanes."""
        return [*self.lanes, *self.quarantine_lanes]

    @property
    def is_ready(self) -> bool:
        """Whether every lane has served once, and a request may be taken now: the one rule for it."""
        return (
            not self.is_draining
            and not self.is_leaving
            and self.has_disk_room
            and all(route.has_served for route in (*self.routes, *self.quarantine_routes))
            and any(route.is_serving for route in self.routes)
        )

    @property
    def outage(self) -> str | None:
        """One sentence on why no event can be taken, and since when; None while a clean lane serves."""
        failing = [lane.health for lane in self.lanes if lane.health.failing_since_ms is not None]
        if not failing or any(route.is_serving for route in self.routes):
            return None
        first = min(failing, key=lambda health: health.failing_since_ms or 0)
        return f"no partition serves; the first {first.why_not_active()}"

    async def submit(
        self, events: Sequence[Event], rejected: Sequence[Event], *, received_ms: int, deadline: Deadline
    ) -> Outcomes:
        """
        Decide one request.

        Args:
            events: n >= 0 identified events of the clean stream, in request order.
            rejected: events of the quarantine stream, refused already.
            received_ms: log time of the request's arrival.
            deadline: when to stop waiting; what was taken may still be committed.

        Returns:
            their outcomes, same order as `events`; every conflict is in quarantine.

        Raises:
            LaneNotActiveError, LaneSaturatedError, DiskFullError: nothing was taken.
            DeadlineExceededError, OutcomeUnknownError: some events may be committed. All retriable.
        """
        total = len(events) + len(rejected)
        shares = _shares_of(self.routes, events, received_ms, deadline)
        quarantine_shares = _shares_of(self.quarantine_routes, rejected, received_ms, deadline)
        self.in_flight += total
        try:
            await self._await_capacity([*shares, *quarantine_shares], deadline)
            outcomes = await _decide(shares, len(events), deadline)
            await self._put_in_quarantine(quarantine_shares, events, outcomes, received_ms, deadline)
        except BaseException as err:
            code = err.code if isinstance(err, GatewayError) else CUT_OFF
            self.answers.note_failure([*events, *rejected], code, is_untaken=isinstance(err, UNTAKEN))
            raise
        finally:
            self.in_flight -= total
        self.answers.note(events, rejected, outcomes.admissions)
        return outcomes

    async def session(self, client_hash: bytes, session_hash: bytes) -> SessionState | None:
        """
        Return what is known of a client session now, or None.

        Raises LaneNotActiveError, IndexUnavailableError (retriable).
        """
        route = self.routes[partition_of(client_hash, len(self.routes))]
        return await route.session(client_hash + session_hash)

    def drain(self) -> None:
        """Take no more requests and let every lane finish what it has."""
        self.is_draining = True
        for lane in self.all_lanes:
            lane.drain()

    def _check_capacity(self, shares: Sequence[Share]) -> None:
        if self.is_draining:
            raise LaneNotActiveError("the gateway is shutting down", told="it is shutting down")
        if not self.has_disk_room:
            raise DiskFullError("free disk space is below GATEWAY_DISK_FREE_MIN")
        for share in shares:
            share.route.check_capacity(share.submission)

    async def _await_capacity(self, shares: Sequence[Share], deadline: Deadline) -> None:
        """Wait while lanes of a request move to other workers; raises as `_check_capacity` does."""
        while True:
            try:
                self._check_capacity(shares)
                return
            except LaneNotActiveError:
                away = [share.route for share in shares if not share.route.is_serving]
                if self.is_draining or not away or not await away[0].wait(deadline):
                    raise

    async def _put_in_quarantine(
        self,
        rejected: Sequence[Share],
        events: Sequence[Event],
        outcomes: Outcomes,
        received_ms: int,
        deadline: Deadline,
    ) -> None:
        """Commit everything that must not enter the clean stream, once each."""
        if not rejected and not any(kind in outcomes.admissions for kind in QUARANTINE_REASONS):
            return
        apart = [
            self.quarantine.event(
                source=event.source,
                message_id=event.message_id,
                fingerprint=event.fingerprint,
                content=event.value,
                reason=QUARANTINE_REASONS[admission],
            )
            for event, admission in zip(events, outcomes.admissions, strict=True)
            if admission in QUARANTINE_REASONS
        ]
        shares = [*rejected, *_shares_of(self.quarantine_routes, apart, received_ms, deadline)]
        try:
            await self._await_capacity(shares, deadline)
            await _decide(shares, sum(len(share.places) for share in shares), deadline)
        except UNTAKEN as err:
            if not events:
                raise
            raise OutcomeUnknownError("the request's other events are committed") from err


def _shares_of(
    routes: Sequence[Route], events: Sequence[Event], received_ms: int, deadline: Deadline
) -> list[Share]:
    """Split a request's events by partition, keeping their order."""
    shares: dict[int, tuple[list[Event], list[int]]] = {}
    for place, event in enumerate(events):
        own, places = shares.setdefault(event.partition, ([], []))
        own.append(event)
        places.append(place)
    return [
        Share(routes[partition], Submission(own, received_ms, deadline, size_of(own)), places)
        for partition, (own, places) in shares.items()
    ]


async def _decide(shares: Sequence[Share], count: int, deadline: Deadline) -> Outcomes:
    """Submit every share to its lane and return the outcomes in the places' order."""
    outcomes = admissions, offsets = Outcomes(
        [Admission.NEW] * count, [-1] * count
    )  # until lanes have answered
    if not shares:
        return outcomes
    answers = [share.submit() for share in shares]
    # Not asyncio.wait: eight lanes' answers take 10 us so, and 180 us there.
    timer = asyncio.get_running_loop().call_later(deadline.remaining_s, _end_waiting, answers)
    error: Exception | None = None
    try:
        for place, share in enumerate(shares):
            while True:
                try:
                    await answers[place]
                except Exception as err:  # _error_of looks at all of them
                    if await _may_submit_again(share, err, deadline):
                        answers[place] = share.submit()
                        continue
                break
        if (error := _error_of(shares, answers)) is not None:
            raise error
        for share, answer in zip(shares, answers, strict=True):
            for place, admission, offset in zip(share.places, *answer.result(), strict=True):
                admissions[place] = admission
                offsets[place] = offset
    finally:
        timer.cancel()
        _give_up(answers)
        # An error knows this frame: if the frame knew it, too, the events would wait for the collector.
        error = None
        answers.clear()
    return outcomes


async def _may_submit_again(share: Share, err: Exception, deadline: Deadline) -> bool:
    """Wait for who decides a share after one has failed to; false if its error is the answer."""
    share.is_in_doubt = share.is_in_doubt or not isinstance(err, UNTAKEN)
    if isinstance(err, DeadlineExceededError) or not share.route.may_submit_again(err):
        return False
    if share.submissions > 1:
        await asyncio.sleep(min(RESUBMIT_PAUSE_S, deadline.remaining_s))
    if not await share.route.wait(deadline) or deadline.is_over:
        return False
    try:
        share.route.check_capacity(share.submission)
    except RetriableError:
        return False
    return True


def _error_of(shares: Sequence[Share], answers: "Sequence[asyncio.Future[Outcomes]]") -> Exception | None:
    """Return what to tell if a lane gave up: only if all of them did, untaken, was nothing taken."""
    errors = [err for answer in answers if isinstance(err := answer.exception(), Exception)]
    if not errors:
        return None
    for err in errors:
        if isinstance(err, DeadlineExceededError):
            return err
    is_in_doubt = any(share.is_in_doubt for share in shares)
    if len(errors) == len(answers) and not is_in_doubt and all(isinstance(err, UNTAKEN) for err in errors):
        return errors[0]
    unknown = OutcomeUnknownError("some of the request's events may be committed")
    unknown.__cause__ = errors[0]
    return unknown


def _refused(err: RetriableError) -> "asyncio.Future[Outcomes]":
    """Return an answer that is there already."""
    answer: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
    answer.set_exception(err)
    return answer


def _end_waiting(answers: "Sequence[asyncio.Future[Outcomes]]") -> None:
    """Fail the answers that are not there in time; what a lane says later is nobody's any more."""
    for answer in answers:
        if not answer.done():
            answer.set_exception(DeadlineExceededError("no verdict in time"))


def _give_up(answers: "Sequence[asyncio.Future[Outcomes]]") -> None:
    """Cancel the answers that nobody waits for any more, and keep asyncio from reporting their errors."""
    for answer in answers:
        if not answer.cancel() and not answer.cancelled():
            answer.exception()
