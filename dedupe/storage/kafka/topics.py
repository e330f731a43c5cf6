"""
Creates the gateway's topics, and checks topics and brokers at every start (rule R8).

Compaction, short retention or another partition count of a topic would break the promise silently and much
later; so production refuses to start on it, and development warns.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import structlog
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.protocol.admin import CreateTopicsRequest_v3, DescribeConfigsRequest_v2

from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.storage.kafka.log import KafkaStore
from dedupe.storage.kafka.producer import RENEW_S

REPLICATION_FACTOR_MIN = 3
TIMESTAMP_AFTER_MAX_MS = 3_600_000
"""A record further in the future, from a wrong clock, would move every window past its ids."""
TIMESTAMP_BEFORE_MAX_MS = 43_200_000
"""A record older than this, from a clock behind, could be deleted while it is inside the window, since
retention is the window and a day; and a leader forgets a producer by the time of its last record."""
OWNER_TRUSTED_MS = 2 * round(RENEW_S * 1000)
"""How long brokers must remember an owner, and the epochs it has fenced: twice its time between checks."""
PRODUCER_EXPIRATION_MIN_MS = TIMESTAMP_BEFORE_MAX_MS + OWNER_TRUSTED_MS
TIMESTAMP_BEFORE_CREATED_MS = 3_600_000
"""The value of topics that the gateway creates: it finds a clock that is an hour wrong."""
MESSAGE_BYTES_DEFAULT = 1024 * 1024
"""About Kafka's own default, so that a larger batch limit fits later."""
TOPIC_ALREADY_EXISTS, INVALID_CONFIG, NOT_CONTROLLER = 36, 40, 41
TOO_OLD = (
    ". Brokers before Kafka 3.6 do not know message.timestamp.before.max.ms and after.max.ms, and some "
    "services fix some settings: create the topic by hand, as docs/kafka.md says"
)
"""What follows the refusal of a setting."""
LEADER_POLL_S = 0.1
LISTENER = "listener.name."

logger = structlog.get_logger(__name__)

Rules: TypeAlias = Mapping[str, tuple[Callable[[str], bool], str]]
"""Per setting: the test of a value, and the demand that a bad one breaks."""


class TopicSpec(NamedTuple):
    """A topic that the gateway needs."""

    name: str
    partitions: int
    partitions_setting: str  # the variable that sets `partitions`


@dataclass(frozen=True, slots=True)
class Demands:
    """The demands of the gateway's settings on every topic and broker."""

    retention_ms: int  # at least; window + 1 day
    batch_bytes_max: int
    transaction_timeout_ms: int

    def topic_rules(self) -> Rules:
        """Return the rules for every topic."""
        return {
            "cleanup.policy": (
                lambda value: value == "delete",
                "must be delete: compaction would remove records that the index is rebuilt from",
            ),
            "retention.ms": (
                lambda value: int(value) == -1 or int(value) >= self.retention_ms,
                f"must be at least {self.retention_ms} (GATEWAY_RETENTION): deleted ids are forgotten",
            ),
            "retention.bytes": (
                lambda value: int(value) == -1,
                "must be -1: a size limit deletes records inside the window",
            ),
            "message.timestamp.type": (
                lambda value: value == "CreateTime",
                "must be CreateTime: the window is measured by the gateway's timestamps",
            ),
            "message.timestamp.after.max.ms": (
                lambda value: int(value) <= TIMESTAMP_AFTER_MAX_MS,
                f"must be at most {TIMESTAMP_AFTER_MAX_MS}: one wrong clock would end every window",
            ),
            "message.timestamp.before.max.ms": (
                lambda value: int(value) <= TIMESTAMP_BEFORE_MAX_MS,
                f"must be at most {TIMESTAMP_BEFORE_MAX_MS}: of a record with an old timestamp, retention "
                "deletes it at once, and leaders forget the fenced epochs",
            ),
            "max.message.bytes": (
                lambda value: int(value) >= self.batch_bytes_max,
                f"must be at least {self.batch_bytes_max} (it follows GATEWAY_EVENT_BYTES_MAX): "
                "the broker would refuse full batches",
            ),
            "unclean.leader.election.enable": (
                lambda value: value == "false",
                "must be false: an unclean election loses acknowledged events",
            ),
            "min.insync.replicas": (
                lambda value: int(value) >= 2,
                "must be at least 2: with 1, losing a single broker can lose acknowledged events",
            ),
        }

    def broker_rules(self) -> Rules:
        """Return the rules for every broker."""
        return {
            "producer.id.expiration.ms": (
                lambda value: int(value) >= PRODUCER_EXPIRATION_MIN_MS,
                f"must be at least {PRODUCER_EXPIRATION_MIN_MS}: a leader would forget a fenced epoch before "
                "the fenced gateway has to confirm its own",
            ),
            "transactional.id.expiration.ms": (
                lambda value: int(value) >= OWNER_TRUSTED_MS,
                f"must be at least {OWNER_TRUSTED_MS}: the coordinator would forget an owner before that has "
                "to confirm its epoch, and the next owner would not fence it",
            ),
            "connections.max.idle.ms": (
                lambda value: 0 < int(value) <= OWNER_TRUSTED_MS,
                f"must be between 1 and {OWNER_TRUSTED_MS}: a gateway that was frozen until the leader had "
                "forgotten its epoch could write once more over its old connection",
            ),
            "transaction.max.timeout.ms": (
                lambda value: int(value) >= self.transaction_timeout_ms,
                f"must be at least {self.transaction_timeout_ms}: the broker would refuse every takeover",
            ),
            "transaction.state.log.replication.factor": (
                lambda value: int(value) >= REPLICATION_FACTOR_MIN,
                f"must be at least {REPLICATION_FACTOR_MIN}: while the only broker that knows a "
                "partition's owner is down, no gateway can take it over",
            ),
            "transaction.state.log.min.isr": (
                lambda value: int(value) >= 2,
                "must be at least 2: with 1, losing a single broker can lose a partition's owner",
            ),
        }

    def configs(self, replication_factor: int) -> dict[str, str]:
        """Return the settings of new topics, which do not depend on the broker's defaults."""
        return {
            "cleanup.policy": "delete",
            "retention.ms": str(self.retention_ms),
            "retention.bytes": "-1",
            "message.timestamp.type": "CreateTime",
            "message.timestamp.after.max.ms": str(TIMESTAMP_AFTER_MAX_MS),
            "message.timestamp.before.max.ms": str(TIMESTAMP_BEFORE_CREATED_MS),
            "max.message.bytes": str(max(self.batch_bytes_max, MESSAGE_BYTES_DEFAULT)),
            "unclean.leader.election.enable": "false",
            "min.insync.replicas": str(min(2, replication_factor)),
        }


class Inspection(NamedTuple):
    """The problems, a sentence each."""

    wrong: list[str]
    """Final in every mode."""
    unsafe: list[str]
    """Refused in production, warned of in development."""


async def prepare_topics(
    store: KafkaStore, specs: Sequence[TopicSpec], demands: Demands, *, is_development: bool
) -> None:
    """
    Check all topics and brokers; in development create missing topics, and warn of unsafe settings.

    Raises:
        ConfigurationError: final; one line for each problem.
        RetriableError: the cluster did not answer.
    """
    if is_development:
        await create_topics(store, specs, demands, replication_factor=1)
    wrong, unsafe = await inspect_topics(store, specs, demands)
    if not is_development:
        wrong, unsafe = wrong + unsafe, []
    if wrong:
        raise ConfigurationError("\n".join(wrong))
    for problem in unsafe:
        logger.warning("unsafe for production", problem=problem)


async def create_topics(
    store: KafkaStore, specs: Sequence[TopicSpec], demands: Demands, *, replication_factor: int
) -> list[str]:
    """
    Create the missing topics, as safe as the replicas allow; existing ones stay as they are.

    Returns:
        Their names.

    Raises:
        ConfigurationError: the cluster refuses one.
        RetriableError: it did not answer, or some brokers do not know the topics yet.
    """
    created = []
    for spec in specs:
        if await store.partitions_of(spec.name):
            continue
        await _create(store, spec, demands, replication_factor)
        created.append(spec.name)
        if await store.partitions_of(spec.name) == 0:  # of another broker, whose metadata are older
            raise RetriableError(f"topic {spec.name} is not known to every broker yet")
    return created


async def inspect_topics(store: KafkaStore, specs: Sequence[TopicSpec], demands: Demands) -> Inspection:
    """Check topics and brokers; changes nothing. Raises RetriableError: the cluster did not answer."""
    wrong: list[str] = []
    unsafe: list[str] = []
    for spec in specs:
        partitions = await store.partitions_of(spec.name)
        if partitions != spec.partitions:
            wrong.append(_wrong_count(spec, partitions))
        if partitions:
            unsafe += await _topic_problems(store, spec, demands)
    unsafe += await _broker_problems(store, demands)
    return Inspection(wrong, unsafe)


def _wrong_count(spec: TopicSpec, partitions: int) -> str:
    if partitions == 0:
        return (
            f"topic {spec.name} does not exist: create it with {spec.partitions} partitions "
            f"and replication factor {REPLICATION_FACTOR_MIN}, or with `gateway topics create`"
        )
    return (
        f"topic {spec.name} has {partitions} partitions but {spec.partitions_setting} says "
        f"{spec.partitions}: the number decides where copies of an event meet, so it must not change once "
        "events are stored. A topic that was given more partitions since cannot be used: begin a new one"
    )


async def _create(store: KafkaStore, spec: TopicSpec, demands: Demands, replication_factor: int) -> None:
    controller = (await store.cluster.describe()).controller
    if controller is None:
        raise RetriableError("the cluster has no controller yet")
    configs = list(demands.configs(replication_factor).items())
    topics: list[Any] = [(spec.name, spec.partitions, replication_factor, [], configs)]
    timeout_ms = round(store.config.request_timeout_s * 1000)
    response = await store.cluster.send(controller, CreateTopicsRequest_v3(topics, timeout_ms, False))
    for _, code, message in response.topic_errors:
        if code == NOT_CONTROLLER:
            raise RetriableError(f"topic {spec.name} cannot be created: the controller has moved")
        if code not in (0, TOPIC_ALREADY_EXISTS):  # another gateway may be faster
            raise ConfigurationError(
                f"topic {spec.name} cannot be created: Kafka error {code} {message}"
                f"{TOO_OLD if code == INVALID_CONFIG else ''}"
            )
    logger.info("topic created", topic=spec.name, partitions=spec.partitions)
    await _wait_for_leaders(store, spec)


async def _wait_for_leaders(store: KafkaStore, spec: TopicSpec) -> None:
    """Wait until every partition of a new topic has a leader: a fence needs it."""
    try:
        async with asyncio.timeout(store.config.request_timeout_s):
            while True:
                (topic,) = (await store.cluster.describe(spec.name)).topics
                leaders = [partition["leader"] for partition in topic["partitions"]]
                if len(leaders) == spec.partitions and min(leaders) >= 0:
                    return
                await asyncio.sleep(LEADER_POLL_S)
    except TimeoutError as err:
        raise RetriableError(f"the partitions of topic {spec.name} have no leaders yet") from err


async def _topic_problems(store: KafkaStore, spec: TopicSpec, demands: Demands) -> list[str]:
    """Return one sentence for each rule that a topic breaks."""
    (topic,) = (await store.cluster.describe(spec.name)).topics
    if topic["error_code"] != 0:
        raise RetriableError(f"topic {spec.name} is not known to every broker yet")
    replication_factor = min(len(partition["replicas"]) for partition in topic["partitions"])
    request = _configs_request(ConfigResourceType.TOPIC, spec.name)
    configs = _configs_in(await store.cluster.send_to_any(request))
    problems = []
    if replication_factor < REPLICATION_FACTOR_MIN:
        problems.append(
            f"topic {spec.name}: replication factor is {replication_factor}, "
            f"must be at least {REPLICATION_FACTOR_MIN}"
        )
    return problems + _broken(f"topic {spec.name}", configs, demands.topic_rules())


async def _broker_problems(store: KafkaStore, demands: Demands) -> list[str]:
    """Return one sentence for each rule that a broker breaks."""
    problems = []
    for node_id, broker in (await store.cluster.describe()).brokers.items():
        request = _configs_request(ConfigResourceType.BROKER, str(node_id))
        configs = _configs_in(await store.cluster.send(broker, request))
        problems += _broken(f"broker {node_id}", configs, demands.broker_rules())
    return problems


def _configs_request(kind: ConfigResourceType, name: str) -> DescribeConfigsRequest_v2:
    return DescribeConfigsRequest_v2([(kind, name, None)], False)


def _configs_in(response: Any) -> dict[str, str | None]:
    """Return the effective settings of one topic or broker; none if the cluster hides them."""
    configs: dict[str, str | None] = {}
    for code, message, _, resource, entries in response.resources:
        if code != 0:
            raise ConfigurationError(f"settings of {resource} cannot be read: Kafka error {code} {message}")
        configs.update({setting: value for setting, value, *_ in entries})
    return configs


def _broken(whose: str, configs: Mapping[str, str | None], rules: Rules) -> list[str]:
    """
    Return one sentence for each rule that a setting breaks; a hidden setting breaks none.

    A rule holds for a listener's own value, too (`listener.name.NAME.SETTING`).
    """
    return [
        f"{whose}: {setting} is {value}, {demand}"
        for name, (is_good, demand) in rules.items()
        for setting, value in configs.items()
        if setting == name or (setting.startswith(LISTENER) and setting.endswith(f".{name}"))
        if value is not None and not is_good(value)
    ]
