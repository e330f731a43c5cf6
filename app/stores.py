"""
Opens the log and the indexes of the settings. It is the only module that chooses implementations of the
core's interfaces.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import date
from functools import partial
from typing import Any, NamedTuple

import structlog

from app.inputs.input_file import InputSpec
from app.native_module import native_module
from app.process.clock_check import check_clock, follow_wall_clock
from app.settings.data_dir import check_format, index_path, refuse_lost_log, sqlite_path
from app.settings.index_bounds import index_bounds
from app.settings.log import LogSettings
from app.settings.model import Settings
from app.settings.units import DAY
from dedupe.cluster.membership import MemberPlace, Membership
from dedupe.decide.layout import Layout
from dedupe.login.login import Login
from dedupe.model.clock import Clock, SystemClock
from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.model.identity import EQUAL_NUMBERS, Identity
from dedupe.storage.dividing import Division
from dedupe.storage.input_log import InputLog
from dedupe.storage.kafka.config import CLIENT_ID, KafkaConfig
from dedupe.storage.kafka.features import missing_features
from dedupe.storage.kafka.fetched import NativeDecode, is_decoding_proved, native_decoder
from dedupe.storage.kafka.inputs import KafkaInputs
from dedupe.storage.kafka.older_gateways import old_notes
from dedupe.storage.kafka.older_gateways import stop_older_gateways as stop_older
from dedupe.storage.kafka.record_batch import NativeEncode, for_events_it_knows, is_encoding_proved
from dedupe.storage.kafka.rights import missing_rights
from dedupe.storage.kafka.routing_topic import RoutingKey
from dedupe.storage.kafka.setting_rules import Demands
from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.kafka.topics import (
    TopicSpec,
    add_partitions,
    create_topics,
    inspect_topics,
    prepare_topics,
    routing_spec,
)
from dedupe.storage.kept_fences import KeptFences
from dedupe.storage.log import Crashpoint, LogStore, no_crashpoint
from dedupe.storage.pinning import adopt_fingerprint_rule, begin_log, check_old_pins, check_pins
from dedupe.storage.rocksdb.snapshots import IndexSnapshots
from dedupe.storage.rocksdb.store import RocksStore
from dedupe.storage.routing_records import mac_key_of, routing_topic_of
from dedupe.storage.setting_problems import NOTHING_FOUND, Inspection, Level, Problem
from dedupe.storage.settling import Plans, Settling
from dedupe.storage.snapshots.bucket import Bucket
from dedupe.storage.sqlite.log import SqliteStore

START_RETRY_S = 1.0

logger = structlog.get_logger(__name__)


class OpenLog(NamedTuple):
    """The open log, and the results of its notes."""

    store: LogStore
    earlier_ignore: Sequence[frozenset[str]]  # see Identifier
    division: Division  # of the clean topic
    inspection: Inspection = NOTHING_FOUND  # of Kafka's topics and brokers
    inspect: Callable[[int], Awaitable[Inspection]] | None = None
    """Looks at them again, given the clean topic's partitions, see inspect_topics; None: no Kafka."""
    plans: Plans | None = None  # of a topic on Kafka

    @property
    def embedded(self) -> SqliteStore | None:
        """The embedded log, whose trimming and clock note are the gateway's tasks; None for Kafka."""
        return self.store if isinstance(self.store, SqliteStore) else None

    @property
    def fences(self) -> KeptFences[Any]:
        """What a round's lanes leave to the next one's; the embedded log has one round."""
        return self.store.fences if isinstance(self.store, KafkaStore) else KeptFences()


def membership_of(opened: OpenLog, settings: Settings, clock: Clock, place: MemberPlace | None) -> Membership:
    """Return this worker's membership in the group of workers of the topic, which must be on Kafka."""
    assert isinstance(opened.store, KafkaStore)
    topic, standbys = settings.log.topic, settings.group.standby
    lanes = settings.log.partitions + settings.log.quarantine_partitions
    return opened.store.membership(topic, lanes=lanes, standbys=standbys, clock=clock, place=place)


def create_indexes(
    settings: Settings, layout: Layout, clock: Clock, crashpoint: Crashpoint = no_crashpoint
) -> RocksStore:
    """Return the store of all lanes' indexes; none is open yet. Raises ConfigurationError."""
    indexes = RocksStore(
        index_path(settings.log.data_dir),
        lanes=layout.partitions + settings.log.quarantine_partitions,
        memory_bytes=settings.index.memory,
        keys_max=index_bounds(settings, layout, clock.now_ms())[0],
        native=getattr(native_module(settings.gateway.native), "add_keys", None),
    )
    if settings.snapshots.url is not None:
        indexes.snapshots = IndexSnapshots(
            Bucket(settings.snapshots.url),
            indexes,
            secret=settings.gateway.identity_key,
            worker=settings.group.worker_id,
            clock=clock,
            crashpoint=crashpoint,
        )
    return indexes


async def open_log(
    settings: Settings,
    crashpoint: Crashpoint,
    clock: Clock,
    *,
    accepted_day: date | None = None,
    owned: Sequence[int] = (),
) -> OpenLog:
    """
    Open the log with its topics for writing; retry for GATEWAY_START_TIMEOUT.

    Args:
        settings: the gateway's settings.
        crashpoint: called at the steps of a commit.
        clock: this machine's clock.
        accepted_day: see check_clock.
        owned: clean partitions that this process served before, see Settling.settle.

    Raises:
        ConfigurationError: the gateway must not start with these settings, topics or clock.
        IdentityMismatchError: the log was written under another secret or partition count.
        RetriableError: the log was not reachable for GATEWAY_START_TIMEOUT.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + settings.advanced.start_timeout
    while True:
        try:
            return await _try_to_open(settings, crashpoint, clock, accepted_day, owned)
        except RetriableError as err:
            if loop.time() > give_up_at:
                raise
            logger.warning("the log cannot be opened yet", error=str(err))
            if isinstance(clock, SystemClock):  # nothing has its time yet
                follow_wall_clock(clock)
        await asyncio.sleep(START_RETRY_S)


async def _try_to_open(
    settings: Settings, crashpoint: Crashpoint, clock: Clock, accepted_day: date | None, owned: Sequence[int]
) -> OpenLog:
    """Connect to the log, compare its pins, then prepare its topics."""
    store: SqliteStore | KafkaStore
    identity = Identity(settings.gateway.identity_key)
    if settings.log.kind == "sqlite":
        refuse_lost_log(settings.log.data_dir)
        store = await SqliteStore.open(sqlite_path(settings.log.data_dir), crashpoint=crashpoint)
    else:
        native_encode, native_decode = _native_batches(settings)
        config = _kafka_config(
            settings.log,
            client_id=f"{CLIENT_ID}-{settings.group.worker_id}",
            batch_bytes_max=settings.limits.batch_bytes_max,
            native_encode=native_encode,
            native_decode=native_decode,
        )
        routing = RoutingKey(settings.log.topic, mac_key_of(identity))
        store = await KafkaStore.open(config, crashpoint=crashpoint, routing=routing)
    inspection, inspect, plans = NOTHING_FOUND, None, None
    division = Division(Layout(settings.log.partitions))
    try:
        if not await check_pins(store, settings.log.topics, identity):
            await check_old_pins(partial(old_notes_of, store), settings.log.topics, identity)
        if isinstance(store, SqliteStore):
            for topic in (*settings.log.topics, *settings.side_topics):
                await store.create_topic(*topic)
            newest_ms = await store.newest_timestamp_ms()
            await check_clock(store, settings, clock, newest_ms=newest_ms, accepted_day=accepted_day)
            await begin_log(store, settings.log.topics, identity)
        else:
            settling = Settling(store, settings.log.topics[0], identity, clock, logger.info)
            if await settling.is_due():
                await settling.settle(owned)
            division = Division(await layout_of(store, settings))
            needs = _needs(store, settings.with_partitions(division.layout.partitions_of_log))
            inspection = await prepare_topics(store, *needs, is_development=settings.gateway.is_development)
            inspect, plans = partial(_inspect, store, settings), store.routing_topic
            await begin_log(store, settings.log.topics, identity)
            await stop_older_gateways(store, settings)
            division = division._replace(seal=await store.routing_topic.seal())  # of topics that exist
            await store.check_fencing(settings.log.quarantine_topic, now_ms=clock.now_ms())
        earlier_ignore = await adopt_fingerprint_rule(
            store,
            settings.log.topic,
            {*settings.gateway.fingerprint_ignore, EQUAL_NUMBERS},
            now_ms=clock.now_ms(),
            remembered_ms=round((settings.index.window + DAY) * 1000),
        )
    except BaseException:
        await store.close()
        raise
    return OpenLog(store, earlier_ignore, division, inspection, inspect, plans)


async def layout_of(store: LogStore, settings: Settings) -> Layout:
    """
    Return how the clean topic is divided now; these settings say with how many partitions it began.

    Raises:
        RetriableError: it is being divided now, or its routing topic cannot be read.
        ConfigurationError, IdentityMismatchError: see LogStore.notes.
    """
    if not isinstance(store, KafkaStore):
        return Layout(settings.log.partitions)
    routing, _ = await store.routing_topic.routing(settings.log.partitions)
    if routing.waiting:
        raise RetriableError(f"topic {settings.log.topic} is being divided: see `gateway reshard status`")
    return Layout(settings.log.partitions, routing)


async def stop_older_gateways(store: LogStore, settings: Settings) -> None:
    """Keep gateways of before the routing topic from a log on Kafka. Raises as old_notes_of does."""
    if isinstance(store, KafkaStore):
        identity = Identity(settings.gateway.identity_key)
        await stop_older(store.cluster, settings.log.topics, identity.check_value)


async def old_notes_of(store: LogStore, name: str, topic: str) -> dict[int, str]:
    """Return what gateways of before the routing topic noted on Kafka. Raises as old_notes does."""
    return await old_notes(store.cluster, name, topic) if isinstance(store, KafkaStore) else {}


@asynccontextmanager
async def open_for_reading(
    settings: LogSettings, identity: Identity | None = None
) -> AsyncIterator[LogStore | None]:
    """
    Open the log for reading, also while a gateway writes to it; None if there is none yet.

    Its notes can be read with the identity of its gateways.

    Raises:
        ConfigurationError: it is of a newer format, or not a log.
        RetriableError: no broker answers.
    """
    if settings.kind == "sqlite" and not sqlite_path(settings.data_dir).exists():
        yield None
        return
    async with _open_beside(settings, identity, read_only=True) as store:
        yield store


@asynccontextmanager
async def open_for_notes(settings: Settings) -> AsyncIterator[LogStore]:
    """Open the log for notes, also while a gateway writes to it. Raises as open_for_reading does."""
    log = settings.log
    if log.kind == "sqlite" and not sqlite_path(log.data_dir).exists():
        raise ConfigurationError(f"there is no log in {log.data_dir}")
    async with _open_beside(log, Identity(settings.gateway.identity_key), read_only=False) as store:
        yield store


@asynccontextmanager
async def _open_beside(
    settings: LogSettings, identity: Identity | None, *, read_only: bool
) -> AsyncIterator[LogStore]:
    store: LogStore
    if settings.kind == "sqlite":
        check_format(settings.data_dir)
        store = await SqliteStore.open(sqlite_path(settings.data_dir), read_only=read_only)
    else:
        routing = RoutingKey(settings.topic, mac_key_of(identity)) if identity else None
        store = await KafkaStore.open(_kafka_config(settings), routing=routing)
    try:
        yield store
    finally:
        await store.close()


async def inspect_kafka(store: LogStore, settings: Settings) -> list[Problem]:
    """
    Check rights, topics and brokers, and change nothing; the embedded log has none.

    Raises:
        RetriableError: the cluster does not answer, or the topic is being divided.
        ConfigurationError, IdentityMismatchError: see LogStore.notes.
    """
    if not isinstance(store, KafkaStore):
        return []
    routing = routing_topic_of(settings.log.topic)
    rights = await missing_rights(store, [topic.name for topic in settings.log.topics], routing)
    missing = [Problem(Level.WRONG, "", "rights", sentence) for sentence in rights]
    hidden = tuple(f"topic {name}: " for name in (*(topic.name for topic in settings.log.topics), routing))
    if any(sentence.startswith(hidden) for sentence in rights):
        return missing  # other problems of topics are not visible
    partitions = (await layout_of(store, settings)).partitions_of_log
    return missing + (await _inspect(store, settings, partitions)).problems


async def advice_for_kafka(store: LogStore) -> list[str]:
    """Return what would make the cluster safer, without being required. Raises RetriableError: no answer."""
    return await missing_features(store.cluster) if isinstance(store, KafkaStore) else []


async def create_kafka_topics(store: LogStore, settings: Settings, *, replication_factor: int) -> list[str]:
    """Create the missing topics on Kafka, and return their names. Raises as create_topics does."""
    assert isinstance(store, KafkaStore)
    return await create_topics(store, *_needs(store, settings), replication_factor=replication_factor)


def kafka_topics_of(settings: Settings) -> list[TopicSpec]:
    """Return the topics that these settings need on Kafka."""
    clean, quarantine = settings.log.topics
    return [
        TopicSpec(*clean, "GATEWAY_PARTITIONS"),
        TopicSpec(*quarantine, "GATEWAY_QUARANTINE_PARTITIONS"),
        routing_spec(clean),
        *(TopicSpec(*topic, setting) for topic, setting in settings.side_topics.items()),
    ]


def open_input(settings: Settings, spec: InputSpec) -> InputLog:
    """Return the cluster of an input, the gateway's own unless it names one; connects to nothing yet."""
    client_id = f"{CLIENT_ID}-{settings.group.worker_id}"
    if spec.cluster is None:
        return KafkaInputs(_kafka_config(settings.log, client_id=client_id))
    servers, kafka = spec.cluster.bootstrap_servers, settings.log.kafka
    config = KafkaConfig(
        bootstrap_servers=servers,
        login=Login(spec.cluster.login_settings, bootstrap_servers=servers),
        request_timeout_s=kafka.request_timeout,
        client_rack=kafka.client_rack,
        client_id=client_id,
    )
    return KafkaInputs(config)


def divided(store: LogStore) -> tuple[KafkaStore, Callable[[str, int], Awaitable[bool]]]:
    """Return a log that can be divided, and what gives a topic more partitions. Raises ConfigurationError."""
    if not isinstance(store, KafkaStore):
        raise ConfigurationError("only a topic on Kafka can be divided: the embedded log stays as it began")
    return store, partial(add_partitions, store)


async def own_topic_ids(store: LogStore, settings: Settings) -> set[str]:
    """Return the ids of the gateway's own topics; none for the embedded log. Raises RetriableError."""
    if not isinstance(store, KafkaStore):
        return set()
    return {(await store.cluster.topic_id(topic.name)).hex() for topic in kafka_topics_of(settings)}


def _needs(store: KafkaStore, settings: Settings) -> tuple[list[TopicSpec], Demands]:
    """Return the required topics, and the demands on them."""
    demands = Demands(
        retention_ms=round(settings.index.retention * 1000),
        batch_bytes_max=settings.limits.batch_bytes_max,
        transaction_timeout_ms=round(store.config.transaction_timeout_s * 1000),
    )
    return kafka_topics_of(settings), demands


async def _inspect(store: KafkaStore, settings: Settings, partitions: int) -> Inspection:
    return await inspect_topics(store, *_needs(store, settings.with_partitions(partitions)))


def _native_batches(settings: Settings) -> tuple[NativeEncode, NativeDecode] | tuple[None, None]:
    """Return how the native module writes and reads record batches. Raises ConfigurationError."""
    module = native_module(settings.gateway.native)
    if module is None:
        return None, None
    encode, decode = module.encode_records, native_decoder(module)
    if not (is_encoding_proved(encode) and is_decoding_proved(decode)):
        raise ConfigurationError("the native module's record batches differ: set GATEWAY_NATIVE=off")
    return for_events_it_knows(encode), decode


def _kafka_config(settings: LogSettings, **more: Any) -> KafkaConfig:
    kafka = settings.kafka
    assert kafka.bootstrap_servers is not None
    return KafkaConfig(
        bootstrap_servers=kafka.bootstrap_servers,
        login=Login(kafka.login_settings, bootstrap_servers=kafka.bootstrap_servers),
        request_timeout_s=kafka.request_timeout,
        client_rack=kafka.client_rack,
        **more,
    )
