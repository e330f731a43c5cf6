"""Claim: the query of a pixel costs a turn like a body, and nests no deeper than JSON can be written."""

import asyncio
from typing import Any

import orjson

from app.ingest.large_json import JSONLimits
from app.ingest.routes.pixel import LEVELS_MAX, parse_pixel


def parsed(query: bytes) -> tuple[Any, list[int]]:
    turns: list[int] = []

    async def turn(size_bytes: int) -> None:
        turns.append(size_bytes)

    payload = asyncio.run(parse_pixel(query, JSONLimits(100, 10_000), turn))
    return payload.items[0], turns


def test_name_with_thousands_of_dots_stays_cheap() -> None:
    query = b"a." * 30_000 + b"b=1"
    event, turns = parsed(query)
    assert turns == [len(query)]
    for _ in range(LEVELS_MAX):
        event = event["a"]
    assert event == {"a." * (30_000 - LEVELS_MAX) + "b": "1"}


def test_deepest_event_can_be_written() -> None:
    event, _ = parsed(b"a." * 30_000 + b"b=1")
    assert orjson.loads(orjson.dumps(event)) == event
