"""
The cost of forwarding an event to its owner, of both sides: CPU in one process, over loopback.

    .venv/bin/python -m loadtests.bench.peer_forwarding [--rounds 9] [--events 50000]

Two workers are linked in one event loop; many submissions at a time are sent from one to the other, and
answered at once. In each round the ways run in a random order: this, the same events as JSON both ways
without a connection, and the same bytes echoed by minimal protocols.
"""

import argparse
import asyncio
import gc
import logging
import random
import socket
import time
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import orjson
import structlog
import uvloop

from app.peers.link import PeerLink
from app.peers.peers import Peers
from dedupe.cluster.request_handler import PeerRequestHandler
from dedupe.decide.admission import Admission
from dedupe.model.clock import Deadline, SystemClock
from dedupe.model.types import Event
from dedupe.submission import Outcomes, Submission

HOST = "127.0.0.1"
VALUE_BYTES = 740
BATCHES = (100, 12, 1)  # a whole request of the benchmark, its share of one of eight lanes, a single event
AT_A_TIME = 8
OFFSET = 1_000_000
LINK, JSON, ECHO = "workers", "as JSON, no connection", "bytes echoed"

Way = Callable[[int, int], Awaitable[None]]
"""Sends a number of events to the other side, in batches of a size, and receives their outcomes."""


class Sample(NamedTuple):
    """One way's turn."""

    way: str
    batch_events: int
    cpu_us: float  # an event


class Owner(PeerRequestHandler):
    """A worker that has stored everything at once."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.events = 0
        self.is_known = asyncio.Event()

    def status(self) -> Any:
        return "here"

    def on_status(self, worker: str, fields: Any) -> None:
        self.is_known.set()

    def submit(self, lane: int, submission: Submission) -> "asyncio.Future[Outcomes]":
        events = submission.events
        self.events += len(events)
        answer: asyncio.Future[Outcomes] = self.loop.create_future()
        offsets = list(range(OFFSET, OFFSET + len(events)))
        answer.set_result(Outcomes([Admission.NEW] * len(events), offsets))
        return answer


def make_events(count: int) -> list[Event]:
    """Return events as the benchmark's clients send them."""
    rng = random.Random(1)
    value = bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=VALUE_BYTES - 3))
    return [
        Event(rng.randbytes(16), 3, rng.randbytes(8), "web", f"{number:036d}", value + b"%03d" % number)
        for number in range(count)
    ]


async def at_a_time(send: Callable[[], Awaitable[object]], times: int) -> None:
    """Call repeatedly, a few at once, as requests arrive."""
    left = iter(range(times))

    async def one_after_the_other() -> None:
        for _ in left:
            await send()

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_A_TIME)))


def over_link(link: PeerLink) -> Way:
    """Return the way of the gateway."""
    clock = SystemClock()

    async def go(events: int, batch_events: int) -> None:
        batch = make_events(batch_events)
        size_bytes = sum(event.size_bytes for event in batch)

        async def send() -> None:
            outcomes = await link.submit(
                3, Submission(batch, clock.now_ms(), Deadline(clock, 4.5), size_bytes)
            )
            assert len(outcomes.offsets) == batch_events

        await at_a_time(send, events // batch_events)

    return go


def text(data: bytes) -> str:
    """Return bytes as a JSON value."""
    return b64encode(data).decode()


async def as_json(events: int, batch_events: int) -> None:
    """Encode and decode each batch and its outcomes as JSON; bytes as base64."""
    batch = make_events(batch_events)
    verdicts = [["new", 1_000_000 + number] for number in range(batch_events)]
    for _ in range(events // batch_events):
        rows = [
            [text(e.key), e.partition, text(e.fingerprint), e.source, e.message_id, e.value.decode()]
            for e in batch
        ]
        for key, partition, fingerprint, source, message_id, value in orjson.loads(orjson.dumps(rows)):
            Event(b64decode(key), partition, b64decode(fingerprint), source, message_id, value.encode())
        orjson.loads(orjson.dumps(verdicts))


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: Any) -> None:
        """See asyncio.Protocol."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._transport.write(data)


class EchoClient(asyncio.Protocol):
    """Waits until as many bytes as it has sent are back."""

    def __init__(self) -> None:
        self._left = 0
        self._back: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        """See asyncio.Protocol."""
        self._transport = transport

    def close(self) -> None:
        """End the connection."""
        self._transport.close()

    def send(self, data: bytes) -> "asyncio.Future[None]":
        """Send, and return a future of the echo."""
        self._left += len(data)
        self._transport.write(data)
        self._back = asyncio.get_running_loop().create_future()
        return self._back

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._left -= len(data)
        if not self._left and self._back is not None:
            self._back.set_result(None)


def over_echo(client: EchoClient) -> Way:
    """Return the way of the plainest protocols: one turn's bytes of all batches there and back."""

    async def go(events: int, batch_events: int) -> None:
        data = b"x" * (batch_events * (VALUE_BYTES + 80) * AT_A_TIME)
        for _ in range(events // batch_events // AT_A_TIME):
            await client.send(data)

    return go


class Echoing:
    """A server and a client of the plainest protocols."""

    async def __aenter__(self) -> EchoClient:
        """Connect them."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(Echo, HOST, 0)
        _, self._client = await loop.create_connection(EchoClient, *self._server.sockets[0].getsockname())
        return self._client

    async def __aexit__(self, *_error: object) -> None:
        """Close both."""
        self._client.close()
        self._server.close()


class Linked:
    """Two workers, of which one forwards to the other."""

    def __init__(self) -> None:
        """Prepare both."""
        clock, secret = SystemClock(), b"a secret of the benchmark"
        self.owner = Owner()
        self.peers = [Peers(name, secret=secret, clock=clock) for name in ("edge", "owner")]
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> PeerLink:
        """Run and link them."""
        listeners = [socket.create_server((HOST, 0)) for _ in self.peers]
        self._running = [
            asyncio.create_task(peers.run(listener, self.owner))
            for peers, listener in zip(self.peers, listeners, strict=True)
        ]
        await asyncio.sleep(0)
        self.peers[0].set_members({"owner": f"{HOST}:{listeners[1].getsockname()[1]}"})
        link = self.peers[0].link("owner")
        assert link is not None
        await self.owner.is_known.wait()
        await asyncio.sleep(0.1)
        assert link.is_up
        return link

    async def __aexit__(self, *_error: object) -> None:
        """Stop them, and check that all events arrived."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        assert self.owner.events == self.peers[0].metrics.events_forwarded > 0


async def measure(rounds: int, events: int) -> list[Sample]:
    """Return every sample; the first round warms up and is none."""
    samples, rng = [], random.Random(1)
    async with Linked() as link, Echoing() as client:
        ways: dict[str, Way] = {LINK: over_link(link), JSON: as_json, ECHO: over_echo(client)}
        for number in range(rounds + 1):
            for batch_events in BATCHES:
                count = events if batch_events > 1 else events // 10
                for name in rng.sample(list(ways), len(ways)):
                    began = time.process_time()
                    await ways[name](count, batch_events)
                    if number:
                        cpu_us = (time.process_time() - began) / count * 1e6
                        samples.append(Sample(name, batch_events, cpu_us))
    return samples


def table(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield the report's lines: medians, and ratios within a round with the lowest and the highest."""
    yield "| batches of | way | CPU us an event (lowest to highest) | to JSON (lowest to highest round) |"
    yield "|---|---|---|---|"
    for batch_events in BATCHES:
        found = {
            way: [s.cpu_us for s in samples if s[:2] == (way, batch_events)] for way in (LINK, JSON, ECHO)
        }
        for way, costs in found.items():
            ratios = [cost / base for cost, base in zip(costs, found[JSON], strict=True)]
            told = " | ".join(f"{median(c):.2f} ({min(c):.2f} to {max(c):.2f})" for c in (costs, ratios))
            yield f"| {batch_events} | {way} | {told} |"


def main() -> None:
    """Measure and print."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--events", type=int, default=50_000, help="of one sample")
    args = parser.parse_args()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    print("\n".join(table(uvloop.run(measure(args.rounds, args.events)))))


if __name__ == "__main__":
    main()
