"""
The SQLite log's file: how it is made and opened. Its schema is a versioned contract with every
reader, which docs/ARCHITECTURE.md spells out.
"""

import sqlite3
import uuid
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import TypeAlias

from dedupe.model.errors import ConfigurationError, GatewayError, LogCorruptError, RetriableError

SCHEMA_VERSION = 1

APPLICATION_ID = 0x47574C47
"""Stands in the file's header ("GWLG"), so that no other program's database is taken for a log."""

OFFSETS_MAX = 1 << 48
"""Ids set aside for each partition: 89 years at 100,000 records/s. More leaves room for fewer than
these 32,768 partitions a file, since ids are signed 64-bit numbers."""

PAGE_BYTES = 4096
"""SQLite's default. A single small append puts about three pages into the WAL, so larger pages would
make it dearer; records of a kilobyte waste little of them (1,028 bytes on disk for 860 of data)."""

PARAMETERS_MAX = 32_766
"""Of one statement: SQLite's own default, so that builds that take more behave alike."""

BUSY_RETRY_S = 0.01

WRITER_CACHE_BYTES = 32 * 1024 * 1024
"""Page cache of the writer: a group's pages must fit, else they reach the WAL before the COMMIT and
cost twice."""

NOTHING = -1
"""A parameter in the place of None, for which Python's sqlite3 looks for an adapter each time: with those
of padding, a sixth of what an append costs its thread."""

Row: TypeAlias = tuple[int, str, str | int, bytes, bytes, bytes, bytes | int]
"""One record without its id, in the order of the table's columns; NOTHING stands for NULL."""

_SCHEMA = f"""
CREATE TABLE meta(
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE partitions(
  first_id INTEGER PRIMARY KEY,
  topic TEXT NOT NULL,
  partition INTEGER NOT NULL,
  epoch INTEGER NOT NULL DEFAULT 0,
  next_offset INTEGER NOT NULL DEFAULT 0,
  log_start_offset INTEGER NOT NULL DEFAULT 0,
  UNIQUE(topic, partition)
);
CREATE TABLE records(
  id INTEGER PRIMARY KEY,
  timestamp_ms INTEGER NOT NULL,
  source TEXT NOT NULL,
  reason TEXT,
  key BLOB NOT NULL,
  gw BLOB NOT NULL,
  value BLOB NOT NULL,
  gs BLOB
);
PRAGMA application_id = {APPLICATION_ID};
"""


@dataclass(frozen=True, slots=True)
class SqliteLimits:
    """Every queue, batch and wait of the SQLite log."""

    busy_timeout_s: float = (
        2.0  # another process commits: longer than its group takes, short of a lane's wait
    )
    answer_timeout_s: float = 30.0  # a disk that hangs: give up waiting, the outcome is unknown
    close_timeout_s: float = 10.0
    queue_operations_max: int = 1024  # each lane has one under way, so this is never reached
    group_records_max: int = 3000  # and one more append. More only makes the first wait longer
    group_bytes_max: int = 8 * 1024 * 1024  # nine full lane batches
    read_records_max: int = 1000
    read_bytes_max: int = 4 * 1024 * 1024
    trim_records_max: int = 500  # a transaction of a few ms, so that appends hardly notice
    wal_checkpoint_bytes: int = (
        16 * 1024 * 1024
    )  # about 20 ms of copying; smaller copies hot pages more often
    wal_bytes_max: int = 256 * 1024 * 1024  # beyond it a checkpoint waits for readers, and says so
    wal_restart_wait_s: float = 0.1


def connect(path: Path, limits: SqliteLimits, *, read_only: bool) -> sqlite3.Connection:
    """
    Open an existing log file for one thread at a time.

    A writer's connection never checkpoints by itself: the writer does, after it has answered.

    Raises:
        sqlite3.Error: the file is gone, or the disk fails.
    """
    connection = _open_file(path, "ro" if read_only else "rw", limits)
    if not read_only:
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, PARAMETERS_MAX)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # macOS: a plain fsync does not reach the platter
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA journal_size_limit = {4 * limits.wal_checkpoint_bytes}")
        connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE_BYTES // 1024}")
    return connection


def open_or_create(path: Path, limits: SqliteLimits, *, read_only: bool) -> str:
    """
    Make sure that `path` is a log file of this version, creating it if it may, and return its log_id.

    Raises:
        ConfigurationError: it is something else, a newer version, damaged, or cannot be opened.
        RetriableError: another process holds it, the disk fails, or `read_only` and nothing is in it yet.
    """
    try:
        connection = _open_file(path, "ro" if read_only else "rwc", limits)
        try:
            if _is_empty(connection):
                if read_only:
                    raise RetriableError(f"{path} is empty: its gateway has not created the log yet")
                _create(connection)
            log_id = _checked_log_id(connection, path)
            _check_partitions(connection, path)
            if not read_only:
                _turn_on_wal(connection, path, limits)
                _add_column(connection)
            return log_id
        finally:
            connection.close()
    except (sqlite3.Error, MemoryError) as err:
        raise _translated_at_open(err, path) from err


def translated(err: sqlite3.Error | MemoryError) -> GatewayError:
    """
    Return what an error of a read means to the core: a damaged file, or try again.

    A disk that is full, over its quota, read-only or broken says nothing about what is on it.
    """
    primary_code = getattr(err, "sqlite_errorcode", 0) & 0xFF
    if primary_code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return LogCorruptError(f"the SQLite log is damaged: {err}")
    return RetriableError(f"the SQLite log cannot be read: {err!r}")


def _open_file(path: Path, mode: str, limits: SqliteLimits) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=limits.busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )


def _is_empty(connection: sqlite3.Connection) -> bool:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(tables == 0)


def _create(connection: sqlite3.Connection) -> None:
    """Turn an empty database into a log, unless another process is quicker."""
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("BEGIN IMMEDIATE")
    if _is_empty(connection):
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.executemany(
            "INSERT INTO meta VALUES (?, ?)",
            [("schema_version", str(SCHEMA_VERSION)), ("log_id", str(uuid.uuid4()))],
        )
    connection.execute("COMMIT")


def _checked_log_id(connection: sqlite3.Connection, path: Path) -> str:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise ConfigurationError(f"{path} is not an event log of the gateway")
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    if int(meta["schema_version"]) > SCHEMA_VERSION:
        raise ConfigurationError(
            f"{path} has log schema version {meta['schema_version']}, "
            f"and this gateway knows versions up to {SCHEMA_VERSION}: run a newer one"
        )
    return str(meta["log_id"])


def _check_partitions(connection: sqlite3.Connection, path: Path) -> None:
    """
    See that the table of partitions agrees with its index; it has a few pages, so this takes no time.

    In a file that was put back without its write-ahead log, some pages are older than others.
    """
    (found,) = connection.execute("PRAGMA integrity_check(partitions)").fetchone()
    if found != "ok":
        raise _damaged(path, found)


def _damaged(path: Path, why: object) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is damaged: {why}. If it was restored or copied, {path.name}-wal belongs beside it; "
        "otherwise restore a backup"
    )


def _add_column(connection: sqlite3.Connection) -> None:
    """Give an early file the column that it lacks; readers of the others do not notice."""
    if not any(name == "gs" for _, name, *_ in connection.execute("PRAGMA table_info(records)")):
        connection.execute("ALTER TABLE records ADD COLUMN gs BLOB")


def _turn_on_wal(connection: sqlite3.Connection, path: Path, limits: SqliteLimits) -> None:
    """
    Let readers and the writer work side by side; a copy made by a backup tool may have lost it.

    SQLite reads before it writes here, and lets nobody who has read wait for another writer: so we do.
    """
    give_up_at = monotonic() + limits.busy_timeout_s
    while (mode := _wal_mode(connection)) is None:
        if monotonic() > give_up_at:
            raise RetriableError(f"{path} is in use by another process, without a WAL")
        sleep(BUSY_RETRY_S)
    if mode != "wal":
        raise ConfigurationError(
            f"{path} lies on a file system without shared memory, which SQLite's WAL needs"
        )


def _wal_mode(connection: sqlite3.Connection) -> str | None:
    """Try to turn it on, and return the mode that the file is in; None if others use it just now."""
    try:
        return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
    except sqlite3.OperationalError as err:
        if err.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        return None


def _translated_at_open(err: sqlite3.Error | MemoryError, path: Path) -> GatewayError:
    primary_code = getattr(err, "sqlite_errorcode", 0) & 0xFF
    if primary_code == sqlite3.SQLITE_NOTADB:
        return ConfigurationError(f"{path} is not an event log of the gateway")
    if primary_code == sqlite3.SQLITE_CORRUPT:
        return _damaged(path, err)
    if primary_code == sqlite3.SQLITE_CANTOPEN:
        return ConfigurationError(f"{path} cannot be opened: {err}")
    return RetriableError(f"{path} cannot be opened now: {err!r}")
