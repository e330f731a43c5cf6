"""Keeps a gateway busy for `gateway bench`: each connection sends a batch when the last one is answered."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from app.cli.admin_client import ask_metrics
from app.cli.ingest_client import IngestClient, Refused, answer_times
from app.cli.options import ANSWER_TIMEOUT_S
from app.cli.shop import Shop
from dedupe.errors import ConfigurationError


class LoadPlan(NamedTuple):
    """How a gateway is kept busy."""

    seconds: float
    connections: int
    batch: int
    duplicates: float  # share of all events
    write_keys: Sequence[str]


async def cpu_seconds(admin_url: str) -> float:
    """
    Return the CPU time that a gateway has used.

    Raises:
        ConfigurationError: other workers do a part of its work.
        RetriableError: no gateway's admin port answers there.
    """
    metrics = await ask_metrics(admin_url, timeout_s=ANSWER_TIMEOUT_S)
    if metrics.get("gateway_group_workers", 1) > 1:
        raise ConfigurationError(
            f"the gateway at {admin_url} is one of several that share the events: leave --admin-url out"
        )
    return metrics["process_cpu_seconds_total"]


class Tally:
    """What became of the events of a measurement."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        """Accepted, duplicates, and each reason of a rejection."""
        self.untold: Counter[str] = Counter()
        """Refused by the gateway, or unanswered; neither is sent again."""
        self.refusals: Counter[str] = Counter()
        """Requests by why there was no verdict."""
        self.answer_ms: list[float] = []
        self._began = time.monotonic()
        self._cpu_began = time.process_time()

    def summary(self) -> dict[str, Any]:
        """Return the figures until now."""
        seconds = time.monotonic() - self._began
        answered = self.verdicts.total()
        counts = {name: self.verdicts[name] for name in ("accepted", "duplicates")}
        counts["rejected"] = answered - counts["accepted"] - counts["duplicates"]
        counts |= {name: self.untold[name] for name in ("refused", "unanswered")}
        events = sum(counts.values())
        return {
            "seconds": round(seconds, 2),
            "events": events,
            "events_per_second": round(answered / seconds, 1),
            "answer_ms": answer_times(self.answer_ms),
            "shares": {name: round(count / events, 4) if events else 0.0 for name, count in counts.items()},
            "refusals": dict(self.refusals),
            "bench_cpu_cores": round((time.process_time() - self._cpu_began) / seconds, 2),
        }


class Load:
    """One measurement, which stops by itself."""

    def __init__(self, client: IngestClient, plan: LoadPlan, progress: Callable[[int], None]) -> None:
        """Send nothing yet. `progress` is told the seconds that have passed."""
        self.tally = Tally()
        self._client, self._plan, self._progress = client, plan, progress
        self._shop = Shop(plan.duplicates, conflicts=0)

    async def warm_up(self) -> None:
        """Have each connection send one batch. Raises as `IngestClient.post` does, but for Refused."""
        await self._on_each_connection(self._send)

    async def run(self) -> None:
        """Keep all connections busy, and count anew. Raises as `warm_up` does."""
        self.tally = Tally()
        await self._on_each_connection(self._keep_sending)

    async def _on_each_connection(self, act: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        keys = self._plan.write_keys
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._plan.connections):
                    group.create_task(act(keys[number % len(keys)]))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _keep_sending(self, key: str) -> None:
        began = time.monotonic()
        while (left := began + self._plan.seconds - time.monotonic()) > 0:
            await self._send(key, pause_max_s=left)
            self._progress(round(time.monotonic() - began))

    async def _send(self, key: str, pause_max_s: float = 0.0) -> None:
        events = self._shop.batch(key, self._plan.batch)
        try:
            verdict = await self._client.post(key, events)
        except Refused as refused:
            self.tally.untold["refused" if refused.is_answer else "unanswered"] += len(events)
            self.tally.refusals[refused.code] += 1
            await asyncio.sleep(min(refused.retry_after_s, pause_max_s))
        else:
            self.tally.verdicts.update(verdict.counts)
            self.tally.answer_ms.append(verdict.answer_ms)
            self._shop.remember(key, verdict.stored(events))
