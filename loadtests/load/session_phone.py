"""A phone that numbers its events in a client session, loses answers, and is offline at times."""

import secrets
import time
from typing import Any

from gevent.lock import BoundedSemaphore

from clients.python.gateway_client import ksuid
from loadtests.bench.workload import event_without_id
from loadtests.load.answers import Place, WrongAnswerError, parsed, receipts_of
from loadtests.load.clients import Answer, Client, Refused, authorization
from loadtests.load.names import RETRY, SESSION, STATE

BATCH_MAX = 100
"""Below the limit of 512 sequences above the watermark."""

OFFLINE_CHANCE, OFFLINE_ARRIVALS = 0.1, 15


class SessionPhone(Client):
    """One client with one session; it sends one request at a time, its events arrive at random."""

    requests_per_s = 1.5

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._client, self._session = secrets.token_hex(16), ksuid()
        self._key = self.any_key()
        self._made = self._acknowledged = self._sent = 0
        self._first = self._next_number
        self._offline_arrivals = 0
        self._waiting_since: float | None = None
        self._told: dict[int, Place] = {}
        self._sending = BoundedSemaphore(1)

    def send(self, due: float) -> None:
        """Create events, and send them unless the phone is offline or is sending."""
        self._made += self.options.batch_events
        if self._offline_arrivals:
            self._offline_arrivals -= 1
            return
        if self.chance.random() < OFFLINE_CHANCE:
            self._offline_arrivals = self.chance.randint(1, OFFLINE_ARRIVALS)
            self._waiting_since = None  # no wait is counted while it is offline
            return
        if self._waiting_since is None:
            self._waiting_since = due
        if self._sending.acquire(blocking=False):
            try:
                self._flush()
            finally:
                self._sending.release()

    def on_stop(self) -> None:
        """Send the rest, and check the gateway's state of the session."""
        self.under_way.join(timeout=5.0)
        if self._made:
            self._flush()
            self._check_state()
        super().on_stop()

    def _flush(self) -> None:
        since, self._waiting_since = self._waiting_since, None
        due = since if since is not None and not self._told else time.perf_counter()
        for _ in range(10_000):
            if self._acknowledged == self._made or not self._send_batch(due):
                return
            due = time.perf_counter()

    def _send_batch(self, due: float) -> bool:
        """Send the events after those acknowledged; False if that is to be tried again later."""
        first = self._acknowledged + 1
        last = min(self._made, self._acknowledged + BATCH_MAX)
        known = max(0, min(self._sent, last) - self._acknowledged)
        is_told = all(sequence in self._told for sequence in range(first, first + known))

        def judge(answer: Answer) -> list[Place]:
            return self._judged(answer, first, last, known if is_told else None)

        headers = {
            "Gateway-Client": self._client,
            "Gateway-Session": self._session,
            "Gateway-Acknowledged-Through": str(self._acknowledged),
        }
        events = b",".join(event_without_id(self._first + n) for n in range(first, last + 1))
        data = b'{"batch":[%b],"firstSequence":%d}' % (events, first)
        self._sent = max(self._sent, last)
        name = RETRY if known else SESSION
        places = self.post(data, self._key, judge, due=due, name=name, headers=headers)
        if places is None or isinstance(places, Refused):
            return False
        if self.chance.random() < self.options.duplicates:
            self._told.update(zip(range(first, last + 1), places, strict=True))
            return True  # the answer got lost: the next round sends them again
        self._acknowledged = last
        self._told.clear()
        return True

    def _judged(self, answer: Answer, first: int, last: int, known: int | None) -> list[Place]:
        count = last - first + 1
        places = receipts_of(answer.content, None, count)
        if known is not None and answer.counted != (count - known, known):
            raise WrongAnswerError(f"{answer.counted} of {count} events, {known} of them sent before")
        for sequence, place in zip(range(first, last + 1), places, strict=True):
            if self._told.get(sequence, place) != place:
                raise WrongAnswerError("a sequence has another place than the first time")
        if answer.headers.get("Gateway-Session-Watermark") != str(last):
            raise WrongAnswerError("the watermark is not the last sequence")
        if answer.headers.get("Gateway-Session-Missing"):
            raise WrongAnswerError("sequences are missing that were stored")
        return places

    def _check_state(self) -> None:
        headers = {"Authorization": authorization(self._key), "Gateway-Client": self._client}
        path = f"/v1/sessions/{self._session}"
        with self.client.get(path, headers=headers, name=STATE, catch_response=True) as answer:
            try:
                if answer.status_code != 200:
                    raise WrongAnswerError(f"{answer.status_code or answer.error}")
                state = parsed(answer.content or b"")
                if state["missing"] or state["watermark"] < self._acknowledged:
                    raise WrongAnswerError("the gateway lacks sequences of a session")
            except WrongAnswerError as err:
                answer.failure(str(err))
            else:
                answer.success()
