"""The path of the admin port that replays a quarantined event."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeAlias

from fastapi import FastAPI, Path, Query, Response

from app.admin.answers import NotFoundError, json_answer
from app.admin.ingest_loop import IngestLoop
from app.admin.scopes import WRITE
from dedupe.storage.quarantine_reader import Place

LIMIT_S = 15.0
"""Longer than the time limit of the ingest port."""

ReplayAt: TypeAlias = Callable[[Place, bool, str | None], Awaitable[dict[str, Any] | None]]
"""Replays the event of the record at a place, with a new id if that is allowed and needed, and under a source
if it has none; returns None without a record."""


async def no_record(_place: Place, _may_renew_id: bool, _to_source: str | None) -> None:
    """Return None: there is no quarantine."""


def add_replay(app: FastAPI, replay_at: ReplayAt, ingest_loop: IngestLoop) -> None:
    """Add the path; `replay_at` is called in the ingest's loop."""

    @app.post("/admin/v1/quarantine/{partition}/{offset}/replay", dependencies=[WRITE])
    async def post_replay(
        partition: Annotated[int, Path(ge=0)],
        offset: Annotated[int, Path(ge=0)],
        new_id: bool = False,
        to_source: Annotated[str | None, Query(min_length=1, max_length=100)] = None,
    ) -> Response:
        """
        Submit the event of a quarantine record as if its client had sent it again, and return the result.

        `result` is accepted, duplicate (it is stored already), rejected (again) or skipped, and `why` has the
        reason. `?new_id=true` stores an event whose id cannot be used under another id, and `?to_source=web`
        one that came with an unknown write key of its own under that source. A part of a damaged body is
        sent as a body; `events` has the number of events in it by result.
        """

        async def replay() -> dict[str, Any] | None:
            return await replay_at(Place(partition, offset), new_id, to_source)

        result = await ingest_loop.run(replay, limit_s=LIMIT_S)
        if result is None:
            raise NotFoundError(detail=f"there is no record at {partition}:{offset} of the quarantine")
        return json_answer(result)
