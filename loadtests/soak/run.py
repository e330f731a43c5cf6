"""Sends at a steady rate for some minutes, and samples the gateway every few seconds."""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import uvloop

from app.cli.load.connection import Connection
from loadtests.bench.load import send_all
from loadtests.bench.usage import cpu_seconds, disk_bytes, file_bytes, open_files, rss_mib, scheduled_seconds
from loadtests.bench.workload import Workload
from tests.support.gateway import Gateway

BATCH_EVENTS = 100
CONNECTIONS = 16
DUPLICATE_PERCENT = 10
SHARE = 0.7  # of what the gateway can take
LANES = 2
KEYS_MAX = 20_000
RECENT_EVENTS = KEYS_MAX // 2  # what is sent again is surely inside the window, in both lanes
TURNOVER_EVENTS = 250_000
"""After this number the index has dropped its first files: nothing must grow from there on."""

SMALL = {
    "GATEWAY_PARTITIONS": str(LANES),
    "GATEWAY_INDEX_KEYS_MAX": str(KEYS_MAX),
    "GATEWAY_INDEX_MEMORY": "16MiB",
    "GATEWAY_LOGGING_LEVEL": "warning",
}
CAPACITY_TRIES, CAPACITY_BATCHES = 3, 200
AT_ONCE = 100  # requests that are built


class Moment(NamedTuple):
    """What was seen of one interval, and at its end."""

    minute: float
    events: int  # sent so far
    events_per_s: float
    cpu_us: float  # an event
    p50_ms: float
    p99_ms: float
    rss_mib: float
    open_files: int
    index_mib: float  # its files, without their write-ahead logs
    index_files: int
    index_logs_mib: float
    keys: int
    commit_ms: float
    crowding: float  # how many times longer the gateway takes than if it never waited for a core


class Soak:
    """One gateway under a steady load."""

    def __init__(self, gateway: Gateway, tell: Callable[[str], None]) -> None:
        self.history = Workload(seed=2, recent_events=RECENT_EVENTS)
        self._gateway = gateway
        self._tell = tell
        self._pid = gateway.process.pid
        self._latencies_s: list[float] = []
        self._events = 0
        self._commits = (0, 0.0)
        self._scheduled = scheduled_seconds(self._pid)

    def capacity(self) -> float:
        """Return the gateway's current throughput of new events a second."""
        rates = []
        for _ in range(CAPACITY_TRIES):
            requests = self.history.requests(CAPACITY_BATCHES, BATCH_EVENTS, duplicate_percent=0)
            rates.append(
                CAPACITY_BATCHES * BATCH_EVENTS / send_all(self._gateway.port, requests, CONNECTIONS).seconds
            )
        return statistics.median(rates)

    def run(self, events_per_s: float, *, seconds: float, interval_s: float) -> list[Moment]:
        """Send at this rate for a time; return the samples."""
        return uvloop.run(self._run(events_per_s, seconds, interval_s))

    async def _run(self, events_per_s: float, seconds: float, interval_s: float) -> list[Moment]:
        pause_s = BATCH_EVENTS / events_per_s
        began, count = time.perf_counter(), int(seconds / pause_s)
        due = (began + number * pause_s for number in range(count))
        requests = requests_of(self.history, count)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch(began, seconds, interval_s))
            for _ in range(CONNECTIONS):
                tasks.create_task(self._send(due, requests))
        return watching.result()

    async def _send(self, due: Iterator[float], requests: Iterator[bytes]) -> None:
        """Send what is due; a latency counts from then, so that a stall is not hidden by sending less."""
        connection = await Connection.open(self._gateway.url)
        for moment in due:
            await asyncio.sleep(moment - time.perf_counter())
            assert (await connection.exchange(next(requests))).status == 200
            self._latencies_s.append(time.perf_counter() - moment)
            self._events += BATCH_EVENTS
        connection.close()

    async def _watch(self, began: float, seconds: float, interval_s: float) -> list[Moment]:
        moments: list[Moment] = []
        cpu_s, events, then = cpu_seconds(self._pid), 0, began
        while time.perf_counter() - began < seconds - interval_s / 2:
            await asyncio.sleep(interval_s)
            now, cpu_now, events_now = time.perf_counter(), cpu_seconds(self._pid), self._events
            latencies_s, self._latencies_s = self._latencies_s, []
            sent = max(1, events_now - events)
            pace, cpu_us = sent / (now - then), (cpu_now - cpu_s) / sent * 1e6
            moments.append(await asyncio.to_thread(self._moment, now - began, pace, cpu_us, latencies_s))
            self._tell(_line(moments[-1]))
            cpu_s, events, then = cpu_now, events_now, now
        return moments

    def _moment(self, second: float, events_per_s: float, cpu_us: float, latencies_s: list[float]) -> Moment:
        lanes = self._gateway.stats()["partitions"]
        index = self._gateway.data / "index"
        files = list(index.rglob("*.sst"))
        files_bytes = sum(file_bytes(path) for path in files)
        cuts = statistics.quantiles(latencies_s or [0.0, 0.0], n=100, method="inclusive")
        return Moment(
            minute=second / 60,
            events=self._events,
            events_per_s=events_per_s,
            cpu_us=cpu_us,
            p50_ms=cuts[49] * 1e3,
            p99_ms=cuts[98] * 1e3,
            rss_mib=rss_mib(self._pid),
            open_files=open_files(self._pid),
            index_mib=files_bytes / 2**20,
            index_files=len(files),
            index_logs_mib=(disk_bytes(index) - files_bytes) / 2**20,
            keys=sum(lane["keys"] or 0 for lane in lanes),
            commit_ms=self._commit_ms(lanes),
            crowding=self._crowding(),
        )

    def _commit_ms(self, lanes: list[dict[str, Any]]) -> float:
        """Return the mean duration of a commit since the last call: log and index together."""
        commits = sum(lane["commits"] for lane in lanes)
        seconds = sum(lane["commit_seconds"] for lane in lanes)
        (commits_before, seconds_before), self._commits = self._commits, (commits, seconds)
        return float((seconds - seconds_before) / max(1, commits - commits_before) * 1e3)

    def _crowding(self) -> float:
        (ran_before, waited_before), self._scheduled = self._scheduled, scheduled_seconds(self._pid)
        ran, waited = self._scheduled
        return 1 + (waited - waited_before) / max(1e-9, ran - ran_before)


def requests_of(history: Workload, count: int) -> Iterator[bytes]:
    """Yield `count` requests, and count only those as sent."""
    for first in range(0, count, AT_ONCE):
        yield from history.requests(
            min(AT_ONCE, count - first), BATCH_EVENTS, duplicate_percent=DUPLICATE_PERCENT
        )


def _line(moment: Moment) -> str:
    return (
        f"{moment.minute:5.1f} min {moment.events_per_s:8,.0f} events/s {moment.cpu_us:5.1f} us"
        f"  p50 {moment.p50_ms:6.1f} p99 {moment.p99_ms:7.1f} ms  RSS {moment.rss_mib:4.0f} MiB"
        f"  {moment.open_files} open files  index {moment.index_mib:5.1f} MiB in {moment.index_files} files"
        f"  {moment.keys:,} keys  crowding {moment.crowding:.1f}"
    )
