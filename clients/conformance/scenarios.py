"""The scenarios of a conformance run: what happens between a client and the gateway, and what must hold."""

import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from clients.conformance.harness_process import Harness
from clients.conformance.proxy import (
    CUT_ANSWER,
    DRIP,
    LOSE_ANSWER,
    LOSE_REQUEST,
    PASS,
    Canned,
    Fault,
    Proxy,
    size_of,
)
from tests.support.fault_proxy import Message
from tests.support.gateway import Crash, Gateway
from tests.support.processes import HOST

SESSIONS_MAX = 40
"""Of the gateway of a run: so many other sessions evict those of a client."""

PATIENCE_S = 40.0
"""How long a client may take to deliver what waits, once everything passes."""

CLOSE_S, CLOSE_LATE_S = 1.0, 5.0
"""A time to close in, and when it was not kept, on a slow machine too: before the time-out of an answer."""

ASKED_S, PROXY_ASKS_S = 3, 180
"""How long the gateway asks a client to wait, and how long somebody in between, longer than any patience."""

DAMAGED_BYTES, DAMAGED_FILE_BYTES = 1_000, 20_000
ODD_ANSWERS = (
    Canned(200, b"<html>Please log in</html>"),
    Canned(200, b'{"success":true,"receipts":[]}'),
    *(Canned(200, content, is_gateways=True) for content in (b"", b"{}", b"null", b"[1]", b"[" * 100_000)),
    Canned(200, b'{"receipts":[{"sequence":[1]}],"rejected":[{"index":{}}]}', is_gateways=True),
    Canned(200, b'{"rejected":[{"index":0}]}', is_gateways=True),
    *(Canned(status, b'{"code":1020}') for status in (302, 400, 401, 403, 404, 405, 407, 408, 410, 415, 429)),
    *(Canned(status, b"") for status in (500, 502, 503, 504)),
    Canned(503, b'{"code":"code_of_2030","message":"x"}', is_gateways=True),
)


class World:
    """A proxy, a gateway behind it, and the client of one scenario."""

    def __init__(
        self,
        proxy: Proxy,
        command: str,
        folder: Path,
        name: str,
        *,
        patience_s: float = PATIENCE_S,
        gateway: Gateway | None = None,
    ) -> None:
        """
        Have no client yet.

        Args:
            patience_s: how long a client may take to deliver what waits, once everything passes.
            gateway: behind the proxy; None if it is not the run's own.
        """
        self.proxy, self.folder, self.name = proxy, folder, name
        self.patience_s, self.gateway = patience_s, gateway
        self.rng = random.Random(name)
        self.told: set[str] = set()
        self._harnesses: list[Harness] = []
        self._command = command
        self._numbers = count(1)

    def open(self, place: str = "client", *, key: str = "conformance") -> Harness:
        """Start the client on the queue of a place."""
        harness = Harness(self._command, url=self.proxy.url, key=key, folder=self.folder / place)
        self._harnesses.append(harness)
        return harness

    def end(self) -> None:
        """End what a scenario that fails leaves behind."""
        for harness in self._harnesses:
            harness.kill()

    def track(self, harness: Harness, number: int, *, text_bytes: int = 0, **fields: Any) -> list[str]:
        """Have the client confirm so many events, each with a text of its own; return their names."""
        names = [f"{self.name}-{next(self._numbers)}" for _ in range(number)]
        events: list[dict[str, Any]] = [
            {"type": "track", "event": name, "userId": "u", **fields} for name in names
        ]
        for event in events if text_bytes else ():
            event["properties"] = {"text": self.rng.randbytes(text_bytes).hex()}
        harness.track(events)
        self.told.update(names)
        return names

    def answer(self, faults: Iterator[Fault]) -> None:
        """Answer the next requests in these ways, and pass what comes after them."""
        self.proxy.choose = lambda _request: next(faults, PASS)

    def sometimes(self, *faults: Fault) -> None:
        """Answer every second request in one of these ways."""
        self.proxy.choose = lambda _request: self.rng.choice(faults) if self.rng.random() < 0.5 else PASS

    def evict(self) -> None:
        """Use so many other sessions that those of the client are evicted."""
        url = f"http://{HOST}:{self.proxy.upstream_port}"
        with httpx.Client(base_url=url, auth=("conformance", "")) as http:
            for number in range(SESSIONS_MAX * 3 // 2):  # after twice as many a session is forgotten, and new
                session = f"{self.rng.randrange(10**13):013d}{number:014d}"
                headers = {"Gateway-Client": "others", "Gateway-Session": session}
                body = {"batch": [{"event": "other"}], "firstSequence": 1}
                http.post("/v1/events", json=body, headers=headers).raise_for_status()


def must(is_so: bool, says: str) -> None:
    """Raise AssertionError with what does not hold."""
    if not is_so:
        raise AssertionError(says)


def deliver(world: World, harness: Harness) -> None:
    """Let everything pass until nothing waits."""
    must(harness.flush(world.patience_s), f"flush is not true within {world.patience_s:.0f} s")


def plain(world: World) -> None:
    """250 events, in order and in batches."""
    harness = world.open()
    world.track(harness, 250)
    deliver(world, harness)
    harness.close()


def lost_answers(world: World) -> None:
    """Answers and requests are lost, and answers cut."""
    harness = world.open()
    world.sometimes(LOSE_ANSWER, LOSE_REQUEST, CUT_ANSWER)
    for _ in range(12):
        world.track(harness, 30)
        harness.flush(0.3)
    world.proxy.choose = lambda _request: PASS
    deliver(world, harness)
    harness.close()


def odd_answers(world: World) -> None:
    """Every answer that is no verdict of the gateway's, one after the other."""
    harness = world.open()
    for answer in ODD_ANSWERS:
        world.answer(iter([answer]))
        world.track(harness, 2)
        must(harness.flush(world.patience_s), f"after {answer} the queue stands still")
        must(not harness.dead_letters(), f"{answer} makes dead letters")
    harness.close()


def endless_answer(world: World) -> None:
    """An answer without an end."""
    harness = world.open()
    world.answer(iter([Canned(200, None, is_gateways=True)]))
    world.track(harness, 2)
    deliver(world, harness)
    harness.close()


def dripping_answer(world: World) -> None:
    """A client ends in time though an answer goes on and on."""
    harness = world.open()
    world.proxy.choose = lambda _request: DRIP
    world.track(harness, 2)
    began = time.monotonic()
    harness.close(CLOSE_S)
    must(time.monotonic() - began < CLOSE_LATE_S, f"close does not end within {CLOSE_S} s")
    world.proxy.choose = lambda _request: PASS
    harness = world.open()
    deliver(world, harness)
    harness.close()


def silent_proxy(world: World) -> None:
    """A network that loses requests of more than 20 KB without a word."""
    harness = world.open()
    world.proxy.choose = lambda request: LOSE_REQUEST if size_of(request) > 20_000 else PASS
    world.track(harness, 60, text_bytes=900)
    deliver(world, harness)
    harness.close()


def small_proxy(world: World) -> None:
    """A proxy that takes 20 KB: batches are halved, and what is larger alone is a dead letter."""
    harness = world.open()
    refused = Canned(413, b"<html>Too large</html>")
    world.proxy.choose = lambda request: refused if size_of(request) > 20_000 else PASS
    world.track(harness, 60, text_bytes=900)
    (large,) = world.track(harness, 1, text_bytes=40_000)
    world.track(harness, 5)
    deliver(world, harness)
    letters = [letter["event"]["event"] for letter in harness.dead_letters()]
    must(letters == [large], f"dead letters are {letters}, not [{large!r}]")
    world.told.discard(large)
    harness.close()


def poison(world: World) -> None:
    """Events that the gateway rejects, between good ones."""
    harness = world.open()
    world.track(harness, 3)
    (bad,) = world.track(harness, 1, type=5)
    world.track(harness, 3)
    deliver(world, harness)
    letters = [(letter["event"]["event"], letter["code"]) for letter in harness.dead_letters()]
    must(letters == [(bad, "type_invalid")], f"dead letters are {letters}")
    world.told.discard(bad)
    harness.close()


def wrong_key_for_a_while(world: World) -> None:
    """The gateway refuses the key three times, then not."""
    harness = world.open()
    refused = Canned(401, b'{"code":"invalid_write_key","message":"x"}', is_gateways=True)
    world.answer(iter([refused] * 3))
    world.track(harness, 5)
    end = time.monotonic() + world.patience_s
    while not harness.flush(2.0):  # each flush tries at once
        must(time.monotonic() < end, "the queue stands still after 401")
    harness.close()


def asked_to_wait(world: World) -> None:
    """A proxy that asks for minutes holds up no `flush`; the gateway that asks for seconds does."""
    harness = world.open()
    world.track(harness, 1)
    deliver(world, harness)
    world.answer(iter([Canned(503, b"", retry_after_s=PROXY_ASKS_S)] * 3))
    world.track(harness, 2)
    deliver(world, harness)
    busy = Canned(429, b'{"code":"quota_exceeded","message":"x"}', is_gateways=True, retry_after_s=ASKED_S)
    arrived: list[float] = []

    def note(_request: Message) -> Fault:
        arrived.append(time.monotonic())
        return busy if len(arrived) == 1 else PASS

    world.proxy.choose = note
    world.track(harness, 2)
    deliver(world, harness)
    pause_s = arrived[1] - arrived[0]
    must(pause_s > ASKED_S - 0.5, f"after {pause_s:.1f} s it asks again, not after {ASKED_S}")
    harness.close()


def killed(world: World) -> None:
    """The client is killed again and again, in the middle of whatever it does."""
    world.sometimes(LOSE_ANSWER, LOSE_REQUEST)
    for _ in range(5):
        harness = world.open()
        for _ in range(world.rng.randint(1, 4)):
            world.track(harness, world.rng.randint(1, 40))
        time.sleep(world.rng.random() / 2)
        harness.kill()
    world.proxy.choose = lambda _request: PASS
    harness = world.open()
    deliver(world, harness)
    harness.close()


def crashed_gateway(world: World) -> None:
    """The gateway ends as by a loss of power when it has stored events and not answered, and comes back."""
    assert world.gateway is not None
    harness = world.open()
    for _ in range(2):
        world.track(harness, 20)
        deliver(world, harness)
        world.gateway.kill()
        world.gateway.start(crash=Crash("apply", 1))
        world.track(harness, 20)
        end = time.monotonic() + world.patience_s
        while world.gateway.is_running:
            must(time.monotonic() < end, "the client sends nothing")
            harness.flush(0.2)
        world.gateway.wait()
        world.gateway.start()
        world.track(harness, 5)
        deliver(world, harness)
        must(not harness.dead_letters(), "there are dead letters")
    harness.close()


def evicted(world: World) -> None:
    """The gateway evicts the session between two batches, and after answers that were lost."""
    harness = world.open()
    world.track(harness, 10)
    deliver(world, harness)
    world.evict()
    world.track(harness, 10)
    deliver(world, harness)
    world.proxy.choose = lambda _request: LOSE_ANSWER
    world.track(harness, 10)
    harness.flush(1.0)
    world.evict()
    world.proxy.choose = lambda _request: PASS
    world.track(harness, 10)
    deliver(world, harness)
    must(not harness.dead_letters(), "there are dead letters")
    harness.close()


def restored_backup(world: World) -> None:
    """Two copies of one queue are live at once, and the session in which both have events was evicted."""
    for number, is_evicted in enumerate((False, True)):
        first, copy = f"phone-{number}", f"copy-{number}"
        harness = world.open(first)
        world.track(harness, 3)
        deliver(world, harness)
        world.proxy.choose = lambda _request: LOSE_REQUEST
        world.track(harness, 10)
        harness.kill()
        shutil.copytree(world.folder / first, world.folder / copy)
        if is_evicted:
            world.evict()
        world.proxy.choose = lambda _request: PASS
        both = [world.open(first), world.open(copy)]
        for harness in both:
            world.track(harness, 5)
        for harness in both:
            deliver(world, harness)
            must(not harness.dead_letters(), "there are dead letters")
            harness.close()


def other_source(world: World) -> None:
    """What may be stored for one source waits for its key, while `flush` with that of another does not."""
    for place, was_answered in (("client", True), ("client whose first answers are lost", False)):
        harness = world.open(place, key="first")
        if was_answered:
            world.track(harness, 3)
            deliver(world, harness)
        world.proxy.choose = lambda _request: LOSE_ANSWER
        world.track(harness, 5)
        harness.flush(1.0)
        harness.kill()
        world.proxy.choose = lambda _request: PASS
        for key in ("second", "first"):
            harness = world.open(place, key=key)
            deliver(world, harness)
            world.track(harness, 3)
            deliver(world, harness)
            harness.close()


def damaged(world: World) -> None:
    """The middle of the queue is overwritten: what can be read of it is sent, and nothing twice."""
    harness = world.open()
    world.proxy.choose = lambda _request: LOSE_ANSWER
    world.track(harness, 300, properties={"text": "x" * 200})
    harness.close()
    for path in (world.folder / "client").glob("queue.db*"):
        if path.stat().st_size > DAMAGED_FILE_BYTES and not path.name.endswith("-ballast"):
            content = bytearray(path.read_bytes())
            middle = len(content) // 2
            content[middle : middle + DAMAGED_BYTES] = world.rng.randbytes(DAMAGED_BYTES)
            path.write_bytes(content)
    passed, before = set[str](), set(world.told)
    world.told.clear()

    def note(request: Message) -> Fault:
        with suppress(ValueError):
            passed.update(str(event.get("event")) for event in request.events())
        return PASS

    world.proxy.choose = note
    harness = world.open()
    world.track(harness, 5)
    deliver(world, harness)
    must(len(passed & before) > len(before) // 2, f"of {len(before)} events {len(passed & before)} are sent")
    harness.close()


SCENARIOS: tuple[Callable[[World], None], ...] = (
    plain,
    lost_answers,
    odd_answers,
    endless_answer,
    dripping_answer,
    small_proxy,
    silent_proxy,
    poison,
    wrong_key_for_a_while,
    asked_to_wait,
    killed,
    crashed_gateway,
    evicted,
    restored_backup,
    other_source,
    damaged,
)

NEEDS_ITS_OWN_GATEWAY = {crashed_gateway}
"""Scenarios that a gateway of somebody else is spared."""


def is_event_of(name: str, value: dict[str, Any]) -> bool:
    """Whether a stored event is one of a scenario's."""
    return str(value.get("event", "")).startswith(f"{name}-")
