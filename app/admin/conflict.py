"""
Why an event is a conflict: the top-level fields in which it differs from the stored event with its id.

The log is asked for the stored event, never on the way of a request. `context` and `integrations` of a batch
are part of both events here, though they do not count when events are compared on arrival.

Events are compared in the ingest's loop, and anybody may cause conflicts of large ones. So those are not
parsed: they are cut into their fields, and a long field differs if its bytes do.
"""

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Generator
from contextlib import aclosing
from decimal import Decimal
from itertools import chain
from typing import Any

from app.http.errors import RequestError
from app.http.json_scan import Scan
from dedupe.model.errors import LogCorruptError, RetriableError
from dedupe.model.identity import RETRY_FIELDS
from dedupe.model.record import parse_identity
from dedupe.model.types import LogRecord
from dedupe.storage.log import LogStore
from dedupe.storage.quarantine_reader import Place

NOT_COMPARED = RETRY_FIELDS | {"receivedAt"}
"""Fields that retries or the gateway change."""

VALUE_CHARS_MAX = 200
"""The limit of each shown value."""

EXACT_BYTES = 32 * 1024
"""Values up to this length together are parsed, in 8 ms."""

STEP_FIELDS = 1_000

NAMED_MAX = 100

CACHED_MAX = 200

GONE = "the stored event is no longer in the log"
UNNAMED = (
    "the quarantine record does not say where the stored event is; `gateway lookup SOURCE MESSAGE_ID` tells"
)
UNREADABLE = "an event is no JSON object"
SAME = "the fields are equal: the rules by which events are compared have changed, or the rest is not stored"

_NAME = re.compile(rb'\s*("(?:[^"\\]++|\\.)*+")\s*:\s*', re.DOTALL)


def differing_fields(
    original: bytes, other: bytes, ignored: frozenset[str] = frozenset()
) -> dict[str, tuple[str | None, str | None]]:
    """
    Return the top-level fields that differ, with both values as JSON, shortened; None: the field is missing.

    Numbers are compared digit by digit, and equal ones are equal however they are written.

    Raises:
        ValueError: one of them is no JSON object.
    """
    ours, theirs = _fields_of(original), _fields_of(other)
    return {
        name: (_text(ours, name), _text(theirs, name))
        for name in sorted(ours.keys() | theirs.keys())
        if name not in NOT_COMPARED | ignored
        and not (name in ours and name in theirs and _is_same(ours[name], theirs[name]))
    }


async def differing(
    original: bytes, other: bytes, ignored: frozenset[str] = frozenset()
) -> dict[str, tuple[str | None, str | None]]:
    """
    Return what `differing_fields` does, in short steps; of long events at most NAMED_MAX fields.

    Raises ValueError.
    """
    if len(original) + len(other) <= EXACT_BYTES:
        return differing_fields(original, other, ignored)
    ours, theirs = await _members_of(original), await _members_of(other)
    found: dict[str, tuple[str | None, str | None]] = {}
    names = chain(ours, (name for name in theirs if name not in ours))
    for number, name in enumerate(names):
        one, two = ours.get(name), theirs.get(name)
        if number % STEP_FIELDS == 0 or one != two:
            await asyncio.sleep(0)
        if one == two:
            continue
        if len(one or b"") + len(two or b"") <= EXACT_BYTES:
            found |= differing_fields(_object(name, one), _object(name, two), ignored)
        elif name not in NOT_COMPARED | ignored:
            found[name] = _shortened(one), _shortened(two)
        if len(found) >= NAMED_MAX:
            break
    return dict(sorted(found.items()))


class Comparison:
    """Compares conflicting events with the stored ones; remembers the last results."""

    def __init__(self, store: LogStore, topic: str, ignored: frozenset[str] = frozenset()) -> None:
        """
        Compare with events of one topic.

        Args:
            store: the log.
            topic: the clean topic.
            ignored: GATEWAY_FINGERPRINT_IGNORE.
        """
        self._store = store
        self._topic = topic
        self._ignored = ignored
        self._known: OrderedDict[tuple[Place, bytes], dict[str, Any]] = OrderedDict()

    async def of(self, content: bytes, original: Place | None, *, is_shown: bool = False) -> dict[str, Any]:
        """
        Return how an event differs from the stored one.

        Args:
            content: the conflicting event.
            original: the place of the stored one, None if it is unknown.
            is_shown: whether the values are returned as well.

        Returns:
            `original`, its place; `differs`, the names of the fields, None if they are unknown; `why`, then;
            and `values`, by name the stored and the conflicting one.

        Raises:
            RetriableError: the log cannot be read.
        """
        if original is None:
            return {"original": None, "differs": None, "why": UNNAMED}
        place = {"original": {"partition": original.partition, "offset": original.offset}}
        record = await self._read(original)
        if record is None:
            return place | {"differs": None, "why": GONE}
        place["original"]["timestamp_ms"] = record.timestamp_ms
        try:
            parse_identity(record)
            fields = await differing(record.value, content, self._ignored)
        except (LogCorruptError, ValueError):
            return place | {"differs": None, "why": UNREADABLE}
        document: dict[str, Any] = place | {"differs": list(fields), "why": None if fields else SAME}
        if is_shown:
            document["values"] = {name: list(values) for name, values in fields.items()}
        return document

    async def names(self, content: bytes, original: Place, key: bytes) -> list[str] | None:
        """Return the names of the fields, None if they are unknown; `key` identifies the event."""
        known = self._known.get((original, key))
        if known is None:
            try:
                known = await self.of(content, original)
            except RetriableError:
                return None
            self._known[original, key] = known
            if len(self._known) > CACHED_MAX:
                self._known.popitem(last=False)
        names: list[str] | None = known["differs"]
        return names

    async def _read(self, place: Place) -> LogRecord | None:
        if place.partition >= await self._store.partitions_of(self._topic):
            return None
        log = self._store.partition_log(self._topic, place.partition)
        try:
            start, end = await log.bounds()
            if not start <= place.offset < end:
                return None
            async with aclosing(log.read(place.offset, place.offset + 1, records_max=1)) as batches:
                async for records in batches:
                    return records[0]
        finally:
            await log.close()
        return None


def _fields_of(value: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(value, parse_int=Decimal, parse_float=Decimal)
    except (RecursionError, ArithmeticError) as err:
        raise ValueError("it cannot be read") from err
    if type(fields) is not dict:
        raise ValueError("it is no object")
    return fields


async def _members_of(value: bytes) -> dict[str, bytes]:
    """Return the fields of an object as JSON. Raises ValueError."""
    reading = _read_members(value)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            members: dict[str, bytes] = end.value
            return members
        except RequestError as err:
            raise ValueError("it cannot be read") from err
        await asyncio.sleep(0)


def _read_members(value: bytes) -> Generator[int, None, dict[str, bytes]]:
    """Find the fields of an object; yields after each step."""
    members: dict[str, bytes] = {}
    if not value.startswith(b"{"):
        raise ValueError("it is no object")
    scan = Scan(value, 1)
    while True:
        start = scan.place
        yield from scan.past_element()
        if (name := _NAME.match(value, start, scan.place)) is not None:
            members[json.loads(name[1])] = value[name.end() : scan.place]
        if not value.startswith(b",", scan.place):
            return members
        scan.place += 1


def _object(name: str, value: bytes | None) -> bytes:
    return b"{}" if value is None else b"{%b:%b}" % (json.dumps(name).encode(), value)


def _shortened(value: bytes | None) -> str | None:
    """Return JSON shortened."""
    if value is None:
        return None
    text = value[: 4 * VALUE_CHARS_MAX].decode(errors="ignore")
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal; true and 1 are not."""
    if type(one) is not type(other):
        return False
    if type(one) is dict:
        return one.keys() == other.keys() and all(_is_same(one[name], other[name]) for name in one)
    if type(one) is list:
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)


def _json(value: Any) -> str:
    """Return a value as JSON, with every digit of its numbers."""
    if type(value) is dict:
        return "{" + ",".join(f"{_json(name)}:{_json(each)}" for name, each in value.items()) + "}"
    if type(value) is list:
        return "[" + ",".join(map(_json, value)) + "]"
    return str(value) if type(value) is Decimal else json.dumps(value, ensure_ascii=False)


def _text(fields: dict[str, Any], name: str) -> str | None:
    """Return a field's value as JSON, shortened."""
    if name not in fields:
        return None
    text = _json(fields[name])
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"
