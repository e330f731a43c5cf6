"""The write keys: all of them with their use, and the end of those that have vanished."""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from fastapi import FastAPI, Response

from app.admin.answers import NotFoundError, json_answer
from app.admin.group import ask_others
from app.admin.ingest_loop import IngestLoop
from app.admin.scopes import READ, WRITE
from app.auth.key_file import KeyFile, KnownKey
from app.group import GroupLanes

LIST, FORGET = "write_keys", "forget_write_keys"
"""Kinds of requests between workers, each of which has a data folder of its own."""

KEYS_MAX = 10_000
"""The limit of one answer, 3 MB; the keys that have vanished are the first."""

STEP_KEYS = 500
"""The keys of one step, 2 ms of the ingest's loop."""

Document = dict[str, Any]


class WriteKeysOfGroup:
    """Reads and ends the write keys of this worker and the other workers of its group."""

    def __init__(self, key_file: KeyFile | None, group: GroupLanes | None) -> None:
        """`key_file` is None where every key is its own source."""
        self._key_file = key_file
        self._group = group
        if group is not None:
            group.handler.requests[LIST] = self._read_own
            group.handler.requests[FORGET] = self._forget_own

    async def read(self) -> Document:
        """Return the keys of all workers, how many are left out, and the errors of silent workers."""
        own = await self._read_own(None)
        others, silent = await self._ask_others(LIST, None)
        left_out = 0 if self._key_file is None else max(0, self._key_file.count - KEYS_MAX)
        return {"keys": _merged([own, *others.values()]), "left_out": left_out, "silent": silent}

    async def forget(self, name: str) -> Document:
        """End keys that have vanished; return their sources, and the errors of workers without an answer."""
        own = await self._forget_own(name)
        others, silent = await self._ask_others(FORGET, name)
        return {"sources": sorted(set(own).union(*others.values())), "silent": silent}

    async def _read_own(self, _body: Any) -> list[Document]:
        documents: list[Document] = []
        if self._key_file is not None:
            keys = list(islice(self._key_file.items(), KEYS_MAX))
            for begin in range(0, len(keys), STEP_KEYS):
                documents += _documents_of(self._key_file, keys[begin : begin + STEP_KEYS])
                await asyncio.sleep(0)
        return documents

    async def _forget_own(self, body: Any) -> list[str]:
        forgotten = [] if self._key_file is None else await self._key_file.forget(str(body))
        return [known.source.id for known in forgotten]

    async def _ask_others(self, kind: str, body: Any) -> tuple[dict[str, Any], dict[str, str]]:
        return ({}, {}) if self._group is None else await ask_others(self._group, kind, body)


def add_write_keys(
    app: FastAPI, key_file: KeyFile | None, group: GroupLanes | None, ingest_loop: IngestLoop
) -> None:
    """Add the paths; see WriteKeysOfGroup."""
    write_keys = WriteKeysOfGroup(key_file, group)

    @app.get("/admin/v1/write-keys", dependencies=[READ])
    async def get_write_keys() -> Response:
        """
        Return the write keys of the file, and those that have vanished from it and still work.

        Of each key the first digits of its SHA-256, never the key; `left_out` is how many keys there are
        beyond 10,000. In a group, uses and refusals are those of all workers that answer.
        """
        return json_answer(await ingest_loop.run(write_keys.read))

    @app.post("/admin/v1/write-keys/forget", dependencies=[WRITE])
    async def post_forget(name: str) -> Response:
        """
        End keys that have vanished from the file, on all workers that answer.

        `name` is a source, whose vanished keys all end, or the beginning of one key's SHA-256.
        """
        document = await ingest_loop.run(lambda: write_keys.forget(name))
        if not document["sources"]:
            raise NotFoundError(detail=f"no key that has vanished from the file is named by {name!r} alone")
        return json_answer(document)


def _documents_of(key_file: KeyFile, keys: Sequence[tuple[str, KnownKey]]) -> list[Document]:
    return [
        {
            "key_sha256": prefix,
            "source": known.source.id,
            "name": known.source.name,
            "state": _state_of(known),
            "scopes": sorted(known.source.scopes),
            "since_ms": known.removed_ms,
            "until_ms": None if known.removed_ms is None else key_file.until_ms(known),
            "last_used_ms": known.last_used_ms,
            "requests": known.requests,
            "refused": known.refused,
        }
        for prefix, known in keys
    ]


def _state_of(known: KnownKey) -> str:
    if known.removed_ms is not None:
        return "removed"
    return "enabled" if known.source.enabled else "disabled"


def _merged(lists: Iterable[list[Document]]) -> list[Document]:
    """Return each key once, with the uses of all workers; one that has vanished for any worker is first."""
    merged: dict[str, Document] = {}
    for document in (document for documents in lists for document in documents):
        known = merged.setdefault(document["key_sha256"], document)
        if known is document:
            continue
        for name in ("requests", "refused"):
            known[name] += document[name]
        known["last_used_ms"] = max(known["last_used_ms"] or 0, document["last_used_ms"] or 0) or None
        if document["state"] == "removed" and known["state"] != "removed":
            known.update({name: document[name] for name in ("state", "since_ms", "until_ms")})
    return sorted(merged.values(), key=lambda document: document["state"] != "removed")
