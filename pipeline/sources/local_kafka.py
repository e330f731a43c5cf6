"""Records of a topic on Kafka as Arrow batches without Spark: committed ones alone, as Spark reads them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pyarrow as pa
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from pyspark.sql.pandas.types import to_arrow_schema

from dedupe.model.record import HEADER_FENCE_TEST, HEADER_GATEWAY, HEADER_PROGRESS, HEADER_SOURCE
from pipeline.errors import PipelineError
from pipeline.schema import RECORD
from pipeline.sources.kafka import POLL_MS, KafkaLogin, consumer_of

SILENCE_MAX_S = 60.0
"""Without a record or marker for so long, the brokers count as gone."""

BATCH_RECORDS = 10_000

_OPTIONS: Mapping[str, Any] = {
    "isolation_level": "read_committed",
    "auto_offset_reset": "none",
    "enable_auto_commit": False,
    "fetch_max_bytes": 64 * 1024 * 1024,
    "max_partition_fetch_bytes": 16 * 1024 * 1024,
}
_ARROW = to_arrow_schema(RECORD)


class _Row(NamedTuple):
    offset: int
    time_us: int
    key: bytes | None
    value: bytes | None
    source: str | None
    gw: bytes | None
    gs: bytes | None


def read_topic(
    brokers: str, topic: str, ranges: Mapping[int, tuple[int, int]], login: KafkaLogin | None
) -> Iterator[pa.RecordBatch]:
    """
    Yield the committed records of ranges in schema.RECORD, each batch of one partition, in order of offsets.

    Args:
        brokers: to ask.
        topic: its name.
        ranges: offsets [start, end) by partition; Kafka holds each of them.
        login: None for the environment's.

    Raises:
        PipelineError: Kafka does not answer, or retention has deleted some of them.
    """
    batches, runner = _batches(brokers, topic, ranges, login), asyncio.Runner()

    async def next_batch() -> pa.RecordBatch | None:
        return await anext(batches, None)

    async def close() -> None:
        await batches.aclose()

    # In a thread of its own: a notebook runs an event loop in this one.
    with ThreadPoolExecutor(max_workers=1) as thread:
        try:
            while (batch := thread.submit(runner.run, next_batch()).result()) is not None:
                yield batch
        except KafkaError as err:
            raise PipelineError(f"Kafka at {brokers} did not hand out topic {topic!r}: {err!r}") from err
        finally:
            thread.submit(runner.run, close()).result()
            thread.submit(runner.close).result()


async def _batches(
    brokers: str, topic: str, ranges: Mapping[int, tuple[int, int]], login: KafkaLogin | None
) -> AsyncGenerator[pa.RecordBatch]:
    ends = {TopicPartition(topic, p): end for p, (start, end) in ranges.items() if start < end}
    if not ends:
        return
    async with consumer_of(brokers, login, **_OPTIONS) as consumer:
        consumer.assign(list(ends))
        for part in ends:
            consumer.seek(part, ranges[part.partition][0])
        left, heard = set(ends), time.monotonic()
        while left:
            found = await consumer.getmany(*left, timeout_ms=POLL_MS, max_records=BATCH_RECORDS)
            for part, records in found.items():
                yield batch_of(topic, part.partition, [r for r in records if r.offset < ends[part]])
            before, left = left, await _unfinished(consumer, left, ends)
            if found or left != before:
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE_MAX_S:
                raise PipelineError(f"Kafka at {brokers} hands out no more of topic {topic!r}")


async def _unfinished(
    consumer: AIOKafkaConsumer, parts: set[TopicPartition], ends: Mapping[TopicPartition, int]
) -> set[TopicPartition]:
    return {part for part in parts if await consumer.position(part) < ends[part]}


def batch_of(topic: str, partition: int, records: Sequence[ConsumerRecord[Any, Any]]) -> pa.RecordBatch:
    """Return records of one partition in schema.RECORD, without the gateways' own of a fence test."""
    rows = [row for record in records if (row := _row(record)) is not None]
    columns = list(zip(*rows, strict=True)) or [()] * len(_Row._fields)
    place: list[Any] = [[topic] * len(rows), [partition] * len(rows)]
    arrays = [
        pa.array(values, pa.int64()).cast(field.type)
        if pa.types.is_timestamp(field.type)
        else pa.array(values, field.type)
        for values, field in zip((*place, *columns), _ARROW, strict=True)
    ]
    return pa.record_batch(arrays, schema=_ARROW)


def _row(record: ConsumerRecord[Any, Any]) -> _Row | None:
    headers = dict(record.headers)
    if HEADER_FENCE_TEST in headers:
        return None
    if len(headers) != len(record.headers):  # a header that is there twice counts as none
        names = [name for name, _ in record.headers]
        headers = {name: value for name, value in headers.items() if names.count(name) == 1}
    return _Row(
        record.offset,
        record.timestamp * 1000,
        record.key,
        record.value,
        _text(headers.get(HEADER_SOURCE)),
        headers.get(HEADER_GATEWAY),
        headers.get(HEADER_PROGRESS),
    )


def _text(header: bytes | None) -> str | None:
    try:
        return None if header is None else header.decode()
    except UnicodeDecodeError:
        return None
