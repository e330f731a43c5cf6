"""Background tasks: the announcement, reports of outages, deletion of expired events."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from app.process.gate import Gate
from app.settings.model import Settings
from app.settings.version import VERSION
from dedupe.model.clock import Clock
from dedupe.model.errors import RetriableError
from dedupe.partition.lane import Lane
from dedupe.router import Router
from dedupe.storage.kept_fences import KeptFences

READY_POLL_S = 0.05
GATE_POLL_S = 0.005
OUTAGE_POLL_S = 1.0
GATE_S = 3.0
TRIM_INTERVAL_S = 10.0
"""The interval of deletion from the embedded log."""
TRIM_RECORDS_MAX = 5_000
"""The limit of records of a partition in one step; more would delay commits."""
TRIM_PAUSE_S = 0.02
"""The pause between two steps, for commits."""

Trim = Callable[[str, int, int], Awaitable[int]]
"""(topic, before_ms, records_max a partition) -> records deleted."""

logger = structlog.get_logger(__name__)


async def announce(
    router: Router, settings: Settings, *, url: str, admin_url: str, native_version: str | None
) -> None:
    """Print the URLs and an example once all partitions serve."""
    logger.info("starting", events=url, admin=admin_url)
    while not router.is_ready:  # noqa: ASYNC110 - it follows from the states of all lanes
        await asyncio.sleep(READY_POLL_S)
    write_key = "my-write-key" if settings.gateway.write_keys_file is None else "WRITE_KEY"
    worker = "" if settings.group.peer_listen is None else f", {settings.group.worker_id}"
    native = f"  native  plain events take gateway-native {native_version}\n" if native_version else ""
    event = '{"messageId":"hello-1","type":"track","event":"Hello","userId":"u1"}'
    print(
        f"\nGateway {VERSION} is ready ({settings.gateway.mode}, {settings.log.kind} log{worker}).\n"
        f"  events  {url}\n"
        f"  console {admin_url}/console/\n"
        f"  admin   {admin_url}/admin/v1/stats\n{native}"
        "Send an event; sent again, it gets the same answer:\n"
        f"  curl -i {url}/v1/events -u {write_key}: -d '{event}'\n",
        file=sys.stderr,
        flush=True,
    )


async def open_gate(gate: Gate, router: Router, fences: KeptFences[Any], is_over: asyncio.Event) -> None:
    """
    Let requests in once all partitions serve, or after GATE_S, since some may replay for long.

    In a group requests wait in the router for their own partitions, so the first that serves opens the gate.
    What is kept of the last round's fences is given up then: a lane that comes later fences anew. A round
    that is to end meanwhile (`is_over`) has closed the gate, and keeps its fences for the next one.
    """
    fences.hand_out()
    is_in_group = router.standing is not None
    router.is_paused = router.goes_on
    opened_at = asyncio.get_running_loop().time() + GATE_S
    while not router.has_served and asyncio.get_running_loop().time() < opened_at:
        await asyncio.sleep(GATE_POLL_S)
        if is_over.is_set():
            return
        if is_in_group and any(route.is_serving for route in router.routes):
            gate.open()
            router.is_paused = False
    gate.open()
    router.is_paused = False
    fences.end()


async def tell_outages(router: Router) -> None:
    """Log once when no partition serves, with the reason, and once when one serves again."""
    logged = None
    while True:
        await asyncio.sleep(OUTAGE_POLL_S)
        outage = router.outage
        if outage is not None and logged is None:
            logger.error("no event can be accepted", reason=outage)
        elif outage is None and logged is not None:
            logger.info("events are accepted again")
        logged = outage


async def trim_log(router: Router, settings: Settings, clock: Clock, trim: Trim) -> None:
    """
    Delete events older than the retention, in small steps.

    Age is relative to the newest record or the clock, whichever is earlier: an idle log retains its window,
    and records with a timestamp in the future delete no others. app.process.clock_check has refused a clock
    that is ahead now.
    """
    while True:
        await asyncio.sleep(TRIM_INTERVAL_S)
        if not all(lane.has_served for lane in router.all_lanes):
            continue
        newest_ms = min(clock.now_ms(), _newest_timestamp_ms(router.all_lanes))
        before_ms = newest_ms - int(settings.index.retention * 1000)
        if before_ms <= 0:
            continue
        for topic in (*settings.log.topics, *settings.side_topics):
            try:
                await _trim_topic(topic.name, before_ms, TRIM_RECORDS_MAX, trim)
            except RetriableError as err:
                logger.warning(
                    "expired events not deleted, trying again later", topic=topic.name, error=str(err)
                )


def _newest_timestamp_ms(lanes: Sequence[Lane]) -> int:
    """Return the newest timestamp of all lanes' records, 0 without one."""
    indexes = (lane.open_index for lane in lanes)
    return max((opened.index.state.newest_timestamp_ms for opened in indexes if opened), default=0)


async def _trim_topic(topic: str, before_ms: int, records_max: int, trim: Trim) -> None:
    while True:
        if await trim(topic, before_ms, records_max) == 0:
            return
        await asyncio.sleep(TRIM_PAUSE_S)
