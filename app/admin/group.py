"""The statistics of a group, from any of its workers, and the drain of a worker."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from fastapi import FastAPI, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.admin.answers import AloneError, json_answer
from app.admin.ingest_loop import IngestLoop
from app.admin.scopes import READ, WRITE
from app.admin.scraped import ScrapedCollector
from app.group import GroupLanes
from dedupe.model.errors import RetriableError

STATS = "stats"
"""Kind of a request between workers: the statistics of a worker."""

ANSWER_S = 2.0
"""The time limit of such a request; a worker without an answer is reported as silent."""

Read = Callable[[], dict[str, Any]]


def add_group(app: FastAPI, group: GroupLanes | None, read: Read, ingest_loop: IngestLoop) -> None:
    """Add the paths; `read` returns this worker's statistics, in the ingest's loop."""
    if group is not None:

        async def statistics_of_this_worker(_body: Any) -> dict[str, Any]:
            return read()

        group.handler.requests[STATS] = statistics_of_this_worker

    @app.get("/admin/v1/group", dependencies=[READ])
    async def get_group() -> Response:
        """Return the statistics of all workers, and the names of those that do not answer."""
        if group is None:
            raise AloneError
        document = await ingest_loop.run(lambda: _ask_all(group, read))
        return json_answer(document)

    @app.post("/admin/v1/drain", dependencies=[WRITE])
    async def post_drain() -> Response:
        """Move this worker's partitions to other workers; it continues to answer its clients."""
        if group is None:
            raise AloneError(detail="no other worker could serve its partitions")
        is_done = await ingest_loop.run(group.hand_over)
        if not is_done:
            raise RetriableError(detail="the other workers do not serve all partitions yet")
        return json_answer({"drained": True})

    @app.post("/admin/v1/undrain", dependencies=[WRITE])
    async def post_undrain() -> Response:
        """Allow this worker to own partitions again."""
        if group is None:
            raise AloneError
        await ingest_loop.read(group.manager.undo_hand_over)
        return json_answer({"drained": False})


def group_of(group: GroupLanes | None) -> dict[str, Any] | None:
    """Return this worker's view of its group; None without one."""
    if group is None:
        return None
    manager = group.manager
    return {
        "worker": manager.worker,
        "generation": manager.generation,
        "silence_seconds": _finite(group.membership.silence_s),
        "leaving": manager.is_leaving,
        "moves": manager.moves,
        "claims": manager.claims,
        "broken": manager.assignment.broken,
        "workers": {
            name: {
                "address": address,
                "up": name == manager.worker or manager.directory.is_up(name),
            }
            for name, address in manager.assignment.addresses.items()
        },
        "events_forwarded": group.peers.metrics.events_forwarded,
        "events_received": group.peers.metrics.events_received,
    }


def places_of(group: GroupLanes | None, number: int, worker: str) -> dict[str, Any]:
    """Return owner and standby of a lane in this worker's newest assignment."""
    if group is None:
        return {"owner": worker, "standby": None, "caught_up": False}
    manager = group.manager
    return {
        "owner": manager.assignment.owners[number] or None,
        "standby": manager.assignment.followers[number] or None,
        "caught_up": manager.lanes[number].follower.is_caught_up,
    }


async def ask_others(group: GroupLanes, kind: str, body: Any = None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the answers of the other workers to a request, and the errors of those that do not answer."""
    manager = group.manager
    names = [name for name in manager.assignment.addresses if name != manager.worker]

    async def ask(name: str) -> Any:
        return await manager.directory.request(name, kind, body, ANSWER_S)

    answers = await asyncio.gather(*map(ask, names), return_exceptions=True)
    given, silent = {}, {}
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, BaseException):
            silent[name] = str(answer)
        else:
            given[name] = answer
    return given, silent


async def _ask_all(group: GroupLanes, read: Read) -> dict[str, Any]:
    manager = group.manager
    others, silent = await ask_others(group, STATS)
    workers = {manager.worker: read(), **others}
    totals: dict[str, int] = {}
    for stats in workers.values():
        for name, count in stats["totals"].items():
            totals[name] = totals.get(name, 0) + count
    return {
        "asked": manager.worker,
        "generation": manager.generation,
        "silent": silent,
        "broken": manager.assignment.broken,
        "totals": totals,
        "workers": workers,
    }


class GroupCollector(ScrapedCollector):
    """Collects at each scrape, in the ingest's event loop."""

    def __init__(self, group: GroupLanes) -> None:
        self._group = group

    def collect(self) -> Iterator[Metric]:
        manager, peers = self._group.manager, self._group.peers.metrics
        silence_s = _finite(self._group.membership.silence_s)
        yield GaugeMetricFamily("gateway_group_generation", "Newest assignment", manager.generation)
        yield GaugeMetricFamily(
            "gateway_group_workers", "Workers in the newest assignment", len(manager.assignment.addresses)
        )
        if silence_s is not None:
            yield GaugeMetricFamily(
                "gateway_group_silence_seconds", "Time since the coordinator's last answer", silence_s
            )
        yield GaugeMetricFamily(
            "gateway_group_joining_seconds",
            "Time since an assignment was asked for that has not come; 0 while there is one",
            self._group.membership.joining_s,
        )
        up = GaugeMetricFamily("gateway_peer_up", "1 if the other worker answers", labels=["worker"])
        connections = CounterMetricFamily(
            "gateway_peer_connections", "Connections made to the other worker", labels=["worker"]
        )
        for name in manager.assignment.addresses:
            if name != manager.worker:
                up.add_metric([name], int(manager.directory.is_up(name)))
                link = self._group.peers.link(name)
                connections.add_metric([name], 0 if link is None else link.connections)
        yield from (up, connections)
        yield GaugeMetricFamily(
            "gateway_standby_enabled", "1 if this worker may follow partitions", int(self._group.can_follow)
        )
        commit_ms = manager.hand_overs.slow.commit_ms
        if commit_ms:
            yield GaugeMetricFamily(
                "gateway_worker_commit_seconds",
                "Median of the last commits, at the leader where they are slowest",
                max(commit_ms.values()) / 1000,
            )
        yield GaugeMetricFamily(
            "gateway_worker_slow",
            "1 if commits take far longer than elsewhere, or did when partitions were handed over",
            int(manager.hand_overs.slow.is_slow),
        )
        yield CounterMetricFamily("gateway_lane_moves", "Partitions taken over from others", manager.moves)
        yield CounterMetricFamily(
            "gateway_lane_claims", "Partitions claimed because their owner was down", manager.claims
        )
        yield CounterMetricFamily(
            "gateway_peer_forwarded_events", "Events sent to their partitions' owners", peers.events_forwarded
        )
        yield CounterMetricFamily(
            "gateway_peer_received_events", "Events of other workers' clients", peers.events_received
        )
        yield CounterMetricFamily("gateway_peer_reconnects", "Reconnections of lost links", peers.reconnects)
        refused = CounterMetricFamily(
            "gateway_peer_refused_frames", "Refused frames on the peer port", labels=["reason"]
        )
        for reason, count in peers.frames_refused.items():
            refused.add_metric([reason], count)
        yield refused


def _finite(seconds: float) -> float | None:
    return round(seconds, 3) if seconds < 1e9 else None
