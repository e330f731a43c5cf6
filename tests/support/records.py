"""
Records of format v1 made by hand, and topics filled with them: also with what no gateway would write.

Shares only dedupe.model.record's writer with the gateway, whose golden vectors freeze it.
"""

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import orjson
from aiokafka import AIOKafkaProducer

from dedupe.model.identity import Identity, fingerprint_of
from dedupe.model.record import build_record
from dedupe.model.routing import partition_of
from dedupe.model.types import Event, NewRecord, Session

SECRET = b"a secret of the tests"
START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
BATCH_RECORDS = 500
BATCH_BYTES_MAX = 8 * 1024 * 1024


@dataclass
class RecordMaker:
    """Makes the records that one gateway would write, lane by lane."""

    partitions: int = 2
    source: str = "web"
    step_ms: int = 10
    identity: Identity = field(default_factory=lambda: Identity(SECRET))
    _next_seq: dict[int, int] = field(default_factory=dict)
    _made: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def event(
        self,
        message_id: str,
        *,
        session: Session | None = None,
        type_: str = "track",
        more: Mapping[str, object] | None = None,
    ) -> Event:
        """Return an identified event, with these fields or a few."""
        fields: dict[str, object] = {"messageId": message_id, "type": type_, "event": "Tested"}
        fields |= more or {"userId": f"user-{hash_of(message_id) % 100}", "properties": {}}
        value = orjson.dumps(fields)
        if session is None:
            key = self.identity.message_key(self.source, message_id)
            routing_key = key
        else:
            key = self.identity.sequence_key(session.client_hash, session.session_hash, session.sequence)
            routing_key = session.client_hash
        partition = partition_of(routing_key, self.partitions)
        return Event(key, partition, fingerprint_of(value), self.source, message_id, value, session=session)

    def event_of(self, partition: int) -> Event:
        """Return a new event that belongs into the partition."""
        while (event := self.event(f"id-{next(self._numbers)}")).partition != partition:
            pass
        return event

    def record(self, event: Event, *, partition: int | None = None, lane_seq: int | None = None) -> NewRecord:
        """Return its record, the next of its lane; `partition` and `lane_seq` tell lies."""
        lane = event.partition if partition is None else partition
        if lane_seq is None:
            lane_seq = self._next_seq.get(lane, 0)
            self._next_seq[lane] = lane_seq + 1
        self._made += 1
        return build_record(event, lane_seq=lane_seq, timestamp_ms=START_MS + self._made * self.step_ms)

    def skip(self, partition: int, count: int = 1) -> None:
        """Leave a gap in a lane."""
        self._next_seq[partition] = self._next_seq.get(partition, 0) + count

    def lanes(self, events: Iterable[Event]) -> dict[int, list[NewRecord]]:
        """Return the records of clean events by partition."""
        lanes: dict[int, list[NewRecord]] = {partition: [] for partition in range(self.partitions)}
        for event in events:
            lanes[event.partition].append(self.record(event))
        return lanes


def hash_of(text: str) -> int:
    """Return a number that is the same in every run."""
    return int.from_bytes(fingerprint_of(text.encode())[:4], "big")


async def fill_topic(
    bootstrap_servers: str,
    topic: str,
    lanes: Mapping[int, Sequence[NewRecord]],
    *,
    commit: bool = True,
    batch_records: int = BATCH_RECORDS,
) -> None:
    """Append records in transactions of one partition each, or abort them all."""
    await asyncio.gather(
        *(_fill(bootstrap_servers, topic, p, records, commit, batch_records) for p, records in lanes.items())
    )


async def open_transaction(
    bootstrap_servers: str, topic: str, partition: int, records: Sequence[NewRecord]
) -> AIOKafkaProducer:
    """Append records and leave their transaction open; the caller ends it by `abort_transaction`."""
    producer = _producer(bootstrap_servers, f"{topic}-{partition}-open")
    await producer.start()
    await producer.begin_transaction()
    await _send(producer, topic, partition, records)
    await producer.flush()
    return producer


async def _fill(
    servers: str, topic: str, partition: int, records: Sequence[NewRecord], commit: bool, batch_records: int
) -> None:
    producer = _producer(servers, f"{topic}-{partition}")
    await producer.start()
    try:
        for first in range(0, len(records), batch_records):
            await producer.begin_transaction()
            await _send(producer, topic, partition, records[first : first + batch_records])
            await (producer.commit_transaction() if commit else producer.abort_transaction())
    finally:
        await producer.stop()


async def _send(producer: AIOKafkaProducer, topic: str, partition: int, records: Sequence[NewRecord]) -> None:
    builder = producer.create_batch()
    for record in records:
        appended = builder.append(
            timestamp=record.timestamp_ms, key=record.key, value=record.value, headers=record.headers
        )
        assert appended is not None, "the batch is full"
    await (await producer.send_batch(builder, topic, partition=partition))


def _producer(servers: str, transactional_id: str) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        bootstrap_servers=servers,
        transactional_id=transactional_id,
        acks="all",
        max_batch_size=BATCH_BYTES_MAX,
        max_request_size=BATCH_BYTES_MAX,
    )
