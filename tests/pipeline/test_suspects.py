"""
Claim: a client's bug that sends one call under several ids is shown by library and version, and nothing that
real SDKs send is; with Spark and without it alike, in bounded memory.
"""

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.audit import suspects as looked
from pipeline.audit.suspects import find, find_locally
from pipeline.jobs.suspects import lines_of
from pipeline.schema import RECORD
from pipeline.sources.records import LogSource, Selection, read_records
from pipeline.transforms.suspects import Suspects, summed_up
from tests.conftest import TopicFactory
from tests.pipeline.conftest import JobRunner
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker, fill_topic

CAPTURED = Path(__file__).parents[1] / "fixtures" / "sdk_requests.jsonl"
TIME = "2026-01-01T12:00:00.123Z"

Event = dict[str, Any]


def call(name: str = "Order", **fields: Any) -> Event:
    library = {"name": "analytics.js", "version": "1.2"}
    given = {
        "type": "track",
        "event": name,
        "userId": "u",
        "timestamp": TIME,
        "context": {"library": library},
    }
    return given | {"properties": {"total": 1}} | fields


CALLS: list[Event] = [
    call(),
    call("Order", sentAt="2026-01-01T12:00:05Z"),  # sent anew, under another id
    call("Order"),
    call("Order", timestamp="2026-01-01T12:00:00.124Z"),
    call("Order", userId="v"),
    call("Order", anonymousId="a"),
    call("Shipped"),
    call("Shipped", properties={"total": 2}),  # another content
    call("Seen", timestamp="2026-01-01T12:00:00Z", properties={"item": 1}),
    call("Seen", timestamp="2026-01-01T12:00:00Z", properties={"item": 2}),  # a loop, in one second
    call("Big", properties={"id": 10**30}),
    call("Big", properties={"id": 10**30}),
    {"type": "track", "event": "Order", "userId": "u"},  # without a time
    {"type": "track", "event": "Order", "userId": "u"},
    {"type": "track", "event": "Order", "timestamp": TIME},  # nobody's
    {"type": "track", "event": "Order", "timestamp": TIME},
    call("Odd", context=5),
    call("Odd", context={"library": []}),
]
SDK = ("web", "analytics.js", "1.2")
FOUND = [
    ((*SDK, "track Order"), 1, 2, 1),
    ((*SDK, "track Big"), 1, 1, 1),
    ((*SDK, "track Shipped"), 1, 1, 0),
    (("web", "unknown", "unknown", "track Odd"), 1, 1, 1),
]


def batch_of(events: list[Event], first: int = 0) -> pa.RecordBatch:
    rows = [
        {"topic": "events", "partition": 0, "offset": n, "key": b"id-%d" % n, "source": "web"}
        | {"value": json.dumps(event).encode()}
        for n, event in enumerate(events, first)
    ]
    return pa.RecordBatch.from_pylist(rows, to_arrow_schema(RECORD))


def table_of(rows: list[Suspects]) -> list[tuple[tuple[str, ...], int, int, int]]:
    return [(row[:4], row.groups, row.extra, row.identical) for row in rows]


def test_planted_bugs_are_found_and_calls_that_differ_are_not() -> None:
    batches = [batch_of(CALLS[:5]), batch_of([]), batch_of(CALLS[5:], 5)]

    found = find_locally(lambda: batches)

    rows = summed_up(found.groups)
    assert table_of(rows) == FOUND
    assert rows[0].samples == (("0:0 id-0", "0:2 id-2"),)
    lines = lines_of(rows, found.left_out)
    assert lines[0] == "5 events may be another one under a new id, in 4 groups"
    assert lines[1].endswith("track Order: 2 events in 1 groups, 1 of them with the same content")


def test_the_same_id_twice_is_no_suspect() -> None:
    same = batch_of(CALLS[:1])
    assert find_locally(lambda: [same, same]).groups == []


def test_nothing_that_real_sdks_send_is_suspect() -> None:
    events = list[Event]()
    for line in CAPTURED.read_text().splitlines():
        try:
            document = json.loads(base64.b64decode(json.loads(line)["body_b64"]))
        except ValueError:
            continue  # compressed
        events += document.get("batch", [document])
    assert len(events) > 10
    assert find_locally(lambda: [batch_of(events)]).groups == []


def test_memory_is_bounded_and_what_was_left_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looked, "GROUPS_MAX", 3)
    monkeypatch.setattr(looked, "MEMBERS_MAX", 6)
    events = [call(f"Event {n}") for n in range(10)] * 2

    found = find_locally(lambda: [batch_of(events)])

    assert (len(found.groups), found.left_out) == (3, 7)
    assert "7 more groups were not looked at" in lines_of(summed_up(found.groups), found.left_out)[1]


def test_spark_finds_what_the_local_engine_finds(spark: SparkSession, job: JobRunner, tmp_path: Path) -> None:
    maker = RecordMaker(2)
    made = [
        maker.event(f"id-{n}", more={"type": "track"})._replace(value=json.dumps(event).encode())
        for n, event in enumerate(CALLS)
    ]
    append_to_log(tmp_path / "log", maker.lanes(made))
    source = LogSource(str(tmp_path / "log"), "events")

    done = job("suspects", "--source", source, "--engine", "local", "--json", tmp_path / "found.json")
    rows = summed_up(find(read_records(spark, source, Selection())).groups)

    assert done.exit_code == 0, done
    assert table_of(rows) == FOUND
    assert json.loads((tmp_path / "found.json").read_text()) == json.loads(
        json.dumps([row._asdict() for row in rows])
    )
    assert "5 events may be another one under a new id" in done.stdout


async def test_a_topic_is_looked_through_by_a_client_with_the_options_that_are_given(
    job: JobRunner, kafka_bootstrap: str, topic: TopicFactory
) -> None:
    name = await topic("suspects", configs={"retention.ms": "-1"})
    maker = RecordMaker(1)
    made = [
        maker.event(f"id-{n}")._replace(value=json.dumps(event).encode()) for n, event in enumerate(CALLS)
    ]
    await fill_topic(kafka_bootstrap, name, maker.lanes(made))
    command = ["suspects", "--source", f"kafka://{kafka_bootstrap}/{name}", "--kafka"]

    found, refused = job(*command, "client.rack=a"), job(*command, "fetch.min.bytes=many")

    assert (found.exit_code, refused.exit_code) == (0, 2), (found, refused)
    assert "5 events may be another one under a new id, in 4 groups" in found.stdout
