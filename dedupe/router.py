"""
Router: submits the events of a request to the lanes of their partitions, and returns the outcomes.

It refuses a request as a whole, before any of its events is submitted. Rejected and conflicting events go to
quarantine, and the answer waits for that commit, too.

routes.post_events -> **Router.submit** -> Lane.submit -> admit -> PartitionLog.append
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from dedupe.decide.admission import Admission
from dedupe.decide.layout import Layout
from dedupe.decide.rejection import QUARANTINE_REASONS
from dedupe.decide.sessions import SessionState
from dedupe.metrics import AnswerCounts, Tally
from dedupe.model.clock import Deadline
from dedupe.model.errors import (
    DiskFullError,
    GatewayError,
    LaneNotActiveError,
    NotAppendedError,
    OutcomeUnknownError,
)
from dedupe.model.quarantine import Quarantine
from dedupe.model.types import Event, Offset, have_headers, with_headers
from dedupe.partition.health import text_of
from dedupe.partition.lane import Lane
from dedupe.route import Route
from dedupe.sub_requests import UNTAKEN, SubRequest, decide, parts_of, parts_of_each
from dedupe.submission import Outcomes

CUT_OFF = "cut_off"
"""The code of a request whose client disconnected, or that failed by an unexpected error."""


class Standing(Protocol):
    """A worker beside the others of its group."""

    is_outdone: bool
    is_outage: bool


class Router:
    """Submits requests to the clean and the quarantine lanes."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        quarantine_lanes: Sequence[Lane],
        quarantine: Quarantine,
        layout: Layout | None = None,
    ) -> None:
        """Each list of lanes is indexed by partition; without a layout, the clean topic was never divided."""
        self.layout = layout or Layout(len(lanes))
        self.partition_of = self.layout.map.of
        self.lanes = lanes
        self.quarantine_lanes = quarantine_lanes
        self.quarantine = quarantine
        self.routes: Sequence[Route] = lanes
        self.quarantine_routes: Sequence[Route] = quarantine_lanes
        self.answers = AnswerCounts()
        self.in_flight = 0
        self.is_draining = False
        self.is_leaving = False
        """Load balancers must send no more requests; those that arrive are answered."""
        self.is_paused = False
        """Requests wait in front of this process, which goes on with another router in seconds, or has."""
        self.goes_on = False
        """A router of this process has served before, so it is not waited for new partitions."""
        self.standing: Standing | None = None
        """This worker's ability beside that of the others; None without a group."""
        self.has_disk_room = True
        """Set by app.process.disk."""

    @property
    def totals(self) -> Tally:
        """The answers to clients, summed over all sources."""
        return self.answers.totals

    def reach_by(self, routes: Sequence[Route]) -> None:
        """Use these routes from now on, one for each of `all_lanes`."""
        self.routes, self.quarantine_routes = routes[: len(self.lanes)], routes[len(self.lanes) :]

    @property
    def all_lanes(self) -> list[Lane]:
        """Clean lanes, then quarantine lanes."""
        return [*self.lanes, *self.quarantine_lanes]

    @property
    def has_served(self) -> bool:
        """Whether every lane has served once."""
        return all(route.has_served for route in (*self.routes, *self.quarantine_routes))

    @property
    def is_ready(self) -> bool:
        """
        Whether load balancers should send requests: every lane has served once, and they are accepted now.

        All gateways go through a plan at the same time: if they were not ready then, nobody would be.
        """
        if self.is_leaving or not self.has_disk_room:
            return False
        if self.is_paused:
            return True
        return not self.is_draining and (self.goes_on or self.has_served) and self._is_able

    @property
    def _is_able(self) -> bool:
        """Whether an event can be stored, or another worker of the group would do no better."""
        is_serving = any(route.is_serving for route in self.routes)
        if self.standing is None:
            return is_serving
        return (is_serving or self.standing.is_outage) and not self.standing.is_outdone

    @property
    def outage(self) -> str | None:
        """One sentence on why no event is stored, and since when; None while a clean lane stores events."""
        if self.storing:
            return None
        silent = [at_ms for lane in self.lanes if (at_ms := lane.log_silent_since_ms) is not None]
        if silent:
            return f"no event can be stored: the log has not answered since {text_of(min(silent))}"
        failing = [lane.health for lane in self.lanes if lane.health.failing_since_ms is not None]
        if not failing:
            return None
        first = min(failing, key=lambda health: health.failing_since_ms or 0)
        return f"no partition serves; the first {first.why_not_active()}"

    @property
    def storing(self) -> int:
        """How many clean partitions are served by a lane whose log answers, as far as is known."""
        routes = zip(self.routes, self.lanes, strict=True)
        return sum(route.is_serving and lane.log_silent_since_ms is None for route, lane in routes)

    async def submit(
        self,
        events: Sequence[Event],
        rejected: Sequence[Event],
        *,
        received_ms: int,
        deadline: Deadline,
        has_several_sources: bool = False,
    ) -> Outcomes:
        """
        Decide one request.

        Args:
            events: n >= 0 identified events of the clean topic, in request order.
            rejected: rejected events, as events of the quarantine topic, one or more each.
            received_ms: log time of the request's arrival.
            deadline: of the answer; accepted events may be committed later.
            has_several_sources: whether the events may have several; without it, all must have one.

        Returns:
            The outcomes of `events`, same order; every conflict is in quarantine.

        Raises:
            LaneNotActiveError, LaneSaturatedError, DiskFullError, NotAppendedError: nothing was accepted.
            DeadlineExceededError, OutcomeUnknownError: some events may be committed. All retriable.
        """
        total = len(events) + len(rejected)
        split = parts_of_each if has_several_sources else parts_of
        parts = split(self.routes, events, received_ms, deadline)
        rejected_parts = split(self.quarantine_routes, rejected, received_ms, deadline) if rejected else []
        self.in_flight += total
        try:
            await self._await_capacity([*parts, *rejected_parts], deadline)
            outcomes = await decide(parts, len(events), deadline)
            await self._put_in_quarantine(rejected_parts, events, outcomes, received_ms, deadline)
        except BaseException as err:
            code = err.code if isinstance(err, GatewayError) else CUT_OFF
            self.answers.note_failure([*events, *rejected], code, is_untaken=isinstance(err, UNTAKEN))
            raise
        finally:
            self.in_flight -= total
        note = self.answers.note_each if has_several_sources else self.answers.note
        note(events, rejected, outcomes.admissions)
        return outcomes

    async def session(
        self,
        client_hash: bytes,
        session_hash: bytes,
        *,
        is_ended: bool = False,
        deadline: Deadline | None = None,
    ) -> SessionState | None:
        """
        Return the state of a client session, None if it is unknown; note that its client has ended it.

        Waits until `deadline` while its lane moves, as `submit` does; not at all without one.

        Raises LaneNotActiveError, IndexUnavailableError (retriable).
        """
        route = self.routes[self.partition_of(client_hash)]
        if deadline is not None and not route.is_serving:
            await route.wait(deadline)
        return await route.session(client_hash + session_hash, is_ended=is_ended)

    def drain(self) -> None:
        """Accept no more requests, and let every lane finish its queue."""
        self.is_draining = True
        for lane in self.all_lanes:
            lane.drain()

    def _check_capacity(self, parts: Sequence[SubRequest]) -> None:
        if self.is_draining:
            raise LaneNotActiveError("the gateway is shutting down", detail="it is shutting down")
        if not self.has_disk_room:
            raise DiskFullError("free disk space is below GATEWAY_DISK_FREE_MIN")
        for part in parts:
            part.check_capacity()

    async def _await_capacity(self, parts: Sequence[SubRequest], deadline: Deadline) -> None:
        """Wait while lanes of a request move to other workers; raises as `_check_capacity` does."""
        while True:
            try:
                self._check_capacity(parts)
                return
            except LaneNotActiveError:
                away = [part.route for part in parts if not part.route.is_serving]
                if self.is_draining or not away or not await away[0].wait(deadline):
                    raise

    async def _put_in_quarantine(
        self,
        rejected: Sequence[SubRequest],
        events: Sequence[Event],
        outcomes: Outcomes,
        received_ms: int,
        deadline: Deadline,
    ) -> None:
        """Commit the rejected and the conflicting events to the quarantine topic."""
        if not rejected and QUARANTINE_REASONS.keys().isdisjoint(outcomes.admissions):
            return
        quarantined = [event for part in rejected for event in part.submission.events]
        quarantined += [
            kept
            for event, admission, offset in zip(events, *outcomes, strict=True)
            if admission in QUARANTINE_REASONS
            for kept in self._refused(event, admission, offset)
        ]
        has_effect = bool(events)
        try:
            while quarantined:
                parts = parts_of_each(self.quarantine_routes, quarantined, received_ms, deadline)
                await self._await_capacity(parts, deadline)
                kept, _ = await decide(parts, len(quarantined), deadline)
                has_effect = has_effect or Admission.NEW in kept
                quarantined = self._refused_ones(quarantined, kept)
        except UNTAKEN as err:
            if not has_effect:
                raise
            raise OutcomeUnknownError("the request's other events are committed") from err

    def _refused(self, event: Event, admission: Admission, offset: Offset) -> Iterable[Event]:
        """Return an event of the clean topic that is refused as events of the quarantine topic."""
        original = offset if admission is Admission.CONFLICT else None
        kept = self.quarantine.refused(event, QUARANTINE_REASONS[admission], original)
        return [with_headers(each, event.headers) for each in kept] if have_headers([event]) else kept

    def _refused_ones(self, events: Sequence[Event], admissions: Sequence[Admission]) -> list[Event]:
        """
        Return, in smaller pieces, what the log of quarantine has refused for its size.

        Raises NotAppendedError: it takes no smaller pieces either, or has refused a content.
        """
        if Admission.REFUSED in admissions:
            raise NotAppendedError("the quarantine topic refuses a record for its content")
        if Admission.TOO_LARGE not in admissions:
            return []
        verdicts = zip(events, admissions, strict=True)
        refused = {event.key for event, admission in verdicts if admission is Admission.TOO_LARGE}
        return self.quarantine.in_smaller_pieces(events, refused)
