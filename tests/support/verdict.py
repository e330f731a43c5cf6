"""
The verdict on a run: reads the committed log by itself and compares it with what a client was told.

The readers here share no code with the gateway's own: plain SQL, and a plain read_committed consumer.
"""

import sqlite3
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.support.client import Client, Receipt

Division: TypeAlias = dict[str, Any]
"""A line of `gateway reshard status --output json`, on one partition."""

SLOTS = 4096
"""Of a topic that began with a power of two, up to 1,024 partitions."""

WHOLE = [{"offset": 0, "lane_seq": 0}]
"""The parts of a log that was never divided."""


class SessionPlace(NamedTuple):
    """Where a record is in its client session."""

    client_hash: bytes
    session_hash: bytes
    sequence: int


class Committed(NamedTuple):
    """One committed record, as any reader of the topic sees it."""

    partition: int
    offset: int
    message_id: str
    lane_seq: int
    value: bytes
    session: SessionPlace | None


def read_sqlite(data: Path, topic: str = "events") -> list[Committed]:
    """Return all committed records of a topic of the embedded log."""
    with closing(sqlite3.connect(f"file:{data / 'log.sqlite'}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT p.partition, r.id - p.first_id, r.key, r.gw, r.value FROM partitions AS p"
            " JOIN records AS r ON r.id >= p.first_id AND r.id < p.first_id + p.next_offset"
            " WHERE p.topic = ? ORDER BY p.partition, r.id",
            (topic,),
        ).fetchall()
    return [
        Committed(partition, offset, key.decode(), _lane_seq(gw), value, _session(gw))
        for partition, offset, key, gw, value in rows
    ]


async def read_kafka(bootstrap_servers: str, topic: str, partitions: int) -> list[Committed]:
    """Return all committed records of a topic on Kafka."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        consumer.assign(places)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(places)
        found: list[Committed] = []
        while any([await consumer.position(place) < ends[place] for place in places]):
            batches = await consumer.getmany(timeout_ms=100)
            for place, records in batches.items():
                found += [
                    Committed(
                        place.partition,
                        record.offset,
                        (record.key or b"").decode(),
                        _lane_seq(dict(record.headers)["gw"]),
                        record.value or b"",
                        _session(dict(record.headers)["gw"]),
                    )
                    for record in records
                ]
        return found
    finally:
        await consumer.stop()


def assert_exactly_once(
    committed: Sequence[Committed], clients: Iterable[Client], *, division: Sequence[Division] = ()
) -> None:
    """
    Everything acknowledged is there, where the receipt says, once; nothing else is.

    The clients must have delivered everything they ever sent. How the topic was divided is what
    `gateway reshard status` says.
    """
    copies = Counter(record.message_id for record in committed)
    duplicates = [message_id for message_id, count in copies.items() if count > 1]
    assert not duplicates, f"{len(duplicates)} events are in the log more than once: {duplicates[:5]}"
    places = {record.message_id: Receipt(record.partition, record.offset) for record in committed}
    receipts = {message_id: receipt for client in clients for message_id, receipt in client.receipts.items()}
    lost = [message_id for message_id in receipts if message_id not in places]
    assert not lost, f"{len(lost)} acknowledged events are not in the log: {lost[:5]}"
    assert places == receipts
    assert_sequences_whole(committed, division=division)


def assert_sequences_whole(committed: Sequence[Committed], *, division: Sequence[Division] = ()) -> None:
    """Per partition, and each part of its log, lane_seq counts one by one in offset order."""
    starts = {row["partition"]: row["begins"] for row in division}
    sequences: dict[tuple[int, int], list[int]] = {}
    for record in sorted(committed):
        begun = starts.get(record.partition, WHOLE)
        first = [each["lane_seq"] for each in begun if each["offset"] <= record.offset][-1]
        sequences.setdefault((record.partition, first), []).append(record.lane_seq)
    for (partition, first), sequence in sequences.items():
        whole = list(range(first, first + len(sequence)))
        assert sequence == whole, f"partition {partition} has gaps in lane_seq"


def assert_at_home(
    committed: Sequence[Committed],
    partitions: int,
    key_of: Callable[[str], bytes],
    *,
    division: Sequence[Division],
) -> None:
    """
    Each record lies where its key was at home: in one of so many partitions, or of twice as many.

    Args:
        committed: all records.
        partitions: those that the topic began with; each plan doubles them, or halves them again.
        key_of: the key of an event without a session, by its message id.
        division: what `gateway reshard status` says.
    """
    offsets = {row["partition"]: [each["offset"] for each in row["begins"]] for row in division}
    for record in committed:
        key = record.session.client_hash if record.session else key_of(record.message_id)
        number = int.from_bytes(key[:8]) % SLOTS
        home, slot = number % partitions, number // partitions
        plans = sum(offset <= record.offset for offset in offsets.get(record.partition, [0])) - 1
        is_doubled = plans % 2 == 1 if record.partition < partitions else True
        if is_doubled and slot >= SLOTS // partitions // 2:
            home += partitions
        assert record.partition == home, f"{record} belongs into partition {home}"


def assert_sessions_whole(committed: Sequence[Committed]) -> dict[bytes, int]:
    """Each client session has its sequences from 1 on, every one once; return how many, by its hash."""
    sessions: dict[bytes, list[int]] = {}
    for record in committed:
        assert record.session is not None
        sessions.setdefault(record.session.session_hash, []).append(record.session.sequence)
    for sequences in sessions.values():
        assert sorted(sequences) == list(range(1, len(sequences) + 1)), "a sequence is missing or doubled"
    return {session_hash: len(sequences) for session_hash, sequences in sessions.items()}


def assert_stats_agree(stats: dict[str, object], committed: Sequence[Committed]) -> None:
    """Totals add up, and accepted since `since_offset` equals committed since then, per partition."""
    totals = stats["totals"]
    assert isinstance(totals, dict)
    parts = ("accepted", "duplicates", "conflicts", "rejected", "unknown", "refused")
    assert totals["received"] == sum(totals[part] for part in parts)
    partitions = stats["partitions"]
    assert isinstance(partitions, list)
    for partition in partitions:
        since = [
            record
            for record in committed
            if record.partition == partition["partition"] and record.offset >= partition["since_offset"]
        ]
        assert partition["accepted"] == len(since), partition


def _lane_seq(gateway_header: bytes) -> int:
    value: int = struct.unpack(">Q", gateway_header[26:34])[0]
    return value


def _session(gateway_header: bytes) -> SessionPlace | None:
    if not gateway_header[1] & 1:
        return None
    return SessionPlace(*struct.unpack(">16s16sQ", gateway_header[34:74]))
