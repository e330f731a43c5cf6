"""
Makes up what a shop's app sends, some of it twice, for `gateway send` and `gateway bench`.

Every new event has an id that no other run gives. A duplicate is an event sent before, byte for byte, whose
answer has come; a conflict has the id of such an event and another content.
"""

import random
import secrets
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from app.cli.ingest_client import Event

REMEMBERED_MAX = 10_000
"""Stored events of which duplicates and conflicts are made: those sent last."""

PRODUCTS = ("Trail running shoe", "Rain jacket", "Wool socks", "Head torch", "Water bottle", "Day pack")


class Shop:
    """Events of one run."""

    def __init__(self, duplicates: float, conflicts: float) -> None:
        """Take the shares of all events that are sent again, and that have another one's id."""
        self.sent: Counter[str] = Counter()
        """New events, duplicates and conflicts, as they were meant."""
        self._duplicates, self._conflicts = duplicates, conflicts
        self._run = secrets.token_hex(4)
        self._dice = random.Random()
        self._number = 0
        self._stored: dict[str, list[Event]] = {}

    def batch(self, key: str, count: int) -> list[Event]:
        """Return the next events of a write key."""
        return [self._next(self._stored.get(key, [])) for _ in range(count)]

    def remember(self, key: str, stored: Iterable[Event]) -> None:
        """Take events as stored under a write key."""
        known = self._stored.setdefault(key, [])
        known += stored
        del known[:-REMEMBERED_MAX]

    def _next(self, stored: list[Event]) -> Event:
        chance = self._dice.random()
        if stored and chance < self._duplicates:
            self.sent["duplicates"] += 1
            return self._dice.choice(stored)
        if stored and chance < self._duplicates + self._conflicts:
            self.sent["conflicts"] += 1
            return self._new() | {"messageId": self._dice.choice(stored)["messageId"]}
        self.sent["new"] += 1
        return self._new()

    def _new(self) -> Event:
        """Return an event such as a shop's app sends, about 700 bytes."""
        self._number += 1
        dice, user = self._dice, self._dice.randrange(5_000)
        product = dice.randrange(len(PRODUCTS))
        name = dice.choices(("Product Viewed", "Product Added", "Order Completed"), (12, 4, 1))[0]
        return {
            "messageId": f"send-{self._run}-{self._number:08}",
            "type": "track",
            "event": name,
            "userId": f"user-{user}",
            "anonymousId": f"0b0f2c1e-7c55-4b0a-9d5e-{user:012x}",
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "properties": {
                "product_id": f"{product + 1}",
                "name": PRODUCTS[product],
                "price": round(dice.uniform(5, 250), 2),
                "currency": "EUR",
                "quantity": dice.randint(1, 3),
            },
            "context": {
                "library": {"name": "gateway", "version": "1"},
                "locale": dice.choice(("en-GB", "de-DE", "fr-FR", "ja-JP")),
                "timezone": "Europe/Berlin",
                "page": {
                    "path": f"/products/{product + 1}",
                    "title": f"{PRODUCTS[product]} | Example shop",
                    "url": f"https://shop.example.com/products/{product + 1}",
                },
                "userAgent": "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15",
            },
        }
