"""An Appender on a partition with one writer at a time: it fences before its first batch, and in doubt."""

from collections.abc import Sequence

from dedupe.model.errors import RecordsRefusedError, RetriableError
from dedupe.model.types import NewRecord
from dedupe.storage.log import PartitionLog


class FencingAppender:
    """See Appender."""

    def __init__(self, log: PartitionLog) -> None:
        """Take a partition that nobody else writes."""
        self._log = log
        self._is_fenced = False

    async def append(self, records: Sequence[NewRecord]) -> None:
        try:
            if not self._is_fenced:
                await self._log.fence()
                self._is_fenced = True
            await self._log.append(records)
        except RecordsRefusedError:
            raise
        except RetriableError:
            self._is_fenced = False
            raise

    async def close(self) -> None:
        await self._log.close()
