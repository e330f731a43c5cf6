"""
The clients of the profiles. Their arrivals are an open Poisson process: a request is sent when it is due,
whether or not earlier ones are answered, and its latency counts from then.
"""

import random
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, cast

import gevent
from gevent.pool import Pool
from locust import FastHttpUser, task
from locust.contrib.fasthttp import ResponseContextManager

from app.cli.load.events import body, message_id_of
from loadtests.load.answers import (
    RETRIABLE,
    Counted,
    Place,
    WrongAnswerError,
    check_again,
    check_new,
    check_refusal,
    counted,
    receipts_of,
)
from loadtests.load.names import AGAIN, LATE, LOCUST, NEW, REFUSED, RETRY, UNSENT
from loadtests.load.options import REQUESTS_PER_S, Options
from loadtests.load.run import RUN

LATE_S = 0.1
UNDER_WAY_MAX = 100
"""Of one client; a gateway with answers as late as that is not waited for any longer."""

RECENT_MAX = 500
"""Requests that a client may send again."""

GRACE_S = 10.0
"""How long a client that stops waits for its last answers."""

NATIVE = "/v1/events"
TRIES_MAX = 20


class Sent(NamedTuple):
    """A request that was answered 200."""

    numbers: range
    key: str
    answer: bytes
    places: list[Place]


class Answer(NamedTuple):
    """An answer 200."""

    content: bytes
    counted: Counted
    headers: Mapping[str, str]


Judge = Callable[[Answer], list[Place]]


class Refused(NamedTuple):
    """An answer after which the client must send the same request again."""

    after_s: float


def zipf(count: int, exponent: float) -> list[float]:
    """Return cumulative weights of ranks 1 to count."""
    return list(accumulate(1 / rank**exponent for rank in range(1, count + 1)))


class Client(FastHttpUser):
    """Sends when it is due."""

    abstract = True
    concurrency = UNDER_WAY_MAX
    connection_timeout = 10.0
    network_timeout = 30.0
    insecure = False
    requests_per_s = REQUESTS_PER_S

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.options = Options.of(environment.parsed_options)
        self.chance = random.Random(random.SystemRandom().getrandbits(64))
        self.under_way = Pool(UNDER_WAY_MAX)
        self.is_stopping = False
        self._keys = self.options.write_keys.split(",")
        self._key_weights = zipf(len(self._keys), self.options.skew)
        self._next_number = random.SystemRandom().getrandbits(100)
        self._due = time.perf_counter() + self.chance.random() / self.requests_per_s

    def on_stop(self) -> None:
        """Wait for the last answers, and leave."""
        self.is_stopping = True
        self.under_way.join(timeout=GRACE_S)
        self.under_way.kill()
        self.client.client.close()

    def wait_time(self) -> float:
        """Return how long it is until the next arrival, in seconds; locust asks after each task."""
        self._due += self.chance.expovariate(self.requests_per_s)
        return max(0.0, self._due - time.perf_counter())

    @task
    def send_what_is_due(self) -> None:
        """Send in a greenlet of its own."""
        if self._due > time.perf_counter():
            return  # it has just come
        if self.under_way.full():
            reason = f"{UNDER_WAY_MAX} requests of this client are under way"
            self.count(UNSENT, exception=WrongAnswerError(reason))
            return
        lateness_s = time.perf_counter() - self._due
        if lateness_s > LATE_S:
            self.count(LATE, milliseconds=lateness_s * 1e3)
        self.under_way.spawn(self.send, self._due)

    def send(self, due: float) -> None:
        """Send what this kind of client sends."""
        raise NotImplementedError

    def count(self, name: str, *, milliseconds: float = 0.0, exception: Exception | None = None) -> None:
        """Count something about the load generator."""
        self.environment.events.request.fire(
            request_type=LOCUST,
            name=name,
            response_time=milliseconds,
            response_length=0,
            exception=exception,
            context={},
        )

    def new_numbers(self, count: int) -> range:
        """Return new events."""
        first = self._next_number
        self._next_number += count
        return range(first, first + count)

    def any_key(self) -> str:
        """Return a write key; the first ones send most."""
        return self.chance.choices(self._keys, cum_weights=self._key_weights)[0]

    def exchange(self, data: bytes, headers: Mapping[str, str], *, name: str) -> ResponseContextManager:
        """Send one request; the context checks its answer."""
        text = cast(str, data)  # what locust takes in fact is bytes
        return self.client.post(NATIVE, data=text, headers=dict(headers), name=name, catch_response=True)

    def post(
        self, data: bytes, key: str, judge: Judge, *, due: float, name: str, headers: Mapping[str, str] = {}
    ) -> list[Place] | Refused | None:
        """
        Send one request and check its answer.

        Returns:
            The result of the check; when to retry; or None without an answer, or after a wrong one.
        """
        headers = {"Authorization": authorization(key), "Content-Type": "application/json", **headers}
        with self.exchange(data, headers, name=name) as answer:
            answer.request_meta["response_time"] = (time.perf_counter() - due) * 1e3
            try:
                content = answer.content or b""
                if answer.status_code in RETRIABLE:
                    after_s = check_refusal(content, answer.headers)
                    answer.request_meta["name"] = REFUSED
                    answer.success()
                    return Refused(after_s)
                if answer.status_code != 200:
                    raise WrongAnswerError(f"{answer.status_code or answer.error}: {content[:200]!r}")
                places = judge(Answer(content, counted(answer.headers), answer.headers))
            except WrongAnswerError as err:
                answer.failure(str(err))
                return None
            answer.success()
            RUN.took_in(places)
            return places

    def deliver(
        self, numbers: range, key: str, *, due: float, name: str = NEW, is_first_try: bool = True
    ) -> Sent | None:
        """Send a batch until it is answered, as SDKs do; None if this client stops before."""
        data, message_ids = body(numbers), [message_id_of(number) for number in numbers]
        seen: list[bytes] = []
        for attempt in range(TRIES_MAX):
            is_first = is_first_try and attempt == 0

            def judge(answer: Answer, is_first: bool = is_first) -> list[Place]:
                places = receipts_of(answer.content, message_ids, len(numbers))
                check_new(len(numbers), answer.counted, is_first_try=is_first)
                seen.append(answer.content)
                return places

            told = self.post(data, key, judge, due=due, name=name if is_first else RETRY)
            if isinstance(told, list):
                return Sent(numbers, key, seen[-1], told)
            gevent.sleep(told.after_s * self.chance.uniform(1.0, 1.5) if told else 1.0)
            if self.is_stopping:
                break
            due = time.perf_counter()
        return None


class Server(Client):
    """A service with an SDK: batches of new events, and some requests once more, alone or regrouped."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.recent: deque[Sent] = deque(maxlen=RECENT_MAX)
        self._rank_weights = zipf(RECENT_MAX, self.options.skew)

    def send(self, due: float) -> None:
        """Send a new batch, or one that was answered before."""
        if self.recent and self.chance.random() < self.options.duplicates:
            self.send_again(self.any_recent(), due)
        else:
            self.send_new(due)

    def send_new(self, due: float) -> None:
        """Send a batch of new events."""
        sent = self.deliver(self.new_numbers(self.options.batch_events), self.any_key(), due=due)
        if sent is not None:
            self.recent.appendleft(sent)

    def any_recent(self) -> Sent:
        """Return a request that was answered; the newest ones most often."""
        count = len(self.recent)
        return self.recent[self.chance.choices(range(count), cum_weights=self._rank_weights[:count])[0]]

    def send_again(self, sent: Sent, due: float) -> None:
        """Send a request once more, or half the time its events in other company."""
        parts = [sent]
        if self.chance.random() < 0.5:
            parts += [other for other in list(self.recent)[:3] if other.key == sent.key]
        self.send_parts(parts, due)

    def send_parts(self, parts: Sequence[Sent], due: float) -> None:
        """Send the events of earlier requests, some of each if they are several."""
        taken = [slice(None)] if len(parts) == 1 else [slice(n, None, len(parts)) for n in range(len(parts))]
        pairs = list(zip(parts, taken, strict=True))
        numbers = [number for part, some in pairs for number in part.numbers[some]]
        expected = [place for part, some in pairs for place in part.places[some]]

        def judge(answer: Answer) -> list[Place]:
            places = receipts_of(answer.content, [place.message_id for place in expected], len(expected))
            check_again(len(expected), answer.counted, answer.headers)
            if places != expected:
                raise WrongAnswerError("receipts of a retry differ from the first ones")
            if len(parts) == 1 and answer.content != parts[0].answer:
                raise WrongAnswerError("the answer of a retry has other bytes than the first one")
            return places

        self.post(body(numbers), parts[0].key, judge, due=due, name=AGAIN)


class ImpatientServer(Server):
    """In the middle third of the run it sees no answers: it sends all at once four times, and later again."""

    COPIES = 4

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._unanswered: deque[Sent] = deque()

    def send(self, due: float) -> None:
        """Send as the moment has it."""
        if 1 / 3 <= RUN.share < 2 / 3:
            self._send_copies(due)
        elif self._unanswered:
            self.send_parts([self._unanswered.popleft()], due)
        else:
            super().send(due)

    def _send_copies(self, due: float) -> None:
        numbers, key = self.new_numbers(self.options.batch_events), self.any_key()
        copies = [
            gevent.spawn(self.deliver, numbers, key, due=due, is_first_try=False, name=RETRY)
            for _ in range(self.COPIES)
        ]
        gevent.joinall(copies)
        answers = [copy.value for copy in copies if copy.value is not None]
        self._check_same(answers)
        self._unanswered.extend(answers[:1])

    def _check_same(self, answers: Iterable[Sent]) -> None:
        if len({sent.answer for sent in answers}) > 1:
            self.count(RETRY, exception=WrongAnswerError("copies of one request have different answers"))


class Phone(Server):
    """Reconnects with a backlog, and with a batch whose answer was lost."""

    requests_per_s = 1.0
    BACKLOG_BATCHES = 3
    LOST_MAX = 1000

    lost: ClassVar[deque[Sent]] = deque(maxlen=LOST_MAX)

    def on_start(self) -> None:
        """Send the backlog, one batch after another."""
        self.under_way.spawn(self._send_backlog)

    def on_stop(self) -> None:
        """Go offline in the middle of something."""
        super().on_stop()
        if self.recent:
            self.lost.append(self.recent[0])

    def _send_backlog(self) -> None:
        if self.lost:
            self.send_parts([self.lost.popleft()], time.perf_counter())
        for _ in range(self.BACKLOG_BATCHES):
            if self.is_stopping:
                return
            self.send_new(time.perf_counter())


def authorization(key: str) -> str:
    """Return the header of a write key."""
    return f"Basic {b64encode(f'{key}:'.encode()).decode()}"
