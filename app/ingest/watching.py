"""
The seam for whoever looks at events while they are decided: the live tail of the admin port.

While nobody looks, it costs a request a look at one flag; what it may not cost is an answer. A watched
request has in its scope, as far as that is known: `gateway.client`, the client of its session, and
`gateway.watched`, its events and those to be kept apart, for whoever tells of its refusal.
"""

from collections.abc import Sequence
from typing import Protocol

from starlette.types import Scope

from dedupe.lane import Outcomes
from dedupe.types import Event


class Watcher(Protocol):
    """Told in the ingest's event loop. Takes microseconds, and never raises."""

    @property
    def is_on(self) -> bool:
        """Whether somebody looks now. If not, only what is kept apart is told."""

    def decided(
        self, events: Sequence[Event], outcomes: Outcomes, rejected: Sequence[Event], scope: Scope
    ) -> None:
        """
        All events of a request have their verdict.

        Args:
            events: of the clean stream, n >= 0.
            outcomes: theirs, same order.
            rejected: of the quarantine stream, with their reasons.
            scope: the request's.
        """
