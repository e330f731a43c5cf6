"""The file of inputs, `GATEWAY_INPUTS_FILE`: which topics are read, for whom, and by which rule of ids."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, ValidationError

from app.settings.model import Settings
from dedupe.login.settings import LoginSettings, Mechanism, SecurityProtocol
from dedupe.model.errors import ConfigurationError
from dedupe.model.record import FORMAT_HEADERS
from dedupe.storage.routing_records import routing_topic_of

TopicName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")]

SourceName = Annotated[str, StringConstraints(min_length=1, max_length=100)]

_STRICT = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True, frozen=True)


_ID_NEEDED = "it needs id: key, place, {field: NAME} or {header: NAME}"
_ID_FIXED = "CloudEvents have their ids by source and id, so there is no id to set"


class FieldId(BaseModel):
    """The id is a top-level field of the event."""

    model_config = _STRICT
    field: Annotated[str, StringConstraints(min_length=1)]


class HeaderId(BaseModel):
    """The id is a header of the record."""

    model_config = _STRICT
    header: Annotated[str, StringConstraints(min_length=1)]


IdRule = FieldId | HeaderId | Literal["key", "place"]

CLOUDEVENTS = "cloudevents"
"""The format whose events have their ids by their own standard."""


class InputCluster(BaseModel):
    """How another cluster than the gateway's own is reached; names as of `GATEWAY_KAFKA_*`."""

    model_config = _STRICT | ConfigDict(strict=False)
    bootstrap_servers: Annotated[str, StringConstraints(min_length=1)]
    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl_mechanism: Mechanism = "PLAIN"
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    sasl_password_file: Path | None = None
    oauth_token_url: str | None = None
    oauth_scope: str | None = None
    oauth_extensions: str = ""
    oauth_ca_file: Path | None = None
    ssl_ca_file: Path | None = None
    ssl_cert_file: Path | None = None
    ssl_key_file: Path | None = None
    ssl_key_password_file: Path | None = None

    @property
    def login_settings(self) -> LoginSettings:
        """How to log in."""
        return LoginSettings.of(self, prefix="")


class InputSpec(BaseModel):
    """One input: a topic."""

    model_config = _STRICT
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,40}$")]
    """Part of the name of its consumer group: with another one, the topic is read anew."""
    topic: TopicName
    source: SourceName
    source_header: Annotated[str, StringConstraints(min_length=1)] | None = None
    """The header by which a record names one of `sources`; None: all are of `source`."""
    sources: list[SourceName] = []
    id: IdRule | None = None
    """None for CloudEvents alone."""
    format: Literal["event", "batch", "ndjson", "cloudevents"] = "event"
    events_per_s: Annotated[float, Field(gt=0)] | None = None
    """Of all partitions together, each has an equal part of it; None: no limit."""
    origin: bool = True
    """Whether records say where their event comes from."""
    keep_headers: list[Annotated[str, StringConstraints(min_length=1, max_length=249)]] = []
    """Headers that records keep."""
    start: Literal["earliest", "latest"] | None = None
    """Where partitions begin for which nothing is committed; None: such an input stops."""
    reads_past_window: bool = False
    """Whether records older than the window are read where they may have been read before."""
    cluster: InputCluster | None = None

    @property
    def has_several(self) -> bool:
        """Whether a record may have several events."""
        return self.format in {"batch", "ndjson"}


class _File(BaseModel):
    model_config = _STRICT
    inputs: Annotated[list[InputSpec], Field(min_length=1)]


def inputs_of(settings: Settings) -> Sequence[InputSpec]:
    """Return the inputs, none without a file of them. Raises as read_inputs_file."""
    path = settings.gateway.inputs_file
    if path is None:
        return ()
    log = settings.log
    own_topics = {topic.name for topic in (*log.topics, log.observed_topic, log.duplicates_topic)}
    own_topics.add(routing_topic_of(log.topic))
    return read_inputs_file(path, own_topics, has_kafka=settings.log.kind == "kafka")


def read_inputs_file(path: Path, own_topics: Collection[str], *, has_kafka: bool) -> Sequence[InputSpec]:
    """
    Read the file, YAML or JSON: an object with the list `inputs`.

    Args:
        path: the file.
        own_topics: the topics that this gateway writes.
        has_kafka: whether it writes them to Kafka.

    Raises:
        ConfigurationError: one sentence on the first error and its place.
    """
    try:
        document: Any = yaml.safe_load(path.read_text("utf-8"))
    except OSError as err:
        raise ConfigurationError(f"inputs file {path} cannot be read: {err.strerror}") from err
    except (ValueError, yaml.YAMLError) as err:
        raise ConfigurationError(f"inputs file {path} is not valid YAML or JSON") from err
    try:
        inputs = _File.model_validate(document).inputs
    except ValidationError as err:
        raise ConfigurationError(f"inputs file {path}: {_described(err, document)}") from None
    for problem in _problems(inputs, own_topics, has_kafka=has_kafka):
        raise ConfigurationError(f"inputs file {path}: {problem}")
    return inputs


def _described(err: ValidationError, document: object) -> str:
    """Return the first error as a sentence; it names no value, which may be a password."""
    if not isinstance(document, dict) or not isinstance(document.get("inputs"), list):
        return "it must be an object with the list inputs"
    first = err.errors(include_url=False, include_context=False, include_input=False)[0]
    place = [str(part) for part in first["loc"]]
    if len(place) > 2 and place[2] == "id":
        return f"input {int(place[1]) + 1}: id must be key, place, {{field: NAME}} or {{header: NAME}}"
    if len(place) > 1 and place[1].isdigit():
        name = ".".join(place[2:])
        return f"input {int(place[1]) + 1}: {name + ': ' if name else ''}{first['msg']}"
    return f"{'.'.join(place)}: {first['msg']}"


def _problems(inputs: Sequence[InputSpec], own_topics: Collection[str], *, has_kafka: bool) -> Iterator[str]:
    names = set[str]()
    for each in inputs:
        if each.name in names:
            yield f"two inputs have the name {each.name}"
        names.add(each.name)
        if each.topic.startswith("__"):
            yield f"input {each.name}: {each.topic} is a topic of Kafka itself"
        if each.cluster is None and not has_kafka:
            yield f"input {each.name}: the log is embedded, so it needs a cluster"
        if each.cluster is None and each.topic in own_topics:
            yield (
                f"input {each.name}: {each.topic} is a topic that this gateway writes: "
                "it would read its own events"
            )
        yield from _event_problems(each)
        if each.cluster is not None:
            for sentence in each.cluster.login_settings.contradictions():
                yield f"input {each.name}: {sentence}"


def _event_problems(each: InputSpec) -> Iterator[str]:
    """Yield what is wrong with what an input's events are."""
    if (each.format == CLOUDEVENTS) is not (each.id is None):
        yield f"input {each.name}: {_ID_NEEDED if each.id is None else _ID_FIXED}"
    if each.has_several and each.id != "place" and not isinstance(each.id, FieldId):
        yield (
            f"input {each.name}: a record of format {each.format} may have several events, which cannot "
            "share its key or header as their id: use a field, or place"
        )
    if (each.source_header is None) is not (not each.sources):
        yield f"input {each.name}: source_header and sources belong together"
    if each.source_header is not None and each.format == CLOUDEVENTS:
        yield f"input {each.name}: CloudEvents name their source themselves: leave out source_header"
    for header in FORMAT_HEADERS.intersection(each.keep_headers):
        yield f"input {each.name}: header {header} cannot be kept: it has a meaning in the gateway's records"
