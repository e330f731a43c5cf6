"""What `gateway snapshots` does with the bucket, the log and the indexes of the settings."""

import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.cli.rebuild import Advance, numbers_of, rebuild_indexes
from app.settings.model import Settings
from app.settings.section import load
from app.stores import create_indexes, layout_of, open_for_notes
from dedupe.decide.layout import Layout
from dedupe.model.clock import SystemClock
from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.model.identity import Identity
from dedupe.model.inherited import offset_in_log
from dedupe.model.types import Topic
from dedupe.storage.index import IndexIdentity
from dedupe.storage.log import LogStore
from dedupe.storage.pinning import check_pins
from dedupe.storage.snapshots.manifest import SnapshotError
from dedupe.storage.snapshots.store import SnapshotStore


async def listed(partitions: Sequence[int] | None, *, is_quarantine: bool) -> list[dict[str, Any]]:
    """
    Return a row for each valid snapshot.

    Raises RetriableError, ConfigurationError, IdentityMismatchError.
    """
    rows = []
    settings = _settings()
    topic = settings.log.topics[is_quarantine]
    async with _opened(settings) as (snapshots, store):
        for identity in await _identities(store, settings, topic, partitions):
            async for manifest in snapshots.candidates(identity):
                rows.append(
                    {
                        "topic": topic.name,
                        "partition": identity.partition,
                        "snapshot": manifest.name,
                        "age_seconds": round(time.time() - manifest.made_ms / 1000),
                        "applied_offset": offset_in_log(manifest.state.applied_offset),
                        "files": len(manifest.files),
                        "size_bytes": manifest.size_bytes,
                        "worker": manifest.worker,
                    }
                )
    return rows


async def verified(
    partitions: Sequence[int] | None, advance: Advance, *, is_quarantine: bool
) -> list[dict[str, Any]]:
    """Return a row for each partition, about its newest snapshot. Raises as `listed` does."""
    rows = []
    settings = _settings()
    topic = settings.log.topics[is_quarantine]
    async with _opened(settings) as (snapshots, store):
        identities = await _identities(store, settings, topic, partitions)
        for done, identity in enumerate(identities):
            advance(done, len(identities))
            row = await _verify(snapshots, identity)
            rows.append({"topic": topic.name, "partition": identity.partition, **row})
    return rows


async def restored(
    partitions: Sequence[int] | None, advance: Advance, *, is_quarantine: bool
) -> list[dict[str, Any]]:
    """Return a row for each index. Raises as rebuild_indexes does."""
    settings = _settings()
    topic = settings.log.topics[is_quarantine]
    found = await rebuild_indexes(settings, topic.name, partitions, advance, from_snapshots=True)
    return [each._asdict() for each in found]


async def drilled(partition: int | None, advance: Advance) -> dict[str, Any]:
    """Return a row about an index that is restored and deleted. Raises as rebuild_indexes does."""
    settings = _settings()
    if settings.log.kind != "kafka":
        raise ConfigurationError("the embedded log lies beside its index: only one on Kafka can be drilled")
    topic, _ = settings.log.topics
    number = random.randrange(topic.partitions) if partition is None else partition
    with TemporaryDirectory(prefix="gateway-drill-") as folder:
        log = settings.log.model_copy(update={"data_dir": Path(folder)})
        scratch = settings.model_copy(update={"log": log})
        (found,) = await rebuild_indexes(scratch, topic.name, [number], advance, from_snapshots=True)
    if found.snapshot is not None:
        async with _opened(settings) as (snapshots, store):
            (identity,) = await _identities(store, settings, topic, [number])
            await snapshots.note_drill(identity)
    return found._asdict()


async def _verify(snapshots: SnapshotStore, identity: IndexIdentity) -> dict[str, Any]:
    row: dict[str, Any] = {"snapshot": None, "files": 0, "size_bytes": 0, "verified": False, "error": None}
    try:
        async for manifest in snapshots.candidates(identity):
            row |= {
                "snapshot": manifest.name,
                "files": len(manifest.files),
                "size_bytes": manifest.size_bytes,
            }
            with TemporaryDirectory(prefix="gateway-snapshot-") as folder:
                await snapshots.verify(manifest, Path(folder))
            return row | {"verified": True}
    except SnapshotError as err:
        return row | {"error": str(err)}
    return row | {"error": "there is no snapshot of it"}


def _settings() -> Settings:
    settings = load(Settings)
    if settings.snapshots.url is None:
        raise ConfigurationError("GATEWAY_SNAPSHOTS_URL is not set: there are no snapshots")
    return settings


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[tuple[SnapshotStore, LogStore]]:
    """Open bucket and log. Raises RetriableError for what the bucket does not do."""
    indexes = create_indexes(settings, Layout(settings.log.partitions), SystemClock())  # none is opened
    assert indexes.snapshots is not None
    try:
        async with open_for_notes(settings) as store:
            await check_pins(store, settings.log.topics, Identity(settings.gateway.identity_key))
            yield indexes.snapshots, store
    except SnapshotError as err:
        raise RetriableError(str(err)) from err
    finally:
        indexes.close()


async def _identities(
    store: LogStore, settings: Settings, topic: Topic, partitions: Sequence[int] | None
) -> list[IndexIdentity]:
    """Return the indexes that partitions of a topic have; None: of all."""
    layout = Layout(topic.partitions)
    if topic.name == settings.log.topic:
        layout = await layout_of(store, settings)
    return [
        IndexIdentity(
            log_id=store.log_id,
            topic=topic.name,
            partition=number,
            partitions=layout.base,
            key_check=Identity(settings.gateway.identity_key).check_value,
            plan=layout.index_plan_of(number),
            lineage=layout.index_digest_of(number),
        )
        for number in numbers_of(topic.name, layout.partitions, partitions)
    ]
