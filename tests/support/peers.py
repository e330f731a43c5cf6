"""Workers for tests of the connections between them: hosts that keep what they get."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dedupe.admission import Admission
from dedupe.clock import Clock, Deadline
from dedupe.submission import Outcomes, Submission
from dedupe.types import Event

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
    """What a host was given, and the future it has returned."""

    def __init__(self, lane: int, submission: Submission) -> None:
        self.lane, self.events = lane, list(submission.events)
        self.size_bytes, self.received_ms = submission.size_bytes, submission.received_ms
        self.deadline = submission.deadline
        self.answer: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()

    def accept(self) -> None:
        """Answer that all events are new, at offsets that their keys tell."""
        if not self.answer.done():
            offsets = [int.from_bytes(event.key, "big") for event in self.events]
            self.answer.set_result(Outcomes([Admission.NEW] * len(offsets), offsets))


class RecordingHost:
    """Keeps what it is given; answers submissions at once unless `holds`."""

    def __init__(self, status: Any = "here") -> None:
        self.told_status = status
        self.taken: list[tuple[str, str, Any]] = []
        self.submissions: list[Received] = []
        self.holds = False
        self.refusal: Exception | None = None
        self.answers: Callable[[str, str, Any], Awaitable[Any]] | None = None

    def status(self) -> Any:
        return self.told_status

    def take(self, worker: str, kind: str, body: Any) -> None:
        self.taken.append((worker, kind, body))

    async def answer(self, worker: str, kind: str, body: Any) -> Any:
        if self.answers is None:
            return [worker, kind, body]
        return await self.answers(worker, kind, body)

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
