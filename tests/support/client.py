"""
A client as stubborn as a phone: it sends every request until it is answered, and remembers all.

It judges while it runs: a request sent again must get the same bytes, an event sent again in other
company must get the same receipt. What it was told is what `tests.support.verdict` then looks for
in the log.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import httpx
import orjson

RETRY_PAUSE_S = 0.05
PAUSE_S = 0.02  # half of the time something is under way, and the machine has other tests to run


class Receipt(NamedTuple):
    """Where the gateway says an event is."""

    partition: int
    offset: int


class Client:
    """Sends batches to the native path until each has a 200, and keeps the answers."""

    request_timeout_s: ClassVar[float] = 10.0
    """What sends to somebody else where an answer is late; tests of promises wait for it."""

    def __init__(
        self, url: str, *, seed: int, events_per_batch: int = 20, source: str = "fault-test"
    ) -> None:
        self.receipts: dict[str, Receipt] = {}
        self.sent: set[str] = set()
        self.refusals = 0
        self._answers: dict[bytes, bytes] = {}
        self._random = random.Random(seed)
        self._seed = seed
        self._events_per_batch = events_per_batch
        self._numbers = iter(range(10**9))
        self._http = httpx.AsyncClient(
            base_url=url,
            auth=(source, ""),
            timeout=self.request_timeout_s,
            limits=httpx.Limits(max_connections=64),
        )

    async def close(self) -> None:
        await self._http.aclose()

    def redirect(self, url: str) -> None:
        """Send to another gateway from now on, as a load balancer would."""
        self._http.base_url = httpx.URL(url)

    async def run(self, stop: asyncio.Event) -> None:
        """Send new batches, and some old ones again, until told to stop; then finish what was begun."""
        while not stop.is_set():
            await self.deliver(self.new_body())
            if self._answers and self._random.random() < 0.3:
                await self.deliver(self._random.choice(list(self._answers)))
            if self._answers and self._random.random() < 0.2:
                await self.deliver(self._regrouped_body())
            await asyncio.sleep(PAUSE_S)

    async def deliver(self, body: bytes) -> None:
        """Send one body until it is accepted."""
        while not await self.attempt(body):
            await asyncio.sleep(RETRY_PAUSE_S)

    async def attempt(self, body: bytes) -> bool:
        """Send one body once; if it is accepted, compare the answer with all earlier ones."""
        answer = await self._post(body)
        if answer is None:
            return False
        earlier = self._answers.setdefault(body, answer)
        assert answer == earlier, f"answers differ (seed {self._seed}):\n{earlier!r}\n{answer!r}"
        self._remember(orjson.loads(answer))
        return True

    async def deliver_again(self) -> None:
        """Send every body that was ever accepted once more."""
        for body in list(self._answers):
            await self.deliver(body)

    def new_body(self) -> bytes:
        """Return a batch of events never sent before."""
        return _body([self._new_event() for _ in range(self._random.randint(1, self._events_per_batch))])

    def _new_event(self) -> dict[str, Any]:
        message_id = f"{self._seed}-{next(self._numbers)}"
        self.sent.add(message_id)
        return {
            "messageId": message_id,
            "type": "track",
            "event": "Fault Tested",
            "userId": f"user-{self._random.randint(1, 1000)}",
            "properties": {"value": self._random.random()},
        }

    def _regrouped_body(self) -> bytes:
        """Return events of several earlier batches in a batch of their own, with a new one in between."""
        bodies = self._random.choices(list(self._answers), k=3)
        events = [self._random.choice(orjson.loads(body)["batch"]) for body in bodies]
        return _body([*events[:1], self._new_event(), *events[1:]])

    async def _post(self, body: bytes) -> bytes | None:
        try:
            answer = await self._http.post("/v1/events", content=body)
        except httpx.TransportError:
            return None
        if answer.status_code == httpx.codes.OK:
            return answer.content
        assert answer.status_code in (429, 503), (answer.status_code, answer.content)
        assert 1 <= int(answer.headers["Retry-After"]) <= 30
        self.refusals += 1
        return None

    def _remember(self, answer: dict[str, Any]) -> None:
        assert answer["success"] is True
        for receipt in answer["receipts"]:
            told = Receipt(receipt["partition"], receipt["offset"])
            earlier = self.receipts.setdefault(receipt["messageId"], told)
            assert told == earlier, f"{receipt['messageId']} is at {earlier}, then at {told}"


def _body(events: Sequence[dict[str, Any]]) -> bytes:
    return orjson.dumps({"batch": list(events)})
