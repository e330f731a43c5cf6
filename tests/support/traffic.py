"""What a shop's clients send: new events, some again or under a used id, few wrong, and broken requests."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from tests.support.gateway import Gateway

NAMES = ("Order Completed", "Product Viewed", "Cart Opened", "Signed Up", "Coupon Applied")
SOURCES = ("web", "web", "ios-app", "checkout")
SESSION = {"Gateway-Client": "phone-1", "Gateway-Session": "2dlpu8idjvw2es2uvixfliqYNu0"}


@contextmanager
def traffic(gateway: Gateway, pause_s: float) -> Iterator[None]:
    """Have clients send requests with such a pause between them."""
    is_over = threading.Event()
    thread = threading.Thread(target=_send, args=(gateway, pause_s, is_over))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _send(gateway: Gateway, pause_s: float, is_over: threading.Event) -> None:
    rng = random.Random(7)
    sent: list[dict[str, Any]] = []
    with httpx.Client(base_url=gateway.url, auth=(SOURCES[0], "")) as client:
        client.post("/v1/events", json=[_event(rng) | {"sequence": 1}], headers=SESSION)
        while not is_over.wait(pause_s):
            batch = [_event(rng) for _ in range(rng.randint(1, 4))]
            sent = [*sent, *batch][-40:]
            if rng.random() < 0.4:
                batch.append(rng.choice(sent))
            if rng.random() < 0.1:
                batch.append(rng.choice(sent) | {"event": "Order Changed"})
            if rng.random() < 0.06:
                batch.append({"messageId": 17, "type": "track", "event": "Cart Opened"})
            if rng.random() < 0.04:
                batch.append({"messageId": f"deep-{rng.randint(1, 9)}", "type": "identify\n"})
            client.post("/v1/events", json=batch, auth=(rng.choice(SOURCES), ""))
            if rng.random() < 0.04:
                client.post("/v1/events", content=b"[{")


def _event(rng: random.Random) -> dict[str, Any]:
    when = datetime.now(UTC) - timedelta(seconds=rng.expovariate(0.3))
    kind = rng.choice(("track", "track", "track", "page"))
    event = {"messageId": f"{rng.getrandbits(64):016x}", "type": kind, "timestamp": when.isoformat()}
    user, device = {"userId": f"u-{rng.randint(1, 500)}"}, {"anonymousId": f"{rng.getrandbits(48):012x}"}
    who = rng.choices((user, device, {}), (60, 37, 3))[0]
    return event | who | ({"event": rng.choice(NAMES)} if kind == "track" else {})
