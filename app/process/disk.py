"""Free space under the data folder: below a minimum, requests are refused before any effect."""

import asyncio
import shutil
from pathlib import Path

import structlog

from dedupe.router import Router

CHECK_INTERVAL_S = 1.0
"""The interval of checks: at 200 MB/s, 1 GiB lasts for five seconds."""

logger = structlog.get_logger(__name__)


class Disk:
    """The free space at the last check."""

    def __init__(self, path: Path, *, free_min_bytes: int) -> None:
        """Assume enough space until the first check."""
        self._path = path
        self.free_min_bytes = free_min_bytes
        self.free_bytes = free_min_bytes
        self.size_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether requests may be accepted."""
        return self.free_bytes >= self.free_min_bytes

    def look(self) -> None:
        """Read the free space; a file system that cannot be read counts as full."""
        had_room = self.has_room
        try:
            self.size_bytes, _, self.free_bytes = shutil.disk_usage(self._path)
        except OSError as err:
            logger.error("free disk space cannot be read", path=str(self._path), error=str(err))
            self.free_bytes = 0
        if self.has_room != had_room:
            report = logger.info if self.has_room else logger.error
            report(
                "disk room",
                has_room=self.has_room,
                free_bytes=self.free_bytes,
                free_min_bytes=self.free_min_bytes,
            )

    async def watch(self, router: Router, *, interval_s: float = CHECK_INTERVAL_S) -> None:
        """Update the router's `has_disk_room` at each interval, until cancelled."""
        while True:
            self.look()
            router.has_disk_room = self.has_room
            await asyncio.sleep(interval_s)
