"""Rebuilds dedupe indexes from the log without a fence, while it locks the data folder."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import structlog

from app.build import build_router
from app.settings.data_dir import locked
from app.settings.model import Settings
from app.stores import create_indexes, layout_of, open_for_notes
from dedupe.decide.lineage import distance
from dedupe.model.clock import SystemClock
from dedupe.model.errors import ConfigurationError
from dedupe.model.identity import Identity
from dedupe.model.types import Offset
from dedupe.partition.lane import Lane
from dedupe.storage.dividing import Division
from dedupe.storage.pinning import check_pins
from dedupe.storage.snapshots.manifest import SnapshotError
from dedupe.storage.snapshots.store import SnapshotStore

PROGRESS_S = 0.2

Advance = Callable[[int, int], None]


class Rebuilt(NamedTuple):
    """A rebuilt index."""

    topic: str
    partition: int
    records: int
    keys: int
    seconds: float
    snapshot: str | None
    """The snapshot that it began with."""


async def rebuild_indexes(
    settings: Settings,
    topic: str,
    partitions: Sequence[int] | None,
    advance: Advance,
    *,
    from_snapshots: bool = False,
) -> list[Rebuilt]:
    """
    Delete the indexes of some partitions, and rebuild them one after another.

    Args:
        settings: the settings of the stopped gateway.
        topic: its name.
        partitions: numbers of its partitions; None: all.
        advance: called with the records read so far, and the offsets to read.
        from_snapshots: whether an index may begin with a snapshot; else its snapshots are deleted.

    Raises:
        ConfigurationError: the data folder is in use, or there is no log. Nothing was deleted.
        IdentityMismatchError: the log is of another secret or partition count. No index was deleted.
        RetriableError: the log cannot be read now; a gateway rebuilds missing indexes at its start.
    """
    with ExitStack() as stack:
        stack.enter_context(locked(settings.log.data_dir))
        identity = Identity(settings.gateway.identity_key)
        async with open_for_notes(settings) as store:
            if not await check_pins(store, settings.log.topics, identity):
                raise ConfigurationError("no gateway of this version has served this log yet: start it first")
            layout = await layout_of(store, settings)
            settings = settings.with_partitions(layout.partitions)
            indexes = create_indexes(settings, layout, SystemClock())
            stack.callback(indexes.close)
            snapshots = indexes.snapshots
            if snapshots is not None:
                snapshots.records_min = 0
            if not from_snapshots:
                indexes.snapshots = None
            router = build_router(
                settings,
                store,
                indexes,
                identity=identity,
                clock=SystemClock(),
                division=Division(layout),
            )
            lanes = [lane for lane in router.all_lanes if lane.topic == topic]
            chosen = [lanes[number] for number in numbers_of(topic, len(lanes), partitions)]
            if snapshots is not None and not from_snapshots:
                await _withdraw(snapshots, chosen)
            bounds = [await lane.log.bounds() for lane in chosen]
            sizes = [distance(lane.lineage, *ends) for lane, ends in zip(chosen, bounds, strict=True)]
            watching = asyncio.ensure_future(_watch(chosen, sum(sizes), advance))
            try:
                return [await _rebuild(lane, end) for lane, (_, end) in zip(chosen, bounds, strict=True)]
            finally:
                watching.cancel()


def numbers_of(topic: str, count: int, partitions: Sequence[int] | None) -> list[int]:
    """Return the numbers of some partitions, or of all. Raises ConfigurationError: there is no such one."""
    numbers = sorted(set(partitions or range(count)))
    if numbers[-1] >= count:
        raise ConfigurationError(f"{topic} has partitions 0 to {count - 1}")
    return numbers


async def _withdraw(snapshots: SnapshotStore, lanes: Sequence[Lane]) -> None:
    """Delete the snapshots of indexes that are doubted, since they were copied from them."""
    for lane in lanes:
        try:
            await snapshots.withdraw(lane.recovery.identity)
        except SnapshotError as err:
            structlog.get_logger(__name__).error(
                "snapshots of a doubted index are not deleted: delete them before an index is lost",
                topic=lane.topic,
                partition=lane.partition,
                error=str(err),
            )


async def _rebuild(lane: Lane, end: Offset) -> Rebuilt:
    began, recovery = time.monotonic(), lane.recovery
    try:
        await recovery.check()
        recovery.discard()
        await recovery.check()
        index = await recovery.replay(end, lambda _entries: None)
        keys = index.window.keys
    finally:
        recovery.close()
    seconds = round(time.monotonic() - began, 2)
    metrics = lane.metrics
    snapshot = metrics.snapshot and metrics.snapshot.name
    return Rebuilt(lane.topic, lane.partition, metrics.restored_records, keys, seconds, snapshot)


async def _watch(lanes: Sequence[Lane], offsets: int, advance: Advance) -> None:
    while True:
        advance(sum(lane.metrics.restored_records for lane in lanes), offsets)
        await asyncio.sleep(PROGRESS_S)
