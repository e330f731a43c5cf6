"""Takes over a log whose rules are noted nowhere that this version reads: it proves them by the records."""

from functools import partial

from app.settings.model import Settings
from app.stores import old_notes_of, stop_older_gateways
from dedupe.model.errors import ConfigurationError
from dedupe.model.identity import Identity
from dedupe.model.types import Topic
from dedupe.storage.log import LogStore
from dedupe.storage.notes import FINGERPRINTS, SKIPS
from dedupe.storage.pinning import check_old_pins, check_pins, pin, prove


async def adopt(store: LogStore, settings: Settings) -> int | None:
    """
    Write the rules of these settings into the log, after they are proved by its records.

    Returns:
        The number of records that prove them; None if the log was adopted, or begun, before.

    Raises:
        ConfigurationError: a topic is missing, or has records where these settings have no partition.
        IdentityMismatchError: the records, or what an older gateway noted, are of other settings.
        LogCorruptError: no gateway wrote a record: gateway partitions skip.
        RetriableError: the log cannot be reached; call again.
    """
    identity, topics = Identity(settings.gateway.identity_key), settings.log.topics
    if await check_pins(store, topics, identity):
        return None
    await check_old_pins(partial(old_notes_of, store), settings.log.topics, identity)
    for topic in topics:
        await _check_partitions(store, topic)
        for name in (SKIPS, FINGERPRINTS):
            for partition, text in (await old_notes_of(store, name, topic.name)).items():
                await store.note(name, topic.name, partition, text, once=True)
    proved = sum([await prove(store, topic, identity) for topic in topics])
    await pin(store, topics, identity)
    await stop_older_gateways(store, settings)
    return proved


async def _check_partitions(store: LogStore, topic: Topic) -> None:
    """Raise ConfigurationError if a partition is missing, or one that these settings do not have is used."""
    there = await store.partitions_of(topic.name)
    if there < topic.partitions:
        raise ConfigurationError(
            f"topic {topic.name} has {there} partitions, and these settings say {topic.partitions}"
        )
    for partition in range(topic.partitions, there):
        log = store.partition_log(topic.name, partition)
        if (await log.bounds())[1] > 0:  # also if it has a marker alone: some gateway serves it
            raise ConfigurationError(
                f"partition {partition} of topic {topic.name} has, or had, records, and these settings say "
                f"{topic.partitions} partitions: the log cannot be of these settings alone"
            )
