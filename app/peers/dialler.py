"""The side of a connection that calls: it submits, asks and tells, and hears the other worker's status."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from app.peers.codec import ForwardedSubmission, outcomes_of, submissions_body
from app.peers.connection import Connection, Shared
from app.peers.errors import error_of, refuse
from app.peers.frames import HEAD, Kind, packed, unpacked
from app.peers.handshake import (
    ACCEPTS,
    DIALS,
    MAGIC,
    Hello,
    challenge_of,
    check_proof,
    proof_of,
)
from app.peers.limits import Versions
from dedupe.errors import (
    DeadlineExceededError,
    LaneNotActiveError,
    LaneSaturatedError,
    OutcomeUnknownError,
)
from dedupe.submission import Outcomes, Submission

TOGETHER_BYTES_MAX = 1024 * 1024
"""Of the events of several submissions in one frame; a larger one has a frame of its own."""


class Dialler(Connection):
    """Asks one worker that was called."""

    def __init__(
        self, shared: Shared, to: str, on_status: Callable[[Any], None], on_end: Callable[[], None]
    ) -> None:
        """
        Wait for the transport.

        Args:
            shared: what all connections share.
            to: the worker to reach.
            on_status: told the other worker's status; the first time once it has proved itself.
            on_end: told when the connection has ended, after everything that waits has failed.
        """
        super().__init__(shared)
        self.to = to
        self._on_status_told, self._on_end_told = on_status, on_end
        self._hello: Hello | None = None
        self._expected: bytes | None = None
        self._agreed = 0
        self._number = self._number_sent = 0
        self._submitted: dict[int, tuple[asyncio.Future[Outcomes], int, int]] = {}
        self._waiting: list[tuple[int, int, Submission]] = []  # number, lane; for the turn to end
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self.events = self.bytes = 0  # submitted and not answered
        self.statuses = 0  # heard
        self.handle({Kind.CHALLENGE: self._on_challenge, Kind.WELCOME: self._on_welcome})

    def on_made(self) -> None:
        """See Connection."""
        shared = self.shared
        self._hello = Hello(MAGIC, *shared.versions, shared.worker, self.to, shared.nonce())
        self.send(Kind.HELLO, 0, packed(self._hello))

    def on_flush(self) -> None:
        """See Connection."""
        waiting, self._waiting = self._waiting, []
        self._number_sent = self._number
        together: list[ForwardedSubmission] = []
        size_bytes = 0
        for number, lane, (events, received_ms, deadline, size) in waiting:
            remaining_ms = int(deadline.remaining_s * 1000)
            if together and size_bytes + size > TOGETHER_BYTES_MAX:
                self._send_submissions(together)
                together, size_bytes = [], 0
            together.append(ForwardedSubmission(number, lane, received_ms, remaining_ms, size, events))
            size_bytes += size
        if together:
            self._send_submissions(together)

    def _send_submissions(self, submissions: Sequence[ForwardedSubmission]) -> None:
        """Send them in one frame; those that cannot be told have failed, untaken, and no others with them."""
        try:
            body = submissions_body(submissions)
            if len(body) + HEAD.size > self.shared.limits.frame_bytes_max:
                raise LaneSaturatedError(f"{len(body)} bytes are more than a frame takes")
        except Exception as err:
            if len(submissions) > 1:
                for submission in submissions:
                    self._send_submissions([submission])
            elif (answer := self._answered(submissions[0].number)) is not None and not answer.done():
                answer.set_exception(err)
        else:
            self.shared.metrics.events_forwarded += sum(len(one.events) for one in submissions)
            self.send(Kind.SUBMIT, 0, body)

    def on_end(self) -> None:
        """See Connection."""
        self._waiting.clear()
        submitted, self._submitted = self._submitted, {}
        asked, self._asked = self._asked, {}
        self.events = self.bytes = 0
        for number, (answer, _, _) in submitted.items():
            if not answer.done():
                answer.set_exception(self._error_of_end(number))
        for number, question in asked.items():
            if not question.done():
                question.set_exception(self._error_of_end(number))
        self._on_end_told()

    def check_capacity(self, events: int, size_bytes: int) -> None:
        """Raise LaneSaturatedError if this would be more than may be under way."""
        limits = self.shared.limits
        if self.events + events > limits.events_max or self.bytes + size_bytes > limits.bytes_max:
            raise LaneSaturatedError(f"{self.events} events of {self.bytes} bytes are under way to {self.to}")

    def submit(self, lane: int, submission: Submission) -> "asyncio.Future[Outcomes]":
        """Send events to a lane there; see PeerLink.submit. Raises LaneSaturatedError."""
        count, size_bytes = len(submission.events), submission.size_bytes
        self.check_capacity(count, size_bytes)
        answer: asyncio.Future[Outcomes] = self.loop.create_future()
        self._number += 1
        self._submitted[self._number] = answer, count, size_bytes
        self.events += count
        self.bytes += size_bytes
        self._waiting.append((self._number, lane, submission))
        self.flush_soon()
        return answer

    async def ask(self, kind: str, body: Any, timeout_s: float) -> Any:
        """Return the other worker's answer; see PeerLink.ask."""
        limits = self.shared.limits
        if len(self._asked) >= limits.asks_max or self.unsent_bytes > limits.message_bytes_max:
            raise LaneSaturatedError(f"{len(self._asked)} questions to {self.to} are open")
        question = self._message(kind, body)
        answer: asyncio.Future[Any] = self.loop.create_future()
        self._number = number = self._number + 1
        self._asked[number] = answer
        self.send(Kind.ASK, number, question)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise DeadlineExceededError(f"{self.to} has not answered {kind} in {timeout_s:g} s") from None
        finally:
            self._asked.pop(number, None)

    def tell(self, kind: str, body: Any) -> bool:
        """Send a message that nobody answers; false if too much waits for the other side to read."""
        message = self._message(kind, body)
        if self.unsent_bytes + len(message) > self.shared.limits.message_bytes_max:
            return False
        self.send(Kind.TELL, 0, message)
        return True

    def _message(self, kind: str, body: Any) -> bytes:
        message = packed((kind, body))
        if len(message) + HEAD.size > self.shared.limits.message_bytes_max:
            raise ValueError(f"{kind} has {len(message)} bytes")
        return message

    def _error_of_end(self, number: int) -> Exception:
        if number > self._number_sent:
            return LaneNotActiveError(f"the connection to {self.to} ended before: {self.end_reason}")
        return OutcomeUnknownError(f"the connection to {self.to} ended amid it: {self.end_reason}")

    def _on_challenge(self, _number: int, body: memoryview) -> None:
        shared, hello = self.shared, self._hello
        if hello is None or self._expected is not None:
            refuse("wrong_state")
        challenge = challenge_of(body)
        if challenge.worker != self.to:
            refuse("wrong_worker")
        self._agreed = shared.versions.agreed(Versions(challenge.newest, challenge.oldest))
        self._expected = proof_of(shared.key, ACCEPTS, hello, challenge)
        self.send(Kind.PROOF, 0, packed((proof_of(shared.key, DIALS, hello, challenge),)))

    def _on_welcome(self, _number: int, body: memoryview) -> None:
        if self._expected is None or self.is_proved:
            refuse("wrong_state")
        check_proof(body, self._expected)
        self.prove(self._agreed)
        self.handle(
            {
                Kind.STATUS: self._on_status,
                Kind.OUTCOMES: self._on_outcomes,
                Kind.FAILED: self._on_failed,
                Kind.ANSWER: self._on_answer,
            }
        )

    def _on_status(self, _number: int, body: memoryview) -> None:
        self.statuses += 1
        self._on_status_told(unpacked(body))

    def _on_outcomes(self, _number: int, body: memoryview) -> None:
        for number, outcomes in outcomes_of(body, self._count_of):
            answer = self._answered(number)
            if answer is not None and not answer.done():
                answer.set_result(outcomes)

    def _count_of(self, number: int) -> int:
        """Return how many events a submission has that is under way. Raises FrameRefusedError."""
        submitted = self._submitted.get(number)
        if submitted is None:
            refuse("not_asked")
        return submitted[1]

    def _on_failed(self, number: int, body: memoryview) -> None:
        err = error_of(unpacked(body))
        answer = self._answered(number) or self._asked.get(number)
        if answer is not None and not answer.done():
            answer.set_exception(err)

    def _on_answer(self, number: int, body: memoryview) -> None:
        answer = self._asked.get(number)
        if answer is not None and not answer.done():
            answer.set_result(unpacked(body))

    def _answered(self, number: int) -> "asyncio.Future[Outcomes] | None":
        """Count a submission no more, and return who waits for it."""
        submitted = self._submitted.pop(number, None)
        if submitted is None:
            return None
        answer, count, size_bytes = submitted
        self.events -= count
        self.bytes -= size_bytes
        return answer
