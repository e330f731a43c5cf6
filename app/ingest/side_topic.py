"""
A topic beside the clean one of which nothing is promised: what cannot be appended in time is counted and left
out, and what was under way in a doubt may be there twice. The gateway's own log decides as always.

Observed.note, DuplicateSamples.note -> **SideTopic.put**
app.main -> **SideTopic.run** -> Appender.append
"""

import asyncio
from collections import deque
from collections.abc import Iterator

import structlog

from dedupe.model.errors import RecordsRefusedError, RetriableError
from dedupe.model.types import NewRecord
from dedupe.storage.log import Appender

WAITING_BYTES_MAX = 16 * 1024 * 1024
BATCH_RECORDS_MAX, BATCH_BYTES_MAX = 1_000, 512 * 1024

RETRY_S = 1.0
LAST_APPEND_S = 1.0

logger = structlog.get_logger(__name__)


class SideTopic:
    """The records of one process that wait for a topic."""

    def __init__(self, name: str, appender: Appender) -> None:
        """`name`: of the topic, for log lines."""
        self._name = name
        self._appender = appender
        self._waiting: deque[NewRecord] = deque()
        self._waiting_bytes = 0
        self._has_more = asyncio.Event()
        self.appended = self.dropped = 0
        """Records in the topic, and those left out."""

    def put(self, record: NewRecord) -> None:
        """Have a record appended, or count it as left out. Never raises, never waits."""
        size_bytes = len(record.value)
        if self._waiting_bytes + size_bytes > WAITING_BYTES_MAX:
            self.dropped += 1
            return
        self._waiting.append(record)
        self._waiting_bytes += size_bytes
        self._has_more.set()

    async def run(self) -> None:
        """Append what waits, until cancelled; then once more."""
        try:
            while True:
                await self._has_more.wait()
                self._has_more.clear()
                while self._waiting:
                    await self._append_next()
        finally:
            try:
                async with asyncio.timeout(LAST_APPEND_S):
                    while self._waiting:
                        await self._append_next()
            except TimeoutError:
                self.dropped += len(self._waiting)
            await self._appender.close()

    async def _append_next(self) -> None:
        batch = list(self._batch())
        newest_ms = max(record.timestamp_ms for record in batch)
        try:
            await self._appender.append([record._replace(timestamp_ms=newest_ms) for record in batch])
        except RecordsRefusedError as err:
            logger.warning("records are left out", topic=self._name, count=len(batch), error=str(err))
            self.dropped += len(batch)
        except RetriableError as err:
            logger.warning("records are not appended yet", topic=self._name, error=str(err))
            await asyncio.sleep(RETRY_S)
            return
        else:
            self.appended += len(batch)
        for record in batch:
            self._waiting.popleft()
            self._waiting_bytes -= len(record.value)

    def _batch(self) -> Iterator[NewRecord]:
        """Yield the first records that wait, at least one, of bounded count and bytes."""
        size_bytes = 0
        for number, record in enumerate(self._waiting):
            size_bytes += len(record.value)
            if number and (number == BATCH_RECORDS_MAX or size_bytes > BATCH_BYTES_MAX):
                return
            yield record
