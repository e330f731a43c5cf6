"""Claim: an event goes into the tables of its type and name, each value into a column or `_rescued`."""

import base64
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.model.record import FLAG_CLOUDEVENT
from pipeline.transforms.table_layout import SeenTable, next_layout
from pipeline.transforms.table_names import FIXED_COLUMNS, STANDARD_TABLES
from pipeline.transforms.table_rows import (
    Entry,
    Record,
    cells_of,
    columns_of_table,
    read_entry,
    row_of,
    tables_of,
    time_of,
)
from pipeline.transforms.table_types import Type

CAPTURED = Path(__file__).parents[2] / "fixtures" / "sdk_requests.jsonl"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
EVENTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["track", "page", "screen", "identify", "group", "alias", "other", 5, None])},
    optional={
        "event": JSON,
        "userId": JSON,
        "properties": JSON,
        "traits": JSON,
        "context": JSON,
        "timestamp": JSON,
        "sentAt": JSON,
        "groupId": JSON,
    },
)


def entry_of(event: object, *, offset: int = 0, gw: bytes | None = None) -> Entry:
    value = event if isinstance(event, bytes) else json.dumps(event).encode()
    return read_entry(Record(1, offset, NOON, "web", b"id", value, gw))


@pytest.mark.parametrize(
    ("event", "tables"),
    [
        ({"type": "track", "event": "Order Completed"}, ["tracks", "order_completed"]),
        ({"type": "track", "event": "Tracks"}, ["tracks", "event_tracks"]),
        ({"type": "track", "event": " "}, ["tracks"]),
        ({"type": "track"}, ["tracks"]),
        ({"type": "page", "event": "Order Completed"}, ["pages"]),
        ({"type": "identify"}, ["identifies"]),
        ({"type": "Track", "event": "x"}, ["others"]),
        ({}, ["others"]),
        (b"no json \xff", ["others"]),
        (b"[1]", ["others"]),
        (b"[" * 100_000, ["others"]),
    ],
)
def test_event_has_a_row_in_the_table_of_its_type_and_of_its_name(event: object, tables: list[str]) -> None:
    assert list(tables_of(entry_of(event))) == tables


def test_cloudevent_is_none_of_these_types_whatever_it_calls_itself() -> None:
    gw = bytes([1, FLAG_CLOUDEVENT, *bytes(32)])
    assert list(tables_of(entry_of({"type": "track", "event": "x"}, gw=gw))) == ["cloudevents"]


def test_cloudevent_has_its_attributes_as_columns() -> None:
    event = {"specversion": "1.0", "id": "5", "source": "/shop", "type": "order.made", "subject": "o-1"}
    event |= {"time": "2026-01-01T11:00:00Z", "datacontenttype": "application/json"}
    made = {**event, "data": {"total": 12}, "partitionkey": "k", "ratio": 0.5}
    row = row_of(entry_of(made, gw=bytes([0, FLAG_CLOUDEVENT])), "cloudevents", {})

    assert {**row, "value": json.loads(row["value"])} == {
        "id": "id",
        "source": "web",
        "type": "order.made",
        "event_id": "5",
        "event_source": "/shop",
        "subject": "o-1",
        "data_content_type": "application/json",
        "data_schema": None,
        "data_base64": None,
        "event_time": datetime(2026, 1, 1, 11, tzinfo=UTC),
        "data": '{"total":12}',
        "extensions": '{"partitionkey":"k","ratio":0.5}',
        "received_at": NOON,
        "value": made,
        "log_partition": 1,
        "log_epoch": 0,
        "log_offset": 0,
        "dt": "2026-01-01",
        "_rescued": None,
    }
    assert row.keys() - {"_rescued"} == set(columns_of_table("cloudevents", has_content=True))


@pytest.mark.parametrize("value", [b"no json", b"{}", b'{"data":null,"time":5,"subject":[1]}'])
def test_cloudevent_may_have_anything_in_its_attributes(value: bytes) -> None:
    row = row_of(entry_of(value, gw=bytes([0, FLAG_CLOUDEVENT])), "cloudevents", {})
    assert (row["value"], row["data"], row["event_time"]) == (value.decode(), None, None)


def test_row_has_typed_columns_and_what_does_not_fit_is_rescued_under_its_path() -> None:
    event = {
        "type": "track",
        "event": "Order Completed",
        "userId": 7,
        "properties": {
            "total": 12.5,
            "orderId": "A",
            "order_id": "B",
            "items": [{"sku": 1}],
            "address": {"zip": 12345, "geo": {"lat": 1.5}},
            "empty": None,
            "big": 2**70,
        },
        "context": {"library": {"name": "js"}},
    }
    layout = {
        "total": Type.DOUBLE,
        "order_id": Type.STRING,
        "items": Type.STRING,
        "address_zip": Type.STRING,
        "address_geo_lat": Type.DOUBLE,
        "context_library_name": Type.STRING,
    }

    row = row_of(entry_of(event, offset=5), "order_completed", layout)

    assert {name: row.get(name) for name in layout} == {
        "total": 12.5,
        "order_id": "A",
        "items": '[{"sku":1}]',
        "address_zip": None,
        "address_geo_lat": 1.5,
        "context_library_name": "js",
    }
    rescued = json.loads(row["_rescued"])
    assert rescued == {"properties.order_id": "B", "properties.address.zip": 12345, "properties.big": 2**70}
    assert (row["id"], row["source"], row["user_id"], row["event"]) == ("id", "web", "7", "order_completed")
    assert (row["log_partition"], row["log_offset"], row["dt"]) == (1, 5, "2026-01-01")
    in_tracks = row_of(entry_of(event), "tracks", {})
    assert json.loads(in_tracks["properties"]) == event["properties"]
    assert json.loads(in_tracks["_rescued"]) == {"context.library.name": "js"}


@pytest.mark.parametrize(
    ("timestamp", "sent_at", "corrected"),
    [
        ("2026-01-01T11:00:00Z", "2026-01-01T11:00:10Z", NOON - timedelta(seconds=10)),
        ("2026-01-01T11:00:00Z", None, NOON - timedelta(hours=1)),
        (None, "2026-01-01T11:00:10Z", NOON),
        ("noon", None, NOON),
        ("0001-01-01T00:00:00+14:00", None, NOON),
        ("2026-01-01T11:00:20Z", "2026-01-01T11:00:10Z", NOON - timedelta(minutes=59, seconds=40)),
        ("2026-01-01T13:00:00+02:00", None, NOON - timedelta(hours=1)),
    ],
)
def test_timestamp_is_the_client_s_by_the_gateway_s_clock(
    timestamp: str | None, sent_at: str | None, corrected: datetime
) -> None:
    row = row_of(entry_of({"type": "page", "timestamp": timestamp, "sentAt": sent_at}), "pages", {})
    assert row["timestamp"] == corrected


def test_time_is_one_that_every_table_holds() -> None:
    assert time_of("1969-12-31T23:59:59Z") is None
    assert time_of(5) is None
    assert time_of("2026-01-01") == datetime(2026, 1, 1, tzinfo=UTC)


@given(EVENTS)
def test_every_value_of_an_event_is_in_a_column_or_rescued(event: dict[str, Any]) -> None:
    entry = entry_of(event)
    for table in tables_of(entry):
        seen = SeenTable((1, 0))
        seen.see((1, 0), cells_of(entry, table), 500)
        layout = next_layout(table, {}, seen, columns_max=500).layout
        row = row_of(entry, table, layout)
        stored = {name for name in layout if name in row}
        rescued = json.loads(row["_rescued"] or "{}")
        for cell in cells_of(entry, table):
            assert cell.column in stored or cell.path in rescued
        fixed = columns_of_table(table, has_content=True)
        assert set(row) <= {*fixed, *layout, "_rescued"}


def test_page_names_the_columns_of_every_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pipeline" / "tables.md").read_text()
    assert FIXED_COLUMNS - set(re.findall(r"`(\w+)`", page)) == set()
    assert STANDARD_TABLES - set(re.findall(r"`(\w+)`", page)) == set()


def test_what_sdks_send_fills_tables_of_every_type() -> None:
    found: set[str] = set()
    for line in CAPTURED.read_text().splitlines():
        body = base64.b64decode(json.loads(line)["body_b64"])
        try:
            document = orjson.loads(body)
        except ValueError:
            continue  # compressed
        for event in document.get("batch", [document]):
            found.update(tables_of(entry_of(event)))
    assert STANDARD_TABLES - found == {"users", "accounts", "drift", "loads", "cloudevents", "others"}
    assert "ev" in found
