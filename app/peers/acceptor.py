"""The side of a connection that was called: it serves another worker's submissions and questions."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from app.peers.codec import ForwardedSubmission, outcomes_body, submissions_of
from app.peers.connection import Connection, Shared
from app.peers.errors import error_fields, refuse
from app.peers.frames import Kind, packed, unpacked
from app.peers.handshake import (
    ACCEPTS,
    DIALS,
    Challenge,
    Hello,
    check_proof,
    hello_of,
    proof_of,
)
from app.peers.host import Host
from app.peers.limits import Versions
from dedupe.clock import Deadline
from dedupe.errors import LaneSaturatedError, OutcomeUnknownError
from dedupe.submission import Outcomes, Submission

log = structlog.get_logger(__name__)


class Acceptor(Connection):
    """Serves one worker that has called."""

    def __init__(
        self,
        shared: Shared,
        host: Host,
        on_stranger: Callable[["Acceptor"], None],
        on_worker: Callable[["Acceptor"], None],
        on_gone: Callable[["Acceptor"], None],
    ) -> None:
        """
        Wait for the transport.

        Args:
            shared: what all connections share.
            host: serves what is asked.
            on_stranger: told once there is a connection.
            on_worker: told once it is known whose; may end others.
            on_gone: told when it has ended.
        """
        super().__init__(shared)
        self.worker = ""
        self._host = host
        self._on_stranger, self._on_worker, self._on_gone = on_stranger, on_worker, on_gone
        self._hello: Hello | None = None
        self._challenge: Challenge | None = None
        self._events = self._bytes = 0  # taken and not answered
        self._decided: list[tuple[int, Outcomes]] = []  # and not sent: that waits for the turn to end
        self._questions: set[asyncio.Task[None]] = set()
        self.handle({Kind.HELLO: self._on_hello, Kind.PROOF: self._on_proof})

    def on_made(self) -> None:
        """See Connection."""
        self._on_stranger(self)

    def on_end(self) -> None:
        """See Connection."""
        self._decided.clear()
        for question in self._questions:
            question.cancel()
        self._on_gone(self)

    def on_flush(self) -> None:
        """See Connection."""
        if self._decided:
            decided, self._decided = self._decided, []
            self._send_outcomes(decided)

    def on_paused(self, is_paused: bool) -> None:
        """Take no more work from whoever does not read the answers."""
        self.pause_reading(is_paused)

    def tell_status(self, status: bytes) -> None:
        """Send this worker's status."""
        if self.is_proved:
            self.send(Kind.STATUS, 0, status)

    def _on_hello(self, _number: int, body: memoryview) -> None:
        if self._hello is not None:
            refuse("wrong_state")
        self._hello = hello = hello_of(body)
        shared = self.shared
        if hello.to != shared.worker or hello.worker == shared.worker:
            refuse("wrong_worker")
        shared.versions.agreed(Versions(hello.newest, hello.oldest))
        self._challenge = Challenge(*shared.versions, shared.worker, shared.nonce())
        self.send(Kind.CHALLENGE, 0, packed(self._challenge))

    def _on_proof(self, _number: int, body: memoryview) -> None:
        hello, challenge, shared = self._hello, self._challenge, self.shared
        if hello is None or challenge is None or self.is_proved:
            refuse("wrong_state")
        check_proof(body, proof_of(shared.key, DIALS, hello, challenge))
        self.prove(shared.versions.agreed(Versions(hello.newest, hello.oldest)))
        self.worker = hello.worker
        self.handle({Kind.SUBMIT: self._on_submit, Kind.ASK: self._on_ask, Kind.TELL: self._on_tell})
        self.send(Kind.WELCOME, 0, packed((proof_of(shared.key, ACCEPTS, hello, challenge),)))
        shared.metrics.accepted += 1
        self._on_worker(self)

    def _on_submit(self, _number: int, body: memoryview) -> None:
        for submitted in submissions_of(body, events_max=self.shared.limits.events_max):
            self._take(submitted)

    def _take(self, submitted: ForwardedSubmission) -> None:
        limits, number = self.shared.limits, submitted.number
        count, size_bytes = len(submitted.events), submitted.size_bytes
        if self._events + count > limits.events_max or self._bytes + size_bytes > limits.bytes_max:
            return self._fail(number, LaneSaturatedError("too much of this worker is under way"))
        try:
            answer = self._submit(submitted)
        except Exception as err:
            return self._fail(number, err)
        self._events += count
        self._bytes += size_bytes
        self.shared.metrics.events_received += count
        answer.add_done_callback(partial(self._answer, number, count, size_bytes))
        return None

    def _submit(self, submitted: ForwardedSubmission) -> "asyncio.Future[Outcomes]":
        _, lane, received_ms, remaining_ms, size_bytes, events = submitted
        deadline = Deadline(self.shared.clock, remaining_ms / 1000)
        return self._host.submit(lane, Submission(events, received_ms, deadline, size_bytes))

    def _answer(self, number: int, count: int, size_bytes: int, answer: "asyncio.Future[Outcomes]") -> None:
        self._events -= count
        self._bytes -= size_bytes
        if answer.cancelled():
            self._fail(number, OutcomeUnknownError("the submission was given up"))
        elif (err := answer.exception()) is not None:
            self._fail(number, err)
        elif self.end_reason is None:
            self._decided.append((number, answer.result()))
            self.flush_soon()

    def _send_outcomes(self, decided: Sequence[tuple[int, Outcomes]]) -> None:
        """Send them in one frame; those that cannot be told are unknown, and no others with them."""
        try:
            body = outcomes_body(decided)
        except Exception as unsayable:
            if len(decided) > 1:
                for one in decided:
                    self._send_outcomes([one])
                return
            log.exception("outcomes cannot be told", worker=self.worker)
            self._fail(decided[0][0], OutcomeUnknownError(f"its outcomes cannot be told: {unsayable!r}"))
        else:
            self.send(Kind.OUTCOMES, 0, body)

    def _on_ask(self, number: int, body: memoryview) -> None:
        kind, asked = _kind_and_body(body)
        if len(self._questions) >= self.shared.limits.asks_max:
            return self._fail(number, LaneSaturatedError("too many questions of this worker are open"))
        question = self.loop.create_task(self._ask(number, kind, asked))
        self._questions.add(question)
        question.add_done_callback(self._questions.discard)
        return None

    async def _ask(self, number: int, kind: str, asked: Any) -> None:
        try:
            answer = packed(await self._host.answer(self.worker, kind, asked))
            if len(answer) > self.shared.limits.message_bytes_max - 64:
                raise ValueError(f"the answer to {kind} has {len(answer)} bytes")
        except Exception as err:
            self._fail(number, err)
        else:
            self.send(Kind.ANSWER, number, answer)

    def _on_tell(self, _number: int, body: memoryview) -> None:
        self._host.take(self.worker, *_kind_and_body(body))

    def _fail(self, number: int, err: BaseException) -> None:
        fields = error_fields(err)
        if fields[0] == "internal":
            log.error("a worker's request failed", worker=self.worker, error=fields[2])
        self.send(Kind.FAILED, number, packed(fields))


def _kind_and_body(body: memoryview) -> Sequence[Any]:
    fields = unpacked(body)
    if type(fields) is not list or len(fields) < 2 or type(fields[0]) is not str:
        refuse("malformed")
    return fields[:2]
