"""
The values of a request's records: each event as sent, with fields that the batch and the gateway add.

Added fields are not part of an event's key or fingerprint, which app.ingest.identify computes from the event.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson

from app.ingest.deep_json import is_deeper, is_deeper_json
from dedupe.model.json_document import dumps_to_keep
from dedupe.model.json_number import STORED

SHARED_FIELDS = ("context", "integrations")
"""Batch-level objects that belong to every event; the event's own fields win."""

WRITE_KEY = "writeKey"
RECEIVED_AT = "receivedAt"

REPLACED = frozenset({WRITE_KEY, RECEIVED_AT})
"""Fields of an event that are not part of its record."""

SENT_AT_CHARS_MAX = 100
"""The limit of a batch-level `sentAt`; a longer one is no time, and ignored."""

LONG_BYTES = 16 * 1024
"""The depth of a longer event is found in its JSON, which may have very many values."""

_CONTEXT = b'"context":{'


class RecordValues:
    """Builds the values of one request's events from their canonical contents."""

    def __init__(
        self,
        shared: Mapping[str, Any],
        *,
        received_ms: int,
        default_type: str,
        client_ip: str | None,
        ignored: frozenset[str],
        depth_max: int,
    ) -> None:
        """
        Prepare the added fields.

        Args:
            shared: the batch object, its numbers as they are stored.
            received_ms: the arrival of the request.
            default_type: the type of events without one.
            client_ip: `context.ip` of events without.
            ignored: fields that contents lack.
            depth_max: deeper batch-level fields are omitted, see `is_too_deep`.
        """
        self._default_type = default_type
        self._client_ip = client_ip
        merged: dict[str, dict[str, Any]] = {
            name: value for name in SHARED_FIELDS if isinstance(value := shared.get(name), dict) and value
        }
        merged_json = _json_of(merged, depth_max) if merged else b"{}"
        self.is_too_deep = merged_json is None
        """Whether each event of the batch would nest too deep."""
        if merged_json is None:
            merged, merged_json = {}, b"{}"
        self.merged_bytes = len(merged_json) if merged else 0
        """The size of the batch-level fields in each event."""
        self.merging = frozenset(merged) | _written_again(ignored) if merged else _written_again(ignored)
        """An event with one of these fields is serialised again."""
        self.ip_field = b""
        if client_ip and "context" not in merged:
            self.ip_field = b'"ip":%b' % orjson.dumps(client_ip)
        shared_context = merged.get("context")
        if client_ip and shared_context and shared_context.get("ip") is None:
            merged["context"] = {**shared_context, "ip": client_ip}
            merged_json = orjson.dumps(merged, default=STORED)
        self._context_with_ip = b"%b%b," % (_CONTEXT, self.ip_field)
        self._merged = merged
        received_at: dict[str, object] = {RECEIVED_AT: _iso(received_ms)}
        self._added = received_at
        sent_at = shared.get("sentAt")
        if isinstance(sent_at, str) and len(sent_at) <= SENT_AT_CHARS_MAX:
            self._added = received_at | {"sentAt": sent_at}
        merged_part = b",%b" % merged_json[1:] if merged else b"}"
        self.suffix = self.suffix_without_sent_at = _open(received_at) + merged_part
        if self._added is not received_at:
            self.suffix = _open(self._added) + merged_part

    def value_of(
        self, item: dict[str, Any], content: bytes, retried: bytes, assigned_id: str | None
    ) -> bytes:
        """
        Return the value of an event's record.

        Most values are the event's content with a suffix, without a second serialisation.

        Args:
            item: the event as sent.
            content: its canonical JSON, without the ignored fields.
            retried: the JSON of the ignored fields that are part of the record; b"" without any.
            assigned_id: a KSUID for an event without an id.

        Raises:
            TypeError: the event nests too deep to be serialised.
        """
        if (
            item.get("type") is None
            or (self.merging and not self.merging.isdisjoint(item))
            or (assigned_id is not None and "messageId" in item)  # as null
            or (retried and item.get("sentAt", "") is None)
        ):
            return self._merged_value(item, assigned_id)
        suffix = self._suffix_after(item, retried) if retried else self.suffix
        if assigned_id is not None:
            suffix = b',"messageId":"%b"%b' % (assigned_id.encode(), suffix)
        if not self.ip_field:
            return content[:-1] + suffix
        return self._with_ip(item, content, suffix) or self._merged_value(item, assigned_id)

    def _with_ip(self, item: Mapping[str, Any], content: bytes, suffix: bytes) -> bytes | None:
        """
        Return a content with the client's address and a suffix; None if that requires a merge.

        Events of browsers and phones have a context without an address, which is inserted into their JSON.
        """
        context = item.get("context")
        if type(context) is dict and context and "ip" not in context:
            before, begin, after = content.partition(_CONTEXT)
            is_name = begin and before[-1] in b"{,"  # an escaped quote is behind a backslash
            is_top_level = is_name and before.rfind(b"{") == 0 and b"[" not in before
            return before + self._context_with_ip + after[:-1] + suffix if is_top_level else None
        if "context" not in item:
            return b'%b,"context":{%b}%b' % (content[:-1], self.ip_field, suffix)
        is_kept = context is not None if type(context) is not dict else context.get("ip") is not None
        return content[:-1] + suffix if is_kept else None

    def _suffix_after(self, item: Mapping[str, Any], retried: bytes) -> bytes:
        """Return the suffix of an event with fields besides its content."""
        suffix = self.suffix if item.get("sentAt") is None else self.suffix_without_sent_at
        return b",%b%b" % (retried[1:-1], suffix)

    def _merged_value(self, item: dict[str, Any], assigned_id: str | None) -> bytes:
        """Return the value of an event by a merge and a second serialisation."""
        merged = self._added | item
        if assigned_id is not None:
            merged["messageId"] = assigned_id
        merged[RECEIVED_AT] = self._added[RECEIVED_AT]
        if merged.get("sentAt") is None and "sentAt" in self._added:
            merged["sentAt"] = self._added["sentAt"]
        if merged.get("type") is None:
            merged["type"] = self._default_type
        for name, batch_level in self._merged.items():
            own_value = item.get(name)
            if own_value is None or isinstance(own_value, dict):
                merged[name] = {**batch_level, **(own_value or {})}
        if self._client_ip:
            context = merged.get("context")
            if context is None or (isinstance(context, dict) and context.get("ip") is None):
                merged["context"] = {**(context or {}), "ip": self._client_ip}
        merged.pop(WRITE_KEY, None)
        return dumps_to_keep(merged)


@lru_cache(256)
def _written_again(ignored: frozenset[str]) -> frozenset[str]:
    """Return the fields for which an event is serialised again, although the batch has none of them."""
    return ignored.intersection(("messageId", "type", *SHARED_FIELDS))


def is_deeper_record(item: Mapping[str, Any], value: bytes, levels: int) -> bool:
    """Whether the record of an item, with this value, nests more than `levels` deep."""
    if len(value) > LONG_BYTES:
        return is_deeper_json(value, levels)
    return is_deeper({name: item[name] for name in item if name not in REPLACED}, levels)


def _json_of(fields: Mapping[str, Any], depth_max: int) -> bytes | None:
    """Return the JSON of fields, None if they nest too deep."""
    try:
        written = orjson.dumps(fields, default=STORED)
    except TypeError:
        return None
    is_long = len(written) > LONG_BYTES
    is_too_deep = is_deeper_json(written, depth_max) if is_long else is_deeper(fields, depth_max)
    return None if is_too_deep else written


def _open(fields: Mapping[str, object]) -> bytes:
    """Return the JSON that adds fields to a document without its last bracket, without its own last one."""
    return b",%b" % orjson.dumps(fields)[1:-1]


def _iso(ms: int) -> str:
    seconds, rest = divmod(ms, 1000)
    return f"{_iso_second(seconds)}.{rest:03d}Z"


@lru_cache(2)
def _iso_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
