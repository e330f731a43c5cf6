"""
Puts the pieces of a quarantined event together, for its replay.

The index has the place of each piece, since its key follows from the hash of the whole. Pieces that the index
has forgotten are searched in the log, for a few seconds.
"""

import asyncio
from contextlib import aclosing

from dedupe.model.clock import Clock, Deadline
from dedupe.model.identity import Identity
from dedupe.model.quarantine import piece_fingerprint
from dedupe.model.routing import partition_of
from dedupe.model.types import Topic
from dedupe.router import Router
from dedupe.storage.log import LogStore
from dedupe.storage.quarantine_reader import Place, Wanted, Whole, read_quarantine

WHOLES_AT_ONCE = 2

SEARCH_S = 5.0
"""Less than the limit of a replay, see app.admin.replay."""


class WholeSearch:
    """Finds whole events; used in the ingest's loop. Callers hold `slots`, since wholes are in memory."""

    def __init__(
        self, router: Router, identity: Identity, store: LogStore, topic: Topic, clock: Clock
    ) -> None:
        self._router = router
        self._identity = identity
        self._store = store
        self._topic = topic
        self._clock = clock
        self.slots = asyncio.Semaphore(WHOLES_AT_ONCE)

    async def at(self, place: Place) -> Whole | None:
        """
        Return the event of the record at a place, with the pieces that were found; None without a record.

        Raises RetriableError.
        """
        whole: Whole | None = None
        wanted = Wanted(frozenset({place}))
        async with aclosing(read_quarantine(self._store, self._topic.name, wanted)) as found:
            async for kept in found:
                whole = Whole(kept)
        if whole is not None and whole.missing:
            await self._add(whole, Wanted(await self._known_places(whole)), Deadline(self._clock, SEARCH_S))
        if whole is not None and whole.missing:
            await self._add(whole, Wanted(source=whole.kept.source), Deadline(self._clock, SEARCH_S))
        return whole

    async def _known_places(self, whole: Whole) -> frozenset[Place]:
        """Return the places of missing pieces that the index knows."""
        kept, routes = whole.kept, self._router.quarantine_routes
        digest = bytes.fromhex(kept.sha256) + bytes.fromhex(kept.key_sha256 or "")
        places = set()
        for number in whole.missing:
            fingerprint = piece_fingerprint(digest, number, kept.pieces)
            key = self._identity.quarantine_key(kept.source, kept.message_id or "", fingerprint)
            partition = partition_of(key, len(routes))
            if (entry := await routes[partition].find(key)) is not None:
                places.add(Place(partition, entry.offset))
        return frozenset(places)

    async def _add(self, whole: Whole, wanted: Wanted, deadline: Deadline) -> None:
        """Add the pieces among the wanted records."""
        if wanted == Wanted():  # no place is known
            return
        async with aclosing(read_quarantine(self._store, self._topic.name, wanted)) as found:
            async for kept in found:
                if kept.whole_id == whole.kept.whole_id:
                    whole.add(kept)
                if not whole.missing or deadline.is_over:
                    return
