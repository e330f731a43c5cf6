"""
Golden vectors: every byte on which two versions of the gateway must agree, frozen.

golden_vectors.json is data and says itself how a change is handled: no value in it is ever edited.
"""

from pathlib import Path
from typing import Any

import orjson
import pytest

from dedupe.model.cloudevent import cloudevent_id, compared_form
from dedupe.model.identity import Identity, canonical_content, fingerprint_of, message_id_of
from dedupe.model.json_document import read_document, read_stored
from dedupe.model.record import build_record, is_identified_by, parse_identity
from dedupe.model.routing import partition_of
from dedupe.model.types import Event, LogRecord, NewRecord, Session
from tests.support.foreign import without_checksum

VECTORS: dict[str, Any] = orjson.loads(Path(__file__).with_name("golden_vectors.json").read_bytes())
IDENTITY = Identity(VECTORS["secret"].encode())


def unhex(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the fields with the named ones as bytes."""
    return fields | {name: bytes.fromhex(fields[name]) for name in names}


def test_check_value() -> None:
    assert IDENTITY.check_value.hex() == VECTORS["check_value"]


@pytest.mark.parametrize("vector", VECTORS["other_secrets"])
def test_shortest_and_longest_secret(vector: dict[str, str]) -> None:
    identity = Identity(vector["secret"].encode())

    assert identity.check_value.hex() == vector["check_value"]
    assert identity.message_key("web", "id-1").hex() == vector["message_key_of_web_id_1"]


@pytest.mark.parametrize("vector", VECTORS["source_hashes"])
def test_source_hash(vector: dict[str, str]) -> None:
    assert IDENTITY.source_hash(vector["source"]).hex() == vector["hash"]


@pytest.mark.parametrize("vector", VECTORS["message_keys"])
def test_message_key_and_partition(vector: dict[str, Any]) -> None:
    key = IDENTITY.message_key(vector["source"], vector["message_id"])

    assert key.hex() == vector["key"]
    assert partition_of(key, 8) == vector["partition_of_8"]
    assert partition_of(key, 12) == vector["partition_of_12"]


@pytest.mark.parametrize("vector", VECTORS["cloudevent_ids"])
def test_cloudevent_id(vector: dict[str, Any]) -> None:
    message_id = cloudevent_id(vector["source"], vector["id"])
    key = IDENTITY.message_key("web", message_id)

    assert message_id == vector["message_id"]
    assert key.hex() == vector["key_of_web"]
    assert partition_of(key, 8) == vector["partition_of_8"]


@pytest.mark.parametrize("vector", VECTORS["cloudevent_contents"])
def test_content_of_a_cloudevent(vector: dict[str, Any]) -> None:
    content = canonical_content(compared_form(vector["event"]))

    assert content.decode() == vector["content"]
    assert fingerprint_of(content).hex() == vector["fingerprint"]


@pytest.mark.parametrize("vector", VECTORS["contents"])
def test_content_and_fingerprint(vector: dict[str, Any]) -> None:
    content = canonical_content(vector["event"])

    assert content.decode() == vector["content"]
    assert fingerprint_of(content).hex() == vector["fingerprint"]


@pytest.mark.parametrize("vector", VECTORS["numbers"])
def test_numbers(vector: dict[str, str]) -> None:
    document: Any = read_document(vector["document"].encode())
    content = canonical_content(document)

    assert content.decode() == vector["content"]
    assert fingerprint_of(content).hex() == vector["fingerprint"]
    assert orjson.dumps(read_stored(vector["document"].encode())).decode() == vector["stored"]


@pytest.mark.parametrize("vector", VECTORS["message_ids"])
def test_message_id(vector: dict[str, str | None]) -> None:
    assert message_id_of(read_document(str(vector["given"]).encode())) == vector["message_id"]


@pytest.mark.parametrize("vector", VECTORS["sessions"])
def test_session_hashes_and_sequence_key(vector: dict[str, Any]) -> None:
    source, client, session = vector["source"], vector["client"], vector["session"]
    client_hash = IDENTITY.client_hash(source, client)
    session_hash = IDENTITY.session_hash(source, client, session)

    assert client_hash.hex() == vector["client_hash"]
    assert session_hash.hex() == vector["session_hash"]
    assert IDENTITY.sequence_key(client_hash, session_hash, vector["sequence"]).hex() == vector["key"]
    assert partition_of(client_hash, 8) == vector["partition_of_8"]


@pytest.mark.parametrize("vector", VECTORS["quarantine"])
def test_quarantine_key(vector: dict[str, Any]) -> None:
    fingerprint = bytes.fromhex(vector["fingerprint"])

    key = IDENTITY.quarantine_key(vector["source"], vector["message_id"], fingerprint)

    assert key.hex() == vector["key"]
    assert partition_of(key, 1) == vector["partition_of_1"]
    assert partition_of(key, 8) == vector["partition_of_8"]


@pytest.mark.parametrize("vector", VECTORS["records"])
def test_record_bytes(vector: dict[str, Any]) -> None:
    fields = unhex(vector["event"], "key", "fingerprint")
    if fields["session"] is not None:
        fields["session"] = Session(**unhex(fields["session"], "client_hash", "session_hash"))
    event = Event(**fields | {"value": fields["value"].encode()})
    expected = unhex(vector["record"], "key", "value")
    expected["headers"] = [(name, bytes.fromhex(value)) for name, value in expected["headers"]]

    record = build_record(event, lane_seq=vector["lane_seq"], timestamp_ms=vector["timestamp_ms"])

    assert dict(record.headers)["gw"].hex() == vector["gw_with_checksum"]
    assert without_checksum(record) == NewRecord(**expected)
    for committed in LogRecord(0, *record), LogRecord(0, **expected):
        assert is_identified_by(
            committed, parse_identity(committed), IDENTITY, partition=event.partition, partitions=8
        )
