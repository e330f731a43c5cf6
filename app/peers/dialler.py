"""Dialler: the dialled side of a connection, which submits, requests and notifies, and receives statuses."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from app.peers.answer_watch import AnswerWatch
from app.peers.codec import Forwarded, outcomes_of, submissions_body
from app.peers.connection import UNANSWERED, Connection, Shared
from app.peers.errors import error_of, reason_of, refuse
from app.peers.frames import HEAD, PATH, Kind, packed, unpacked
from app.peers.handshake import ACCEPTS, DIALS, Hello, challenge_of, check_proof, magic_of, proof_of
from app.peers.limits import PATH_BYTES, Versions
from dedupe.model.errors import (
    DeadlineExceededError,
    LaneNotActiveError,
    LaneSaturatedError,
    OutcomeUnknownError,
)
from dedupe.submission import Outcomes, Submission

REFUSALS = {
    "unauthenticated": "this worker has another GATEWAY_IDENTITY_SECRET",
    "version": "this worker speaks no version of the frames that it speaks",
    "wrong_worker": "another worker listens at its address, or has this worker's name",
    "other_plan": "this worker follows another plan of the topic's partitions, until one of both is over",
    "late_handshake": "the handshake took too long",
    "too_many_strangers": "too many connections there are not authenticated yet",
    "malformed": "it cannot read the handshake",
    "too_large": "it cannot read the handshake",
    "wrong_state": "it cannot read the handshake",
}
"""What an acceptor's reasons mean for the worker that it refuses."""

FRAME_EVENTS_BYTES_MAX = 1024 * 1024
"""Size of the events of several submissions in one frame; a larger submission has a frame of its own."""


class Dialler(Connection):
    """Sends to one worker."""

    def __init__(
        self, shared: Shared, to: str, on_status: Callable[[Any], None], on_change: Callable[[], None]
    ) -> None:
        """
        Wait for the transport.

        Args:
            shared: what all connections share.
            to: the worker that must answer.
            on_status: called with each of its statuses after its proof.
            on_change: called when the path is proved, and when the connection has ended.
        """
        super().__init__(shared)
        self.to = to
        self._status_callback, self._change_callback = on_status, on_change
        self._hello: Hello | None = None
        self._expected: bytes | None = None
        self._agreed = 0
        self._number = self._number_sent = 0
        self._submitted: dict[int, tuple[asyncio.Future[Outcomes], int, int]] = {}  # count, size
        self._unsent_submissions: list[Forwarded] = []  # to be sent at the end of this turn of the loop
        self._requested: dict[int, asyncio.Future[Any]] = {}
        self.events = self.bytes = 0  # submitted and not answered
        self.statuses = 0  # received
        self.answers = 0  # to submissions
        self.is_path_proved = False
        """Whether full packets have arrived, so that submissions can."""
        self.was_awaited = False
        """Whether it has ended with submissions that were not answered."""
        self._path_number = 0
        self._watch = AnswerWatch()
        self.handle(
            {
                Kind.CHALLENGE: self._on_challenge,
                Kind.WELCOME: self._on_welcome,
                Kind.FAILED: self._on_refused,  # until the proof
            }
        )

    def on_made(self) -> None:
        shared = self.shared
        self._hello = Hello(magic_of(shared.plan), *shared.versions, shared.worker, self.to, shared.nonce())
        self.send(Kind.HELLO, 0, packed(self._hello))

    def reason_of_loss(self, err: Exception) -> str:
        return reason_of(err) if isinstance(err, ssl.SSLError) else "lost"

    def on_flush(self) -> None:
        unsent, self._unsent_submissions = self._unsent_submissions, []
        self._number_sent = self._number
        together: list[Forwarded] = []
        size_bytes = 0
        for forwarded in unsent:
            if together and size_bytes + forwarded.submission.size_bytes > FRAME_EVENTS_BYTES_MAX:
                self._send_submissions(together)
                together, size_bytes = [], 0
            together.append(forwarded)
            size_bytes += forwarded.submission.size_bytes
        if together:
            self._send_submissions(together)

    def _send_submissions(self, submissions: Sequence[Forwarded]) -> None:
        """Send submissions in one frame; one that cannot be encoded fails alone, unsent."""
        try:
            body = submissions_body(submissions)
            if len(body) + HEAD.size > self.shared.limits.frame_bytes_max:
                raise LaneSaturatedError(f"{len(body)} bytes exceed the size of a frame")
        except Exception as err:
            if len(submissions) > 1:
                for submission in submissions:
                    self._send_submissions([submission])
            elif (answer := self._pop_submitted(submissions[0].number)) is not None and not answer.done():
                answer.set_exception(err)
        else:
            self.shared.metrics.events_forwarded += sum(len(one.submission.events) for one in submissions)
            self.send(Kind.SUBMIT, 0, body)

    def on_check(self, now: float) -> None:
        """Ask for an echo while a submission waits; end the connection if it does not come in time."""
        if self._watch.is_over():
            return self.end(UNANSWERED)
        if self._watch.is_due(next(iter(self._submitted), 0), now):
            self._watch.ask(now, self.bytes + self.unsent_bytes)
            self._ask_for_path()
        return None

    def on_end(self) -> None:
        self._unsent_submissions.clear()
        self.was_awaited = bool(self._submitted)
        waiting: dict[int, asyncio.Future[Any]] = {number: of[0] for number, of in self._submitted.items()}
        waiting |= self._requested
        self._submitted, self._requested = {}, {}
        self.events = self.bytes = 0
        for number, answer in waiting.items():
            if not answer.done():
                answer.set_exception(self._error_of_end(number))
        self._change_callback()

    def check_capacity(self, submission: Submission) -> None:
        """Raise LaneSaturatedError if too much would be under way."""
        limits, count = self.shared.limits, len(submission.events)
        if self.events + count > limits.events_max or self.bytes + submission.size_bytes > limits.bytes_max:
            raise LaneSaturatedError(f"{self.events} events of {self.bytes} bytes are under way to {self.to}")

    def submit(self, lane: int, submission: Submission) -> "asyncio.Future[Outcomes]":
        """See PeerLink. Raises LaneSaturatedError."""
        self.check_capacity(submission)
        answer: asyncio.Future[Outcomes] = self.loop.create_future()
        self._number += 1
        count, size_bytes = len(submission.events), submission.size_bytes
        self._submitted[self._number] = answer, count, size_bytes
        self.events += count
        self.bytes += size_bytes
        self._unsent_submissions.append(Forwarded(self._number, lane, submission))
        self.flush_soon()
        return answer

    async def request(self, kind: str, body: Any, timeout_s: float) -> Any:
        """See PeerLink."""
        limits = self.shared.limits
        if len(self._requested) >= limits.requests_max or self.unsent_bytes > limits.message_bytes_max:
            raise LaneSaturatedError(f"{len(self._requested)} requests to {self.to} are open")
        message = self._message(kind, body)
        response: asyncio.Future[Any] = self.loop.create_future()
        self._number = number = self._number + 1
        self._requested[number] = response
        self.send(Kind.REQUEST, number, message)
        try:
            async with asyncio.timeout(timeout_s):
                return await response
        except TimeoutError:
            raise DeadlineExceededError(f"no response of {self.to} to {kind} in {timeout_s:g} s") from None
        finally:
            self._requested.pop(number, None)

    def notify(self, kind: str, body: Any) -> bool:
        """See PeerLink."""
        message = self._message(kind, body)
        if self.unsent_bytes + len(message) > self.shared.limits.message_bytes_max:
            return False
        self.send(Kind.NOTIFY, 0, message)
        return True

    def _message(self, kind: str, body: Any) -> bytes:
        message = packed((kind, body))
        if len(message) + HEAD.size > self.shared.limits.message_bytes_max:
            raise ValueError(f"{kind} has {len(message)} bytes")
        return message

    def _error_of_end(self, number: int) -> Exception:
        if number > self._number_sent:
            return LaneNotActiveError(
                f"the connection to {self.to} ended before it was sent: {self.end_reason}"
            )
        return OutcomeUnknownError(f"the connection to {self.to} ended before the answer: {self.end_reason}")

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

    def _on_refused(self, _number: int, body: memoryview) -> None:
        """End with the reason of the other side, which is not proved: only a known one is repeated."""
        reason = str(error_of(unpacked(body)))
        known = REFUSALS.get(reason, "for a reason that this version does not know")
        self.end(f"refused by {self.to}: {known}")

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
                Kind.RESPONSE: self._on_response,
            }
        )
        self._ask_for_path()

    def _ask_for_path(self) -> None:
        """Ask for an echo of full packets."""
        self._number = self._path_number = self._number + 1
        self.send(Kind.REQUEST, self._path_number, packed((PATH, bytes(PATH_BYTES))))

    def _on_status(self, _number: int, body: memoryview) -> None:
        self.statuses += 1
        self._status_callback(unpacked(body))

    def _on_outcomes(self, _number: int, body: memoryview) -> None:
        for number, outcomes in outcomes_of(body, self._count_of):
            answer = self._pop_submitted(number)
            self.answers += 1
            if answer is not None and not answer.done():
                answer.set_result(outcomes)

    def _count_of(self, number: int) -> int:
        """Return the number of events of a submission that is under way. Raises FrameRefusedError."""
        submitted = self._submitted.get(number)
        if submitted is None:
            refuse("not_asked")
        return submitted[1]

    def _on_failed(self, number: int, body: memoryview) -> None:
        err = error_of(unpacked(body))
        if number == self._path_number:
            return self._on_path_proved()
        answer = self._pop_submitted(number)
        if answer is None:
            answer = self._requested.get(number)
        else:
            self.answers += 1
        if answer is not None and not answer.done():
            answer.set_exception(err)
        return None

    def _on_response(self, number: int, body: memoryview) -> None:
        if number == self._path_number:
            return self._on_path_proved()
        response = self._requested.get(number)
        if response is not None and not response.done():
            response.set_result(unpacked(body))
        return None

    def _on_path_proved(self) -> None:
        self._watch.note_echo()
        if not self.is_path_proved:
            self.is_path_proved = True
            self._change_callback()

    def _pop_submitted(self, number: int) -> "asyncio.Future[Outcomes] | None":
        """Remove a submission from those under way, and return its future."""
        submitted = self._submitted.pop(number, None)
        if submitted is None:
            return None
        answer, count, size_bytes = submitted
        self.events -= count
        self.bytes -= size_bytes
        return answer
