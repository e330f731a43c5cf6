"""
Events like those of a shop's web page, about 720 bytes each.

An event is determined by its number, so the same number is a duplicate.
"""

import random
from collections.abc import Iterable

SCATTER = 0x9E3779B97F4A7C15F39CC0605CEDC835  # odd, so that ids are unique; they look random

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


def event(number: int) -> bytes:
    """Return the event of a number."""
    user, product = number % 50_000, number % 997
    return _EVENT % (number * SCATTER % 2**128, user, user, product, product, product, product)


def message_id_of(number: int) -> str:
    """Return the id of an event."""
    return f"ajs-next-{number * SCATTER % 2**128:032x}"


def body(numbers: Iterable[int]) -> bytes:
    """Return a batch of events, as SDKs send it."""
    return b'{"batch":[%b],"sentAt":"2026-01-01T00:00:00.000Z"}' % b",".join(map(event, numbers))


def first_unused() -> int:
    """Return the first of 2^28 numbers that no other call returned, in this process or another."""
    return random.SystemRandom().getrandbits(100)
