"""What the operator sees of a group, whichever of its workers is asked, and how a worker is drained."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from fastapi import FastAPI, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.admin.answers import AloneError, json_answer
from app.admin.ingest_loop import IngestLoop
from app.admin.scopes import READ, WRITE
from app.group import GroupLanes
from dedupe.errors import RetriableError

STATS = "stats"
"""Kind of a question: a worker's own part of the statistics."""

ANSWER_S = 2.0
"""How long another worker may take to answer before it counts as silent."""

Read = Callable[[], dict[str, Any]]


def add_group(app: FastAPI, group: GroupLanes | None, read: Read, ingest_loop: IngestLoop) -> None:
    """Add the paths; `read` returns this worker's statistics, in the ingest's loop."""
    if group is not None:

        async def statistics_of_this_worker(_body: Any) -> dict[str, Any]:
            return read()

        group.host.answers[STATS] = statistics_of_this_worker

    @app.get("/admin/v1/group", dependencies=[READ])
    async def get_group() -> Response:
        """Ask all workers; those that do not answer are named."""
        if group is None:
            raise AloneError
        document = await ingest_loop.run(lambda: _ask_all(group, read))
        return json_answer(document)

    @app.post("/admin/v1/drain", dependencies=[WRITE])
    async def post_drain() -> Response:
        """Have other workers serve what this one serves; its clients are answered all the while."""
        if group is None:
            raise AloneError(told="nobody else could serve its partitions")
        is_done = await ingest_loop.run(group.hand_over)
        if not is_done:
            raise RetriableError(told="the other workers do not serve everything yet")
        return json_answer({"drained": True})

    @app.post("/admin/v1/undrain", dependencies=[WRITE])
    async def post_undrain() -> Response:
        """Have this worker own partitions again."""
        if group is None:
            raise AloneError
        await ingest_loop.read(group.keeper.stay)
        return json_answer({"drained": False})


def group_of(group: GroupLanes | None) -> dict[str, Any] | None:
    """Return what this worker knows of its group; None if it is alone."""
    if group is None:
        return None
    keeper = group.keeper
    return {
        "worker": keeper.worker,
        "generation": keeper.generation,
        "silence_seconds": _finite(group.membership.silence_s),
        "leaving": keeper.is_leaving,
        "moves": keeper.moves,
        "claims": keeper.claims,
        "workers": {
            name: {
                "address": address,
                "up": name == keeper.worker or keeper.neighbours.is_up(name),
            }
            for name, address in keeper.assignment.addresses.items()
        },
        "events_forwarded": group.peers.metrics.events_forwarded,
        "events_received": group.peers.metrics.events_received,
    }


def places_of(group: GroupLanes | None, number: int, worker: str) -> dict[str, Any]:
    """Return who owns and who follows one lane, as this worker was told last."""
    if group is None:
        return {"owner": worker, "standby": None, "caught_up": False}
    keeper = group.keeper
    return {
        "owner": keeper.assignment.owners[number] or None,
        "standby": keeper.assignment.followers[number] or None,
        "caught_up": keeper.lanes[number].follower.is_caught_up,
    }


async def ask_others(group: GroupLanes) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the statistics of each other worker that answers, and why the rest does not."""
    keeper = group.keeper
    questions: dict[str, Awaitable[Any]] = {
        name: keeper.neighbours.ask(name, STATS, None, ANSWER_S)
        for name in keeper.assignment.addresses
        if name != keeper.worker
    }
    answers = await asyncio.gather(*questions.values(), return_exceptions=True)
    told, silent = {}, {}
    for name, answer in zip(questions, answers, strict=True):
        if isinstance(answer, BaseException):
            silent[name] = str(answer)
        else:
            told[name] = answer
    return told, silent


async def _ask_all(group: GroupLanes, read: Read) -> dict[str, Any]:
    keeper = group.keeper
    others, silent = await ask_others(group)
    told = {keeper.worker: read(), **others}
    totals: dict[str, int] = {}
    for stats in told.values():
        for name, count in stats["totals"].items():
            totals[name] = totals.get(name, 0) + count
    return {
        "asked": keeper.worker,
        "generation": keeper.generation,
        "silent": silent,
        "totals": totals,
        "workers": told,
    }


class GroupCollector(Collector):
    """Reads the group at each scrape, in the ingest's event loop."""

    def __init__(self, group: GroupLanes) -> None:
        """Take what is read."""
        self._group = group

    def describe(self) -> Iterator[Metric]:
        """Name nothing in advance."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        keeper, peers = self._group.keeper, self._group.peers.metrics
        silence_s = _finite(self._group.membership.silence_s)
        yield GaugeMetricFamily("gateway_group_generation", "Of the newest assignment", keeper.generation)
        yield GaugeMetricFamily(
            "gateway_group_workers", "In the newest assignment", len(keeper.assignment.addresses)
        )
        if silence_s is not None:
            yield GaugeMetricFamily(
                "gateway_group_silence_seconds", "Since the coordinator answered last", silence_s
            )
        up = GaugeMetricFamily("gateway_peer_up", "1 if the other worker answers", labels=["worker"])
        for name in keeper.assignment.addresses:
            if name != keeper.worker:
                up.add_metric([name], int(keeper.neighbours.is_up(name)))
        yield up
        yield CounterMetricFamily("gateway_lane_moves", "Partitions that this worker took", keeper.moves)
        yield CounterMetricFamily(
            "gateway_lane_claims", "Of these, those whose owner was gone", keeper.claims
        )
        yield CounterMetricFamily(
            "gateway_peer_forwarded_events", "Events sent to their owners", peers.events_forwarded
        )
        yield CounterMetricFamily(
            "gateway_peer_received_events", "Events of other workers' clients", peers.events_received
        )
        yield CounterMetricFamily("gateway_peer_reconnects", "Lost links that were mended", peers.reconnects)
        refused = CounterMetricFamily(
            "gateway_peer_refused_frames", "What other workers, or strangers, sent in vain", labels=["reason"]
        )
        for reason, count in peers.frames_refused.items():
            refused.add_metric([reason], count)
        yield refused


def _finite(seconds: float) -> float | None:
    return round(seconds, 3) if seconds < 1e9 else None
