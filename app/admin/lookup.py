"""The look-up of an event by id or by sequence: whether it is stored, where, and its fields."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import FastAPI, Query, Response

from app.admin.answers import json_answer
from app.admin.ingest_loop import IngestLoop
from app.admin.quarantine_search import QuarantineSearch
from app.admin.scopes import READ_VALUE
from app.http.errors import RequestError
from dedupe.decide.sessions import U64_MAX
from dedupe.model.clock import Clock
from dedupe.model.errors import LogCorruptError
from dedupe.model.identity import Identity
from dedupe.model.inherited import place_of
from dedupe.model.json_document import read_stored
from dedupe.model.record import parse_identity
from dedupe.model.types import EventKey, LogRecord, Offset, Topic
from dedupe.router import Router
from dedupe.storage.log import LogStore

LIMIT_S = 10.0
SHOWN = ("messageId", "type", "event", "timestamp", "sentAt", "receivedAt")
"""The fields that a reading token shows: they identify the event, not the person."""


class Lookup:
    """Looks ids up; used in the ingest's loop."""

    def __init__(
        self,
        router: Router,
        store: LogStore,
        identity: Identity,
        topics: tuple[Topic, Topic],
        clock: Clock,
    ) -> None:
        self._router = router
        self._store = store
        self._identity = identity
        self._topic = topics[0].name
        self._clock = clock
        self._quarantine = QuarantineSearch(store, topics[1], clock)

    async def message(
        self, source: str, message_id: str, client: str | None, *, is_shown: bool
    ) -> dict[str, Any]:
        """
        Return the event with a message id; an event of a client session requires its client.

        Raises RetriableError: the partition is not served now, or the log cannot be read.
        """
        if client is None:
            key = self._identity.message_key(source, message_id)
            return await self._find(key, key, is_shown=is_shown)
        client_hash = self._identity.client_hash(source, client)
        key = self._identity.secondary_key(source, client_hash, message_id)
        return await self._find(key, client_hash, is_shown=is_shown)

    async def quarantined(self, source: str, message_id: str) -> dict[str, Any]:
        """Return the places of a message id's events in quarantine. Raises RetriableError."""
        return (await self._quarantine.search(source, message_id)).document()

    async def sequence(
        self, source: str, client: str, session: str, sequence: int, *, is_shown: bool
    ) -> dict[str, Any]:
        """Return the event with a sequence of a client session; raises as `message` does."""
        client_hash = self._identity.client_hash(source, client)
        session_hash = self._identity.session_hash(source, client, session)
        key = self._identity.sequence_key(client_hash, session_hash, sequence)
        event = await self._find(key, client_hash, is_shown=is_shown)
        if not event["seen"]:
            state = await self._router.session(client_hash, session_hash)
            if state is not None and state.has(sequence):
                return event | {"seen": True, "forgotten": True}
        return event

    async def _find(self, key: EventKey, routing_key: bytes, *, is_shown: bool) -> dict[str, Any]:
        partition = self._router.partition_of(routing_key)
        entry = await self._router.routes[partition].find(key)
        event = {"seen": entry is not None, "topic": self._topic, "partition": partition}
        if entry is None:
            return event
        partition, offset = place_of(partition, entry.offset)
        record = await self._read(partition, offset)
        return event | {"partition": partition, "offset": offset} | self._described(record, is_shown=is_shown)

    async def _read(self, partition: int, offset: Offset) -> LogRecord | None:
        log = self._store.partition_log(self._topic, partition)
        try:
            async for records in log.read(offset, offset + 1, records_max=1):
                return records[0]
        finally:
            await log.close()
        return None

    def _described(self, record: LogRecord | None, *, is_shown: bool) -> dict[str, Any]:
        if record is None:
            return {"record": None}
        age_s = (self._clock.now_ms() - record.timestamp_ms) / 1000
        try:
            identity = parse_identity(record)
            value: Any = read_stored(record.value)
        except (LogCorruptError, ValueError):
            return {"timestamp_ms": record.timestamp_ms, "age_seconds": age_s, "record": None}
        shown = value if is_shown else {name: value[name] for name in SHOWN if name in value}
        return {
            "timestamp_ms": record.timestamp_ms,
            "age_seconds": age_s,
            "message_id": identity.message_id,
            "lane_seq": identity.lane_seq,
            "bytes": len(record.value),
            "fields": sorted(value),
            "record": shown,
        }


def add_lookup(app: FastAPI, lookup: Lookup, ingest_loop: IngestLoop) -> None:
    """Add the paths."""

    async def answer(
        query: dict[str, Any], find: Callable[[], Awaitable[dict[str, Any]]], *, quarantine: bool
    ) -> Response:
        """Answer with the query, the event, and the places of its id in quarantine."""

        async def look_up() -> dict[str, Any]:
            event = await find()
            message_id = query.get("message_id") or event.get("message_id")
            quarantined = None
            if quarantine and message_id is not None:
                quarantined = await lookup.quarantined(query["source"], message_id)
            return query | event | {"quarantine": quarantined}

        return json_answer(await ingest_loop.run(look_up, limit_s=LIMIT_S))

    @app.get("/admin/v1/lookup", dependencies=[READ_VALUE])
    async def get_event(
        source: str,
        message_id: Annotated[str | None, Query(alias="id")] = None,
        client: str | None = None,
        session: str | None = None,
        sequence: Annotated[int | None, Query(ge=0, le=U64_MAX)] = None,
        value: str | None = None,
        quarantine: bool = True,
    ) -> Response:
        """
        Return whether an event is stored, where and when: by its `id`, or by `client`, `session` and
        `sequence`.

        `?value` shows the whole event, and requires the writing token. `?quarantine=false` does not search
        the quarantine for events with its id; the answer has the time back to which that search went.
        """
        if message_id is not None:
            return await get_message(source, message_id, client, value, quarantine)
        if client is None or session is None or sequence is None:
            raise RequestError(detail="give id, or client, session and sequence")
        query = {"source": source, "client": client, "session": session, "sequence": sequence}
        shown = value is not None
        return await answer(
            query,
            lambda: lookup.sequence(source, client, session, sequence, is_shown=shown),
            quarantine=quarantine,
        )

    @app.get("/admin/v1/lookup/{source}/{message_id:path}", dependencies=[READ_VALUE])
    async def get_message(
        source: str,
        message_id: str,
        client: str | None = None,
        value: str | None = None,
        quarantine: bool = True,
    ) -> Response:
        """Return the same by a message id in the path; `..` cannot be in a path."""
        query = {"source": source, "message_id": message_id}
        shown = value is not None
        return await answer(
            query, lambda: lookup.message(source, message_id, client, is_shown=shown), quarantine=quarantine
        )
