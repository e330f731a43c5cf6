"""A simulated deployment whose clients number what they send: see World."""

from collections.abc import Sequence
from typing import Any

from dedupe.decide.admission import Admission
from dedupe.decide.sessions import EVICTED, LIVE, SessionPolicy, SessionState, session_key
from dedupe.model.clock import Deadline
from dedupe.model.errors import RetriableError
from dedupe.model.identity import fingerprint_of
from dedupe.model.record import FLAG_ID_ASSIGNED
from dedupe.model.routing import partition_of
from dedupe.model.types import Event, Offset, Order, Session
from tests.sim.world import CLEAN, FOREVER_S, SOURCE, World

DAY_MS = 86_400_000
LEASE = SessionPolicy(lease_ms=30 * DAY_MS, sessions_max=1_000)

Verdict = tuple[Admission, Offset]


class SessionWorld(World):
    """One deployment with clients that have sessions."""

    def __init__(self, *, sessions: SessionPolicy = LEASE, **others: Any) -> None:
        super().__init__(**others)
        self.sessions = sessions

    def sent(
        self,
        sequence: int,
        session: str = "s",
        client: str = "c",
        *,
        own_id: str | None = None,
        content: str = "",
        epoch: int = 0,
        acknowledged: int = 0,
        order: Order = Order.ANY,
    ) -> Event:
        """
        Return an event of a client session; one without an id of its own is named by its place.

        A client whose name begins with "web" has a source of its own.
        """
        source = "web" if client.startswith("web") else SOURCE
        client_hash = self.identity.client_hash(source, client)
        session_hash = self.identity.session_hash(source, client, session)
        message_id = f"{client}/{session}/{sequence}" if own_id is None else f"{client}/{own_id}"
        value = f'{{"messageId":"{message_id}","content":"{content}"}}'.encode()
        return Event(
            self.identity.sequence_key(client_hash, session_hash, sequence),
            self.layout.map.of(client_hash),
            fingerprint_of(value),
            source,
            message_id,
            value,
            FLAG_ID_ASSIGNED if own_id is None else 0,
            Session(client_hash, session_hash, sequence, epoch, acknowledged),
            secondary_key=None
            if own_id is None
            else self.identity.secondary_key(source, client_hash, message_id),
            order=order,
        )

    def client_of(self, partition: int) -> str:
        """Return the name of a client whose events are in a partition."""
        return next(
            name
            for name in map(str, range(100))
            if partition_of(self.identity.client_hash(SOURCE, name), CLEAN.partitions) == partition
        )

    async def ask(self, *events: Event, deadline_s: float = FOREVER_S) -> list[Verdict]:
        """Send one request once, and return what each event was answered. Raises RetriableError."""
        assert self.router is not None
        deadline = Deadline(self.clock, deadline_s)
        outcomes = await self.router.submit(events, [], received_ms=self.clock.now_ms(), deadline=deadline)
        return list(zip(*outcomes, strict=True))

    async def admissions(self, *events: Event) -> list[Admission]:
        """Send one request once, and return what became of each event."""
        return [admission for admission, _ in await self.ask(*events)]

    async def tries(self, events: Sequence[Event]) -> list[Verdict] | None:
        """Send one request once; None if its outcome is unknown."""
        try:
            return await self.ask(*events)
        except RetriableError:
            return None

    async def state_of(self, event: Event, *, is_ended: bool = False) -> SessionState | None:
        """Return what is known of the event's session, of which its client may say that it is over."""
        assert self.router is not None
        assert event.session is not None
        hashes = event.session.client_hash, event.session.session_hash
        return await self.router.session(*hashes, is_ended=is_ended)

    def states(self) -> list[dict[bytes, SessionState]]:
        """Return, for each clean lane, what it knows of each session that is not too old to be known."""
        assert self.router is not None
        return [
            {
                key: state
                for listing in (LIVE, EVICTED)
                for key, state in lane.partition_index.index.oldest_sessions(10**6, listing)
                if self.sessions.remembered(state, lane.partition_index.index.state.newest_timestamp_ms)
            }
            for lane in self.router.lanes
        ]

    async def lose_indexes(self) -> None:
        """End the process, and have the next one rebuild all from the log."""
        await self.crash()
        for partition in range(CLEAN.partitions):
            self.disk.discard(self.index_identity(partition))


def key_of(event: Event) -> bytes:
    """Return the key of the event's session."""
    assert event.session is not None
    return session_key(event.session)
