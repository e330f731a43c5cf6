"""
Snapshotter: makes snapshots of the indexes of the lanes that this process serves, one after the other.

A snapshot is due some time after the last one, once enough records have been added for it to be worth it; one
of a quiet lane after a longer time. Restoring goes first: nothing is made while a lane of this process
recovers.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress

import structlog

from dedupe.model.clock import Clock
from dedupe.partition.lane import Lane
from dedupe.partition.state import LaneState
from dedupe.storage.snapshots.manifest import SnapshotError
from dedupe.storage.snapshots.store import Made, SnapshotStore

LOOKS = 20
"""A lane is looked at so many times an interval."""
QUIET_INTERVALS = 5
"""A snapshot of a lane with few new records is made after so many intervals: 50 minutes by default."""
RECORDS_MIN = 100_000
"""Fewer new records are read from the log within a second."""
AGAIN_S = 60.0
"""The least time between two tries that failed."""
DRILL_LOOK_S = 3_600.0
"""How often the bucket is asked for the last drill."""

_RECOVERING = frozenset({LaneState.FENCING, LaneState.RESTORING})


class Snapshotter:
    """The snapshots of the lanes of one process."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        snapshots: SnapshotStore,
        *,
        clock: Clock,
        rng: random.Random,
        interval_s: float,
    ) -> None:
        """Make nothing until `run`."""
        self.lanes, self._snapshots = lanes, snapshots
        self._clock, self._rng = clock, rng
        self._interval_s = interval_s
        self._tried_at: dict[Lane, float] = {}
        self._asked_at: dict[Lane, float] = {}  # when to ask next what is disproved
        self._making = asyncio.Lock()
        self._began_ms = self._drilled_ms = clock.now_ms()
        self._drill_looked_at: float | None = None

    async def run(self) -> None:
        """Make snapshots until cancelled; every failure is logged and counted."""
        for lane in self.lanes:  # spread over the first interval
            self._tried_at[lane] = self._clock.monotonic() - self._rng.random() * self._interval_s
        while True:
            await asyncio.sleep(self._interval_s / LOOKS)
            await self._look_for_drills()
            await self._look_for_doubts()
            due = [lane for lane in self.lanes if self._is_due(lane)]
            self._rng.shuffle(due)
            for lane in due:
                if any(each.state in _RECOVERING for each in self.lanes):
                    break
                if lane.is_serving:
                    await self._try(lane)

    async def make(self, lane: Lane) -> Made:
        """
        Make a snapshot of a lane that this process serves, now.

        Raises SnapshotError: it does not serve it, or the snapshot cannot be made.
        """
        index, metrics = lane.open_index, lane.metrics
        if not lane.is_serving or index is None:
            raise SnapshotError("index", f"partition {lane.partition} of {lane.topic} is not served here")
        async with self._making:
            self._tried_at[lane] = self._clock.monotonic()
            try:
                made = await self._snapshots.make(
                    lane.recovery.identity, index.index, index.known_from, lane.between_batches
                )
            except SnapshotError as err:
                metrics.snapshots_failed[err.reason] = metrics.snapshots_failed.get(err.reason, 0) + 1
                raise
        metrics.snapshots_made += 1
        metrics.snapshot_bytes += made.sent_bytes
        metrics.snapshot = made.manifest
        return made

    @property
    def drill_age_s(self) -> float:
        """The age of the last drill that is noted in the bucket; without one, of this process."""
        return max(0, self._clock.now_ms() - self._drilled_ms) / 1000

    async def _look_for_drills(self) -> None:
        now = self._clock.monotonic()
        if self._drill_looked_at is not None and now - self._drill_looked_at < DRILL_LOOK_S:
            return
        self._drill_looked_at = now
        with suppress(SnapshotError):  # the next snapshot tells
            drilled_ms = await self._snapshots.last_drill_ms(self.lanes[0].recovery.identity)
            self._drilled_ms = self._drilled_ms if drilled_ms is None else drilled_ms

    async def _look_for_doubts(self) -> None:
        """
        Tell others what was disproved here, whoever has the lane now, and ask what they have disproved.

        An index may be a copy of one that was disproved after it was copied.
        """
        try:
            await self._snapshots.withdraw_doubted()
            for lane in self.lanes:
                now, index = self._clock.monotonic(), lane.open_index
                if not lane.is_serving or index is None or now < self._asked_at.get(lane, 0.0):
                    continue
                self._asked_at[lane] = now + self._interval_s
                is_doubted = await self._snapshots.is_doubted(lane.recovery.identity, index.index.lineage)
                if is_doubted and lane.open_index is index:
                    lane.disprove("it is a copy of an index that the log has disproved")
        except SnapshotError as err:
            structlog.get_logger(__name__).warning("it is not known what is disproved", error=str(err))

    def age_s(self, lane: Lane) -> float:
        """Return the age of a lane's newest snapshot, as far as this process knows; without one, its own."""
        last = lane.metrics.snapshot
        return max(0, self._clock.now_ms() - (self._began_ms if last is None else last.made_ms)) / 1000

    def lag_records(self, lane: Lane) -> int:
        """Return how many records of a lane that is served its newest snapshot does not have."""
        last, state = lane.metrics.snapshot, lane.partition_index.index.state
        if last is None or last.state.last_offset > state.last_offset:  # the log has lost records since
            return state.next_lane_seq
        return state.next_lane_seq - last.state.next_lane_seq

    def _is_due(self, lane: Lane) -> bool:
        if not lane.is_serving:
            return False
        waited_s = self._clock.monotonic() - self._tried_at[lane]
        last, records = lane.metrics.snapshot, self.lag_records(lane)
        if records <= 0 or waited_s < min(AGAIN_S, self._interval_s):
            return False
        is_enough = last is None or records >= RECORDS_MIN
        return waited_s >= self._interval_s * (1 if is_enough else QUIET_INTERVALS)

    async def _try(self, lane: Lane) -> None:
        logger = structlog.get_logger(__name__).bind(topic=lane.topic, partition=lane.partition)
        try:
            made = await self.make(lane)
        except SnapshotError as err:
            logger.warning("no snapshot was made", reason=err.reason, error=str(err))
            return
        logger.info(
            "snapshot made",
            applied_offset=made.manifest.state.applied_offset,
            files=len(made.manifest.files),
            size_bytes=made.manifest.size_bytes,
            sent_bytes=made.sent_bytes,
        )
