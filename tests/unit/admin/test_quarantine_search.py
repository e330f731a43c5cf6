"""How many searches of the quarantine there may be at once."""

import asyncio

from app.admin.quarantine_search import SEARCHES_AT_ONCE, QuarantineSearch
from dedupe.model.clock import SystemClock
from dedupe.model.types import Topic
from tests.support.sim.sim_log import SimLog, SimStore


class CountingStore(SimStore):
    """Counts the partitions that are open, and closes none before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.open = 0
        self.may_end = asyncio.Event()

    def partition_log(self, topic: str, partition: int) -> SimLog:
        log = super().partition_log(topic, partition)
        self.open += 1
        close = log.close

        async def close_when_told() -> None:
            await self.may_end.wait()
            self.open -= 1
            await close()

        log.close = close_when_told  # type: ignore[method-assign]
        return log


async def test_few_searches_run_at_once_and_the_others_have_their_turn() -> None:
    store = CountingStore()
    store.create_topic("quarantine", 1)
    quarantine = QuarantineSearch(store, Topic("quarantine", 1), SystemClock())
    searches = [asyncio.ensure_future(quarantine.search("web", "a")) for _ in range(5)]
    for _ in range(100):
        await asyncio.sleep(0)
    assert store.open == SEARCHES_AT_ONCE
    store.may_end.set()
    found = await asyncio.gather(*searches)
    assert [one.is_complete for one in found] == [True] * 5
    assert store.open == 0
