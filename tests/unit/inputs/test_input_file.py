"""The file of inputs is read strictly; each mistake has a sentence."""

import json
from pathlib import Path

import pytest

from app.inputs.input_file import FieldId, inputs_of, read_inputs_file
from dedupe.model.errors import ConfigurationError
from tests.support.settings import make_settings

GOOD = {"name": "raw", "topic": "raw", "source": "web", "id": {"field": "messageId"}}
OWN = {"events", "events.quarantine"}


def read(folder: Path, *inputs: object, has_kafka: bool = True) -> object:
    path = folder / "inputs.yaml"
    path.write_text(json.dumps({"inputs": inputs}))
    return read_inputs_file(path, OWN, has_kafka=has_kafka)


def test_inputs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "inputs.yaml"
    path.write_text(
        "inputs:\n- name: raw\n  topic: raw\n  source: web\n  id: {field: eventId}\n"
        "- name: other\n  topic: events\n  source: web\n  id: place\n  format: ndjson\n"
        "  cluster: {bootstrap_servers: 'b:9092', ssl_ca_file: /ca.pem}\n"
    )
    first, second = read_inputs_file(path, OWN, has_kafka=True)
    assert first.id == FieldId(field="eventId")
    assert second.cluster is not None
    assert second.cluster.login_settings.ssl_ca_file == Path("/ca.pem")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"topic": "events"}, "input raw: events is a topic that this gateway writes"),
        ({"topic": "events.quarantine"}, "is a topic that this gateway writes"),
        ({"topic": "__consumer_offsets"}, "is a topic of Kafka itself"),
        ({"topic": "raw.*"}, "input 1: topic: "),
        ({"id": "any"}, "input 1: id must be key, place, {field: NAME} or {header: NAME}"),
        ({"id": {"field": "a", "header": "b"}}, "input 1: id must be"),
        ({"id": "key", "format": "batch"}, "may have several events"),
        ({"id": {"header": "h"}, "format": "ndjson"}, "may have several events"),
        ({"id": None}, "it needs id: key, place"),
        ({"format": "cloudevents"}, "so there is no id to set"),
        ({"keep_headers": ["h", "gw"]}, "header gw cannot be kept"),
        ({"source_header": "from"}, "source_header and sources belong together"),
        ({"sources": ["a"]}, "source_header and sources belong together"),
        ({"id": None, "format": "cloudevents", "source_header": "h", "sources": ["a"]}, "name their source"),
        ({"more": 1}, "input 1: more: "),
        ({"source": ""}, "input 1: source: "),
        ({"cluster": {"bootstrap_servers": "b", "security_protocol": "SASL_SSL"}}, "sasl_username"),
    ],
)
def test_mistake_has_a_sentence(tmp_path: Path, change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path, GOOD | change)
    assert sentence.casefold() in str(refused.value).casefold()


def test_cloudevents_need_no_id(tmp_path: Path) -> None:
    read(tmp_path, {**GOOD, "id": None, "format": "cloudevents"})


def test_names_differ_and_embedded_log_needs_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="two inputs have the name raw"):
        read(tmp_path, GOOD, GOOD)
    with pytest.raises(ConfigurationError, match="the log is embedded, so it needs a cluster"):
        read(tmp_path, GOOD, has_kafka=False)


@pytest.mark.parametrize("text", ["", "inputs: {}", "[]", "inputs: [", "inputs: []"])
def test_what_is_no_list_of_inputs_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "inputs.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="inputs file"):
        read_inputs_file(path, OWN, has_kafka=True)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_inputs_file(tmp_path / "none", OWN, has_kafka=True)


@pytest.mark.parametrize(
    "topic", ["events", "events.quarantine", "events.routing", "events.observed", "events.duplicates"]
)
def test_no_topic_of_the_gateway_is_an_input(tmp_path: Path, topic: str) -> None:
    path = tmp_path / "inputs.yaml"
    path.write_text(json.dumps({"inputs": [GOOD | {"topic": topic}]}))
    settings = make_settings(mode="development", log="kafka", inputs_file=path)
    with pytest.raises(ConfigurationError, match="is a topic that this gateway writes"):
        inputs_of(settings)
