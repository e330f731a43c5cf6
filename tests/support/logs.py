"""Embedded logs filled by hand, by their published schema, also as retention would leave them."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from dedupe.model.types import NewRecord
from dedupe.storage.sqlite.schema import SqliteLimits, open_or_create

TOPIC = "events"
IDS_PER_PARTITION = 1 << 48


def append_to_log(data: Path, lanes: Mapping[int, Sequence[NewRecord]]) -> None:
    """Append records to each partition, in one transaction; the log is made if it is not there."""
    data.mkdir(parents=True, exist_ok=True)
    path = data / "log.sqlite"
    open_or_create(path, SqliteLimits(), read_only=False)
    with closing(sqlite3.connect(path)) as log, log:
        for partition, records in lanes.items():
            first_id = partition * IDS_PER_PARTITION
            log.execute(
                "INSERT INTO partitions (first_id, topic, partition) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (first_id, TOPIC, partition),
            )
            (end,) = log.execute(
                "SELECT next_offset FROM partitions WHERE first_id = ?", (first_id,)
            ).fetchone()
            log.executemany(
                "INSERT INTO records (id, timestamp_ms, source, key, gw, gs, value)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        first_id + end + number,
                        record.timestamp_ms,
                        dict(record.headers)["source"].decode(),
                        record.key,
                        dict(record.headers)["gw"],
                        dict(record.headers).get("gs"),
                        record.value,
                    )
                    for number, record in enumerate(records)
                ],
            )
            log.execute(
                "UPDATE partitions SET next_offset = ? WHERE first_id = ?", (end + len(records), first_id)
            )


def trim_log(data: Path, partition: int, start: int) -> None:
    """Delete a partition's records before an offset, as retention does."""
    first_id = partition * IDS_PER_PARTITION
    with closing(sqlite3.connect(data / "log.sqlite")) as log, log:
        log.execute("DELETE FROM records WHERE id >= ? AND id < ?", (first_id, first_id + start))
        log.execute("UPDATE partitions SET log_start_offset = ? WHERE first_id = ?", (start, first_id))
