"""Claim: an unmodified segment-analytics-python delivers every event exactly once through lost answers."""

import asyncio

import orjson
from segment.analytics.client import Client as SegmentClient

from tests.fault.conftest import LogUnderTest
from tests.support.gateway import Gateway
from tests.support.lossy_proxy import LossyProxy

EVENTS = 400
BATCH = 10
LOSS = 0.3


async def test_segment_sdk_delivers_exactly_once_when_answers_are_lost(
    gateway: Gateway, log_under_test: LogUnderTest
) -> None:
    await asyncio.to_thread(gateway.start)
    async with LossyProxy(gateway.port, seed=7, loss=LOSS) as proxy:
        await asyncio.to_thread(_send_events, proxy.url)
        assert proxy.lost > 0
    numbers = [orjson.loads(record.value)["properties"]["n"] for record in await log_under_test.read(gateway)]
    assert sorted(numbers) == list(range(EVENTS))
    assert gateway.stats()["totals"]["duplicates"] > 0


def _send_events(host: str) -> None:
    errors: list[object] = []
    client = SegmentClient(
        "segment-key",
        host=host,
        upload_size=BATCH,
        upload_interval=0.05,
        on_error=lambda error, _items: errors.append(error),
    )
    for number in range(EVENTS):
        client.track(user_id=f"user-{number % 7}", event="Order Completed", properties={"n": number})
    client.shutdown()
    assert not errors
