"""Looks at the settings of Kafka's topics and brokers while the gateway serves."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from dedupe.model.errors import GatewayError
from dedupe.partition.lane import Lane
from dedupe.storage.setting_problems import Inspection, Problem, tell

LOOK_S = 3600.0
"""Between two looks at the settings, which people change seldom."""
DOUBTED_S = 1.0
"""From the log's refusal until a look: it refuses all lanes at once."""
PAUSE_S = 10.0
"""Between two looks after refusals."""

logger = structlog.get_logger(__name__)


class SettingWatch:
    """
    Looks at topics and brokers hourly and after refusals, tells what is wrong, and serves on.

    Lanes make no larger batches than their topic takes.
    """

    def __init__(self, first: Inspection, inspect: Callable[[], Awaitable[Inspection]] | None) -> None:
        """
        Begin with what the start has found, and told.

        Args:
            first: the findings of the start.
            inspect: looks again; None for a log without such settings.
        """
        self.problems: Sequence[Problem] = first.problems
        self._batch_bytes = first.batch_bytes
        self._inspect = inspect
        self._doubted = asyncio.Event()

    @property
    def sentences(self) -> list[str]:
        """What is wrong, a sentence each."""
        return [problem.text for problem in self.problems if problem.is_wrong]

    def doubt(self) -> None:
        """Look soon: the log has refused something, or left it in doubt."""
        self._doubted.set()

    async def run(self, lanes: Sequence[Lane]) -> None:
        """Look until cancelled."""
        if self._inspect is None:
            return
        self._limit_batches(lanes)
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._doubted.wait()
                await asyncio.sleep(DOUBTED_S)
            except TimeoutError:
                pass
            self._doubted.clear()
            try:
                found = await self._inspect()
            except GatewayError as err:
                logger.warning("the settings of the log cannot be looked at now", error=str(err))
            else:
                self._take(found)
                self._limit_batches(lanes)
            await asyncio.sleep(PAUSE_S)

    def _take(self, found: Inspection) -> None:
        """Tell what is new, and what is repaired."""
        for problem in found.problems:
            if problem not in self.problems:
                tell(problem)
        for problem in self.problems:
            if problem not in found.problems:
                logger.info("a setting of the log was changed", was=problem.text)
        self.problems, self._batch_bytes = found.problems, found.batch_bytes

    def _limit_batches(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            lane.queue.allow_batches(self._batch_bytes.get(lane.topic, 0))
