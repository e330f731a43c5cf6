"""
Which events the records of an input's topic hold, by the rules of docs/inputs.md alone.

    read_input_events   the events of a topic, a row each
    events_of           those of one record; pure
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from dedupe.model.cloudevent import id_of_cloudevent
from dedupe.model.identity import message_id_of
from dedupe.model.json_document import dumps_to_keep, read_document
from pipeline.sources.input_file import CLOUDEVENTS, Input
from pipeline.sources.records import Offsets, kafka_options

REGISTRY_PREFIX = b"\0"
ATTRIBUTE_PREFIX = "ce_"

OffsetRanges: TypeAlias = Mapping[int, tuple[int, int]]

EVENT = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("source", pa.string()),
        ("message_id", pa.string()),
        ("sha256", pa.string()),
    ]
)
"""One event: where it is, who sent it, its id, and the hash of what is quarantined if it is none."""


class InputRecord(NamedTuple):
    """One record of an input's topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Found(NamedTuple):
    """An event, or what stands in the place of one."""

    source: str
    message_id: str | None
    """None for what is no event, or has no id."""
    sha256: str


def read_input_events(spark: SparkSession, of: Input, topic_id: str, ranges: OffsetRanges) -> DataFrame:
    """
    Return the events of a topic, in EVENT; records without a value have none.

    Args:
        spark: the session.
        of: the input.
        topic_id: of its topic, `<cluster id>:<topic id>` as ids by place begin.
        ranges: offsets [start, end) of each partition.
    """
    firsts: Offsets = {partition: start for partition, (start, _) in ranges.items()}
    ends: Offsets = {partition: end for partition, (_, end) in ranges.items()}
    options = kafka_options(of.topic, "audit") | {
        "startingOffsets": json.dumps({of.topic.topic: firsts}),
        "endingOffsets": json.dumps({of.topic.topic: ends}),
    }
    records = spark.read.format("kafka").options(**options).load()
    columns = [F.col(name) for name in InputRecord._fields]
    rules = replace(of, topic=replace(of.topic, login=None))  # executors get no password that they do not use
    return records.select(*columns).mapInArrow(_finder(rules, topic_id), from_arrow_schema(EVENT))


def _finder(of: Input, topic_id: str) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in InputRecord._fields)
            rows: list[tuple[Any, ...]] = []
            for partition, offset, key, value, headers in zip(*columns, strict=True):
                pairs = [(header["key"], header["value"]) for header in headers or ()]
                record = InputRecord(partition, offset, key, value, pairs)
                rows += [(partition, offset, *found) for found in events_of(of, topic_id, record)]
            values = list(zip(*rows, strict=True)) or [()] * len(EVENT)
            arrays = [pa.array(column, field.type) for column, field in zip(values, EVENT, strict=True)]
            yield pa.record_batch(arrays, schema=EVENT)

    return find


def events_of(of: Input, topic_id: str, record: InputRecord) -> Iterator[Found]:
    """Yield the events of a record, and what stands where one should."""
    value = record.value or b""
    source = _source_of(of, record)
    if of.format == CLOUDEVENTS:
        attributes = _attributes_of(record)
        if not value and not attributes:
            return
        items: Iterable[object] = [attributes] if attributes else _items_of(_document_of(value))
        ids = [id_of_cloudevent(item) if isinstance(item, dict) else None for item in items]
        for message_id in ids if source else [None]:
            yield Found(source or of.source, message_id, _sha256(value))
    elif value and source is None:
        yield Found(of.source, None, _sha256(value))
    elif value and source is not None:
        for number, (item, content) in enumerate(_contents_of(of, value)):
            place = f"{topic_id}:{record.partition}:{record.offset}"
            place = place if of.format == "event" else f"{place}:{number}"
            message_id = _id_of(of, record, item, place) if isinstance(item, dict) else None
            yield Found(source, message_id, _sha256(content))


def _source_of(of: Input, record: InputRecord) -> str | None:
    """Return the sender of a record's events, None if it names one that may not be named."""
    named = [value for name, value in record.headers if name == of.source_header]
    if of.source_header is None or not named:
        return of.source
    text = (named[0] or b"").decode(errors="replace")
    return text if len(named) == 1 and text in of.sources else None


def _contents_of(of: Input, value: bytes) -> Iterator[tuple[object, bytes]]:
    """Yield the documents of a value, each with the bytes that are quarantined if it is no event."""
    if of.format == "ndjson":
        for line in value.split(b"\n"):
            if line.strip():
                yield _document_of(line), line
        return
    document = _document_of(value)
    batch = document.get("batch") if isinstance(document, dict) else document
    if of.format == "event" or not isinstance(batch, list):
        yield document if of.format == "event" else None, value
        return
    for item in batch:
        yield item, dumps_to_keep(item)


def _document_of(content: bytes) -> object:
    """Return what a value or a line holds, None if that is no JSON."""
    if content.startswith(REGISTRY_PREFIX):
        return None
    try:
        return read_document(content)
    except ValueError:
        return None


def _items_of(document: object) -> Sequence[object]:
    return document if isinstance(document, list) else [document]


def _id_of(of: Input, record: InputRecord, item: Mapping[str, Any], place: str) -> str | None:
    """Return the id by the rule; None without one, or where the event has another one of its own."""
    found: str | None = place
    if of.id != "place":
        found = message_id_of(_given(of, record, item))
    return found if found and message_id_of(item.get("messageId")) in {None, found} else None


def _given(of: Input, record: InputRecord, item: Mapping[str, Any]) -> object:
    """Return what the rule says is the id."""
    if isinstance(of.id, Mapping) and "field" in of.id:
        return item.get(of.id["field"])
    given = [record.key]
    if isinstance(of.id, Mapping):
        given = [value for name, value in record.headers if name == of.id["header"]]
    try:
        return given[0].decode() if len(given) == 1 and given[0] is not None else None
    except UnicodeDecodeError:
        return None


def _attributes_of(record: InputRecord) -> dict[str, object]:
    """Return the attributes of a CloudEvent in binary mode."""
    return {
        name[len(ATTRIBUTE_PREFIX) :].lower(): (value or b"").decode(errors="replace")
        for name, value in record.headers
        if name.lower().startswith(ATTRIBUTE_PREFIX)
    }


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
