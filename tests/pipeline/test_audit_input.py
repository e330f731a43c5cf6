"""
Claim: `audit --input` names each event of an input that a gateway has read and not kept, and none where each
is stored or in quarantine.

On a real Kafka, with a real gateway that reads the input.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from dedupe.model.cloudevent import cloudevent_id
from dedupe.model.types import Headers
from pipeline.sources.input_events import Found, InputRecord, events_of
from pipeline.sources.input_file import Input
from pipeline.sources.kafka import committed_offsets
from pipeline.sources.records import KafkaSource
from tests.conftest import TopicFactory
from tests.pipeline.conftest import JobRunner
from tests.support.gateway import Gateway
from tests.support.kafka import delete_records
from tests.support.waiting import PATIENCE_S

Sent = tuple[bytes | None, bytes | None, Headers]
NAME = "raw"


def event(message_id: str | None, **fields: object) -> bytes:
    own = {} if message_id is None else {"messageId": message_id}
    return json.dumps({**own, "type": "track", "event": "Seen", **fields}).encode()


def plain(*values: bytes | None) -> list[Sent]:
    return [(b"k", value, []) for value in values]


EVENTS = plain(
    *(event(f"m-{n}") for n in range(50)),
    event("m-1", other=1),  # a conflict
    *[event("m-2"), None, b"", b"\0\0avro", b"{", b"{", b"[1]", event(None), event(None)],
)
BATCHES = plain(
    json.dumps([json.loads(event(f"b-{n}")) for n in range(5)]).encode(),
    json.dumps({"batch": [{"messageId": "c"}, {"event": "none"}, {"event": "none"}, 7]}).encode(),
    b'{"no":"batch"}',
)
LINES = plain(b'{"event":"a"}\n\n{"event":"b"}\n', b'{"event":"c"}\nnone\n')
CLOUDEVENTS: list[Sent] = [
    (None, b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}', []),
    (None, b"x", [("ce_specversion", b"1.0"), ("ce_id", b"2"), ("ce_source", b"/s"), ("ce_type", b"t")]),
    (None, b"y", [("ce_specversion", b"1.0"), ("ce_id", b"3")]),
]


async def read_by_a_gateway(
    servers: str, clean: str, topic: str, sent: Sequence[Sent], folder: Path, **fields: object
) -> Path:
    """Have a gateway read what is sent to a topic, and return its file of inputs."""
    producer = AIOKafkaProducer(bootstrap_servers=servers)
    await producer.start()
    for key, value, headers in sent:
        await producer.send_and_wait(topic, value=value, key=key, headers=headers, partition=0)
    await producer.stop()
    inputs_file = folder / "inputs.yaml"
    spec = {"name": NAME, "topic": topic, "source": "web", "start": "earliest", "id": {"field": "messageId"}}
    inputs_file.write_text(json.dumps({"inputs": [spec | fields]}))
    settings = {
        "GATEWAY_LOG": "kafka",
        "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": servers,
        "GATEWAY_TOPIC": clean,
        "GATEWAY_PARTITIONS": "2",
        "GATEWAY_INPUTS_FILE": str(inputs_file),
    }
    with Gateway(folder / "gateway", settings):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                committed = await asyncio.to_thread(
                    committed_offsets, servers, topic, f"gateway-{clean}-input-{NAME}"
                )
                if committed.get(0) == len(sent):
                    return inputs_file
                await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    ("sent", "fields"),
    [
        (EVENTS, {}),
        (EVENTS, {"origin": False}),
        (BATCHES, {"format": "batch"}),
        (LINES, {"format": "ndjson", "id": "place"}),
        (CLOUDEVENTS, {"format": "cloudevents", "id": None}),
    ],
)
async def test_input_that_is_stored_or_in_quarantine_is_clean(
    sent: list[Sent],
    fields: dict[str, object],
    job: JobRunner,
    kafka_bootstrap: str,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    raw, clean = await topic("raw"), (await topic("prefix")) + "-clean"
    inputs_file = await read_by_a_gateway(kafka_bootstrap, clean, raw, sent, tmp_path, **fields)
    source = f"kafka://{kafka_bootstrap}/{clean}"
    done = job("audit", "--source", source, "--input", NAME, "--inputs-file", inputs_file)
    assert done.exit_code == 0, done
    assert f"and {len(sent)} offsets of input raw" in done.stdout


async def test_event_that_is_not_stored_is_named(
    job: JobRunner, kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    raw, clean = await topic("raw"), (await topic("prefix")) + "-clean"
    sent = plain(event("a"), event("b"), event(None))
    inputs_file = await read_by_a_gateway(kafka_bootstrap, clean, raw, sent, tmp_path)
    # The same file with another rule: what was stored by the first is not what the second calls for.
    lost = json.loads(inputs_file.read_text())
    lost["inputs"][0] |= {"source": "other"}
    inputs_file.write_text(json.dumps(lost))
    source = f"kafka://{kafka_bootstrap}/{clean}"
    options = ["audit", "--source", source, "--input", NAME, "--inputs-file", inputs_file]
    done = job(*options, "--report", tmp_path)
    assert done.exit_code == 1, done
    report = json.loads((tmp_path / "audit.json").read_text())
    found = report["violations"]["lost"]
    assert [(each["offset"], each["message_id"]) for each in found["first"]] == [(0, "a"), (1, "b")]
    assert report["checks"]["completeness"] == "failed"
    assert job(*options, "--input-from", "0:2").exit_code == 0
    await delete_records(kafka_bootstrap, clean, {0: 1})
    assert job(*options).exit_code == 2


async def test_what_is_not_read_yet_is_no_verdict_on_it(
    job: JobRunner, kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    raw, clean = await topic("raw"), (await topic("prefix")) + "-clean"
    inputs_file = await read_by_a_gateway(kafka_bootstrap, clean, raw, plain(event("a")), tmp_path)
    producer = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap)
    await producer.start()
    await producer.send_and_wait(raw, value=event("later"), partition=0)
    await producer.stop()
    source = f"kafka://{kafka_bootstrap}/{clean}"
    done = job("audit", "--source", source, "--input", NAME, "--inputs-file", inputs_file)
    assert done.exit_code == 0, done
    assert "1 x not_read" in done.stdout


def found(of: Input, value: bytes, headers: Headers = (), key: bytes | None = None) -> list[Found]:  # type: ignore[assignment]
    return list(events_of(of, "c:t", InputRecord(3, 7, key, value, list(headers))))


def an_input(rule: object, form: str = "event", **fields: object) -> Input:
    spec = {"source": "web", "source_header": None, "sources": frozenset(), "id": rule, "format": form}
    return Input(name=NAME, topic=KafkaSource("b:1", "raw"), **(spec | fields))  # type: ignore[arg-type]


def test_ids_are_those_of_the_rule() -> None:
    assert found(an_input({"field": "n"}), b'{"n":17}')[0].message_id == "17"
    assert found(an_input("key"), b"{}", key=b"k")[0].message_id == "k"
    assert found(an_input({"header": "id"}), b"{}", [("id", b"h")])[0].message_id == "h"
    assert found(an_input({"header": "id"}), b"{}", [("id", b"h"), ("id", b"h")])[0].message_id is None
    assert found(an_input("place"), b"{}")[0].message_id == "c:t:3:7"
    assert [each.message_id for each in found(an_input("place", "ndjson"), b"{}\n{}")] == [
        "c:t:3:7:0",
        "c:t:3:7:1",
    ]
    assert found(an_input("key"), b'{"messageId":"own"}', key=b"k")[0].message_id is None
    cloud = b'[{"specversion":"1.0","id":"1","source":"/s","type":"t"}]'
    assert found(an_input(None, "cloudevents"), cloud)[0].message_id == cloudevent_id("/s", "1")


def test_record_may_name_only_a_source_of_the_list() -> None:
    rule = an_input("place", source_header="from", sources=frozenset({"app"}))
    assert [found(rule, b"{}", headers)[0][:2] for headers in ([], [("from", b"app")], [("from", b"x")])] == [
        ("web", "c:t:3:7"),
        ("app", "c:t:3:7"),
        ("web", None),
    ]
