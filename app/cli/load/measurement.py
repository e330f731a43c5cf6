"""Load for `gateway bench`: each connection sends a batch when the last one is answered."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson

from app.cli.load.connection import Answer, Connection, address_of, request
from app.cli.load.events import body, first_unused
from dedupe.model.errors import ConfigurationError

RETRY_AFTER_S, RETRY_AFTER_MAX_S = 1.0, 10.0
REQUEST_TIMEOUT_S = 15.0
RECENT_MAX = 10_000
"""Duplicates are copies of the last events of a write key, up to this number."""


class Plan(NamedTuple):
    """The parameters of a measurement."""

    url: str
    seconds: float
    connections: int
    batch_events: int
    duplicates: float  # share of all events
    write_keys: Sequence[str]


class Refused(Exception):
    """No verdict on a request: the answer's error code, or the error of the connection."""

    def __init__(self, code: str, *, is_answer: bool, retry_after_s: float = RETRY_AFTER_S) -> None:
        super().__init__(code)
        self.code, self.is_answer, self.retry_after_s = code, is_answer, retry_after_s


class Tally:
    """Counts the events of a measurement by result."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        """Accepted, duplicates, rejected."""
        self.unanswered: Counter[str] = Counter()
        """Refused, or without an answer; neither is sent again."""
        self.refusals: Counter[str] = Counter()
        """Requests without a verdict, by code."""
        self.answer_ms: list[float] = []
        self._began = time.monotonic()
        self._cpu_began = time.process_time()

    def summary(self) -> dict[str, Any]:
        """Return the figures so far."""
        seconds = time.monotonic() - self._began
        counts = {name: self.verdicts[name] for name in ("accepted", "duplicates", "rejected")}
        counts |= {name: self.unanswered[name] for name in ("refused", "unanswered")}
        events = sum(counts.values())
        times = sorted(self.answer_ms)
        return {
            "seconds": round(seconds, 2),
            "events": events,
            "events_per_second": round(self.verdicts.total() / seconds, 1),
            "answer_ms": {
                name: round(times[min(len(times) - 1, int(len(times) * share))], 1) if times else None
                for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            },
            "shares": {name: round(count / events, 4) if events else 0.0 for name, count in counts.items()},
            "refusals": dict(self.refusals),
            "bench_cpu_cores": round((time.process_time() - self._cpu_began) / seconds, 2),
        }


class Measurement:
    """One measurement; `close` it at the end."""

    def __init__(self, plan: Plan, progress: Callable[[int], None]) -> None:
        """Call `progress` with the seconds that have passed. Raises ConfigurationError for a wrong URL."""
        address_of(plan.url)
        self.tally = Tally()
        self._plan, self._progress = plan, progress
        self._host = urlsplit(plan.url).netloc.rpartition("@")[2]
        self._senders = [_Sender(plan.url) for _ in range(plan.connections)]
        self._next_number = first_unused()
        self._stored: dict[str, list[int]] = {key: [] for key in plan.write_keys}
        self._rng = random.Random()

    async def warm_up(self) -> None:
        """Send one batch over each connection. Raises as `run` does."""
        await self._on_each_connection(self._send)

    async def run(self) -> None:
        """
        Send on all connections, with new counts.

        Raises:
            ConfigurationError: the gateway refuses a write key, or the server is no gateway.
        """
        self.tally = Tally()
        await self._on_each_connection(self._keep_sending)

    def close(self) -> None:
        """Close the connections."""
        for sender in self._senders:
            sender.close()

    async def _on_each_connection(self, act: Callable[["_Sender", str], Coroutine[Any, Any, None]]) -> None:
        keys = self._plan.write_keys
        try:
            async with asyncio.TaskGroup() as group:
                for number, sender in enumerate(self._senders):
                    group.create_task(act(sender, keys[number % len(keys)]))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _keep_sending(self, sender: "_Sender", key: str) -> None:
        began = time.monotonic()
        while (left_s := began + self._plan.seconds - time.monotonic()) > 0:
            await self._send(sender, key, pause_max_s=left_s)
            self._progress(round(time.monotonic() - began))

    async def _send(self, sender: "_Sender", key: str, pause_max_s: float = 0.0) -> None:
        numbers = [self._number(self._stored[key]) for _ in range(self._plan.batch_events)]
        message = request(body(numbers), path=b"/v1/events", key=key, host=self._host)
        began = time.monotonic()
        try:
            accepted, duplicates, rejected = _verdict_of(await sender.exchange(message), self._plan.url)
        except Refused as refused:
            self.tally.unanswered["refused" if refused.is_answer else "unanswered"] += len(numbers)
            self.tally.refusals[refused.code] += 1
            await asyncio.sleep(min(refused.retry_after_s, pause_max_s))
            return
        self.tally.answer_ms.append((time.monotonic() - began) * 1000)
        self.tally.verdicts.update(accepted=accepted, duplicates=duplicates, rejected=len(rejected))
        stored = self._stored[key]
        stored += [number for index, number in enumerate(numbers) if index not in rejected]
        del stored[:-RECENT_MAX]

    def _number(self, stored: Sequence[int]) -> int:
        if stored and self._rng.random() < self._plan.duplicates:
            return self._rng.choice(stored)
        self._next_number += 1
        return self._next_number


class _Sender:
    """A connection that reconnects after it was closed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None

    async def exchange(self, message: bytes) -> Answer:
        """Send a request once and return its answer. Raises Refused without one."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                if self._connection is None or self._connection.closed.done():
                    self._connection = await Connection.open(self._url)
                return await self._connection.exchange(message)
        except OSError as err:  # TimeoutError is one
            self.close()
            raise Refused(type(err).__name__, is_answer=False) from err

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _verdict_of(answer: Answer, url: str) -> tuple[int, int, set[int]]:
    """
    Return the numbers of accepted events and duplicates, and the indexes of rejected events.

    Raises:
        Refused: the gateway refuses the request for now.
        ConfigurationError: it refuses the write key, or the server is no gateway.
    """
    if answer.status != HTTPStatus.OK:
        raise _refusal_of(answer, url)
    if b"gateway-accepted" not in answer.headers:
        raise ConfigurationError(f"the server at {url} is no gateway")
    rejected = orjson.loads(answer.body).get("rejected", ())
    return (
        int(answer.headers[b"gateway-accepted"]),
        int(answer.headers[b"gateway-duplicates"]),
        {each["index"] for each in rejected},
    )


def _refusal_of(answer: Answer, url: str) -> Exception:
    try:
        code = str(orjson.loads(answer.body)["code"])
    except (ValueError, KeyError, TypeError):
        code = f"status {answer.status}"
    if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and answer.status != HTTPStatus.TOO_MANY_REQUESTS:
        return ConfigurationError(f"the gateway at {url} answers {answer.status}, {code}")
    after = answer.headers.get(b"retry-after", b"")
    pause_s = min(float(after), RETRY_AFTER_MAX_S) if after.isdigit() else RETRY_AFTER_S
    return Refused(code, is_answer=True, retry_after_s=pause_s)
