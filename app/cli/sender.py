"""Sends made-up events to a running gateway for `gateway send`, each until the gateway has decided on it."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from app.cli.ingest_client import Event, IngestClient, Refused, Verdict, answer_times
from app.cli.shop import Shop

REQUESTS_AT_ONCE = 8
TRIES_MAX = 20
"""Of one request while the gateway refuses or does not answer; with its Retry-After a minute or more."""


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

    def __init__(self, sent: Counter[str]) -> None:
        self.sent = sent
        self.verdicts: Counter[str] = Counter()
        """What the gateway said: accepted, duplicates, each reason of a rejection, unanswered."""
        self.tries_again: Counter[str] = Counter()
        self.answer_ms: list[float] = []
        self.began = time.monotonic()

    def summary(self) -> dict[str, Any]:
        """Return the figures of the run so far."""
        seconds = time.monotonic() - self.began
        answered = sum(self.verdicts.values()) - self.verdicts["unanswered"]
        return {
            "sent": {"events": self.sent.total(), **self.sent},
            "verdicts": {"accepted": 0, "duplicates": 0, **self.verdicts},
            "tries_again": dict(self.tries_again),
            "seconds": round(seconds, 2),
            "events_per_second": round(answered / seconds, 1) if seconds else 0.0,
            "answer_ms": answer_times(self.answer_ms),
        }


class Sender:
    """Sends what a plan says, and stops by itself."""

    def __init__(self, url: str, plan: Plan, progress: Callable[[int], None]) -> None:
        """Send nothing yet. `progress` is told how many events are decided."""
        self._url, self._plan, self._progress = url, plan, progress
        self._shop = Shop(plan.duplicates, plan.conflicts)
        self.outcome = Outcome(self._shop.sent)

    async def run(self) -> None:
        """
        Send everything, several requests at once.

        Raises:
            ConfigurationError: the gateway does not let a write key send events, or is none.
        """
        async with IngestClient(self._url, REQUESTS_AT_ONCE) as client, asyncio.TaskGroup() as group:
            turns = asyncio.Semaphore(REQUESTS_AT_ONCE)
            began, sent = time.monotonic(), 0
            while sent < self._plan.events:
                count = min(self._plan.batch, self._plan.events - sent)
                if self._plan.rate is not None:
                    await asyncio.sleep(began + sent / self._plan.rate - time.monotonic())
                await turns.acquire()
                key = self._plan.write_keys[(sent // self._plan.batch) % len(self._plan.write_keys)]
                group.create_task(self._send(client, key, count, turns))
                sent += count

    async def _send(self, client: IngestClient, key: str, count: int, turns: asyncio.Semaphore) -> None:
        try:
            events = self._shop.batch(key, count)
            verdict = await self._answered(client, key, events)
            if verdict is None:
                self.outcome.verdicts["unanswered"] += count
            else:
                self.outcome.verdicts.update(verdict.counts)
                self.outcome.answer_ms.append(verdict.answer_ms)
                self._shop.remember(key, verdict.stored(events))
            self._progress(self.outcome.verdicts.total())
        finally:
            turns.release()

    async def _answered(self, client: IngestClient, key: str, events: Sequence[Event]) -> Verdict | None:
        """Return the gateway's verdict, None if there is none after many tries."""
        for _ in range(TRIES_MAX):
            try:
                return await client.post(key, events)
            except Refused as refused:
                self.outcome.tries_again[refused.code] += 1
                await asyncio.sleep(refused.retry_after_s)
        return None
