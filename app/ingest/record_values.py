"""
The values of a request's records: each event as it was sent, what its batch adds, and what the gateway adds.

What is added is no part of an event's identity or fingerprint: app.ingest.identify takes these from the
event alone.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson

from app.ingest.deep_json import is_deeper
from dedupe.document import dumps_to_keep

SHARED_FIELDS = ("context", "integrations")
"""Batch-level objects that belong to every event; the event's own fields win."""

WRITE_KEY = "writeKey"
RECEIVED_AT = "receivedAt"

REPLACED = frozenset({WRITE_KEY, RECEIVED_AT})
"""What no record keeps of its event."""

SENT_AT_CHARS_MAX = 100
"""Of a batch-level `sentAt`; a longer one is no time, and goes into no event."""

_CONTEXT = b'"context":{'


class RecordValues:
    """What is added to every event of a request, prepared once."""

    def __init__(
        self,
        shared: Mapping[str, Any],
        *,
        received_ms: int,
        default_type: str,
        client_ip: str | None,
        depth_max: int,
    ) -> None:
        """
        Take the batch's own fields, and what is known of the request besides.

        Args:
            shared: the batch object.
            received_ms: when the request arrived.
            default_type: of an event that has none.
            client_ip: becomes `context.ip` of events without.
            depth_max: batch-level fields that nest deeper are left out, see `is_too_deep`.
        """
        self._default_type = default_type
        self._client_ip = client_ip
        merged: dict[str, dict[str, Any]] = {
            name: value for name in SHARED_FIELDS if isinstance(value := shared.get(name), dict) and value
        }
        self.is_too_deep = bool(merged) and is_deeper(merged, depth_max)
        """Whether no event of the batch can be taken, since each would get what nests too deep."""
        if self.is_too_deep:
            merged = {}
        self.merged_bytes = len(orjson.dumps(merged)) if merged else 0
        """What the batch adds to each event."""
        self.merged_names = merged.keys()
        self._ip_field = b'"ip":%b' % orjson.dumps(client_ip) if client_ip else b""
        self._sets_ip = bool(client_ip) and "context" not in merged
        shared_context = merged.get("context")
        if client_ip and shared_context and shared_context.get("ip") is None:
            merged["context"] = {**shared_context, "ip": client_ip}
        self._merged = merged
        self._added: dict[str, object] = {RECEIVED_AT: _iso(received_ms)}
        sent_at = shared.get("sentAt")
        if isinstance(sent_at, str) and len(sent_at) <= SENT_AT_CHARS_MAX:
            self._added["sentAt"] = sent_at
        self.tail = _tail(self._added | merged)
        """What follows the content of a plain event in its value."""
        self._tail_without_sent_at = _tail(
            {name: self._added[name] for name in self._added if name != "sentAt"} | merged
        )
        self._context_ip = _CONTEXT + self._ip_field + b","

    def tail_after(self, own: Mapping[str, Any]) -> bytes:
        """Return the tail of a plain event that keeps fields of its own behind its content, n >= 1."""
        if own.get("sentAt") is not None:
            return _tail(own)[:-1] + self._tail_without_sent_at
        if "sentAt" in self._added:
            own = {name: value for name, value in own.items() if name != "sentAt"}
        return _tail(own)[:-1] + self.tail if own else self.tail

    def plain(self, item: Mapping[str, Any], content: bytes, tail: bytes) -> bytes | None:
        """
        Return the value of a plain event: its content, and its tail; None if that takes a merge.

        Most events of browsers and phones have a context without the client's address: it is put between
        the bytes, which costs a tenth of serialising the event again.
        """
        if not self._sets_ip:
            return content[:-1] + tail
        context = item.get("context")
        if type(context) is dict and context and "ip" not in context:
            before, begin, after = content.partition(_CONTEXT)
            is_name = begin and before[-1] in b"{,"  # an escaped quote is behind a backslash
            is_top_level = is_name and before.rfind(b"{") == 0 and b"[" not in before
            return before + self._context_ip + after[:-1] + tail if is_top_level else None
        if "context" not in item:
            return b'%b,"context":{%b}%b' % (content[:-1], self._ip_field, tail)
        is_kept = context is not None if type(context) is not dict else context.get("ip") is not None
        return content[:-1] + tail if is_kept else None

    def joined(self, item: dict[str, Any], assigned: dict[str, object]) -> bytes:
        """Return the value of any other event, serialised once more with what is merged."""
        joined = self._added | item | assigned
        joined[RECEIVED_AT] = self._added[RECEIVED_AT]
        if joined.get("sentAt") is None and "sentAt" in self._added:
            joined["sentAt"] = self._added["sentAt"]
        if joined.get("type") is None:
            joined["type"] = self._default_type
        for name, batch_level in self._merged.items():
            own_value = item.get(name)
            if own_value is None or isinstance(own_value, dict):
                joined[name] = {**batch_level, **(own_value or {})}
        if self._client_ip:
            context = joined.get("context")
            if context is None or (isinstance(context, dict) and context.get("ip") is None):
                joined["context"] = {**(context or {}), "ip": self._client_ip}
        joined.pop(WRITE_KEY, None)
        return dumps_to_keep(joined)


def tail_with_id(message_id: str, tail: bytes) -> bytes:
    """Return the tail of a plain event that is given a KSUID for its id."""
    return b',"messageId":"%b"%b' % (message_id.encode(), tail)


def _tail(fields: Mapping[str, Any]) -> bytes:
    """Return what adds fields to a document without its last bracket."""
    return b"," + orjson.dumps(fields)[1:]


def _iso(ms: int) -> str:
    seconds, rest = divmod(ms, 1000)
    return f"{_iso_second(seconds)}.{rest:03d}Z"


@lru_cache(2)
def _iso_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
