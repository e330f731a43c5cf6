"""
Options of Kafka's clients in Spark, which `--kafka NAME=VALUE` sets, and those that no job lets go.

They reach the clients that read records. What a job asks before Spark starts, offsets and the topic's id,
follows GATEWAY_KAFKA_* alone, so whatever a login needs is set there.
"""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.errors import UsageError
from pipeline.sources.records import KafkaSource, Source

CONNECTOR_OPTIONS = frozenset(
    {
        "groupIdPrefix",
        "minPartitions",
        "maxRecordsPerPartition",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafkaConsumer.pollTimeoutMs",
    }
)
"""Of Spark's connector; other names are those of Kafka's consumer, which have a dot."""

_LEDGER = "the ledger of the output determines the offsets"
_BYTES = "the jobs take the bytes as they are in the topic"
_REFUSED = {
    "isolation.level": "the jobs read committed records only",
    "group.id": "each query has a group of its own: groupIdPrefix names how it begins",
    "group.instance.id": "each query has a group of its own",
    "enable.auto.commit": _LEDGER,
    "auto.offset.reset": _LEDGER,
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "interceptor.classes": _BYTES,
    "check.crcs": "a record that the network has changed must not pass",
    "bootstrap.servers": "--source names the brokers",
    "security.protocol": "set GATEWAY_KAFKA_SECURITY_PROTOCOL",
    "sasl.mechanism": "set GATEWAY_KAFKA_SASL_MECHANISM",
    "sasl.jaas.config": "set GATEWAY_KAFKA_SASL_* and GATEWAY_KAFKA_OAUTH_*",
}
_REFUSED_PREFIXES = {
    "ssl.truststore.": "set GATEWAY_KAFKA_SSL_CA_FILE",
    "ssl.keystore.": "set GATEWAY_KAFKA_SSL_CERT_FILE and GATEWAY_KAFKA_SSL_KEY_FILE",
    "ssl.key.": "set GATEWAY_KAFKA_SSL_KEY_PASSWORD_FILE",
}


def client_option(text: str) -> tuple[str, str]:
    """
    Return NAME=VALUE as an option of Spark's source.

    Raises:
        UsageError: it is none, or one that would break the promise or contradict the login.
    """
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(f"{text!r} is not NAME=VALUE")
    name = name.removeprefix("kafka.")
    if name in CONNECTOR_OPTIONS:
        return name, value
    reasons = (why for prefix, why in _REFUSED_PREFIXES.items() if name.startswith(prefix))
    if why := _REFUSED.get(name) or next(reasons, None):
        raise UsageError(f"--kafka {name} is refused: {why}")
    if "." not in name:
        known = ", ".join(sorted(CONNECTOR_OPTIONS))
        raise UsageError(f"--kafka {name} is no option of Kafka's consumer, nor one of {known}")
    return f"kafka.{name}", value


def with_options(source: Source, options: Sequence[tuple[str, str]] | None) -> Source:
    """
    Return a source whose clients have these options, from `client_option`.

    Raises:
        UsageError: there are options, and it is no topic of Kafka.
    """
    if not options:
        return source
    if not isinstance(source, KafkaSource):
        raise UsageError(f"--kafka is for kafka://, and this is {source}")
    return replace(source, client_options=tuple(options))
