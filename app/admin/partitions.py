"""The partitions of the group, each described by its serving worker."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import FastAPI, Path, Response

from app.admin.answers import NotFoundError, json_answer
from app.admin.group import STATS, Read, ask_others
from app.admin.ingest_loop import IngestLoop
from app.admin.scopes import READ
from app.group import GroupLanes

Stats = Mapping[str, Any]

STREAMS = ("partitions", "quarantine")
"""The fields of the statistics with the partitions of each topic."""


def add_partitions(app: FastAPI, group: GroupLanes | None, read: Read, ingest_loop: IngestLoop) -> None:
    """Add the paths; `read` returns this worker's statistics, in the ingest's loop."""

    async def ask() -> tuple[dict[str, Stats], dict[str, str]]:
        own = read()
        others, silent = ({}, {}) if group is None else await ask_others(group, STATS)
        workers = {own["worker"]: own, **others}
        return with_same_plan(workers, silent)

    @app.get("/admin/v1/partitions", dependencies=[READ])
    async def get_partitions() -> Response:
        """Return each partition, described by its serving worker, else by its owner, else by this worker."""
        workers, silent = await ingest_loop.run(ask)
        return json_answer(
            {"silent": silent, **{stream: views_of_servers(workers, stream) for stream in STREAMS}}
        )

    @app.get("/admin/v1/partitions/{partition}", dependencies=[READ])
    async def get_partition(partition: Annotated[int, Path(ge=0)], quarantine: bool = False) -> Response:
        """Return each worker's view of one partition."""
        workers, silent = await ingest_loop.run(ask)
        stream = STREAMS[quarantine]
        count = len(next(iter(workers.values()))[stream])
        if partition >= count:
            raise NotFoundError(detail=f"there are {count} partitions")
        views = {name: stats[stream][partition] for name, stats in workers.items()}
        return json_answer({"silent": silent, "partition": partition, "workers": views})


def with_same_plan(
    workers: dict[str, Stats], silent: dict[str, str]
) -> tuple[dict[str, Stats], dict[str, str]]:
    """Return the workers with the partitions of the first one; the others count as silent."""
    counts = {name: [len(stats[stream]) for stream in STREAMS] for name, stats in workers.items()}
    wanted = next(iter(counts.values()))
    others = {name: "it follows another plan" for name, count in counts.items() if count != wanted}
    return {name: stats for name, stats in workers.items() if name not in others}, silent | others


def views_of_servers(workers: Mapping[str, Stats], stream: str) -> list[dict[str, Any]]:
    """
    Return the partitions of a topic, each with the worker that describes it and those that could take it
    over.

    Args:
        workers: the statistics of n >= 1 workers, those of the answering one first.
        stream: one of STREAMS.
    """
    rows = []
    for views in zip(*(stats[stream] for stats in workers.values()), strict=True):
        by_name = dict(zip(workers, views, strict=True))
        serving = [name for name, view in by_name.items() if view["state"] == "active"]
        first = next(iter(by_name))
        owner = by_name[first]["owner"]
        name = serving[0] if serving else owner if owner in by_name else first
        ready = [other for other, view in by_name.items() if other != name and view["caught_up"]]
        rows.append({"worker": name, "ready": ready, **by_name[name]})
    return rows
