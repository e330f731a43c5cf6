"""A snapshot of a partition's index, made now."""

from typing import Annotated, Any

from fastapi import FastAPI, Path, Response

from app.admin.answers import NotFoundError, json_answer
from app.admin.ingest_loop import IngestLoop
from app.admin.scopes import WRITE
from dedupe.model.errors import RetriableError
from dedupe.model.inherited import offset_in_log
from dedupe.partition.snapshotter import Snapshotter
from dedupe.router import Router
from dedupe.storage.snapshots.manifest import SnapshotError


def add_snapshots(
    app: FastAPI, router: Router, snapshotter: Snapshotter | None, ingest_loop: IngestLoop
) -> None:
    """Add the path."""

    async def make(partition: int, *, is_quarantine: bool) -> dict[str, Any]:
        lanes = router.quarantine_lanes if is_quarantine else router.lanes
        if snapshotter is None:
            raise NotFoundError(detail="GATEWAY_SNAPSHOTS_URL is not set: there are no snapshots")
        if partition >= len(lanes):
            raise NotFoundError(detail=f"there are {len(lanes)} partitions")
        try:
            made = await snapshotter.make(lanes[partition])
        except SnapshotError as err:
            raise RetriableError(str(err), detail=str(err)) from err
        return {
            "topic": made.manifest.identity.topic,
            "partition": partition,
            "snapshot": made.manifest.name,
            "applied_offset": offset_in_log(made.manifest.state.applied_offset),
            "files": len(made.manifest.files),
            "size_bytes": made.manifest.size_bytes,
            "sent_bytes": made.sent_bytes,
        }

    @app.post("/admin/v1/snapshots/{partition}", dependencies=[WRITE])
    async def post_snapshot(partition: Annotated[int, Path(ge=0)], quarantine: bool = False) -> Response:
        """Make a snapshot of the index of a partition that this worker serves, now."""
        return json_answer(await ingest_loop.run(lambda: make(partition, is_quarantine=quarantine)))
