"""The client sessions of one client."""

from typing import Any

from fastapi import FastAPI, Response

from app.admin.answers import json_answer
from app.admin.ingest_loop import IngestLoop
from app.admin.scopes import READ
from dedupe.decide.sessions import NO_SESSION, SessionKey, SessionState
from dedupe.model.identity import Identity
from dedupe.model.inherited import offset_in_log
from dedupe.router import Router

ROWS_MAX = 200
"""The limit of one answer, which takes about 1 ms of the ingest's event loop."""


LIMIT_S = 5.0


def add_sessions(app: FastAPI, router: Router, identity: Identity, ingest_loop: IngestLoop) -> None:
    """Add the path."""

    @app.get("/admin/v1/sessions", dependencies=[READ])
    async def get_sessions(source: str, client: str) -> Response:
        """Return at most 200 sessions of a client."""
        client_hash = identity.client_hash(source, client)
        partition = router.partition_of(client_hash)
        rows = await ingest_loop.run(
            lambda: router.routes[partition].sessions_of(client_hash, ROWS_MAX + 1), limit_s=LIMIT_S
        )
        document = {
            "source": source,
            "client": client,
            "partition": partition,
            "sessions": [_described(*row) for row in rows[:ROWS_MAX] if not _is_client(row[0])],
            "newest_epoch": max([state.epoch for key, state in rows if _is_client(key)], default=None),
            "more": len(rows) > ROWS_MAX,
        }
        return json_answer(document)


def _is_client(key: SessionKey) -> bool:
    return key.endswith(NO_SESSION)


def _described(key: SessionKey, state: SessionState) -> dict[str, Any]:
    return {
        "session_hash": key[-len(NO_SESSION) :].hex(),
        "watermark": state.watermark,
        "acknowledged_through": state.acknowledged_through,
        "highest": state.highest,
        "missing": state.missing(),
        "epoch": state.epoch,
        "last_used_ms": state.last_used_ms,
        "last_offset": offset_in_log(state.last_offset),
        "expired": state.is_evicted,
    }
