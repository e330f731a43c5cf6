"""The gateway's file of inputs (docs/inputs.md), as far as an audit needs it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import UsageError
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
        UsageError: there is none, or it is in a cluster that needs another login than the environment's.
    """
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
        fields: dict[str, Any] = next(each for each in document["inputs"] if each["name"] == name)
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError) as err:
        raise UsageError(f"{path} is no file of inputs: {err!r}") from err
    except StopIteration:
        raise UsageError(f"{path} has no input {name!r}") from None
    cluster = fields.get("cluster")
    if cluster is None and not isinstance(clean, KafkaSource):
        raise UsageError(f"input {name} has no cluster, and {clean} is on none")
    if cluster is not None and cluster.keys() != {"bootstrap_servers"}:
        raise UsageError(f"input {name} is in a cluster with a login of its own, which no job has")
    brokers = cluster["bootstrap_servers"] if cluster else clean.brokers  # type: ignore[attr-defined]
    return Input(
        name,
        KafkaSource(brokers, fields["topic"]),
        fields["source"],
        fields.get("source_header"),
        frozenset(fields.get("sources", ())),
        fields.get("id"),
        fields.get("format", "event"),
    )
