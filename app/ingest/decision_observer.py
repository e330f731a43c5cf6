"""
The seam between requests and the live tail of the admin port.

While no operator looks, it costs a request one flag; it never costs an answer.
"""

from collections.abc import Sequence
from typing import Protocol

from app.http.request_context import RequestContext
from dedupe.model.types import Event
from dedupe.submission import Outcomes


class DecisionObserver(Protocol):
    """Called in the ingest's event loop. Takes microseconds, and never raises."""

    @property
    def is_on(self) -> bool:
        """Whether an operator looks now. If not, only requests with quarantined events are reported."""

    def decided(
        self, events: Sequence[Event], outcomes: Outcomes, rejected: Sequence[Event], context: RequestContext
    ) -> None:
        """
        Take the verdicts of all events of a request.

        Args:
            events: of the clean stream, n >= 0.
            outcomes: of the events, same order.
            rejected: of the quarantine stream, with their reasons.
            context: of the request.
        """
