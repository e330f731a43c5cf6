"""
The file of the SQLite log: its schema, how it is created, and how it is opened.

Other programs read it: docs/ARCHITECTURE.md specifies the schema, which has a version.
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
"""Identifies the file as a log in its header ("GWLG")."""

OFFSETS_MAX = 1 << 48
"""The ids of each partition: 89 years at 100,000 records/s. Ids are signed 64-bit numbers, so a file has
room for 32,768 partitions."""

PAGE_BYTES = 4096
"""SQLite's default. A small append writes about three pages into the WAL, so larger pages would cost more;
a record of a kilobyte wastes little of a page."""

PARAMETERS_MAX = 32_766
"""The limit of one statement: SQLite's default, set so that all builds behave alike."""

BUSY_RETRY_S = 0.01

WRITER_CACHE_BYTES = 32 * 1024 * 1024
"""The writer's page cache. If a group's pages do not fit, SQLite writes them into the WAL twice."""

NOTHING = -1
"""A parameter instead of None: for each None, Python's sqlite3 searches for an adapter, which is slow."""

Row: TypeAlias = tuple[int, str, str | int, bytes, bytes, bytes, bytes | int, bytes | int]
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
  gs BLOB,
  headers BLOB
);
PRAGMA application_id = {APPLICATION_ID};
"""


@dataclass(frozen=True, slots=True)
class SqliteLimits:
    """Every queue, batch and wait of the SQLite log."""

    busy_timeout_s: float = (
        2.0  # while another process commits: longer than its group, shorter than a lane waits
    )
    answer_timeout_s: float = 30.0  # for a disk that hangs; the outcome is unknown then
    close_timeout_s: float = 10.0
    queue_operations_max: int = 1024  # never reached: each lane has one operation in progress
    group_records_max: int = 3000  # and one more append. A larger group only delays its first operation
    group_bytes_max: int = 8 * 1024 * 1024  # nine full lane batches
    read_records_max: int = 1000
    read_bytes_max: int = 4 * 1024 * 1024
    trim_records_max: int = 500  # a transaction of a few ms, so that appends wait little
    wal_checkpoint_bytes: int = 16 * 1024 * 1024  # smaller ones would copy hot pages more often
    wal_bytes_max: int = 256 * 1024 * 1024  # beyond it, a checkpoint waits for readers and logs a warning
    wal_restart_wait_s: float = 0.1


def connect(path: Path, limits: SqliteLimits, *, read_only: bool) -> sqlite3.Connection:
    """
    Open an existing log file, for one thread at a time.

    A connection of the writer has no automatic checkpoints: the writer runs them after its answers.

    Raises:
        sqlite3.Error: the file does not exist, or the disk fails.
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
    Check that `path` is a log file of this version, create it unless `read_only`, and return its log_id.

    Raises:
        ConfigurationError: the file is no log, of a newer version, damaged, or cannot be opened.
        RetriableError: another process locks it, the disk fails, or it is empty and `read_only`.
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
                _add_columns(connection)
            return log_id
        finally:
            connection.close()
    except (sqlite3.Error, MemoryError) as err:
        raise _translated_at_open(err, path) from err


def translated(err: sqlite3.Error | MemoryError) -> GatewayError:
    """
    Return the gateway's error for one of a read: LogCorruptError or RetriableError.

    A full, read-only or failing disk does not mean that the file is damaged.
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
    """Create the tables, unless another process has created them meanwhile."""
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
    Check the table of partitions, of a few pages, against its index.

    In a file that was restored without its WAL, some pages are older than others.
    """
    (problem,) = connection.execute("PRAGMA integrity_check(partitions)").fetchone()
    if problem != "ok":
        raise _damaged(path, problem)


def _damaged(path: Path, why: object) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is damaged: {why}. If it was restored or copied, {path.name}-wal belongs beside it; "
        "otherwise restore a backup"
    )


def _add_columns(connection: sqlite3.Connection) -> None:
    """Add the columns that the file of an earlier version lacks; readers of the others are not affected."""
    there = {name for _, name, *_ in connection.execute("PRAGMA table_info(records)")}
    for name in ("gs", "headers"):
        if name not in there:
            connection.execute(f"ALTER TABLE records ADD COLUMN {name} BLOB")


def _turn_on_wal(connection: sqlite3.Connection, path: Path, limits: SqliteLimits) -> None:
    """
    Set the journal mode, which a backup tool may not have copied.

    SQLite does not wait here for another writer, because the statement reads before it writes. So this does.
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
    """Try to set WAL mode; return the file's mode, None while another process uses the file."""
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
