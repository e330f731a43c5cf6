"""Builds the gateway's parts from its settings, for any log and index."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from app.admin.answers import ADMIN_PROBLEMS, problem_document
from app.admin.replay import ReplayAt
from app.auth.ingress_limits import IngressLimits
from app.auth.key_file import KeyFile
from app.auth.key_memory import KeyMemory
from app.auth.quotas import PRODUCTION_QUOTA, Quota, QuotaPolicy
from app.auth.write_keys import OpenKeys
from app.http.body import BodyLimits
from app.http.body_memory import BodyMemory
from app.http.client_address import TrustedProxies
from app.http.connections import Connections
from app.http.penalties import Penalties
from app.http.port import HEAD_BYTES_MAX, ConnectionLimits, Port
from app.http.problems import RETRY_AFTER_MAX_S, Problems
from app.http.refusal_counts import RefusalCounts
from app.http.refusal_log import RefusalLog
from app.http.request_metrics import RequestMetrics
from app.ingest.application import create_refusal
from app.ingest.decision_observer import DecisionObserver
from app.ingest.duplicate_samples import DuplicateSamples
from app.ingest.event_limits import EVENT_DEPTH_MAX, EventLimits
from app.ingest.identify import Identifier
from app.ingest.native import NativeModule
from app.ingest.observed import Observed
from app.ingest.replay import Changes, replay_by
from app.ingest.routes.events import Ingest
from app.ingest.routes.paths import PATH_WORDS
from app.ingest.side_topic import SideTopic
from app.ingest.whole_search import WholeSearch
from app.inputs.input_file import InputSpec
from app.inputs.inputs import Clusters, Inputs
from app.inputs.memory import InputMemory
from app.native_module import native_module
from app.process.disk import Disk
from app.process.life import allow_connections
from app.process.open_files import OpenFiles
from app.settings.index_bounds import index_bounds
from app.settings.limits import QUEUE_EVENTS_MAX
from app.settings.model import Settings
from app.settings.units import KIB, format_size
from dedupe.cluster.input_shares import InputShares
from dedupe.decide.layout import Layout
from dedupe.decide.sessions import SessionPolicy
from dedupe.decide.window import WindowPolicy
from dedupe.model.clock import Clock
from dedupe.model.identity import Identity
from dedupe.model.quarantine import Quarantine
from dedupe.model.types import Topic
from dedupe.partition.context import LaneContext, LaneTimes
from dedupe.partition.lane import Lane
from dedupe.partition.queue import QueueLimits
from dedupe.router import Router
from dedupe.storage.dividing import Division
from dedupe.storage.index import IndexStore
from dedupe.storage.inheriting_log import inheriting
from dedupe.storage.input_log import InputLog
from dedupe.storage.log import Crashpoint, LogStore
from dedupe.storage.pinning import SessionNotes, load_skips
from dedupe.storage.quarantine_reader import Place

ADMIN_CONNECTIONS_MAX = 64
"""Enough for an orchestrator, collectors and some operators."""

ADMIN_HEAD_BYTES_MAX, ADMIN_BODY_BYTES = 16 * KIB, 64 * KIB
ADMIN_BODY_TIMEOUT_S = 10.0
"""As for a head, since the body is small."""


class Alarms(NamedTuple):
    """What lanes call, see LaneContext."""

    log_time_refused: Callable[[], None] = lambda: None
    settings_doubted: Callable[[], None] = lambda: None


NO_ALARMS = Alarms()


def build_router(
    settings: Settings,
    store: LogStore,
    indexes: IndexStore,
    *,
    identity: Identity,
    clock: Clock,
    division: Division | None = None,
    alarms: Alarms = NO_ALARMS,
    crashpoint: Crashpoint | None = None,
) -> Router:
    """
    Return the router over all lanes of both topics; no lane runs yet.

    Args:
        settings: with the partitions that the clean topic has now.
        store: the log.
        indexes: those of the lanes.
        identity: computes keys.
        clock: log time.
        division: how the clean topic is divided; None: as it began.
        alarms: what lanes call.
        crashpoint: called at the steps of a commit.
    """
    clean, quarantine = settings.log.topics
    restore_slots, open_turn = asyncio.Semaphore(settings.advanced.restore_concurrency), asyncio.Lock()
    follow_slots = asyncio.Semaphore(settings.advanced.restore_concurrency)
    division = division or Division(Layout(clean.partitions))
    window_policy, session_policy = index_policies(settings, division.layout, clock.now_ms())

    def lanes_of(topic: Topic, division: Division) -> list[Lane]:
        layout, is_decided = division.layout, division.seal is not None
        context = LaneContext(
            topic=topic.name,
            partitions=layout.base,
            layout=layout,
            check_fence=division.check if is_decided else None,
            log_id=store.log_id,
            identity=identity,
            clock=clock,
            store=indexes,
            window_policy=window_policy,
            session_policy=session_policy,
            restore_slots=restore_slots,
            follow_slots=follow_slots,
            open_turn=open_turn,
            session_notes=SessionNotes(store, topic.name),
            load_skips=partial(load_skips, store, topic.name),
            on_log_time_refused=alarms.log_time_refused,
            on_settings_doubted=alarms.settings_doubted,
            limits=_queue_limits(settings),
            times=LaneTimes(fencings_max=1 if settings.group.peer_listen is None else 0),
            crashpoint=crashpoint,
        )
        log_of = partial(store.deciding_log if is_decided else store.partition_log, topic.name)
        return [
            Lane(number, inheriting(log_of(number), layout.lineage_of(number), log_of), context)
            for number in range(topic.partitions)
        ]

    return Router(
        lanes_of(clean, division),
        lanes_of(quarantine, Division(Layout(quarantine.partitions))),
        Quarantine(identity, quarantine, settings.limits.quarantine_bytes_max),
        division.layout,
    )


def index_policies(settings: Settings, layout: Layout, now_ms: int) -> tuple[WindowPolicy, SessionPolicy]:
    """Return what the index of a lane remembers."""
    keys_max, sessions_max = index_bounds(settings, layout, now_ms)
    return (
        WindowPolicy(window_ms=round(settings.index.window * 1000), keys_max=keys_max),
        SessionPolicy(lease_ms=round(settings.index.session_lease * 1000), sessions_max=sessions_max),
    )


def build_ingest(
    settings: Settings,
    router: Router,
    *,
    identity: Identity,
    ingress: IngressLimits,
    clock: Clock,
    earlier_ignore: Sequence[frozenset[str]],
    observer: DecisionObserver | None = None,
    penalty_s: float = 0.0,
) -> Ingest:
    """Return the collaborators and limits of the ingest port's paths."""
    limits = EventLimits(
        event_bytes_max=settings.limits.event_bytes_max,
        event_depth_max=EVENT_DEPTH_MAX,
        request_bytes_max=settings.limits.request_bytes_max,
    )
    identifier = Identifier(
        identity,
        router.layout.base,
        router.quarantine,
        limits,
        fingerprint_ignore=frozenset(settings.gateway.fingerprint_ignore),
        earlier_ignore=earlier_ignore,
    )
    identifier.partition_map = router.layout.map
    if (module := native_module(settings.gateway.native)) is not None:
        identifier.native = NativeModule(
            module, identity, router.layout.map, limits, gives_advice=settings.gateway.is_development
        )
    return Ingest(
        router=router,
        identifier=identifier,
        write_keys=ingress.write_keys,
        clock=clock,
        body_limits=BodyLimits(
            bytes_max=settings.limits.body_bytes_max,
            compressed_bytes_max=settings.limits.body_compressed_bytes_max,
        ),
        request_events_max=settings.limits.request_events_max,
        answer_timeout_s=settings.limits.answer_timeout,
        sets_context_ip=settings.gateway.context_ip,
        gives_advice=settings.gateway.is_development,
        observer=observer,
        penalties=Penalties(penalty_s),
    )


def with_side_topics(ingest: Ingest, settings: Settings, store: LogStore, clock: Clock) -> Ingest:
    """Return collaborators that note decided events, or samples of duplicates, in topics of their own."""
    if settings.gateway.observe:
        name = settings.log.observed_topic.name
        ingest = replace(ingest, observed=Observed(SideTopic(name, store.appender(name)), clock))
    if per_minute := settings.gateway.duplicate_samples:
        name = settings.log.duplicates_topic.name
        topic = SideTopic(name, store.appender(name))
        ingest = replace(ingest, samples=DuplicateSamples(topic, clock, per_minute=per_minute))
    return ingest


def build_inputs(
    settings: Settings,
    ingest: Ingest,
    specs: Sequence[InputSpec],
    store: LogStore,
    open_log: Callable[[InputSpec], InputLog],
    own_ids: Callable[[LogStore, Settings], Awaitable[Collection[str]]],
    shares: InputShares,
) -> Inputs:
    """Return what reads the inputs; arguments as of Inputs and Clusters."""
    return Inputs(
        specs,
        Clusters(open_log, partial(own_ids, store, settings)),
        ingest,
        store=store,
        topic=settings.log.topic,
        window_s=settings.index.window,
        shares=shares,
        memory=InputMemory(),
    )


def build_replays(ingest: Ingest, store: LogStore, topic: Topic) -> ReplayAt:
    """Return the function that replays a record of the quarantine topic in this process."""
    replay = replay_by(ingest)
    search = WholeSearch(ingest.router, ingest.identifier.identity, store, topic, ingest.clock)

    async def replay_at(place: Place, may_renew_id: bool, to_source: str | None) -> dict[str, Any] | None:
        async with search.slots:
            whole = await search.at(place)
            if whole is None:
                return None
            return (await replay(whole, Changes(may_renew_id, to_source))).document(whole.kept)

    return replay_at


def build_ingress_limits(settings: Settings, clock: Clock, *, index_files: int) -> IngressLimits:
    """
    Return the limits of the ingest port.

    Args:
        settings: the gateway's settings.
        clock: the clock of quotas.
        index_files: see allow_connections.

    Raises:
        ConfigurationError: the key file cannot be used.
    """
    quotas = QuotaPolicy(
        Quota() if settings.gateway.is_development else PRODUCTION_QUOTA,
        index_keys_max=settings.index.keys_max,
        window_s=settings.index.window,
        clock=clock.monotonic,
    )
    key_file = settings.gateway.write_keys_file
    return IngressLimits(
        write_keys=OpenKeys(quotas) if key_file is None else _key_file_of(settings, key_file, quotas, clock),
        quotas=quotas,
        memory=BodyMemory(settings.limits.body_memory),
        connections=Connections(
            connections_max=allow_connections(settings.limits.connections_max, index_files=index_files)
        ),
        disk=Disk(settings.log.data_dir, free_min_bytes=settings.limits.disk_free_min),
        files=OpenFiles(clock.monotonic),
    )


def _key_file_of(settings: Settings, path: Path, quotas: QuotaPolicy, clock: Clock) -> KeyFile:
    memory = KeyMemory(settings.log.data_dir, grace_s=settings.gateway.write_keys_grace)
    return KeyFile(path, quotas, memory, clock)


def build_problems(settings: Settings, counts: RefusalCounts | None = None) -> Problems:
    """Return the answers of errors on the ingest port; `counts` counts them."""
    body, compressed = map(
        format_size, (settings.limits.body_bytes_max, settings.limits.body_compressed_bytes_max)
    )
    figures = {
        "head_too_large": f"at most {format_size(HEAD_BYTES_MAX)}",
        "body_too_large": f"at most {body}, and {compressed} if compressed",
    }
    return Problems(
        retry_after_max=RETRY_AFTER_MAX_S,
        rng=random.Random(),
        figures=figures,
        refusals=RefusalLog(PATH_WORDS, counts=counts),
    )


def build_admin_problems() -> Problems:
    """Return the same for the admin port."""
    return Problems(
        retry_after_max=RETRY_AFTER_MAX_S,
        rng=random.Random(),
        figures={"head_too_large": f"at most {format_size(ADMIN_HEAD_BYTES_MAX)}"},
        table=ADMIN_PROBLEMS,
        form=problem_document,
    )


def build_port(
    settings: Settings, ingress: IngressLimits, *, problems: Problems, metrics: RequestMetrics
) -> Port:
    """Return what the connections of the ingest port share."""
    return Port(
        limits=ConnectionLimits(),
        connections=ingress.connections,
        memory=ingress.memory,
        proxies=TrustedProxies(settings.gateway.trusted_proxies),
        problems=problems,
        metrics=metrics,
        refuse=create_refusal(memory=ingress.memory, problems=problems, metrics=metrics),
    )


def build_admin_port(*, problems: Problems) -> Port:
    """Return what the connections of the admin port share: limits of its own, and small ones."""
    memory, metrics = BodyMemory(ADMIN_BODY_BYTES), RequestMetrics()
    return Port(
        limits=ConnectionLimits(head_bytes_max=ADMIN_HEAD_BYTES_MAX, rest_timeout_s=ADMIN_BODY_TIMEOUT_S),
        connections=Connections(connections_max=ADMIN_CONNECTIONS_MAX, refused_max=ADMIN_CONNECTIONS_MAX),
        memory=memory,
        proxies=TrustedProxies(()),
        problems=problems,
        metrics=metrics,
        refuse=create_refusal(memory=memory, problems=problems, metrics=metrics),
    )


def _queue_limits(settings: Settings) -> QueueLimits:
    return QueueLimits(
        queue_events_max=QUEUE_EVENTS_MAX,
        queue_bytes_max=settings.limits.queue_bytes_max,
        batch_bytes_max=settings.limits.batch_bytes_max,
    )
