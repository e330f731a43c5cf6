"""Acceptor: the accepted side of a connection, which serves another worker's submissions and requests."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from app.peers.codec import Forwarded, outcomes_body, submissions_of
from app.peers.connection import Connection, Shared
from app.peers.errors import error_fields, refuse
from app.peers.frames import PATH, Kind, frame_of, packed, unpacked
from app.peers.handshake import ACCEPTS, DIALS, Challenge, Hello, check_proof, hello_of, proof_of
from app.peers.limits import PATH_BYTES, Versions
from dedupe.cluster.request_handler import PeerRequestHandler
from dedupe.model.errors import LaneSaturatedError, OutcomeUnknownError
from dedupe.submission import Outcomes

logger = structlog.get_logger(__name__)


class Acceptor(Connection):
    """Serves one worker that has connected."""

    def __init__(
        self,
        shared: Shared,
        handler: PeerRequestHandler,
        on_accept: Callable[["Acceptor"], None],
        on_authenticated: Callable[["Acceptor"], None],
        on_closed: Callable[["Acceptor"], None],
    ) -> None:
        """
        Wait for the transport.

        Args:
            shared: what all connections share.
            handler: serves the other worker's submissions and requests.
            on_accept: called when the connection begins, before TLS; may end connections.
            on_authenticated: called when `worker` is proved; may end other connections.
            on_closed: called when it has ended.
        """
        super().__init__(shared)
        self.worker = ""
        self._handler = handler
        self._on_accept, self._on_authenticated, self._on_closed = on_accept, on_authenticated, on_closed
        self._hello: Hello | None = None
        self._challenge: Challenge | None = None
        self._events = self._bytes = 0  # submitted and not answered
        self._decided: list[tuple[int, Outcomes]] = []  # to be sent at the end of this turn of the loop
        self._requests: set[asyncio.Task[None]] = set()
        self.handle({Kind.HELLO: self._on_hello, Kind.PROOF: self._on_proof})

    def on_begin(self) -> None:
        self._on_accept(self)

    def on_end(self) -> None:
        self._decided.clear()
        for request in self._requests:
            request.cancel()
        self._on_closed(self)

    def refusal(self, reason: str) -> bytes:
        return frame_of(self.version, Kind.FAILED, 0, packed(("refused", "", reason)))

    def on_flush(self) -> None:
        if self._decided:
            decided, self._decided = self._decided, []
            self._send_outcomes(decided)

    def on_paused(self, is_paused: bool) -> None:
        """Accept no more work while the other worker does not read the answers."""
        self.pause_reading(is_paused)

    def send_status(self, status: bytes) -> None:
        """Send this worker's encoded status."""
        if self.is_proved:
            self.send(Kind.STATUS, 0, status)

    def _on_hello(self, _number: int, body: memoryview) -> None:
        if self._hello is not None:
            refuse("wrong_state")
        self._hello = hello = hello_of(body, self.shared.plan)
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
        self.handle(
            {Kind.SUBMIT: self._on_submit, Kind.REQUEST: self._on_request, Kind.NOTIFY: self._on_notify}
        )
        self.send(Kind.WELCOME, 0, packed((proof_of(shared.key, ACCEPTS, hello, challenge),)))
        shared.metrics.accepted += 1
        self._on_authenticated(self)

    def _on_submit(self, _number: int, body: memoryview) -> None:
        for forwarded in submissions_of(body, self.shared.clock, events_max=self.shared.limits.events_max):
            self._submit(forwarded)

    def _submit(self, forwarded: Forwarded) -> None:
        limits, (number, lane, submission) = self.shared.limits, forwarded
        count, size_bytes = len(submission.events), submission.size_bytes
        if self._events + count > limits.events_max or self._bytes + size_bytes > limits.bytes_max:
            return self._fail(number, LaneSaturatedError("too much of this worker is under way"))
        try:
            answer = self._handler.submit(lane, submission)
        except Exception as err:
            return self._fail(number, err)
        self._events += count
        self._bytes += size_bytes
        self.shared.metrics.events_received += count
        answer.add_done_callback(partial(self._on_decided, number, count, size_bytes))
        return None

    def _on_decided(
        self, number: int, count: int, size_bytes: int, answer: "asyncio.Future[Outcomes]"
    ) -> None:
        self._events -= count
        self._bytes -= size_bytes
        if answer.cancelled():
            self._fail(number, OutcomeUnknownError("the submission was cancelled"))
        elif (err := answer.exception()) is not None:
            self._fail(number, err)
        elif self.end_reason is None:
            self._decided.append((number, answer.result()))
            self.flush_soon()

    def _send_outcomes(self, decided: Sequence[tuple[int, Outcomes]]) -> None:
        """Send outcomes in one frame; those that cannot be encoded are answered as unknown, alone."""
        try:
            body = outcomes_body(decided)
        except Exception as err:
            if len(decided) > 1:
                for one in decided:
                    self._send_outcomes([one])
                return
            logger.exception("outcomes cannot be encoded", worker=self.worker)
            self._fail(decided[0][0], OutcomeUnknownError(f"its outcomes cannot be encoded: {err!r}"))
        else:
            self.send(Kind.OUTCOMES, 0, body)

    def _on_request(self, number: int, body: memoryview) -> None:
        kind, content = _kind_and_content(body)
        if kind == PATH:
            return self.send(Kind.RESPONSE, number, packed(bytes(PATH_BYTES)))
        if len(self._requests) >= self.shared.limits.requests_max:
            return self._fail(number, LaneSaturatedError("too many requests of this worker are open"))
        request = self.loop.create_task(self._respond(number, kind, content))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)
        return None

    async def _respond(self, number: int, kind: str, content: Any) -> None:
        try:
            response = packed(await self._handler.on_request(kind, content))
            if len(response) > self.shared.limits.message_bytes_max - 64:
                raise ValueError(f"the response to {kind} has {len(response)} bytes")
        except Exception as err:
            self._fail(number, err)
        else:
            self.send(Kind.RESPONSE, number, response)

    def _on_notify(self, _number: int, body: memoryview) -> None:
        self._handler.on_notification(self.worker, *_kind_and_content(body))

    def _fail(self, number: int, err: BaseException) -> None:
        fields = error_fields(err)
        if fields[0] == "internal":
            logger.error("a worker's request failed", worker=self.worker, error=fields[2])
        self.send(Kind.FAILED, number, packed(fields))


def _kind_and_content(body: memoryview) -> Sequence[Any]:
    fields = unpacked(body)
    if type(fields) is not list or len(fields) < 2 or type(fields[0]) is not str:
        refuse("malformed")
    return fields[:2]
