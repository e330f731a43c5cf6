"""Allows recovery to skip foreign records, as an operator decides."""

from contextlib import aclosing

from app.settings.model import Settings
from app.stores import layout_of
from dedupe.decide.recovery import RecordCheck
from dedupe.model.errors import ConfigurationError, IdentityMismatchError, LogCorruptError
from dedupe.model.identity import Identity
from dedupe.model.types import Offset, Topic
from dedupe.storage.log import LogStore, PartitionLog
from dedupe.storage.notes import SKIPS
from dedupe.storage.pinning import check_pins, load_skips


async def skip(store: LogStore, settings: Settings, topic: Topic, partition: int, span: range) -> int:
    """
    Note in the log that recovery skips foreign records at these offsets; running gateways read the note.

    Returns:
        The number of these records.

    Raises:
        ConfigurationError: there is no foreign record, or no such partition. Nothing was noted.
        IdentityMismatchError: these are not the settings of the gateway that serves this log.
        RetriableError: the log cannot be reached; try again.
    """
    if not 0 <= partition < await store.partitions_of(topic.name):
        raise ConfigurationError(f"topic {topic.name} has no partition {partition}")
    await check_pins(store, [topic], Identity(settings.gateway.identity_key))
    log = store.partition_log(topic.name, partition)
    layout = await layout_of(store, settings) if topic.name == settings.log.topic else None
    check = RecordCheck(Identity(settings.gateway.identity_key), partition, topic.partitions, layout)
    log_start, end = await log.bounds()
    written = range(span.start, min(span.stop, end))  # later records were not checked
    ours, foreign = await _count(log, check, written)
    if not foreign:
        raise ConfigurationError(
            f"nothing to skip at {_text(span)} of partition {partition} of {topic.name}: "
            + (f"all {ours} records there are this log's own" if ours else "there is no record")
        )
    skips = await load_skips(store, topic.name, partition)
    skips = skips.with_range(written.start, written.stop - 1, log_start=log_start)
    await store.note(SKIPS, topic.name, partition, skips.encoded())
    return foreign


async def _count(log: PartitionLog, check: RecordCheck, span: range) -> tuple[int, int]:
    """Return the numbers of records in the span that a gateway of this log wrote, and of others."""
    ours = foreign = 0
    async with aclosing(log.read(span.start, span.stop)) as batches:
        async for records in batches:
            for record in records:
                try:
                    check.checked(record)
                except (LogCorruptError, IdentityMismatchError):
                    foreign += 1
                else:
                    ours += 1
    return ours, foreign


def _text(span: range) -> str:
    last: Offset = span.stop - 1
    return f"offset {span.start}" if len(span) == 1 else f"offsets {span.start} to {last}"
