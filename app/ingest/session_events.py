"""
The events of one request that belong to client sessions: what identifies them, prepared once a session.

It judges nothing; app.ingest.identify refuses what has no valid sequence.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

from app.ingest.message_ids import session_event_ids
from app.ingest.session_fields import ClientSession
from dedupe.identity import Identity, KeyOf
from dedupe.record import FLAG_ID_ASSIGNED
from dedupe.routing import partition_of
from dedupe.types import Event, Fingerprint, Order, Session, events_of


class SessionEvents:
    """Builds the session events of one request."""

    def __init__(
        self,
        identity: Identity,
        partitions: int,
        source: str,
        *,
        session: ClientSession | None,
        stored: Sequence[Session | None],
        is_strict: bool,
    ) -> None:
        """Take the request's session, or those of stored records that are sent again; see Arrival."""
        self._source = source
        self._session = session
        self._stored = stored
        self._order = Order.REPLAYED if stored else Order.STRICT if is_strict else Order.ANY
        self._id_of = session and session_event_ids(source, session.client, session.session)
        self.is_stored = bool(stored)
        self._identity = identity
        self._partitions = partitions
        self._prepared: dict[tuple[bytes, bytes], tuple[KeyOf, KeyOf, int]] = {}
        """Of one session, but for records sent again."""

    def at(self, index: int, item: Mapping[str, Any]) -> Session | None:
        """Return an item's place in its client session; None if it has none, or none that is valid."""
        if self._stored:
            return self._stored[index]
        return self._session and self._session.at(index, item)

    def id_of(self, session: Session | None) -> str | None:
        """Return the id that follows from a place in the request's session, if it is one."""
        return None if session is None or self._id_of is None else self._id_of(session.sequence)

    def places(self, first: int, items: Sequence[Mapping[str, Any]]) -> list[Session] | None:
        """Return where items stand in the request's session; None if any of them has no valid place."""
        return self._session and self._session.places(first, items)

    def ids_of(self, places: Sequence[Session]) -> list[str]:
        """Return the ids that follow from places in the request's session."""
        assert self._id_of is not None
        return [self._id_of(place.sequence) for place in places]

    def events(
        self,
        places: Sequence[Session],
        fingerprints: Iterable[Fingerprint],
        message_ids: Sequence[str],
        ids: Sequence[bytes] | None,
        values: Sequence[bytes],
    ) -> list[Event]:
        """
        Return what `event` does of each, by columns.

        `places` are of one session, n >= 1; `ids` are the message ids' bytes, None if they were assigned.
        """
        key_of, guard_of, partition = self._keys_of(places[0].client_hash, places[0].session_hash)
        keys = [key_of(place.sequence.to_bytes(8, "big")) for place in places]
        flags, guards = (FLAG_ID_ASSIGNED, repeat(None)) if ids is None else (0, map(guard_of, ids))
        return events_of(
            keys,
            repeat(partition),
            fingerprints,
            self._source,
            message_ids,
            values,
            flags=repeat(flags),
            session=places,
            guard=guards,
            order=repeat(self._order),
        )

    def event(
        self, session: Session, fingerprint: Fingerprint, message_id: str, value: bytes, flags: int
    ) -> Event:
        """Return an event whose place in its client session identifies it."""
        key_of, guard_of, partition = self._keys_of(session.client_hash, session.session_hash)
        return Event(
            key_of(session.sequence.to_bytes(8, "big")),
            partition,
            fingerprint,
            self._source,
            message_id,
            value,
            flags,
            session,
            None,
            (),
            None if flags else guard_of(message_id.encode()),
            self._order,
        )

    def _keys_of(self, client_hash: bytes, session_hash: bytes) -> tuple[KeyOf, KeyOf, int]:
        """Return what makes keys and guards of a session's events, and the partition of all of them."""
        found = self._prepared.get((client_hash, session_hash))
        if found is None:
            found = self._prepared[client_hash, session_hash] = (
                self._identity.sequence_keys(client_hash, session_hash),
                self._identity.guard_keys(self._source, client_hash),
                partition_of(client_hash, self._partitions),
            )
        return found
