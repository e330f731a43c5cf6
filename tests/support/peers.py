"""Workers for tests of the connections between them: handlers that record what they receive."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dedupe.cluster.request_handler import PeerRequestHandler
from dedupe.decide.admission import Admission
from dedupe.model.clock import Clock, Deadline
from dedupe.model.types import Event
from dedupe.submission import Outcomes, Submission

SECRET = b"a secret of sixteen bytes or more"


def events_of(count: int, *, partition: int = 0, value: bytes = b"{}", start: int = 0) -> list[Event]:
    """Return events that differ by their keys."""
    return [
        Event(
            number.to_bytes(16, "big"), partition, number.to_bytes(8, "big"), "source", f"id-{number}", value
        )
        for number in range(start, start + count)
    ]


class Received:
    """A submission that a handler was passed, and the future that it returned."""

    def __init__(self, lane: int, submission: Submission) -> None:
        self.lane, self.events = lane, list(submission.events)
        self.size_bytes, self.received_ms = submission.size_bytes, submission.received_ms
        self.deadline = submission.deadline
        self.answer: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()

    def accept(self) -> None:
        """Answer that all events are new, at the offsets in their keys."""
        if not self.answer.done():
            offsets = [int.from_bytes(event.key, "big") for event in self.events]
            self.answer.set_result(Outcomes([Admission.NEW] * len(offsets), offsets))


class RecordingHandler(PeerRequestHandler):
    """Records what it receives; answers submissions at once unless `holds`."""

    def __init__(self, status: Any = "here") -> None:
        self.own_status = status
        self.received: list[tuple[str, str, Any]] = []
        """Worker, kind and body of each notification; kind `status` for statuses."""
        self.submissions: list[Received] = []
        self.holds = False
        self.refusal: Exception | None = None
        self.respond: Callable[[str, Any], Awaitable[Any]] | None = None

    def status(self) -> Any:
        return self.own_status

    def on_status(self, worker: str, fields: Any) -> None:
        self.received.append((worker, "status", fields))

    def on_notification(self, worker: str, kind: str, body: Any) -> None:
        self.received.append((worker, kind, body))

    async def on_request(self, kind: str, body: Any) -> Any:
        return [kind, body] if self.respond is None else await self.respond(kind, body)

    def submit(self, lane: int, submission: Submission) -> "asyncio.Future[Outcomes]":
        if self.refusal is not None:
            raise self.refusal
        received = Received(lane, submission)
        self.submissions.append(received)
        if not self.holds:
            received.accept()
        return received.answer


class LoopClock:
    """The event loop's time, which is virtual in simulations."""

    def now_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


def deadline_of(timeout_s: float, clock: Clock | None = None) -> Deadline:
    """Return a deadline on the loop's time."""
    return Deadline(clock or LoopClock(), timeout_s)
