"""Submissions of events for tests of lanes, links and queues."""

from collections.abc import Sequence

from dedupe.model.clock import Deadline
from dedupe.model.types import Event, size_of
from dedupe.submission import Submission
from tests.support.peers import deadline_of


def submission_of(
    events: Sequence[Event],
    *,
    size_bytes: int | None = None,
    received_ms: int = 0,
    deadline: Deadline | None = None,
) -> Submission:
    """Return a submission, of the events' own size and with 4.5 s on the loop's time unless given."""
    size_bytes = size_of(events) if size_bytes is None else size_bytes
    return Submission(events, received_ms, deadline or deadline_of(4.5), size_bytes)
