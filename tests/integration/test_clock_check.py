"""
Claim: a clock that is implausibly far ahead of the embedded log is refused at every start until the
operator vouches for it; whatever a downtime or a long idle run explains is not.
"""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import httpx
import orjson
import pytest
from structlog.testing import capture_logs

from app.process.clock_check import check_clock, keep_time
from dedupe.model.errors import ConfigurationError
from dedupe.model.types import NewRecord
from dedupe.storage.sqlite.log import SqliteLimits, SqliteStore
from tests.sim.world import ManualClock
from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event, stored
from tests.support.settings import make_settings

TOPIC = "events"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BEGAN_MS = ManualClock().ms
REFUSAL = (
    r"^this machine's clock shows 2023-11-2[23] \d\d:13 UTC, but the log was last in use at "
    r"2023-11-14 22:13 UTC, .*\(84h\) before: .* start with --accept-clock 2023-11-2[23]$"
)
HEADERS = [("source", b"web"), ("gw", b"")]


class Deployment:
    """A log, the machine's clock, and gateways that start on them."""

    def __init__(self, store: SqliteStore) -> None:
        self.clock = ManualClock()
        self._store = store

    async def start(self, accept: date | None = None) -> None:
        settings = make_settings(mode="development")
        newest_ms = await self._store.newest_timestamp_ms()
        await check_clock(self._store, settings, self.clock, newest_ms=newest_ms, accepted_day=accept)

    async def run(self, days: int) -> None:
        """Let a gateway run without an event, and end without a goodbye."""
        renewing = asyncio.ensure_future(keep_time(self._store, TOPIC, self.clock, renew_s=0.001))
        self.clock.ms += days * DAY_MS
        while await self._store.notes("clock", TOPIC) != {0: str(self.clock.ms)}:
            await asyncio.sleep(0.001)
        renewing.cancel()
        await asyncio.wait([renewing])

    async def append(self) -> None:
        """Commit an event at the clock's time."""
        log = self._store.partition_log(TOPIC, 0)
        await log.fence()
        await log.append([NewRecord(self.clock.ms, b"id", b"{}", HEADERS)])

    @property
    def today(self) -> date:
        return datetime.fromtimestamp(self.clock.ms / 1000, UTC).date()


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    store = await SqliteStore.open(tmp_path / "log.sqlite")
    await store.create_topic(TOPIC, 1)
    yield Deployment(store)
    await store.close()


@pytest.fixture
async def used(deployment: Deployment) -> Deployment:
    """A log with an event of now."""
    await deployment.start()
    await deployment.append()
    return deployment


@pytest.mark.regression("A clock far ahead deleted all events of the embedded log.")
async def test_clock_far_ahead_is_refused_at_every_start(used: Deployment) -> None:
    for hours in range(8 * 24, 8 * 24 + 5):  # a supervisor starts it again and again
        used.clock.ms = BEGAN_MS + hours * HOUR_MS
        with pytest.raises(ConfigurationError, match=REFUSAL):
            await used.start()

    used.clock.ms = BEGAN_MS + HOUR_MS
    await used.start()


async def test_downtime_of_half_a_window_is_believed(used: Deployment) -> None:
    used.clock.ms += DAY_MS * 7 // 2
    await used.start()

    used.clock.ms += DAY_MS * 7 // 2 + 1
    with pytest.raises(ConfigurationError):
        await used.start()


async def test_log_of_an_older_gateway_is_judged_by_its_newest_record(deployment: Deployment) -> None:
    await deployment.append()
    deployment.clock.ms += 4 * DAY_MS

    with pytest.raises(ConfigurationError):
        await deployment.start()


async def test_clock_is_accepted_by_its_own_date_only(used: Deployment) -> None:
    used.clock.ms += 30 * DAY_MS
    for days in (-30, -2, 2, 365):
        with pytest.raises(ConfigurationError):
            await used.start(accept=used.today + timedelta(days=days))

    await used.start(accept=used.today + timedelta(days=1))
    await used.start()


@pytest.mark.parametrize("days", [-1, 0, 1])
async def test_clock_is_accepted_around_midnight(used: Deployment, days: int) -> None:
    used.clock.ms += 30 * DAY_MS

    await used.start(accept=used.today + timedelta(days=days))


async def test_log_may_rest_while_its_gateway_runs(used: Deployment) -> None:
    await used.run(days=21)

    used.clock.ms += DAY_MS
    await used.start()


async def test_clock_that_is_behind_is_served_and_changes_nothing(used: Deployment) -> None:
    used.clock.ms -= 20_000 * DAY_MS
    await used.start()
    used.clock.ms += 20_003 * DAY_MS
    await used.start()
    used.clock.ms += 4 * DAY_MS
    with pytest.raises(ConfigurationError):
        await used.start()


async def test_clock_accepted_wrongly_can_be_taken_back(used: Deployment) -> None:
    used.clock.ms += 30 * DAY_MS
    await used.start(accept=used.today)
    used.clock.ms -= 30 * DAY_MS
    await used.start(accept=used.today)

    used.clock.ms += 10 * DAY_MS
    with pytest.raises(ConfigurationError):
        await used.start()


async def test_any_clock_will_do_for_an_empty_log(deployment: Deployment) -> None:
    for days in (0, 400, -800):
        deployment.clock.ms += days * DAY_MS
        await deployment.start()

    await deployment.append()
    deployment.clock.ms += 4 * DAY_MS
    with pytest.raises(ConfigurationError):
        await deployment.start()


@pytest.mark.regression("Time that could not be noted in the log stopped the gateway.")
async def test_time_is_noted_again_once_the_log_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    store = await SqliteStore.open(path, limits=SqliteLimits(busy_timeout_s=0.001))
    await store.create_topic(TOPIC, 1)
    deployment = Deployment(store)
    await deployment.start()
    with closing(sqlite3.connect(path, isolation_level=None)) as other_process:
        other_process.execute("BEGIN IMMEDIATE")
        with capture_logs() as reports:
            running = asyncio.ensure_future(deployment.run(days=1))
            while not any("cannot be noted" in report["event"] for report in reports):
                await asyncio.sleep(0.001)
        other_process.execute("ROLLBACK")

    await running
    await store.close()


# ---- a real process

TEN_DAYS_AGO = """
UPDATE records SET timestamp_ms = timestamp_ms - 864000000;
UPDATE meta SET value = value - 864000000 WHERE key LIKE 'note/clock/%';
"""


def test_gateway_refuses_a_clock_that_is_ten_days_ahead_of_its_log(own_gateway: Gateway) -> None:
    own_gateway.start()
    httpx.post(f"{own_gateway.url}/v1/events", content=orjson.dumps(new_event()), auth=AUTH)
    own_gateway.stop()
    with closing(sqlite3.connect(own_gateway.data / "log.sqlite")) as connection:
        connection.executescript(TEN_DAYS_AGO)

    done = cli(own_gateway, "serve")

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(b"gateway: this machine's clock shows ")
    today = f"{datetime.fromtimestamp(time.time(), UTC):%Y-%m-%d}"
    accepting = Gateway(own_gateway.folder, {"GATEWAY_PARTITIONS": "2"}, options=("--accept-clock", today))
    with accepting:
        assert accepting.is_ready()
    assert len(stored(own_gateway)) == 1
    with own_gateway:
        assert own_gateway.is_ready()
