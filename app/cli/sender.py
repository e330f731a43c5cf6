"""
Sends made-up events to a running gateway for `gateway send`: what a shop's app sends, some of it twice.

Every new event has an id that no other run gives. A duplicate is an event sent before, byte for byte, whose
answer has come; a conflict has the id of such an event and another content.
"""

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NamedTuple

import httpx
import orjson

from dedupe.errors import ConfigurationError

REQUESTS_AT_ONCE = 8
TRIES_MAX = 20
"""Of one request while the gateway refuses or does not answer; with its Retry-After a minute or more."""
RETRY_AFTER_S, RETRY_AFTER_MAX_S = 1.0, 10.0
REQUEST_TIMEOUT_S = 15.0
REMEMBERED_MAX = 10_000
"""Stored events of which duplicates and conflicts are made: those sent last."""

PRODUCTS = ("Trail running shoe", "Rain jacket", "Wool socks", "Head torch", "Water bottle", "Day pack")


class Plan(NamedTuple):
    """What is to be sent."""

    events: int
    write_keys: Sequence[str]
    batch: int
    rate: float | None  # events a second; None for as fast as the gateway answers
    duplicates: float  # shares of all events
    conflicts: float


class Outcome:
    """What became of a run's events."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        """New events, duplicates and conflicts, as they were meant."""
        self.verdicts: Counter[str] = Counter()
        """What the gateway said: accepted, duplicates, each reason of a rejection, unanswered."""
        self.tries_again: Counter[str] = Counter()
        self.answer_ms: list[float] = []
        self.began = time.monotonic()

    def summary(self) -> dict[str, Any]:
        """Return the figures of the run so far."""
        seconds = time.monotonic() - self.began
        times = sorted(self.answer_ms)
        answered = sum(self.verdicts.values()) - self.verdicts["unanswered"]
        return {
            "sent": {"events": self.sent.total(), **self.sent},
            "verdicts": {"accepted": 0, "duplicates": 0, **self.verdicts},
            "tries_again": dict(self.tries_again),
            "seconds": round(seconds, 2),
            "events_per_second": round(answered / seconds, 1) if seconds else 0.0,
            "answer_ms": {
                name: round(times[min(len(times) - 1, int(len(times) * share))], 1) if times else None
                for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            },
        }


class Sender:
    """Sends what a plan says, and stops by itself."""

    def __init__(self, url: str, plan: Plan, progress: Callable[[int], None]) -> None:
        """Send nothing yet. `progress` is told how many events are decided."""
        self.outcome = Outcome()
        self._url, self._plan, self._progress = url, plan, progress
        self._run = secrets.token_hex(4)
        self._dice = random.Random()
        self._number = 0
        self._stored: dict[str, list[dict[str, Any]]] = {key: [] for key in plan.write_keys}

    async def run(self) -> None:
        """
        Send everything, several requests at once.

        Raises:
            ConfigurationError: the gateway does not let a write key send events, or is none.
        """
        limits = httpx.Limits(max_connections=REQUESTS_AT_ONCE)
        async with (
            httpx.AsyncClient(base_url=self._url, limits=limits, timeout=REQUEST_TIMEOUT_S) as http,
            asyncio.TaskGroup() as group,
        ):
            turns = asyncio.Semaphore(REQUESTS_AT_ONCE)
            began, sent = time.monotonic(), 0
            while sent < self._plan.events:
                count = min(self._plan.batch, self._plan.events - sent)
                if self._plan.rate is not None:
                    await asyncio.sleep(began + sent / self._plan.rate - time.monotonic())
                await turns.acquire()
                key = self._plan.write_keys[(sent // self._plan.batch) % len(self._plan.write_keys)]
                group.create_task(self._send(http, key, count, turns))
                sent += count

    async def _send(self, http: httpx.AsyncClient, key: str, count: int, turns: asyncio.Semaphore) -> None:
        try:
            events = [self._next(key) for _ in range(count)]
            answer = await self._answered(http, key, orjson.dumps({"batch": events}))
            self._judge(key, events, answer)
            self._progress(self.outcome.verdicts.total())
        finally:
            turns.release()

    async def _answered(self, http: httpx.AsyncClient, key: str, body: bytes) -> httpx.Response | None:
        """Return the gateway's verdict, None if there is none after many tries."""
        for _ in range(TRIES_MAX):
            began = time.monotonic()
            pause_s = RETRY_AFTER_S
            try:
                answer = await http.post(
                    "/v1/events", content=body, auth=(key, ""), headers={"Content-Type": "application/json"}
                )
            except (httpx.UnsupportedProtocol, httpx.InvalidURL) as err:
                raise ConfigurationError(f"{self._url} is no URL of a gateway: {err}") from err
            except httpx.TransportError as err:
                self.outcome.tries_again[type(err).__name__] += 1
            else:
                if answer.status_code == HTTPStatus.OK:
                    if "Gateway-Accepted" not in answer.headers:
                        raise ConfigurationError(f"what answers at {self._url} is no gateway")
                    self.outcome.answer_ms.append((time.monotonic() - began) * 1000)
                    return answer
                code = _code_of(answer)
                if not (answer.is_server_error or answer.status_code == HTTPStatus.TOO_MANY_REQUESTS):
                    raise ConfigurationError(f"the gateway at {self._url} says {answer.status_code}, {code}")
                self.outcome.tries_again[code] += 1
                told = answer.headers.get("Retry-After", "")
                pause_s = min(float(told), RETRY_AFTER_MAX_S) if told.isdigit() else RETRY_AFTER_S
            await asyncio.sleep(pause_s)
        return None

    def _judge(self, key: str, events: Sequence[dict[str, Any]], answer: httpx.Response | None) -> None:
        verdicts = self.outcome.verdicts
        if answer is None:
            verdicts["unanswered"] += len(events)
            return
        verdicts["accepted"] += int(answer.headers["Gateway-Accepted"])
        verdicts["duplicates"] += int(answer.headers["Gateway-Duplicates"])
        rejected = {refused["index"]: refused["code"] for refused in answer.json().get("rejected", ())}
        verdicts.update(rejected.values())
        stored = self._stored[key]
        stored += [event for index, event in enumerate(events) if index not in rejected]
        del stored[:-REMEMBERED_MAX]

    def _next(self, key: str) -> dict[str, Any]:
        chance, stored = self._dice.random(), self._stored[key]
        if stored and chance < self._plan.duplicates:
            self.outcome.sent["duplicates"] += 1
            return self._dice.choice(stored)
        if stored and chance < self._plan.duplicates + self._plan.conflicts:
            self.outcome.sent["conflicts"] += 1
            return self._new() | {"messageId": self._dice.choice(stored)["messageId"]}
        self.outcome.sent["new"] += 1
        return self._new()

    def _new(self) -> dict[str, Any]:
        """Return an event such as a shop's app sends, about 700 bytes."""
        self._number += 1
        dice, user = self._dice, self._dice.randrange(5_000)
        product = dice.randrange(len(PRODUCTS))
        name = dice.choices(("Product Viewed", "Product Added", "Order Completed"), (12, 4, 1))[0]
        return {
            "messageId": f"send-{self._run}-{self._number:08}",
            "type": "track",
            "event": name,
            "userId": f"user-{user}",
            "anonymousId": f"0b0f2c1e-7c55-4b0a-9d5e-{user:012x}",
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "properties": {
                "product_id": f"{product + 1}",
                "name": PRODUCTS[product],
                "price": round(dice.uniform(5, 250), 2),
                "currency": "EUR",
                "quantity": dice.randint(1, 3),
            },
            "context": {
                "library": {"name": "gateway send", "version": "1"},
                "locale": dice.choice(("en-GB", "de-DE", "fr-FR", "ja-JP")),
                "timezone": "Europe/Berlin",
                "page": {
                    "path": f"/products/{product + 1}",
                    "title": f"{PRODUCTS[product]} | Example shop",
                    "url": f"https://shop.example.com/products/{product + 1}",
                },
                "userAgent": "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15",
            },
        }


def _code_of(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["code"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
