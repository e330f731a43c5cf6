"""
The demands on topics and brokers: what each setting must be, and why. Pure.

Compaction, short retention or a broker that forgets early would break the promise silently and much later.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dedupe.storage.kafka.group import GroupTimes
from dedupe.storage.kafka.producer import RENEW_S
from dedupe.storage.setting_problems import Level, Problem

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
TRANSACTIONS, OFFSETS = "__transaction_state", "__consumer_offsets"
"""Kafka's own topics of the partitions' owners, and of notes."""
LISTENER = "listener.name."
SESSION_MS = round(GroupTimes().session_s * 1000)
REQUEST_BYTES_MORE = 64 * 1024
"""The limit of what a Produce request has besides its batch."""
REMOTE_WAIT = "remote.fetch.max.wait.ms"
"""A setting of brokers from Kafka 3.8 on; earlier ones wait for tiered records only as long as a request."""

Rules: TypeAlias = Mapping[str, tuple[Callable[[str], bool], str]]
"""Per setting: the test of a value, and the demand that a bad one breaks."""

KEPT_RULES = (
    "cleanup.policy",
    "retention.bytes",
    "unclean.leader.election.enable",
    "min.insync.replicas",
)
"""The rules for events that a topic with few records, all of which count for ever, must follow, too."""
KEPT_RETENTION = (lambda value: int(value) == -1, "must be -1: its records say how events are routed")


@dataclass(frozen=True, slots=True)
class Demands:
    """The demands of the gateway's settings on every topic and broker."""

    retention_ms: int  # at least; window + 1 day
    batch_bytes_max: int
    transaction_timeout_ms: int

    def topic_rules(self, *, keeps_all: bool = False) -> Rules:
        """Return the rules for a topic of events, or for one that must keep all its records."""
        rules = self._event_rules()
        if not keeps_all:
            return rules
        return {**{name: rules[name] for name in KEPT_RULES}, "retention.ms": KEPT_RETENTION}

    def _event_rules(self) -> Rules:
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
            "segment.bytes": (
                lambda value: int(value) >= self.batch_bytes_max,
                f"must be at least {self.batch_bytes_max}: the broker would refuse full batches",
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
            "socket.request.max.bytes": (
                lambda value: int(value) >= self.batch_bytes_max + REQUEST_BYTES_MORE,
                f"must be at least {self.batch_bytes_max + REQUEST_BYTES_MORE}: the broker would close the "
                "connection at a full batch, without a word",
            ),
            "group.min.session.timeout.ms": (
                lambda value: int(value) <= SESSION_MS,
                f"must be at most {SESSION_MS}: the broker would refuse every worker of a group",
            ),
            "group.max.session.timeout.ms": (
                lambda value: int(value) >= SESSION_MS,
                f"must be at least {SESSION_MS}: the broker would refuse every worker of a group",
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

    def configs(self, replication_factor: int, *, keeps_all: bool = False) -> dict[str, str]:
        """Return the settings of new topics, which do not depend on the broker's defaults."""
        return {
            "cleanup.policy": "delete",
            "retention.ms": "-1" if keeps_all else str(self.retention_ms),
            "retention.bytes": "-1",
            "message.timestamp.type": "CreateTime",
            "message.timestamp.after.max.ms": str(TIMESTAMP_AFTER_MAX_MS),
            "message.timestamp.before.max.ms": str(TIMESTAMP_BEFORE_CREATED_MS),
            "max.message.bytes": str(max(self.batch_bytes_max, MESSAGE_BYTES_DEFAULT)),
            "unclean.leader.election.enable": "false",
            "min.insync.replicas": str(min(2, replication_factor)),
        }


def transaction_rules() -> Rules:
    """Return the rules for the topic of the partitions' owners, which Kafka creates."""
    return {
        "unclean.leader.election.enable": (
            lambda value: value == "false",
            "must be false: an unclean election loses who may write a partition",
        ),
        "min.insync.replicas": (
            lambda value: int(value) >= 2,
            "must be at least 2: with 1, losing a single broker can lose a partition's owner",
        ),
    }


def problems_of(whose: str, topic: str, configs: Mapping[str, str | None], rules: Rules) -> list[Problem]:
    """
    Return a problem for each rule that a setting breaks, and one for all that the cluster does not show.

    A rule holds for a listener's own value, too (`listener.name.NAME.SETTING`).
    """
    problems = [
        Problem(Level.UNSAFE, topic, name, f"{whose}: {setting} is {value}, {demand}")
        for name, (is_good, demand) in rules.items()
        for setting, value in configs.items()
        if setting == name or (setting.startswith(LISTENER) and setting.endswith(f".{name}"))
        if value is not None and not is_good(value)
    ]
    hidden = [name for name in rules if configs.get(name) is None]
    if hidden:
        names = ", ".join(hidden)
        text = f"{whose}: the cluster does not show {names}: ask who runs it (docs/operations.md)"
        problems.append(Problem(Level.NOT_SHOWN, topic, names, text))
    return problems


def notes_on_broker(whose: str, configs: Mapping[str, str | None]) -> list[Problem]:
    """Return what is no problem, and worth to know."""
    return [
        Problem(
            Level.INFO,
            "",
            "connections.max.reauth.ms",
            f"{whose}: {setting} is {value}: the gateway logs in again before a login ends",
        )
        for setting, value in configs.items()
        if setting.endswith("connections.max.reauth.ms") and value not in (None, "0")
    ]


def tiered_problem(topic: str, configs: Mapping[str, str | None], *, brokers_wait: bool) -> list[Problem]:
    """Return the problem of a tiered topic on brokers of which a long read is cut off."""
    if configs.get("remote.storage.enable") != "true" or brokers_wait:
        return []
    text = (
        f"topic {topic}: remote.storage.enable is true on brokers without {REMOTE_WAIT} (before Kafka 3.8), "
        "which give up a slow read of tiered records: a rebuild may not get ahead"
    )
    return [Problem(Level.WARNING, topic, "remote.storage.enable", text)]
