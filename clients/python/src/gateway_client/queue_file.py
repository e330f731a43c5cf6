"""The file of a queue: one SQLite database that a single process has open."""

import glob
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .model import QueueInUseError

SCHEMA_VERSION = 2

BALLAST_BYTES = 1 << 20
"""Given up when the disk is full, so that what is delivered can be deleted."""

WAL_PAGES = 100
"""Pages of the -wal that are copied at once, well below the ballast."""

PAGE_BYTES = 4096
FREE_PAGES_MAX = 256
FREE_PAGES_MIN = 16

SET_ASIDE = ".corrupt-"
"""Between the name of a damaged file and the time at which it was renamed."""

NO_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE})
DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR_SHORT_READ})
PRIMARY_CODE = 0xFF

# The names of a session and the settings are in an index each, too: a page that is damaged has one of both.
_SCHEMA = (
    """CREATE TABLE settings (
        name TEXT NOT NULL,
        value TEXT NOT NULL,
        UNIQUE (name, value)
    )""",
    """CREATE TABLE sessions (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        client TEXT NOT NULL,
        session TEXT NOT NULL,
        source TEXT NOT NULL DEFAULT '',
        doubtful_through INTEGER NOT NULL DEFAULT 0,
        UNIQUE (session, client)
    )""",
    """CREATE TABLE events (
        session_id INTEGER NOT NULL,
        sequence INTEGER NOT NULL,
        content BLOB NOT NULL,
        has_id INTEGER NOT NULL,
        queued_at_ms INTEGER NOT NULL,
        checksum INTEGER NOT NULL,
        PRIMARY KEY (session_id, sequence)
    ) WITHOUT ROWID""",
    """CREATE TABLE dead_letters (
        id INTEGER PRIMARY KEY,
        session TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        code TEXT NOT NULL,
        message TEXT NOT NULL,
        content BLOB NOT NULL
    )""",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


def make_schema(db: sqlite3.Connection) -> None:
    """Make the tables of an empty database."""
    for statement in _SCHEMA:
        db.execute(statement)


def damage(message: str) -> sqlite3.DatabaseError:
    """Return the error of a file that is not what was written."""
    err = sqlite3.DatabaseError(message)
    err.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return err


def is_damage(err: sqlite3.Error) -> bool:
    """Whether the file is not what was written, or is no database."""
    return _is_one_of(err, DAMAGE)


def is_no_room(err: sqlite3.Error) -> bool:
    """Whether a write failed because nothing more fits on the disk."""
    return _is_one_of(err, NO_ROOM)


def _is_one_of(err: sqlite3.Error, codes: frozenset[int]) -> bool:
    code = getattr(err, "sqlite_errorcode", 0)
    return code in codes or code & PRIMARY_CODE in codes


class QueueFile:
    """
    An open file, or memory if it has no path.

    Attributes:
        db: the connection, in autocommit mode.
        lost: what is known to be missing from it; "" if nothing is.
        is_in_transaction: whether a transaction has begun and not ended.
    """

    def __init__(self, path: Path | None) -> None:
        """
        Open or make the file.

        Raises:
            QueueInUseError: it is open already.
            OSError, sqlite3.Error: it cannot be opened, or is damaged.
        """
        self.path = path
        self.lost = ""
        self.is_in_transaction = False
        self._has_ballast = False
        self._has_wal = path is not None and _beside(path, "-wal").exists()
        if path is not None:
            self._note_loss(path)
            _make(path)
        self.db = sqlite3.connect(
            ":memory:" if path is None else path, timeout=0, isolation_level=None, check_same_thread=False
        )
        self.db.text_factory = lambda text: text.decode(errors="replace")  # of a damaged file
        try:
            self._prepare()
        except sqlite3.OperationalError as err:
            self.db.close()
            if err.sqlite_errorcode & PRIMARY_CODE == sqlite3.SQLITE_BUSY:
                raise QueueInUseError(f"another client has {path} open") from err
            raise
        except UnicodeDecodeError as err:  # of SQLite's own message, which names what is damaged
            self.db.close()
            raise damage("the schema is damaged") from err
        except BaseException:
            self.db.close()
            raise
        self._inode = self._inode_now()

    @property
    def has_vanished(self) -> bool:
        """Whether somebody has deleted or replaced the file: what is written to it is lost."""
        return self._inode_now() != self._inode

    def check(self) -> None:
        """Raise sqlite3.DatabaseError if any page is damaged."""
        (found,) = self.db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise damage(found)

    def close(self) -> None:
        """Close it so that the next one to open it finds all in the one file."""
        with suppress(sqlite3.Error):
            self.db.execute("DELETE FROM settings WHERE name = 'open'")
        self.db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """
        All of it is durable, or nothing has happened.

        Within another one, of a function that a signal has interrupted, it is a part of that one.
        """
        if self.is_in_transaction:
            yield self.db
            return
        if self.db.in_transaction:  # an end of the last one has failed
            self.db.execute("ROLLBACK")
        self.is_in_transaction = True
        try:
            self.db.execute("BEGIN IMMEDIATE")
            yield self.db
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise
        finally:
            self.is_in_transaction = False

    def give_up_ballast(self) -> bool:
        """Make room on a full disk; return whether there was something to give up."""
        self._has_ballast = False
        return self.path is not None and _give_up_ballast(self.path)

    def check_room(self, size: int) -> None:
        """
        Refuse what would fill the room of the ballast, once that was given up: it is for deleting.

        Raises:
            sqlite3.OperationalError: as SQLite does when the disk is full.
        """
        if self._take_ballast():
            return
        (free,) = self.db.execute("PRAGMA freelist_count").fetchone()
        if free < FREE_PAGES_MIN + 2 * size // PAGE_BYTES:
            raise sqlite3.OperationalError("database or disk is full: what waits is delivered first")

    def shrink(self) -> None:
        """Give back what the file does not need any more, once that is much."""
        (free,) = self.db.execute("PRAGMA freelist_count").fetchone()
        (pages,) = self.db.execute("PRAGMA page_count").fetchone()
        if free > FREE_PAGES_MAX and free > pages // 2:
            self.db.executescript("PRAGMA incremental_vacuum")  # execute would free one page
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._take_ballast()

    def erase(self) -> None:
        """Leave nothing of deleted rows in the file, and none of those that were set aside."""
        if self.path is not None:
            for aside in self.path.parent.glob(f"{glob.escape(self.path.name)}{SET_ASIDE}*"):
                aside.unlink(missing_ok=True)
        self.db.execute("VACUUM")
        self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _prepare(self) -> None:
        db = self.db
        db.execute("PRAGMA locking_mode = EXCLUSIVE")  # until the process ends, however it does
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")  # less would lose events with the power
        db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            with self.transaction():
                _upgrade(db)
        self._take_ballast()
        if not self._has_wal and db.execute("SELECT 1 FROM settings WHERE name = 'open'").fetchone():
            self.lost = f"{self.path} was not closed, and its -wal is missing"
        try:
            with self.transaction():
                db.execute("INSERT OR IGNORE INTO settings VALUES ('open', '')")
            db.execute("PRAGMA wal_checkpoint").fetchall()  # the note is in the file itself
        except sqlite3.OperationalError as err:
            if not is_no_room(err):  # a queue can be emptied without it
                raise

    def _note_loss(self, path: Path) -> None:
        """Note what is missing before the file is opened, after which SQLite hides it."""
        was_there = _beside(path, "-ballast").exists()
        if was_there and not (path.exists() and path.stat().st_size):
            self.lost = f"{path} was deleted or emptied"

    def _take_ballast(self) -> bool:
        """Return whether there is a ballast now."""
        if self.path is None or self._has_ballast:
            return True
        ballast = _beside(self.path, "-ballast")
        try:
            if not ballast.exists():
                _make(ballast)
                ballast.write_bytes(bytes(BALLAST_BYTES))
        except OSError:
            _give_up_ballast(self.path)
            return False
        self._has_ballast = True
        return True

    def _inode_now(self) -> int:
        try:
            return os.stat(self.path).st_ino if self.path is not None else 0
        except OSError:
            return -1


def open_with_ballast(path: Path) -> QueueFile:
    """Open a file, also on a full disk. Raises as QueueFile."""
    try:
        return QueueFile(path)
    except sqlite3.OperationalError as err:
        if not is_no_room(err) or not _give_up_ballast(path):
            raise
        return QueueFile(path)


def set_aside(path: Path, suffix: str) -> Path:
    """Rename a file and its -wal, without its ballast; return the new path."""
    aside = _beside(path, suffix)
    _beside(path, "-ballast").unlink(missing_ok=True)
    for part in ("-wal", ""):
        with suppress(FileNotFoundError):
            _beside(path, part).rename(_beside(aside, part))
    return aside


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _give_up_ballast(path: Path) -> bool:
    try:
        _beside(path, "-ballast").unlink()
    except OSError:
        return False
    return True


def _make(path: Path) -> None:
    """Make a file that only its owner reads. An existing one is not opened: that would end its lock."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if path.is_file():
            with suppress(OSError):
                path.chmod(0o600)


def _upgrade(db: sqlite3.Connection) -> None:
    """Make the tables, or those of an earlier version anew."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if "installation" not in tables:
        make_schema(db)
        return
    db.create_function("crc32", 1, zlib.crc32)
    for name in ("sessions", "events", "dead_letters"):
        db.execute(f"ALTER TABLE {name} RENAME TO earlier_{name}")
    make_schema(db)
    for statement in (
        "INSERT INTO settings SELECT 'client', client FROM installation",
        "INSERT INTO sessions (id, client, session, doubtful_through)"
        " SELECT id, client, session, doubtful_through FROM earlier_sessions, installation",
        "INSERT INTO events SELECT session_id, sequence, content, has_id, 0, crc32(content)"
        " FROM earlier_events",
        "INSERT INTO dead_letters SELECT * FROM earlier_dead_letters",
        *(f"DROP TABLE {name}" for name in ("earlier_events", "earlier_sessions", "earlier_dead_letters")),
        "DROP TABLE installation",
    ):
        db.execute(statement)
