"""
The interface between requests and the live tail of the admin port.
"""

from collections.abc import Sequence
from typing import Protocol

from app.http.request_context import RequestContext
from dedupe.model.types import Event
from dedupe.submission import Outcomes


class DecisionObserver(Protocol):
    """Called in the ingest's event loop. Fast, and never raises."""

    @property
    def is_on(self) -> bool:
        """Whether the live tail has a reader. If not, only requests with quarantined events are reported."""

    def decided(
        self, events: Sequence[Event], outcomes: Outcomes, rejected: Sequence[Event], context: RequestContext
    ) -> None:
        """
        Observe the verdicts of all events of a request.

        Args:
            events: n >= 0 events of the clean topic.
            outcomes: the outcomes of the events, same order.
            rejected: events of the quarantine topic, with their reasons.
            context: the request's context.
        """
