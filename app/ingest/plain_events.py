"""
Plain events, identified all at once, column by column: two thirds of the time that one by one takes.

Nearly every event is plain: an object of usual size and depth, whose id and type are valid, and into which
nothing of its batch is merged. Those of a client session have ids of their own, or none of them has: then
their places are their ids. Where one of some items is not plain, app.ingest.identify looks at each of them;
what both take, they take alike.

Identifier.steps -> **PlainEvents.take**, or _Request.event_of for each
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple, cast

import orjson

from app.ingest.deep_json import may_be_deeper
from app.ingest.event_limits import RETRY_BYTES_FREE, STEP_BYTES, STEP_FIELDS, EventLimits
from app.ingest.record_values import REPLACED, SHARED_FIELDS, RecordValues, tail_with_id
from app.ingest.session_events import SessionEvents
from dedupe.document import is_event_type
from dedupe.identity import MESSAGE_ID_BYTES_MAX, KeyOf, canonical_json, fingerprints_of
from dedupe.routing import partitions_of
from dedupe.types import Event, events_of

WITH_MEANING = frozenset({"messageId", "type", *SHARED_FIELDS})
"""Fields that are more than content: an event of which one of these is to be ignored is not plain."""

_message_id_of, _type_of = itemgetter("messageId"), itemgetter("type")


class Taken(NamedTuple):
    """Events of the first items, and what these count for limits."""

    events: list[Event]
    size_bytes: int


class _NotPlainError(Exception):
    """One of the items has to be looked at by itself."""


class PlainEvents:
    """The plain events of one request."""

    def __init__(
        self,
        values: RecordValues,
        limits: EventLimits,
        *,
        ignored: frozenset[str],
        special: frozenset[str],
        source: str,
        key_of: KeyOf,
        partitions: int,
        sessions: SessionEvents | None = None,
    ) -> None:
        """
        Take what is known of the request.

        Args:
            values: of its records.
            limits: of an event.
            ignored: fields that retries change; they follow what an event says.
            special: fields that no plain event has.
            source: who sends.
            key_of: makes the keys of the source's message ids.
            partitions: of the clean topic.
            sessions: if the request has a client session, what builds its events.
        """
        self._values = values
        self._limits = limits
        self._retried = ignored - WITH_MEANING
        self._special = special | (ignored & WITH_MEANING)
        self._source = source
        self._key_of = key_of
        self._partitions = partitions
        self._sessions = sessions

    def take(self, first: int, items: Sequence[object]) -> Taken | None:
        """
        Return the first of the items, n >= 1, as many as a step may hold; None if any is not plain.

        `first`: the place of the first item in its request.
        """
        if set(map(type, items)) != {dict}:
            return None
        objects = cast(Sequence[dict[str, Any]], items)
        if sum(map(len, objects)) > STEP_FIELDS:
            return None
        try:
            said, tails = self._said_by(objects)
            contents = _first_contents(said)
            said = said[: len(contents)]
            if not all(map(is_event_type, set(map(_type_of, said)))):
                return None
            if self._sessions is None:
                events = self._of_ids(said, contents, tails)
            else:
                events = self._of_places(self._sessions, first, objects, said, contents, tails)
        except (_NotPlainError, KeyError, TypeError):  # no id or type, or not text; too deep to be written
            return None
        return Taken(events, sum(map(len, contents)) + len(contents) * self._values.merged_bytes)

    def _of_ids(
        self, said: Sequence[dict[str, Any]], contents: Sequence[bytes], tails: Iterable[bytes]
    ) -> list[Event]:
        """Return the events of items whose ids identify them. Raises as `take` catches."""
        message_ids = list(map(_message_id_of, said))
        keys = list(map(self._key_of, _valid_ids(message_ids)))
        return events_of(
            keys,
            partitions_of(keys, self._partitions),
            fingerprints_of(contents),
            self._source,
            message_ids,
            self._values_of(said, contents, tails),
        )

    def _of_places(
        self,
        sessions: SessionEvents,
        first: int,
        items: Sequence[dict[str, Any]],
        said: Sequence[dict[str, Any]],
        contents: Sequence[bytes],
        tails: Iterable[bytes],
    ) -> list[Event]:
        """Return the events of items that their places in a client session identify. Raises as `_of_ids`."""
        places = sessions.places(first, items[: len(said)])
        if places is None:
            raise _NotPlainError
        ids = None
        if any("messageId" in item for item in said):
            message_ids = list(map(_message_id_of, said))
            ids = _valid_ids(message_ids)
        else:
            message_ids = sessions.ids_of(places)
            tails = map(tail_with_id, message_ids, tails)
        values = self._values_of(said, contents, tails)
        return sessions.events(places, fingerprints_of(contents), message_ids, ids, values)

    def _said_by(self, items: Sequence[dict[str, Any]]) -> tuple[Sequence[dict[str, Any]], Iterable[bytes]]:
        """
        Return what each item says, and what follows that in its value. Raises as `_values_of`.

        What follows is built once it is asked for, since the last items may have to wait for another step.
        """
        if not all(map(self._special.isdisjoint, items)):
            raise _NotPlainError
        retried = self._retried
        if all(map(retried.isdisjoint, items)):
            return items, repeat(self._values.tail)
        said = [{name: item[name] for name in item if name not in retried} for item in items]
        return said, map(self._tail_of, items)

    def _tail_of(self, item: dict[str, Any]) -> bytes:
        """Return what follows the content of an event: what retries change of it, and what is added."""
        own = {name: item[name] for name in self._retried & item.keys() if name not in REPLACED}
        if not own:
            return self._values.tail
        if len(orjson.dumps(own)) > RETRY_BYTES_FREE:
            raise _NotPlainError
        return self._values.tail_after(own)

    def _values_of(
        self, said: Sequence[dict[str, Any]], contents: Sequence[bytes], tails: Iterable[bytes]
    ) -> list[bytes]:
        """Return the events' values. Raises _NotPlainError, TypeError."""
        plain, depth_max = self._values.plain, self._limits.event_depth_max
        columns = zip(said, contents, tails, strict=False)  # asks for no tail of one that waits
        values = [value for own in columns if (value := plain(*own)) is not None]
        if (
            len(values) < len(contents)
            or max(map(len, contents)) + self._values.merged_bytes > self._limits.event_bytes_max
            or any([may_be_deeper(value, depth_max) for value in values])
        ):
            raise _NotPlainError
        return values


def _first_contents(said: Sequence[dict[str, Any]]) -> list[bytes]:
    """Return the canonical contents of the first items. Raises TypeError."""
    contents: list[bytes] = []
    bytes_left = STEP_BYTES
    for item in said:
        content = canonical_json(item)
        contents.append(content)
        bytes_left -= len(content)
        if bytes_left < 0:
            break
    return contents


def _valid_ids(message_ids: Sequence[str]) -> list[bytes]:
    """Return message ids as bytes. Raises _NotPlainError, TypeError."""
    ids = list(map(str.encode, message_ids))
    sizes = set(map(len, ids))
    if min(sizes) == 0 or max(sizes) > MESSAGE_ID_BYTES_MAX:
        raise _NotPlainError
    return ids
