"""The gateway's file of inputs (docs/inputs.md), as far as an audit needs it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pipeline.errors import UsageError
from pipeline.sources.kafka import KafkaLogin
from pipeline.sources.records import KafkaSource, Source

CLOUDEVENTS = "cloudevents"


@dataclass(frozen=True)
class Input:
    """A topic whose records are events, and the rules by which they are."""

    name: str
    topic: KafkaSource
    source: str
    """The sender of its events, unless their record names one of `sources`."""
    source_header: str | None
    sources: frozenset[str]
    id: str | Mapping[str, str] | None
    """key, place, {field: NAME} or {header: NAME}; None for CloudEvents."""
    format: str


def read_input(path: Path, name: str, clean: Source) -> Input:
    """
    Return the input of this name.

    Args:
        path: the file.
        name: of the input.
        clean: the topic that its events are stored in, whose brokers are meant where the input names none.

    Raises:
        UsageError: there is none, or the login of its cluster is incomplete.
    """
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
        fields: dict[str, Any] = next(each for each in document["inputs"] if each["name"] == name)
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError) as err:
        raise UsageError(f"{path} is no file of inputs: {err!r}") from err
    except StopIteration:
        raise UsageError(f"{path} has no input {name!r}") from None
    return Input(
        name,
        _topic_of(name, fields["topic"], clean, fields.get("cluster")),
        fields["source"],
        fields.get("source_header"),
        frozenset(fields.get("sources", ())),
        fields.get("id"),
        fields.get("format", "event"),
    )


def _topic_of(name: str, topic: str, clean: Source, cluster: Mapping[str, Any] | None) -> KafkaSource:
    """Return the topic of an input, with its login if that is in a cluster of its own."""
    if cluster is None:
        if not isinstance(clean, KafkaSource):
            raise UsageError(f"input {name} has no cluster, and {clean} is on none")
        return KafkaSource(clean.brokers, topic, clean.login)
    try:
        login = KafkaLogin.model_validate(
            {key: cluster[key] for key in cluster if key != "bootstrap_servers"}
        )
    except ValidationError as err:
        first = err.errors(include_url=False, include_context=False, include_input=False)[0]
        raise UsageError(f"input {name}: cluster: {first['loc'][0]}: {first['msg']}") from None
    for sentence in login.login_settings.contradictions():
        raise UsageError(f"input {name}: {sentence}")
    return KafkaSource(cluster["bootstrap_servers"], topic, login)
