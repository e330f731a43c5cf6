"""
What benchmarks send: events as a shop's web page sends them, about 720 bytes each, in batches.

An event is its number: the same number gives the same bytes, so a duplicate is the same event again.
"""

import random
import secrets
from base64 import b64encode
from collections.abc import Iterable, Sequence

from clients.python.gateway_client import ksuid

RECENT_EVENTS = 100_000
"""A retry comes soon: duplicates are drawn from so many of the last events."""

SCATTER = 0x9E3779B97F4A7C15F39CC0605CEDC835  # odd, so that no two numbers meet: ids look random

_EVENT = (
    b'{"messageId":"ajs-next-%032x","type":"track","event":"Product Viewed","userId":"u-%d",'
    b'"anonymousId":"0b0f2c1e-7c55-4b0a-9d5e-%012x","timestamp":"2026-01-01T00:00:00.000Z","context":{'
    b'"page":{"path":"/products/%d","referrer":"https://www.example.com/","search":"",'
    b'"title":"Trail running shoe | Example shop","url":"https://shop.example.com/products/%d"},'
    b'"userAgent":"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0",'
    b'"locale":"en-GB","timezone":"Europe/Berlin","library":{"name":"analytics.js","version":"next-1.81.0"}},'
    b'"properties":{"product_id":"%d","sku":"TS-%d","category":"Shoes","price":89.9,"currency":"EUR",'
    b'"quantity":1},"integrations":{}}'
)
_HEAD = (
    b"POST %b HTTP/1.1\r\nHost: bench\r\nAuthorization: Basic %b\r\n"
    b"Content-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
)
_SESSION = b"Gateway-Client: %b\r\nGateway-Session: %b\r\nGateway-Acknowledged-Through: %d\r\n"
BATCH_PATH, NATIVE_PATH = b"/v1/batch", b"/v1/events"
_AUTHORIZATION = b64encode(b"bench:")


def event(number: int) -> bytes:
    """Return one event, always the same for a number."""
    user, product = number % 50_000, number % 997
    return _EVENT % (number * SCATTER % 2**128, user, user, product, product, product, product)


def message_id_of(number: int) -> str:
    """Return the id of an event."""
    return f"ajs-next-{number * SCATTER % 2**128:032x}"


def body(numbers: Iterable[int]) -> bytes:
    """Return a batch of events as SDKs build it."""
    return b'{"batch":[%b],"sentAt":"2026-01-01T00:00:00.000Z"}' % b",".join(map(event, numbers))


def request(batch: bytes, path: bytes = BATCH_PATH, headers: bytes = b"") -> bytes:
    """Return the whole HTTP request of a batch."""
    return _HEAD % (path, _AUTHORIZATION, headers, len(batch)) + batch


class Workload:
    """A history of batches: new events are numbered through, duplicates are earlier ones sent again."""

    def __init__(self, seed: int, *, recent_events: int = RECENT_EVENTS) -> None:
        """Choose the history: the same seed and the same calls give the same bytes."""
        self.new_events = 0
        self._recent_events = recent_events
        self._chance = random.Random(seed)

    def requests(self, count: int, batch_events: int, *, duplicate_percent: int) -> list[bytes]:
        """
        Return so many requests; whole batches are duplicates, as SDKs send them, evenly spread.

        Their events come from requests that earlier calls returned: send those to the end first.
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
    """Return batches of events that were never made before by any process."""
    first = random.SystemRandom().getrandbits(100)
    return [
        body(range(first + n, first + n + batch_events))
        for n in range(0, batches * batch_events, batch_events)
    ]


class SessionWorkload:
    """
    What the reference clients send: each of many clients numbers its events in a session of its own.

    They take turns, and each acknowledges all that it has sent before.
    """

    def __init__(self, clients: int, *, has_ids: bool = False) -> None:
        """Make so many clients; `has_ids`: their events have a messageId besides, as SDKs give them."""
        self._clients = [(secrets.token_hex(16).encode(), ksuid().encode()) for _ in range(clients)]
        self._sent = [0] * clients
        self._turn = 0
        self._first = random.SystemRandom().getrandbits(100)
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
        return request(batch % (b",".join(events), acknowledged + 1), NATIVE_PATH, headers)


def event_without_id(number: int) -> bytes:
    """Return the same event as a client session sends it: its sequence identifies it."""
    return b"{" + event(number).partition(b",")[2]
