"""
The payload of a body that is not JSON, or no batch: each complete event in it, and the fragments between.

What a body holds follows from its bytes alone, so a retry finds the same, on every worker.
See app.ingest.salvage for what an item is.
"""

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

from app.auth.write_keys import own_key
from app.http.fair_scheduler import YieldToOthers
from app.ingest.broken_json import PIECES_MAX, BrokenJSON
from app.ingest.client_sessions import SEQUENCE, names_session
from app.ingest.event_keys import keys_of
from app.ingest.event_limits import EVENT_WORK_BYTES
from app.ingest.items import Fragment
from app.ingest.large_json import (
    COMMA_BYTES,
    GROUP_BYTES,
    MARK_BYTES,
    SMALL_BYTES,
    JSONLimits,
    count_marks,
    is_cheap,
)
from app.ingest.payload import Payload, common_fields, is_event, with_key
from app.ingest.salvage import SEARCH_RATE, Layout, remains
from app.ingest.unparsed_key import key_in
from dedupe.decide.rejection import RejectionCode
from dedupe.model.json_document import read_document

PIECE_BYTES = 160
"""The memory of a piece of the body's layout."""

IDENTITY_FIELDS = frozenset(
    {"messageId", "writeKey", "sequence", "client", "session", "epoch", "acknowledgedThrough"}
)
"""With a mended value they could be equal to those of another event."""

CLOUDEVENT_IDENTITY_FIELDS = frozenset({"id", "source"})
"""The same of a CloudEvent."""

DROPPED_FIELDS = frozenset({"batch", "firstSequence"})
"""Of an envelope: without the events that are lost, the first sequence does not tell those of the others."""

NAMES = frozenset({"type", "event"})
SESSION_FIELDS = frozenset({"client", "session"})
WRITE_KEY = "writeKey"

_IN_SESSION = re.compile(
    rb'"(?:firstSequence|acknowledgedThrough|session"?[ \t\r\n\0:"]{1,8}[0-9A-Za-z]{20})'
)
_IN_SESSION_BYTES = 40
"""The longest match."""

codecs.register_error("gateway-marked", lambda err: ("\ufffc", getattr(err, "end", 0)))


async def salvaged(
    body: bytes, limits: JSONLimits, yield_to_others: YieldToOthers, *, reads_sessions: bool = False
) -> Payload:
    """
    Return the events of a damaged body, and its fragments, in the order of the body.

    Args:
        body: inflated, as far as it could be.
        limits: its bounds.
        yield_to_others: awaited before each piece of work.
        reads_sessions: whether fields of the envelope may name a client session.

    Raises:
        BodyMemoryFullError: there is no memory for it; see JSONLimits.hold.
    """
    if len(body) > SMALL_BYTES:
        await yield_to_others(len(body))
        marks = count_marks(body)
        await yield_to_others(len(body))
        more_bytes = (
            MARK_BYTES * marks + COMMA_BYTES * body.count(b",") + PIECE_BYTES * min(marks, PIECES_MAX)
        )
        limits.hold(len(body), more_bytes)
    await yield_to_others(len(body))
    broken = BrokenJSON(body)
    for work_bytes in broken.read():
        await yield_to_others(work_bytes)
    layout = Layout(body, broken)
    for work_bytes in layout.decide():
        await yield_to_others(work_bytes)
    found = _Found(body, layout, limits)
    broken.pieces.clear()  # frees their memory
    for work_bytes in found.read():
        await yield_to_others(work_bytes)
    if reads_sessions:
        for work_bytes in found.find_session():
            await yield_to_others(work_bytes)
    await yield_to_others(len(body) // SEARCH_RATE)
    return found.payload(reads_sessions=reads_sessions)


class _Found:
    """Makes items and fields of what a layout names."""

    def __init__(self, body: bytes, layout: Layout, limits: JSONLimits) -> None:
        self._body = body
        self._layout = layout
        self._limits = limits
        self._starts = layout.envelope.starts()
        self._items: list[tuple[int, object]] = []  # with their positions
        self._ends: list[int] = []  # of the items
        self._fields: list[dict[str, Any]] = []  # of each envelope
        self._is_in_session = False  # by what stands beside the events
        self._shared: dict[str, Any] = {}  # the fields in which all envelopes agree

    def read(self) -> Iterator[int]:
        """Read fields and items; yield the work of each step, in bytes."""
        starts = self._starts
        self._fields = [{} for _ in starts]
        work = 0
        for name, value in self._layout.envelope.fields:
            self._read_field(self._fields[max(0, bisect_right(starts, name.start) - 1)], name, value)
            work += value.stop - name.start + EVENT_WORK_BYTES
            if work > GROUP_BYTES:
                yield work
                work = 0
        self._shared = shared = common_fields(self._fields)
        self._fields = [shared | own if len(own) > len(shared) else shared for own in self._fields]
        taken = [*self._layout.envelope.parts]
        events = 0
        for start, end in self._layout.items:
            if events == self._limits.events_max:
                self._items.append(
                    (start, Fragment(start, self._body[start:], RejectionCode.TOO_MANY_EVENTS))
                )
                taken.append((start, len(self._body)))
                break
            item = self._item(start, end)
            work += end - start + EVENT_WORK_BYTES
            if work > GROUP_BYTES:
                yield work
                work = 0
            if item is not None:
                events += 1
                taken.append((start, end))
                if len(starts) > 1:
                    item = with_key(item, self._own_fields(start))
                self._items.append((start, item))
        yield work
        for part in remains(self._body, taken):
            if isinstance(part, int):
                yield part
            else:
                content = self._body[slice(*part)]
                self._items.append((part[0], Fragment(part[0], content, RejectionCode.UNREADABLE)))
        self._ends = [end for _, end in self._layout.items]

    def _own_fields(self, position: int) -> dict[str, Any]:
        """Return the fields of the envelope in which something stands."""
        return self._fields[max(0, bisect_right(self._starts, position) - 1)]

    def payload(self, *, reads_sessions: bool) -> Payload:
        """Return what was read."""
        found, shared = sorted(self._items, key=_position), self._shared
        items = [item for _, item in found]
        own_fields = [self._own_fields(position) for position, _ in found] if len(self._starts) > 1 else []
        if reads_sessions and not names_session(shared) and self._has_session(items):
            items = [self._set_aside(position, item) for position, item in found]
            shared = {name: value for name, value in shared.items() if name not in SESSION_FIELDS}
        if not own_key(shared) and not any(keys_of(items)) and (write_key := key_in(self._body)):
            shared = shared | {WRITE_KEY: write_key}
        return Payload(items, shared, shared, own_fields)

    def _has_session(self, items: list[object]) -> bool:
        """Whether the events seem to belong to a client session, by what is left of its fields."""
        return (
            self._is_in_session
            or any(not SESSION_FIELDS.isdisjoint(fields) for fields in self._fields)
            or any(isinstance(item, dict) and type(item.get(SEQUENCE)) is int for item in items)
        )

    def find_session(self) -> Iterator[int]:
        """Look for a client session beside the events; yield the work of each step, in bytes."""
        place = work = 0
        for start, end in (*self._layout.items, (len(self._body), len(self._body))):
            while place < start and not self._is_in_session:
                stop = min(start, place + GROUP_BYTES)
                match = _IN_SESSION.search(self._body, place, min(start, stop + _IN_SESSION_BYTES))
                self._is_in_session = match is not None
                work += stop - place
                place = stop
                if work >= GROUP_BYTES:
                    yield work
                    work = 0
            place = max(place, end)

    def _set_aside(self, position: int, item: object) -> object:
        """Return an event of a session that is not known as a fragment."""
        if not isinstance(item, dict):
            return item
        end = self._ends[bisect_right(self._ends, position)]
        return Fragment(position, self._body[position:end], RejectionCode.UNREADABLE)

    def _read_field(self, fields: dict[str, Any], name: slice, value: slice) -> None:
        content = b"{%b:%b}" % (self._body[name], self._body[value])
        if not is_cheap(content):
            return
        document = _document(content)
        if isinstance(document, dict):
            fields.update({key: each for key, each in document.items() if key not in DROPPED_FIELDS})

    def _item(self, start: int, end: int) -> object:
        """Return an event, or what stands for it; None if it is none."""
        content = self._body[start:end]
        if not is_cheap(content):
            return self._limits.unparsed(content, start)
        document = _document(content)
        if not is_event(document) or _is_envelope(document):
            return None
        return self._limits.judged(document, content)


def _is_envelope(document: object) -> bool:
    """Whether an object is what is left of a batch: the id of a batch is no event's."""
    return isinstance(document, dict) and "batch" in document and NAMES.isdisjoint(document)


def _position(item: tuple[int, object]) -> int:
    return item[0]


def _document(content: bytes) -> object:
    """Return a JSON document, with U+FFFD for what is no UTF-8; None if it is none, or another one."""
    try:
        return read_document(content)
    except ValueError:
        pass
    try:
        content.decode()
    except UnicodeDecodeError:
        pass
    else:
        return None
    try:
        mended, marked = (
            read_document(content.decode(errors=handler).encode())
            for handler in ("replace", "gateway-marked")
        )
    except ValueError:
        return None
    return mended if _is_itself(mended, marked) else None


def _is_itself(mended: object, marked: object) -> bool:
    """Whether nothing was mended that identifies an event, nor the name of a field."""
    if not isinstance(mended, Mapping) or not isinstance(marked, Mapping):
        return False
    names = IDENTITY_FIELDS | CLOUDEVENT_IDENTITY_FIELDS if "specversion" in mended else IDENTITY_FIELDS
    return mended.keys() == marked.keys() and all(
        mended[name] == marked[name] for name in names.intersection(mended)
    )
