"""
The composition root: runs the gateway as its settings say, and is the only module that chooses
between implementations of the core's seams.
"""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from socket import socket
from typing import Any, NamedTuple

import structlog
from prometheus_client import CollectorRegistry

from app import chores
from app.admin import create_admin
from app.body_memory import Leased
from app.build import (
    build_admin_port,
    build_guards,
    build_ingest,
    build_port,
    build_problems,
    build_router,
    streams_of,
)
from app.clock_check import check_clock, keep_time
from app.data_dir import check_format, index_path, locked, refuse_lost_log, sqlite_path
from app.edge import create_edge
from app.edge_metrics import EdgeCollector
from app.event_reader import FOLLOW_POLL_S, Span, Write, read_events
from app.guards import Guards
from app.ingest_loop import IngestLoop
from app.key_file import KeyFile
from app.log_settings import LogSettings, variable_of
from app.metrics import RequestMetrics
from app.process import Server, ThreadServer, bind, stop_signals, supervise, url_of
from app.protocol import EdgeProtocol
from app.settings import Settings
from app.units import DAY
from dedupe.adapters import (
    Demands,
    KafkaConfig,
    KafkaStore,
    RocksStore,
    SqliteStore,
    TopicSpec,
    prepare_topics,
)
from dedupe.clock import Clock, SystemClock
from dedupe.errors import ConfigurationError, GatewayError, RetriableError
from dedupe.identity import Identity
from dedupe.index import IndexStore
from dedupe.log import Crashpoint, LogStore, no_crashpoint
from dedupe.pinning import adopt_fingerprint_rule, check_pins, renew_notes
from dedupe.router import Router

START_RETRY_S = 1.0

GC_THRESHOLDS = (100_000, 20, 20)
"""With Python's own (700, 10, 10) a fifth of the CPU goes into looking for cycles that are not there."""

SWITCH_INTERVAL_S = 0.0005
"""
How soon a thread that waits for the interpreter gets it. The embedded log commits in one, with several
such waits a commit: with Python's own 5 ms a busy loop made a commit of 2 ms take 15.
"""

log = structlog.get_logger(__name__)


class OpenLog(NamedTuple):
    """The log, ready to be written, and what is noted with it."""

    store: LogStore
    is_pinned: bool  # it is known to be of our secret and partition count
    earlier_ignore: Sequence[frozenset[str]]  # see Identifier


async def serve(settings: Settings, *, crashpoint: Crashpoint = no_crashpoint) -> None:
    """
    Run the gateway until SIGTERM or SIGINT.

    Args:
        settings: complete and free of contradictions.
        crashpoint: called after each commit step; tests end the process in it.

    Raises:
        ConfigurationError: it must not start like this.
        IdentityMismatchError: the log was written under another secret or partition count.
        RetriableError: the log was not reachable for GATEWAY_START_TIMEOUT.
    """
    if not __debug__:
        raise ConfigurationError("python -O removes the checks that protect the log: start without it")
    async with AsyncExitStack() as stack:
        stop = stack.enter_context(stop_signals())
        stack.enter_context(locked(settings.data_dir))
        for warning in settings.warnings():
            log.warning(warning)
        clock = SystemClock()
        indexes = RocksStore(
            index_path(settings.data_dir),
            lanes=settings.partitions + settings.quarantine_partitions,
            memory_bytes=settings.index_memory,
            keys_max=settings.index_keys_max // settings.partitions,
        )
        stack.callback(indexes.close)
        guards = build_guards(settings, clock, index_files=indexes.open_files_max)
        listeners = [
            stack.enter_context(bind(host, port, send_timeout_s=settings.send_timeout))
            for host, port in (
                (settings.host, settings.port),
                (settings.admin_host, settings.admin_port),
            )
        ]
        opened = await _open_log(settings, crashpoint, stop, clock)
        if opened is None:
            return
        stack.push_async_callback(opened.store.close)
        await _run(
            settings, opened, indexes, guards, listeners, clock=clock, stop=stop, crashpoint=crashpoint
        )


async def print_events(settings: LogSettings, span: Span, write: Write) -> None:
    """
    Write the clean stream's committed records as JSON lines; see app.event_reader.

    A log that does not exist yet is an empty one.
    """
    while True:
        async with open_for_reading(settings) as store:
            if store is not None:
                await read_events(store, settings.topic, span, write)
            if store is not None or not span.is_followed:
                return
        span = span._replace(is_from_start=True)
        await asyncio.sleep(FOLLOW_POLL_S)


@asynccontextmanager
async def open_for_reading(settings: LogSettings) -> AsyncIterator[LogStore | None]:
    """
    Open the log beside whoever writes to it; None if there is none yet.

    Raises:
        ConfigurationError: it is of a newer format, or not a log.
        RetriableError: no broker answers.
    """
    if settings.log == "sqlite" and not sqlite_path(settings.data_dir).exists():
        yield None
        return
    async with _open_beside(settings, read_only=True) as store:
        yield store


@asynccontextmanager
async def open_for_notes(settings: LogSettings) -> AsyncIterator[LogStore]:
    """
    Open the log beside whoever writes to it, to note something with it.

    Raises:
        ConfigurationError: there is none yet, it is of a newer format, or not a log.
        RetriableError: no broker answers.
    """
    if settings.log == "sqlite" and not sqlite_path(settings.data_dir).exists():
        raise ConfigurationError(f"there is no log in {settings.data_dir}")
    async with _open_beside(settings, read_only=False) as store:
        yield store


@asynccontextmanager
async def _open_beside(settings: LogSettings, *, read_only: bool) -> AsyncIterator[LogStore]:
    store: LogStore
    if settings.log == "sqlite":
        check_format(settings.data_dir)
        store = await SqliteStore.open(sqlite_path(settings.data_dir), read_only=read_only)
    else:
        store = await KafkaStore.open(_kafka_config(settings))
    try:
        yield store
    finally:
        await store.close()


async def _run(
    settings: Settings,
    opened: OpenLog,
    indexes: IndexStore,
    guards: Guards,
    listeners: Sequence[socket],
    *,
    clock: Clock,
    stop: asyncio.Event,
    crashpoint: Crashpoint,
) -> None:
    """Build everything on the open log, and run it until stopped."""
    identity = Identity(settings.identity_key)
    router = build_router(
        settings,
        opened.store,
        indexes,
        identity=identity,
        clock=clock,
        is_pinned=opened.is_pinned,
        crashpoint=crashpoint,
    )
    ingest = build_ingest(
        settings, router, identity=identity, guards=guards, clock=clock, earlier_ignore=opened.earlier_ignore
    )
    registry = CollectorRegistry()
    problems = build_problems(settings)
    metrics = RequestMetrics()
    registry.register(metrics)
    edge = create_edge(
        ingest,
        memory=guards.memory,
        problems=problems,
        metrics=metrics,
        quota_penalty_s=settings.quota_penalty,
        public_host=settings.public_host,
    )
    port = build_port(settings, guards, problems=problems, metrics=metrics)
    ingest_loop = IngestLoop()
    admin = create_admin(
        router,
        EdgeCollector(guards),
        settings=settings,
        problems=problems,
        registry=registry,
        ingest_loop=ingest_loop,
    )
    admin_port = build_admin_port(settings, problems=problems)
    keep_alive_s, stop_timeout_s = settings.keep_alive, settings.answer_timeout + 1
    servers = [
        (
            kind(
                app,
                http=partial(EdgeProtocol, port=shared),
                keep_alive_s=keep_alive_s,
                stop_timeout_s=stop_timeout_s,
            ),
            listener,
        )
        for kind, app, shared, listener in (
            (Server, edge, port, listeners[0]),
            (ThreadServer, Leased(admin, admin_port.memory), admin_port, listeners[1]),
        )
    ]
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        await supervise(
            router,
            servers,
            [ingest_loop.beat(), *_chores(settings, router, opened.store, guards, clock, listeners)],
            stop=stop,
            drain_timeout_s=settings.drain_timeout,
            linger_s=settings.drain_linger,
        )
    except ExceptionGroup as group:  # not `except*`: until Python 3.11.4 it groups what is raised in it
        known, unforeseen = group.split(GatewayError)
        if known is None or unforeseen is not None:
            raise
        raise known.exceptions[0] from None
    log.info("stopped")


def _chores(
    settings: Settings,
    router: Router,
    store: LogStore,
    guards: Guards,
    clock: Clock,
    listeners: Sequence[socket],
) -> list[Coroutine[Any, Any, None]]:
    url, admin_url = map(url_of, listeners)
    running = [
        chores.announce(router, settings, url=url, admin_url=admin_url),
        chores.tell_outages(router),
        chores.keep_notes(partial(renew_notes, store, streams_of(settings))),
        guards.disk.watch(router, interval_s=settings.disk_check_interval),
    ]
    if isinstance(store, SqliteStore):
        running.append(chores.trim_log(router, settings, clock, store.trim))
        running.append(keep_time(store, settings.topic, clock))
    if isinstance(guards.write_keys, KeyFile):
        running.append(guards.write_keys.watch(settings.write_keys_interval))
    return running


async def _open_log(
    settings: Settings, crashpoint: Crashpoint, stop: asyncio.Event, clock: Clock
) -> OpenLog | None:
    """Open the log with its topics, trying again for a while; None if told to stop meanwhile."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + settings.start_timeout
    while not stop.is_set():
        try:
            return await _try_to_open_log(settings, crashpoint, clock)
        except RetriableError as err:
            if loop.time() > give_up_at:
                raise
            log.warning("the log cannot be opened yet", error=str(err))
        await asyncio.sleep(START_RETRY_S)
    return None


async def _try_to_open_log(settings: Settings, crashpoint: Crashpoint, clock: Clock) -> OpenLog:
    """Connect to the log, compare its pins before anything is concluded from its topics, prepare these."""
    store: SqliteStore | KafkaStore
    if settings.log == "sqlite":
        refuse_lost_log(settings.data_dir)
        store = await SqliteStore.open(sqlite_path(settings.data_dir), crashpoint=crashpoint)
    else:
        store = await KafkaStore.open(_writing_config(settings), crashpoint=crashpoint)
    try:
        is_pinned = await check_pins(store, streams_of(settings), Identity(settings.identity_key))
        if isinstance(store, SqliteStore):
            for stream in streams_of(settings):
                await store.create_topic(*stream)
            await check_clock(store, settings, clock, newest_ms=await store.newest_timestamp_ms())
        else:
            await _prepare_topics(store, settings)
        earlier_ignore = await adopt_fingerprint_rule(
            store,
            settings.topic,
            settings.fingerprint_ignore,
            now_ms=clock.now_ms(),
            remembered_ms=round((settings.window + DAY) * 1000),
        )
    except BaseException:
        await store.close()
        raise
    return OpenLog(store, is_pinned, earlier_ignore)


async def _prepare_topics(store: KafkaStore, settings: Settings) -> None:
    names = ("partitions", "quarantine_partitions")
    specs = [
        TopicSpec(*stream, variable_of(name))
        for stream, name in zip(streams_of(settings), names, strict=True)
    ]
    demands = Demands(
        retention_ms=round(settings.retention * 1000),
        batch_bytes_max=settings.batch_bytes_max,
        transaction_timeout_ms=round(settings.kafka_transaction_timeout * 1000),
    )
    await prepare_topics(store, specs, demands, is_development=settings.is_development)


def _writing_config(settings: Settings) -> KafkaConfig:
    return _kafka_config(
        settings,
        transaction_timeout_s=settings.kafka_transaction_timeout,
        batch_bytes_max=settings.batch_bytes_max,
    )


def _kafka_config(settings: LogSettings, **more: Any) -> KafkaConfig:
    assert settings.kafka_bootstrap_servers is not None
    password = settings.kafka_sasl_password
    return KafkaConfig(
        bootstrap_servers=settings.kafka_bootstrap_servers,
        security_protocol=settings.kafka_security_protocol,
        sasl_mechanism=settings.kafka_sasl_mechanism,
        sasl_username=settings.kafka_sasl_username,
        sasl_password=password.get_secret_value() if password else None,
        ssl_ca_file=_text(settings.kafka_ssl_ca_file),
        ssl_cert_file=_text(settings.kafka_ssl_cert_file),
        ssl_key_file=_text(settings.kafka_ssl_key_file),
        request_timeout_s=settings.kafka_request_timeout,
        **more,
    )


def _text(path: object) -> str | None:
    return str(path) if path else None
