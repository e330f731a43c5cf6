"""
Histories of requests for benchmarks: batches of the events of app.cli.load.events, some of them sent again.

The requests are built before the clock starts.
"""

import random
import secrets
from collections.abc import Sequence

from app.cli.load.connection import request
from app.cli.load.events import body, event, first_unused
from clients.python.gateway_client import ksuid

RECENT_EVENTS = 100_000
"""Duplicates are copies of the last events, since retries come soon."""

_SESSION = b"Gateway-Client: %b\r\nGateway-Session: %b\r\nGateway-Acknowledged-Through: %d\r\n"
NATIVE_PATH = b"/v1/events"


class Workload:
    """A history of batches: new events are numbered through, duplicates are earlier ones sent again."""

    def __init__(self, seed: int, *, recent_events: int = RECENT_EVENTS) -> None:
        """Choose the history: the same seed and the same calls give the same bytes."""
        self.new_events = 0
        self._recent_events = recent_events
        self._chance = random.Random(seed)

    def requests(self, count: int, batch_events: int, *, duplicate_percent: int) -> list[bytes]:
        """
        Return requests; whole batches are duplicates, as SDKs send them, evenly distributed.

        Their events are from requests of earlier calls, which must be sent before.
        """
        known = self.new_events
        assert duplicate_percent == 0 or known >= batch_events, "nothing is known that could be sent again"
        numbers = []
        for place in range(count):
            is_duplicate = (place + 1) * duplicate_percent // 100 > place * duplicate_percent // 100
            numbers.append(self._known(known, batch_events) if is_duplicate else self._new(batch_events))
        return [request(body(batch)) for batch in numbers]

    def _new(self, batch_events: int) -> Sequence[int]:
        first = self.new_events
        self.new_events += batch_events
        return range(first, first + batch_events)

    def _known(self, known: int, batch_events: int) -> Sequence[int]:
        first = self._chance.randint(max(0, known - self._recent_events), known - batch_events)
        return range(first, first + batch_events)


def make_bodies(batches: int, batch_events: int) -> list[bytes]:
    """Return batches of events that are unique across processes."""
    first = first_unused()
    return [
        body(range(first + n, first + n + batch_events))
        for n in range(0, batches * batch_events, batch_events)
    ]


class SessionWorkload:
    """
    Requests of the reference clients: each of many clients numbers its events in a session of its own.

    Clients send in turn, and each acknowledges its earlier events.
    """

    def __init__(self, clients: int, *, has_ids: bool = False) -> None:
        """Create clients; `has_ids`: their events also have a messageId, like those of SDKs."""
        self._clients = [(secrets.token_hex(16).encode(), ksuid().encode()) for _ in range(clients)]
        self._sent = [0] * clients
        self._turn = 0
        self._first = first_unused()
        self._has_ids = has_ids

    def requests(self, count: int, batch_events: int) -> list[bytes]:
        """Return the next requests; send those of earlier calls to the end first."""
        return [self._request(batch_events) for _ in range(count)]

    def _request(self, batch_events: int) -> bytes:
        turn = self._turn
        self._turn = (turn + 1) % len(self._clients)
        acknowledged, numbers = self._sent[turn], range(self._first, self._first + batch_events)
        self._sent[turn] += batch_events
        self._first += batch_events
        events = map(event if self._has_ids else event_without_id, numbers)
        batch = b'{"batch":[%b],"firstSequence":%d,"sentAt":"2026-01-01T00:00:00.000Z"}'
        headers = _SESSION % (*self._clients[turn], acknowledged)
        return request(batch % (b",".join(events), acknowledged + 1), path=NATIVE_PATH, headers=headers)


def event_without_id(number: int) -> bytes:
    """Return the same event as a client session sends it: its sequence identifies it."""
    return b"{" + event(number).partition(b",")[2]
