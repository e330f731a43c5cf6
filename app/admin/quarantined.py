"""The path of the admin port that describes one quarantined event, and says why a conflict is one."""

from contextlib import aclosing
from typing import Annotated, Any

from fastapi import FastAPI, Path, Response

from app.admin.answers import NotFoundError, json_answer
from app.admin.conflict import Comparison
from app.admin.ingest_loop import IngestLoop
from app.admin.scopes import READ_VALUE
from app.admin.tail_sample import Sample
from dedupe.decide.rejection import RejectionCode
from dedupe.model.identity import Identity
from dedupe.model.routing import partition_of
from dedupe.model.types import Topic
from dedupe.router import Router
from dedupe.storage.log import LogStore
from dedupe.storage.quarantine_reader import Kept, Place, Wanted, read_quarantine

LIMIT_S = 10.0


class Quarantined:
    """Describes records of the quarantine topic; used in the ingest's loop."""

    def __init__(
        self, router: Router, store: LogStore, identity: Identity, topic: Topic, comparison: Comparison
    ) -> None:
        self._router = router
        self._store = store
        self._identity = identity
        self._topic = topic
        self._comparison = comparison

    async def at(self, place: Place, *, is_shown: bool) -> dict[str, Any] | None:
        """
        Return the record at a place without its event, and how a conflicting one differs; None without one.

        Raises RetriableError.
        """
        wanted = Wanted(frozenset({place}))
        async with aclosing(read_quarantine(self._store, self._topic.name, wanted)) as records:
            async for kept in records:
                document = kept.described() | {"sha256": kept.sha256}
                if kept.reason == RejectionCode.CONFLICT and not kept.is_truncated:
                    document["conflict"] = await self._comparison.of(
                        kept.content, await self._original_of(kept), is_shown=is_shown
                    )
                return document
        return None

    async def _original_of(self, kept: Kept) -> Place | None:
        """Return the place of the stored event; that of records of earlier versions is in the index."""
        if kept.original is not None or kept.message_id is None:
            return kept.original
        key, routes = self._identity.message_key(kept.source, kept.message_id), self._router.routes
        partition = partition_of(key, len(routes))
        entry = await routes[partition].find(key)
        return None if entry is None else Place(partition, entry.offset)


async def differs_in(comparison: Comparison, sample: Sample) -> list[str] | None:
    """Return the fields in which a sample of a conflict differs from the stored event, None if unknown."""
    if (
        sample.code != RejectionCode.CONFLICT
        or sample.value is None
        or sample.partition is None
        or sample.offset is None
    ):
        return None
    return await comparison.names(sample.value, Place(sample.partition, sample.offset), sample.key)


def add_quarantined(app: FastAPI, quarantined: Quarantined, ingest_loop: IngestLoop) -> None:
    """Add the path."""

    @app.get("/admin/v1/quarantine/{partition}/{offset}", dependencies=[READ_VALUE])
    async def get_record(
        partition: Annotated[int, Path(ge=0)], offset: Annotated[int, Path(ge=0)], value: str | None = None
    ) -> Response:
        """
        Return a quarantine record without its event: reason, source, position, pieces, length and hash.

        Of a conflict, `differs` names the top-level fields in which it differs from the stored event, which
        is read from the log; `why` says why they are unknown. `?value` adds both values, shortened, and needs
        the token that may change.
        """

        async def find() -> dict[str, Any] | None:
            return await quarantined.at(Place(partition, offset), is_shown=value is not None)

        document = await ingest_loop.run(find, limit_s=LIMIT_S)
        if document is None:
            raise NotFoundError(detail=f"there is no record at {partition}:{offset} of the quarantine")
        return json_answer(document)
