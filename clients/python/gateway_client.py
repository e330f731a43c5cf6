"""
A client that keeps each event in a file until the gateway has it: none is lost, none is stored twice.

Copy this file into your project; it needs Python 3.11 and httpx. It is written by single_file.py from the
package in src: change that. README.md says what an application must know.
"""

import asyncio
import base64
import glob
import gzip
import hashlib
import json
import logging
import math
import os
import random
import secrets
import shutil
import socket
import sqlite3
import tempfile
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from functools import partial, wraps
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec, Self, TypedDict, TypeVar, Unpack
from uuid import UUID

import httpx

# ---- model: What the parts of the client share: places, events as they are queued, batches, errors.


VERSION = "1.0.0"

BATCH_EVENTS = 100
"""At most 512: so many sequences above the acknowledged ones a session may have under way."""

BATCH_BYTES = 500_000
EVENT_BYTES_MAX = 700_000
"""The gateway's own limit is 800 KiB by default, with what it adds to an event."""

EVENT_REFUSED, EVENT_DAMAGED = "event_refused", "event_damaged"
"""Codes of dead letters that the gateway has no copy of: what nobody takes, what cannot be read any more."""

KSUID_EPOCH_S = 1_400_000_000
BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

NO_ID = frozenset("\u200b\u200c\u200d\u2060\ufeff")
"""Characters of no width: an id of nothing but these and white space is none to the gateway."""

logger = logging.getLogger("gateway_client")


class QueueInUseError(Exception):
    """Another client has this file open."""


class QueueFullError(Exception):
    """More events wait than may; none of the call's was queued, or the oldest were dropped for them."""


class ClosedError(RuntimeError):
    """The client was closed: it takes no events any more."""


class DeliveryError(Exception):
    """A try to deliver has failed, and is repeated."""


class DamagedQueueError(Exception):
    """The queue's file was damaged or has vanished; what could be read of it is queued again."""


class NotDurableError(Exception):
    """The queue's file cannot be opened, or not be written any more: what changes ends with the process."""


class OtherSourceError(Exception):
    """Events wait that belong to another source than that of the present write key."""


class Place(NamedTuple):
    """Which event it is: GET /v1/sessions/{session} tells what the gateway has of the session."""

    session: str  # a KSUID
    sequence: int  # from 1

    @property
    def message_id(self) -> str:
        """The id of an event that has none of its own, once it leaves this place."""
        return f"{self.session}-{self.sequence}"


class DeadLetter(NamedTuple):
    """An event that will not be stored."""

    place: Place
    code: str  # EVENT_REFUSED, EVENT_DAMAGED, or of "Events that are kept apart" in docs/http-api.md
    message: str
    event: dict[str, Any]


class Queued(NamedTuple):
    """One event: its JSON never changes while it has its place."""

    content: bytes
    has_id: bool
    queued_at_ms: int

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Self:
        """
        Take an event, and whatever has a plain form in JSON in that form.

        Raises:
            TypeError, ValueError: it is no JSON object, too large, or has a sequence.
        """
        if not isinstance(event, Mapping):
            raise TypeError(f"an event is a mapping, not {type(event).__name__}")
        if event.get("sequence") is not None:
            raise ValueError("an event's sequence is given by the client")
        try:
            content = json.dumps(dict(event), separators=(",", ":"), allow_nan=False, default=_plain).encode()
        except RecursionError:
            raise ValueError("an event may not be nested so deep") from None
        if len(content) > EVENT_BYTES_MAX:
            raise ValueError(
                f"an event may have {EVENT_BYTES_MAX:,} bytes, and this one has {len(content):,}"
            )
        return cls(content, _has_id(event), int(time.time() * 1000))

    @classmethod
    def again(cls, event: Mapping[str, Any]) -> Self:
        """Take an event that was queued before, whatever its size is now."""
        return cls(json.dumps(event, separators=(",", ":")).encode(), _has_id(event), int(time.time() * 1000))

    @property
    def checksum(self) -> int:
        """A CRC-32 of the content, by which damage is noticed."""
        return zlib.crc32(self.content)

    def moved_from(self, place: Place) -> Self:
        """
        Return the event as it goes on in another session.

        Copies of one queue move an event to sessions of their own; by an id made of its first place the
        gateway knows that they are one event.
        """
        if self.has_id:
            return self
        # Of two fields with one name the last one counts.
        comma = b"" if self.content == b"{}" else b","
        content = b'%b%b"messageId":"%b"}' % (self.content[:-1], comma, place.message_id.encode())
        return self._replace(content=content, has_id=True)


def whole_run(rows: Sequence[tuple[Any, ...]]) -> Iterator[Queued]:
    """Yield events up to the first gap, the first damage, or a batch's size."""
    size = 0
    for index, (sequence, content, has_id, queued_at_ms, checksum) in enumerate(rows):
        event = Queued(content, bool(has_id), queued_at_ms)
        size += len(content)
        is_whole = sequence == rows[0][0] + index and event.checksum == checksum
        if not is_whole or (index and size > BATCH_BYTES):
            return
        yield event


@dataclass(frozen=True, slots=True)
class Batch:
    """Events of one session without a gap, the oldest that wait."""

    client: str
    session: str
    first_sequence: int
    events: Sequence[Queued]
    sent_before: int
    """Sequences up to it may have been sent before, so they may be stored already."""
    doubtful_through: int
    """Of these, sequences up to it may be stored or not once the session is over."""
    is_last: bool
    """Whether the session gets no events after these."""

    def body(self, sent_at: str) -> bytes:
        """Return the request's body."""
        return b'{"batch":[%b],"firstSequence":%d,"sentAt":"%b"%b}' % (
            b",".join(event.content for event in self.events),
            self.first_sequence,
            sent_at.encode(),
            b',"ended":true' if self.is_last else b"",
        )

    def headers(self) -> dict[str, str]:
        """Return the headers that name the session."""
        return {
            "Gateway-Client": self.client,
            "Gateway-Session": self.session,
            "Gateway-Acknowledged-Through": str(self.first_sequence - 1),
        }


def event_of(content: bytes) -> dict[str, Any]:
    """Return a queued event; one whose content is damaged has it as text under `unreadable`."""
    try:
        event = json.loads(content)
    except (ValueError, RecursionError):
        event = None
    return event if isinstance(event, dict) else {"unreadable": content.decode("latin-1")}


def is_header(name: str) -> bool:
    """Whether a name can be a header's value, as all are that are not damaged."""
    return name.isascii() and name.isprintable() and bool(name)


def ksuid() -> str:
    """Return a new KSUID: 4 bytes of time, which sort it roughly, and 16 random ones, in base 62."""
    seconds = max(0, int(time.time()) - KSUID_EPOCH_S) % 2**32
    number = int.from_bytes(seconds.to_bytes(4, "big") + secrets.token_bytes(16), "big")
    digits = ""
    for _ in range(27):
        number, digit = divmod(number, 62)
        digits = BASE62[digit] + digits
    return digits


def now_text() -> str:
    """Return the time as it stands in events."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _has_id(event: Mapping[str, Any]) -> bool:
    message_id = event.get("messageId")
    if isinstance(message_id, str):
        return bool("".join(char for char in message_id if char not in NO_ID).strip())
    return message_id is not None


def _plain(value: object) -> object:
    """Return what JSON has for a value that it does not know. Raises TypeError."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            number = float(value)
            return number if math.isfinite(number) else str(value)
        case UUID():
            return str(value)
        case set() | frozenset():
            return sorted(value, key=str)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(value)).decode()  # a view may have gaps
        case Mapping():
            return dict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


# ---- answers: What an answer says of each event of a batch. Only the gateway's own word counts.


RETRY_AFTER_MAX_S = 300.0

OK, BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, TOO_LARGE, UNSUPPORTED = 200, 400, 401, 403, 413, 415
CLIENT_ERRORS = range(400, 500)
ABOUT_THE_MOMENT = frozenset({401, 408, 429})

SESSION_IS_OVER = frozenset({"session_expired", "session_fenced"})
"""Codes which say that the session takes no new events."""

ABOUT_THE_BODY = frozenset({"invalid_json", "batch_missing", "too_many_events", "request_too_large"})
ABOUT_THE_BODY_PREFIX = "body_too_"
"""Codes which say that this very body is not taken: part of it may be."""

ABOUT_THE_ENCODING = frozenset({"unsupported_encoding", "body_not_decompressable"})


class Fate(Enum):
    """What becomes of one event after an answer."""

    DONE = "done"  # stored, now or before
    AGAIN = "again"  # not decided: keep it
    REJECTED = "rejected"  # for good
    SESSION_OVER = "session over"  # not taken because of its session


class Verdict(NamedTuple):
    """An answer's word on one event."""

    fate: Fate
    code: str = ""
    message: str = ""


class Answer(NamedTuple):
    """An answer, read whole."""

    status: int
    headers: Mapping[str, str]  # whose names have any case
    content: bytes

    @property
    def is_gateways(self) -> bool:
        """Whether it is the gateway's and not that of a proxy, a portal or another server."""
        return bool(self.headers.get("Gateway-Request-Id"))

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object in it; empty if there is none."""
        try:
            document = json.loads(self.content)
        except (ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    @property
    def code(self) -> str:
        """The gateway's reason; "" if it is not the gateway's."""
        return str(self.document.get("code", "")) if self.is_gateways else ""

    @property
    def retry_after_s(self) -> float:
        """What is asked for; a date would need a clock that is right, and counts as nothing."""
        text = self.headers.get("Retry-After", "")
        return min(float(text), RETRY_AFTER_MAX_S) if text.isascii() and text.isdigit() else 0.0

    def __str__(self) -> str:
        return f"{self.status} {self.content[:200].decode(errors='replace')}"


class UndecidedError(DeliveryError):
    """
    The answer decides nothing: what was sent may be stored or not.

    Attributes:
        is_halved: whether a smaller part of the batch goes at once.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(str(answer))
        self.answer = answer
        self.is_halved = False

    @property
    def is_about_this_body(self) -> bool:
        """Whether a smaller body may be taken, and an event that is refused alone never is."""
        answer = self.answer
        return answer.status == TOO_LARGE or (
            answer.status == BAD_REQUEST
            and (answer.code in ABOUT_THE_BODY or answer.code.startswith(ABOUT_THE_BODY_PREFIX))
        )

    @property
    def may_be_about_this_body(self) -> bool:
        """Whether it is about this body or about all requests, which another request tells."""
        if self.answer.is_gateways:
            return self.answer.status == BAD_REQUEST or self.is_about_this_body
        return self.answer.status in CLIENT_ERRORS and self.answer.status not in ABOUT_THE_MOMENT

    @property
    def is_about_the_encoding(self) -> bool:
        """Whether the same body may be taken uncompressed."""
        return self.answer.status == UNSUPPORTED or self.answer.code in ABOUT_THE_ENCODING

    @property
    def is_about_the_key(self) -> bool:
        """Whether all requests get this answer until a person changes something."""
        return self.answer.status in (UNAUTHORIZED, FORBIDDEN) and self.answer.is_gateways


def judge(batch: Batch, answer: Answer) -> list[Verdict]:
    """
    Return the verdict on each event of a batch. An event that the answer does not name is undecided.

    Raises:
        UndecidedError: it is not the gateway's 200.
    """
    if answer.status != OK or not answer.is_gateways:
        raise UndecidedError(answer)
    document = answer.document
    stored = {_whole(receipt.get("sequence")) for receipt in _objects(document, "receipts")}
    rejected = {_whole(told.get("index")): told for told in _objects(document, "rejected")}
    return [
        _verdict(batch.first_sequence + index in stored, rejected.get(index))
        for index in range(len(batch.events))
    ]


def _verdict(is_stored: bool, told: Mapping[str, Any] | None) -> Verdict:
    if is_stored:
        return Verdict(Fate.DONE)
    if told is None or told.get("retriable") or not isinstance(told.get("code"), str):
        return Verdict(Fate.AGAIN)
    code, message = told["code"], str(told.get("message"))
    return Verdict(Fate.SESSION_OVER if code in SESSION_IS_OVER else Fate.REJECTED, code, message)


def _objects(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = document.get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# ---- dead_letters: The table of events that will not be stored.


DEAD_LETTERS_MAX = 10_000
"""Older ones are deleted if the gateway has them in its quarantine."""


def bury(db: sqlite3.Connection, letters: Sequence[DeadLetter]) -> None:
    """Add dead letters, and delete the oldest of too many."""
    if not letters:
        return
    db.executemany(
        "INSERT INTO dead_letters (session, sequence, code, message, content) VALUES (?, ?, ?, ?, ?)",
        [(*place, code, message, json.dumps(event).encode()) for place, code, message, event in letters],
    )
    db.execute(
        "DELETE FROM dead_letters WHERE id <= (SELECT max(id) FROM dead_letters) - ? AND code NOT IN (?, ?)",
        (DEAD_LETTERS_MAX, EVENT_REFUSED, EVENT_DAMAGED),
    )


def buried(db: sqlite3.Connection) -> list[DeadLetter]:
    """Return all, oldest first."""
    return [
        DeadLetter(Place(session, sequence), code, message, event_of(content))
        for session, sequence, code, message, content in db.execute(
            "SELECT session, sequence, code, message, content FROM dead_letters ORDER BY id"
        ).fetchall()
    ]


# ---- queue_file: The file of a queue: one SQLite database that a single process has open.


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


# ---- carving: Events from the pages of a damaged file, without the tree that leads to them.
#
# The format is https://www.sqlite.org/fileformat2.html: the table of events is an index tree, whose cells
# are records. Whatever is no event fails its checksum.


LEAF, INTERIOR = 0x0A, 0x02
HEAD_BYTES = {LEAF: 8, INTERIOR: 12}
CHILD_BYTES = {LEAF: 0, INTERIOR: 4}
LOCAL_MAX, LOCAL_MIN = (PAGE_BYTES - 12) * 64 // 255 - 23, (PAGE_BYTES - 12) * 32 // 255 - 23
"""How much of a record is in its cell."""

CHAIN_BYTES = PAGE_BYTES - 4
RECORD_BYTES_MAX = 1_000_000
INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8, 0, 0, 0)
"""By serial type; the last two are 0 and 1 themselves."""


def carved_events(file: bytes) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of all events in the pages of a file, of deleted ones, too."""
    for begin in range(0, len(file) - PAGE_BYTES + 1, PAGE_BYTES):
        kind = file[begin]
        if kind in HEAD_BYTES:
            cells = int.from_bytes(file[begin + 3 : begin + 5], "big")
            for number in range(min(cells, PAGE_BYTES // 2)):
                pointer = begin + HEAD_BYTES[kind] + 2 * number
                at = begin + int.from_bytes(file[pointer : pointer + 2], "big") + CHILD_BYTES[kind]
                with suppress(IndexError, ValueError):
                    yield _event_in(_record_at(file, at))


def _record_at(file: bytes, at: int) -> bytes:
    """Return the record of a cell, with the pages that it goes on in."""
    size, at = _varint(file, at)
    if size > RECORD_BYTES_MAX:
        raise ValueError
    local = size
    if size > LOCAL_MAX:
        local = LOCAL_MIN + (size - LOCAL_MIN) % CHAIN_BYTES
        local = local if local <= LOCAL_MAX else LOCAL_MIN
    record, link = bytearray(file[at : at + local]), at + local
    while len(record) < size:
        page = (int.from_bytes(file[link : link + 4], "big") - 1) * PAGE_BYTES
        if not 0 < page < len(file):
            raise ValueError
        record += file[page + 4 : page + PAGE_BYTES][: size - len(record)]
        link = page
    return bytes(record)


def _event_in(record: bytes) -> tuple[Any, ...]:
    """Return the columns of a record. Raises ValueError, IndexError if it is no event."""
    head, at = _varint(record, 0)
    body, row = head, list[Any]()
    while at < head:
        kind, at = _varint(record, at)
        if kind < len(INTEGER_BYTES):
            size = INTEGER_BYTES[kind]
            row.append(kind - 8 if kind >= 8 else int.from_bytes(record[body : body + size], "big"))
        else:
            size = (kind - 12) // 2
            row.append(record[body : body + size])
        body += size
    _session_id, _sequence, content, _has_id, _queued_at_ms, checksum = row
    if not isinstance(content, bytes) or zlib.crc32(content) != checksum:
        raise ValueError
    return tuple(row)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of up to 9 bytes, and where it ends."""
    value = 0
    for _ in range(8):
        value = value << 7 | data[at] & 0x7F
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    return value << 8 | data[at], at + 1


# ---- salvage: What can be read of a queue's file, however damaged it is, and how it gets into another one.


PAGES_AT, PAGES_BYTES = 28, 4
"""Where the header has the number of pages."""

UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""The latter is raised for a message that quotes what is damaged."""

SKIPPED_ONE_BY_ONE = 1_000
EVENT_TYPES = (int, int, bytes, int, int, int)


class Contents(NamedTuple):
    """Rows of the tables, as far as they could be read."""

    settings: dict[str, str]
    sessions: list[tuple[int, str, str, str, int]]
    events: dict[tuple[int, int], tuple[Any, ...]]
    letters: list[tuple[Any, ...]]


def contents_of(db: sqlite3.Connection) -> Contents:
    """Read all that can be read."""
    settings = dict(_rows(db, "SELECT name, value FROM settings {}", "name", (str, str)))
    numbered = "SELECT id, client, session, source, doubtful_through FROM sessions NOT INDEXED {}"
    sessions: dict[int, tuple[int, str, str, str, int]] = {
        row[0]: row for row in _rows(db, numbered, "id", (int, str, str, str, int))
    }
    names = "SELECT id, client, session FROM sessions INDEXED BY sqlite_autoindex_sessions_1 {}"
    events = _events_of(db)
    for number, client, session in _rows(db, names, "session", (int, str, str)):
        sessions.setdefault(number, (number, client, session, "", 0))
    letters = "SELECT session, sequence, code, message, content FROM dead_letters {}"
    buried = _rows(db, letters, "id", (str, int, str, str, bytes))
    return Contents(settings, [sessions[number] for number in sorted(sessions)], events, buried)


def salvage(damaged: Path) -> Contents:
    """Read a damaged file, which stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "queue.db"
        shutil.copy(damaged, copy)
        wal = damaged.with_name(f"{damaged.name}-wal")
        if wal.exists():
            shutil.copy(wal, f"{copy}-wal")
        found = _read(copy)
        if not found.sessions:
            _give_first_page(copy)
            found = _read(copy)
        known = {number for number, *_ in found.sessions}
        for row in carved_events(copy.read_bytes()):
            if row[0] in known and _fits(row, EVENT_TYPES):
                found.events.setdefault((row[0], row[1]), row)
        return found


def take_in(db: sqlite3.Connection, contents: Contents) -> None:
    """Add the rows of another file, once however often that is done while they are there."""
    for number, client, session, source, doubtful_through in contents.sessions:
        db.execute(
            "INSERT OR IGNORE INTO sessions (client, session, source, doubtful_through) VALUES (?, ?, ?, ?)",
            (client, session, source, doubtful_through),
        )
        (new_number,) = db.execute(
            "SELECT id FROM sessions WHERE client = ? AND session = ?", (client, session)
        ).fetchone()
        db.executemany(
            "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?)",
            [(new_number, *row[1:]) for (of, _), row in contents.events.items() if of == number],
        )
    known = {number for number, *_ in contents.sessions}
    placeless = [
        ("", sequence, EVENT_DAMAGED, "its session could not be read: it may be stored", row[2])
        for (number, sequence), row in contents.events.items()
        if number not in known
    ]
    db.executemany(
        "INSERT INTO dead_letters (session, sequence, code, message, content)"
        " SELECT ?1, ?2, ?3, ?4, ?5 WHERE NOT EXISTS"
        " (SELECT 1 FROM dead_letters WHERE session = ?1 AND sequence = ?2)",
        [*contents.letters, *placeless],
    )


def _read(path: Path) -> Contents:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        return contents_of(db)


def _rows(db: sqlite3.Connection, query: str, key: str, types: tuple[type, ...]) -> list[Any]:
    """Return rows in the order of a key, from the first and from the last one up to where damage begins."""
    found: list[list[Any]] = []
    for direction in ("ASC", "DESC"):
        rows = list[Any]()
        with suppress(*UNREADABLE):
            for row in db.execute(query.format(f"ORDER BY {key} {direction}")):
                if _fits(row, types):
                    rows.append(row)
        found.append(rows)
    forwards, backwards = found
    return list(dict.fromkeys([*forwards, *reversed(backwards)]))


def _fits(row: tuple[Any, ...], types: tuple[type, ...]) -> bool:
    """Whether a row has what was written to it: pages may be damaged and readable."""
    return all(isinstance(value, kind) for value, kind in zip(row, types, strict=True))


def _events_of(db: sqlite3.Connection) -> dict[tuple[int, int], tuple[Any, ...]]:
    """Return all events but those on damaged pages, which are skipped one by one."""
    found = dict[tuple[int, int], tuple[Any, ...]]()
    after, skipped, step = (0, 0), 0, 1
    while step < 1 << 40:
        try:
            for row in db.execute(
                "SELECT * FROM events WHERE (session_id, sequence) > (?, ?) ORDER BY session_id, sequence",
                after,
            ):
                if _fits(row, EVENT_TYPES):
                    after, step = (row[0], row[1]), 1
                    found[after] = row
        except sqlite3.OperationalError:  # there is no such table
            break
        except UNREADABLE:
            after, skipped = (after[0], after[1] + step), skipped + 1
            step *= 2 if skipped > SKIPPED_ONE_BY_ONE else 1
        else:
            break
    return found


def _give_first_page(path: Path) -> None:
    """Replace the first page, which is the same in all files but for their size."""
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "template.db"
        with closing(sqlite3.connect(template, isolation_level=None)) as db:
            db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            make_schema(db)
        first = bytearray(template.read_bytes()[:PAGE_BYTES])
    content = path.read_bytes()
    pages = -(-len(content) // PAGE_BYTES)
    first[PAGES_AT : PAGES_AT + PAGES_BYTES] = pages.to_bytes(PAGES_BYTES, "big")
    path.write_bytes(bytes(first) + content[PAGE_BYTES:].ljust((pages - 1) * PAGE_BYTES, b"\0"))


# ---- durable: What keeps rows whatever befalls their file: damage, deletion, a full disk, no file at all.


_Of = ParamSpec("_Of")
_D = TypeVar("_D", bound="Durable")
_T = TypeVar("_T")


def alone(method: Callable[Concatenate[_D, _Of], _T]) -> Callable[Concatenate[_D, _Of], _T]:
    """Let a method run alone, and once more if damage is mended."""

    @wraps(method)
    def run(kept: _D, /, *args: _Of.args, **kwargs: _Of.kwargs) -> _T:
        with kept.lock:
            if kept.is_closed:
                raise ClosedError("the client is closed")
            is_part = kept.file.is_in_transaction
            try:
                return method(kept, *args, **kwargs)
            except sqlite3.DatabaseError as err:
                if is_part or not kept.mend_after(err):
                    raise
                return method(kept, *args, **kwargs)

    return run


class Durable:
    """
    An open file that is replaced when it must be.

    A signal's handler may call it while it is at work in the same thread.

    Attributes:
        path: where the file is.
        file: the one that is open.
        told: what somebody should know: errors, and dead letters that no answer made.
        is_closed: whether nothing can be done with it any more.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, or memory if that cannot be. Raises QueueInUseError."""
        self.path = path
        self.lock = threading.RLock()
        self.told: SimpleQueue[Exception | DeadLetter] = SimpleQueue()
        self.is_closed = False
        self._refusing: QueueFile | None = None
        self.file = self._open()
        try:
            self.begin()
        except sqlite3.DatabaseError as err:
            if not self.mend_after(err):
                raise

    @property
    def is_durable(self) -> bool:
        """Whether events survive the process."""
        return self.file.path is not None

    def begin(self) -> None:
        """Read what is in a file that was just opened."""
        self._tell_loss(self.file)

    def mend_after(self, err: sqlite3.Error) -> bool:
        """Return whether the same may be tried again after this error."""
        if not is_damage(err) or not self.is_durable:
            return False
        self.file.close()
        self.file = self._salvaged(err)
        self.begin()
        return True

    def with_ballast(self, work: Callable[[], _T]) -> _T:
        """Do what makes room, for which a full disk has none, and which may be done twice."""
        try:
            return work()
        except sqlite3.OperationalError as err:
            if not is_no_room(err) or not self.file.give_up_ballast():
                raise
            return work()

    def in_memory_if_refused(self, work: Callable[[], _T]) -> _T:
        """
        Do what makes room, in memory as long as the disk takes no write.

        The file stays as it is until `write_back`: a process that ends before does the same once more.
        """
        try:
            self.write_back()
            return self.with_ballast(work)
        except sqlite3.OperationalError as err:
            if self.is_durable:
                memory = _filled(QueueFile(None), contents_of(self.file.db))
                self.told.put(
                    NotDurableError(f"{self.path} cannot be written, what is delivered is in memory: {err}")
                )
                self._refusing, self.file = self.file, memory
                self.begin()
            return work()

    def write_back(self) -> None:
        """Put what the disk refused into the file. Raises sqlite3.Error: it refuses it still."""
        if self._refusing is None:
            return
        contents = contents_of(self.file.db)
        with self._refusing.transaction() as db:
            for table in ("events", "sessions", "dead_letters"):
                db.execute(f"DELETE FROM {table}")
            _fill(db, contents)
        self.go_back()

    def go_back(self) -> None:
        """Use the file again as it is, without what it refused."""
        if self._refusing is not None:
            self.file.close()
            self.file, self._refusing = self._refusing, None
            self.begin()

    def replace_if_vanished(self) -> None:
        """Put what a deleted file has, which is open still, into a new one. Raises as write_back."""
        self.write_back()
        if self.file.has_vanished:
            contents = contents_of(self.file.db)
            self.told.put(DamagedQueueError(f"{self.path} was deleted or replaced: it is written anew"))
            self.file.close()
            self.file.give_up_ballast()
            self.file = _filled(self._open(), contents)
            self.begin()

    def take_over(self, path: Path) -> bool:
        """
        Take the events of another file whose process has ended; return whether there were any.

        Raises:
            QueueInUseError: its process goes on.
            OSError, sqlite3.Error: it cannot be opened.
        """
        try:
            return self._take_over(path)
        except sqlite3.DatabaseError as err:
            if not is_damage(err):
                raise
            self._take_in(self._rest_of(path, err))
            return True

    def _take_over(self, path: Path) -> bool:
        other = QueueFile(path)
        try:
            self._tell_loss(other)
            other.check()
            contents = contents_of(other.db)
            if not contents.events and not contents.letters:
                return False
            self._take_in(contents)
            with other.transaction() as db:
                for table in ("events", "sessions", "dead_letters"):
                    db.execute(f"DELETE FROM {table}")
            other.shrink()
        finally:
            other.close()
        return True

    def close(self) -> None:
        """Close the file; closing again does nothing."""
        with self.lock:
            if not self.is_closed:
                with suppress(sqlite3.Error):
                    self.write_back()
                self.is_closed = True
                self.file.close()
                if self._refusing is not None:
                    self._refusing.close()

    @alone
    def setting(self, name: str) -> str:
        """Return a value that is kept in the file; "" without one."""
        row = self.file.db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else ""

    @property
    def is_opted_out(self) -> bool:
        """Whether nobody wants events to be kept."""
        return bool(self.setting("opted_out"))

    @alone
    def keep(self, values: Mapping[str, str]) -> None:
        """Keep values in the file."""
        with self.file.transaction() as db:
            for name, value in values.items():
                db.execute("DELETE FROM settings WHERE name = ?", (name,))
                db.execute("INSERT INTO settings VALUES (?, ?)", (name, value))

    @alone
    def shrink(self) -> None:
        """Give back space that is not needed any more."""
        self.file.shrink()

    @alone
    def _take_in(self, contents: Contents) -> None:
        self.write_back()
        with self.file.transaction() as db:
            take_in(db, contents)
        self.begin()

    def _open(self) -> QueueFile:
        try:
            return open_with_ballast(self.path)
        except sqlite3.Error as err:
            return self._salvaged(err) if is_damage(err) else self._in_memory(err)
        except OSError as err:
            return self._in_memory(err)

    def _in_memory(self, err: Exception) -> QueueFile:
        self.told.put(NotDurableError(f"{self.path} cannot be opened, events are kept in memory: {err}"))
        return QueueFile(None)

    def _salvaged(self, err: sqlite3.Error) -> QueueFile:
        """Set the damaged file aside, and open another one with what can be read of it."""
        try:
            contents = self._rest_of(self.path, err)
        except OSError as refused:
            return self._in_memory(refused)
        try:
            return _filled(QueueFile(self.path), contents)
        except (OSError, sqlite3.Error, QueueInUseError) as refused:
            return _filled(self._in_memory(refused), contents)

    def _rest_of(self, path: Path, err: sqlite3.Error) -> Contents:
        """Set a damaged file aside, and return what can be read of it. Raises OSError."""
        aside = set_aside(path, f"{SET_ASIDE}{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}")
        try:
            contents = salvage(aside)
        except (OSError, sqlite3.Error):  # no room for a copy: a person has the file
            contents = Contents({}, [], {}, [])
        told = f"{path} was damaged ({err}): {len(contents.events):,} events of it are queued again"
        self.told.put(DamagedQueueError(f"{told}, and it is kept as {aside}"))
        return contents

    def _tell_loss(self, file: QueueFile) -> None:
        if file.lost:
            self.told.put(DamagedQueueError(f"{file.lost}: events may be lost"))
            file.lost = ""


def _filled(file: QueueFile, contents: Contents) -> QueueFile:
    """Put the rows of another file into this one."""
    with file.transaction() as db:
        _fill(db, contents)
    return file


def _fill(db: sqlite3.Connection, contents: Contents) -> None:
    for name, value in contents.settings.items():
        if name != "open":
            db.execute("DELETE FROM settings WHERE name = ?", (name,))
            db.execute("INSERT INTO settings VALUES (?, ?)", (name, value))
    take_in(db, contents)


# ---- settlement: What becomes of the events of a batch after an answer.


class Settlement(NamedTuple):
    """What becomes of a batch."""

    done: list[int]
    """Sequences of events that do not wait there any more."""
    moved: list[Queued]
    """Of these, to go on in another session."""
    letters: list[DeadLetter]
    doubtful_through: int
    is_session_over: bool


def settlement_of(batch: Batch, verdicts: Sequence[Verdict]) -> Settlement:
    """
    Return what becomes of each event.

    A session that is over takes no new event, but of each that is stored it says so: all up to its
    watermark for good, those above while they are in the dedupe window. What is stored of a session has
    no gaps, so nothing above the watermark is, and what was refused goes on in another session. The
    exception is an event that was sent before, unanswered, behind one that may have left its place
    empty, because it was rejected or its messageId was known. Nobody can tell whether it is stored:
    it becomes a dead letter rather than be stored twice.
    """
    done, moved, letters = list[int](), list[Queued](), list[DeadLetter]()
    doubtful_through = batch.doubtful_through
    for sequence, (event, verdict) in enumerate(
        zip(batch.events, verdicts, strict=True), batch.first_sequence
    ):
        place = Place(batch.session, sequence)
        is_over = verdict.fate is Fate.SESSION_OVER
        if verdict.fate is not Fate.AGAIN:
            done.append(sequence)
        if is_over and sequence > doubtful_through:
            moved.append(event.moved_from(place))
        elif is_over or verdict.fate is Fate.REJECTED:
            letters.append(DeadLetter(place, verdict.code, verdict.message, event_of(event.content)))
        if sequence <= batch.sent_before and (verdict.fate is Fate.REJECTED or event.has_id):
            doubtful_through = batch.sent_before
    is_session_over = any(verdict.fate is Fate.SESSION_OVER for verdict in verdicts)
    return Settlement(done, moved, letters, doubtful_through, is_session_over)


# ---- event_queue: Events that wait, the sessions they are in, dead letters: all that survives the process.


WhenFull = Literal["raise", "drop_oldest"]

_IS_OURS = "(source IN ('', ?1) OR ?1 = '')"
_OURS = f"FROM events JOIN sessions ON id = session_id WHERE {_IS_OURS} ORDER BY session_id, sequence"


@dataclass(slots=True)
class _Session:
    """The session that new events get their places in."""

    id: int
    session: str
    sequences: Iterator[int] = field(default_factory=lambda: count(1))
    is_ended: bool = False


class EventQueue(Durable):
    """
    The queue in its file.

    Each run of a process numbers its events in a session of its own, made at its first event. A file
    that was restored from a backup, or copied with its machine, therefore never gives a sequence to
    two events, whatever it has forgotten. Earlier sessions still deliver what waits in them.

    Attributes:
        client_id: of the installation.
        size: how many events wait that may be sent.
        is_ending: whether no events are added any more.
        must_ask_source: whether events wait that may belong to another source than the write key's.
    """

    def __init__(self, path: Path, events_max: int, when_full: WhenFull, *, target: str) -> None:
        """
        Open the file, or memory if that cannot be.

        Args:
            target: url and write key; while they are the same, the source is taken to be the same.

        Raises:
            QueueInUseError: another client has the file open.
        """
        self._events_max, self._when_full = events_max, when_full
        self._target = hashlib.sha256(target.encode()).hexdigest()[:16]
        self._current: _Session | None = None
        self._sent: dict[str, int] = {}
        self.size: int = 0
        self.client_id = ""
        self._source = ""
        self._knows_target = False
        self.is_ending = self.must_ask_source = False
        super().__init__(path)

    # ---- events

    @alone
    def add(self, events: Sequence[Queued]) -> list[Place]:
        """
        Give events their places, or drop them after an opt-out.

        Raises:
            QueueFullError: none of them was added.
            sqlite3.Error: the same.
        """
        if self.is_ending:
            raise ClosedError("the client is closed")
        self.replace_if_vanished()
        if self.is_opted_out:  # while the caller made the events
            return []
        surplus = self._surplus_with(len(events))
        self.file.check_room(sum(len(event.content) for event in events))
        try:
            with self.file.transaction() as db:
                if surplus:
                    self._drop_oldest(db, surplus)
                session = self._current_session() or self._new_session(db)
                places = self._append(db, session, events)
        except BaseException:
            self._current = None  # it has given places to nothing
            raise
        self._current = session
        self.size += len(events) - surplus
        if surplus:
            self.told.put(QueueFullError(f"the oldest {surplus:,} events were dropped for newer ones"))
        return places

    @alone
    def next_batch(self, events_max: int) -> Batch | None:
        """Return the oldest events that wait. It writes nothing: a full disk has no room for that."""
        while (row := self._oldest_session()) is not None:
            session_id, client, session, doubtful_through = row
            rows = self._db.execute(
                "SELECT sequence, content, has_id, queued_at_ms, checksum FROM events"
                " WHERE session_id = ? ORDER BY sequence LIMIT ?",
                (session_id, events_max),
            ).fetchall()
            first = rows[0][0]
            events = list(whole_run(rows)) if is_header(client) and is_header(session) else []
            if not events:
                self._bury_damaged(session_id, Place(session, first), rows[0][1])
                continue
            through = first + len(events) - 1
            # An earlier process may have sent more than its file says, but nothing that is stored is further
            # behind an event that is not: each request says that all before it have their verdicts.
            sent_before = self._sent.get(session, max(doubtful_through, through + BATCH_EVENTS - 1))
            if session in self._sent:
                self._sent[session] = max(sent_before, through)
            is_last = self._is_last(session_id, through)
            if is_last and self._current is not None and session_id == self._current.id:
                self._current.is_ended = True
            return Batch(client, session, first, events, sent_before, doubtful_through, is_last)
        self._count()
        return None

    @alone
    def farewell(self) -> Batch | None:
        """Return a batch without events that ends this process's session, if no other one has."""
        current = self._current
        if current is None or current.is_ended or self.size or not self._sent.get(current.session):
            return None
        through = self._sent[current.session]
        return Batch(self.client_id, current.session, through + 1, [], through, 0, is_last=True)

    @alone
    def settle(self, batch: Batch, verdicts: Sequence[Verdict]) -> list[DeadLetter]:
        """Do what an answer says, and return the new dead letters."""
        return self.in_memory_if_refused(lambda: self._settle(batch, verdicts))

    def _settle(self, batch: Batch, verdicts: Sequence[Verdict]) -> list[DeadLetter]:
        found = settlement_of(batch, verdicts)
        current = self._current
        with self.file.transaction() as db:
            row = db.execute(
                "SELECT id FROM sessions WHERE client = ? AND session = ?", (batch.client, batch.session)
            ).fetchone()
            if row is None:  # the queue was deleted meanwhile
                return []
            (session_id,) = row
            gone = db.executemany(
                "DELETE FROM events WHERE session_id = ? AND sequence = ?",
                [(session_id, sequence) for sequence in found.done],
            ).rowcount
            db.execute(
                "UPDATE sessions SET doubtful_through = ? WHERE id = ?", (found.doubtful_through, session_id)
            )
            bury(db, found.letters)
            if found.is_session_over:
                if current is None or current.id == session_id:
                    current = self._new_session(db)
                through = max(found.doubtful_through, batch.first_sequence + len(batch.events) - 1)
                later = self._take_later(Place(batch.session, through), session_id)
                self._append(db, current, [*found.moved, *later])
            self._drop_empty_sessions(current)
        self._current = current
        self.size += len(found.moved) - max(gone, 0)
        return found.letters

    # ---- what somebody wants to know

    @alone
    def oldest_age_s(self) -> float | None:
        """Return the age of the event that is sent next."""
        values = (self._counted_source,)
        row = self._db.execute(f"SELECT queued_at_ms {_OURS} LIMIT 1", values).fetchone()
        return max(0.0, time.time() - row[0] / 1000) if row and row[0] else None

    @alone
    def dead_letters(self) -> list[DeadLetter]:
        """Return all, oldest first."""
        return buried(self._db)

    @alone
    def retry_dead_letters(self) -> int:
        """Queue all dead letters that can be read again; return how many these are."""
        self.replace_if_vanished()  # not while they are neither in one file nor in the other
        letters = [letter for letter in self.dead_letters() if letter.code != EVENT_DAMAGED]
        events = [Queued.again(letter.event).moved_from(letter.place) for letter in letters]
        if events:
            with self.file.transaction() as db:
                db.execute("DELETE FROM dead_letters WHERE code != ?", (EVENT_DAMAGED,))
                self.add(events)
        return len(events)

    @alone
    def opt_out(self) -> None:
        """Delete events, dead letters and identities, also those that are being sent, and take no others."""
        self.go_back()
        self.with_ballast(self._opt_out)
        self.client_id, self._current = self.setting("client"), None
        self._count()
        self.with_ballast(self.file.erase)

    def _opt_out(self) -> None:
        with self.file.transaction() as db:
            for table in ("events", "sessions", "dead_letters"):
                db.execute(f"DELETE FROM {table}")
            self.keep({"client": ksuid(), "user": "", "anonymous": "", "opted_out": "1"})

    # ---- sources

    @alone
    def learn_source(self, source: str) -> None:
        """
        Note which source the write key stands for, as an answer tells; "" if it tells nothing.

        Events that were queued for another one wait until its key is used again.
        """
        is_asked, self.must_ask_source = self.must_ask_source, False
        if not source or (source == self._source and self._knows_target):
            if is_asked:
                self._count()
            return
        if self._source not in ("", source):
            self._current = None  # it belongs to the other source
        self._source = source
        with suppress(sqlite3.OperationalError):  # a full disk: the next process is told it again
            self.keep({"source": source, "target": self._target})
            self._db.execute("UPDATE sessions SET source = ? WHERE source = ''", (source,))
        self._knows_target = True
        self._count()
        (others,) = self._db.execute("SELECT count(*) FROM events").fetchone()
        others -= self.size
        if others:
            self.told.put(OtherSourceError(f"{others:,} events wait for the write key of another source"))

    def begin(self) -> None:
        """Read what is in the file that was opened."""
        super().begin()
        self._current = None
        with suppress(sqlite3.OperationalError), self.file.transaction():
            # Without room for it, what is there can be sent all the same.
            if not self.setting("client"):
                self.keep({"client": self.client_id or secrets.token_hex(16)})
        self.client_id = self.setting("client") or secrets.token_hex(16)
        self._source = self.setting("source")
        self._knows_target = self.setting("target") == self._target
        # An event whose answer is lost must not go to another source with the next key.
        self.must_ask_source = not self._knows_target
        self._count()

    @property
    def _db(self) -> sqlite3.Connection:
        return self.file.db

    def _count(self) -> None:
        (self.size,) = self._db.execute(f"SELECT count(*) {_OURS}", (self._counted_source,)).fetchone()

    @property
    def _counted_source(self) -> str:
        """Events of which source wait; "" while nobody knows, then it is all."""
        return "" if self.must_ask_source else self._source

    # ---- parts

    def _oldest_session(self) -> tuple[int, str, str, int] | None:
        row: tuple[int, str, str, int] | None = self._db.execute(
            f"SELECT id, client, session, doubtful_through FROM sessions WHERE {_IS_OURS}"
            " AND EXISTS (SELECT 1 FROM events WHERE session_id = id) ORDER BY id LIMIT 1",
            (self._source,),
        ).fetchone()
        return row

    def _is_last(self, session_id: int, through: int) -> bool:
        """Whether a session gets no events after a sequence."""
        if self._current is not None and session_id == self._current.id and not self.is_ending:
            return False
        later = "SELECT 1 FROM events WHERE session_id = ? AND sequence > ?"
        return self._db.execute(later, (session_id, through)).fetchone() is None

    def _current_session(self) -> _Session | None:
        """Return the session of new events, unless its row has gone with a transaction that failed."""
        if self._current is None:
            return None
        row = self._db.execute(
            "SELECT 1 FROM sessions WHERE id = ? AND session = ?", (self._current.id, self._current.session)
        ).fetchone()
        return self._current if row else None

    def _new_session(self, db: sqlite3.Connection) -> _Session:
        session = ksuid()
        made = db.execute(
            "INSERT INTO sessions (client, session, source) VALUES (?, ?, ?)",
            (self.client_id, session, "" if self.must_ask_source else self._source),
        )
        assert made.lastrowid is not None
        self._sent[session] = 0
        return _Session(made.lastrowid, session)

    def _append(self, db: sqlite3.Connection, to: _Session, events: Sequence[Queued]) -> list[Place]:
        """Put events behind the last one of a session."""
        places = [Place(to.session, next(to.sequences)) for _ in events]
        db.executemany(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)",
            [
                (to.id, place.sequence, *event, event.checksum)
                for place, event in zip(places, events, strict=True)
            ],
        )
        return places

    def _take_later(self, place: Place, session_id: int) -> list[Queued]:
        """Take the events behind a place of a session that is over: they are not stored."""
        behind = session_id, place.sequence
        rows = self._db.execute(
            "SELECT sequence, content, has_id, queued_at_ms FROM events"
            " WHERE session_id = ? AND sequence > ? ORDER BY sequence",
            behind,
        ).fetchall()
        self._db.execute("DELETE FROM events WHERE session_id = ? AND sequence > ?", behind)
        return [
            Queued(content, bool(has_id), queued_at_ms).moved_from(Place(place.session, sequence))
            for sequence, content, has_id, queued_at_ms in rows
        ]

    def _drop_empty_sessions(self, current: _Session | None) -> None:
        for (session,) in self._db.execute(
            "DELETE FROM sessions WHERE id IS NOT ?"
            " AND NOT EXISTS (SELECT 1 FROM events WHERE session_id = sessions.id) RETURNING session",
            (current.id if current else None,),
        ).fetchall():
            self._sent.pop(session, None)

    def _surplus_with(self, count: int) -> int:
        """Return how many events have to go for so many new ones. Raises QueueFullError."""
        surplus = max(0, self.size + count - self._events_max)
        if surplus and (self._when_full == "raise" or count > self._events_max):
            raise QueueFullError(f"{self.size:,} events wait already")
        return surplus

    def _drop_oldest(self, db: sqlite3.Connection, count: int) -> None:
        """Delete the oldest of the events that `size` counts."""
        oldest = f"(SELECT session_id, sequence {_OURS} LIMIT ?2)"
        values = self._counted_source, count
        db.execute(f"DELETE FROM events WHERE (session_id, sequence) IN {oldest}", values)

    def _bury_damaged(self, session_id: int, place: Place, content: bytes) -> None:
        letter = DeadLetter(place, EVENT_DAMAGED, "its content in the file is damaged", event_of(content))
        with self.file.transaction() as db:
            db.execute(
                "DELETE FROM events WHERE session_id = ? AND sequence = ?", (session_id, place.sequence)
            )
            bury(db, [letter])
        self.size -= 1
        self.told.put(letter)


# ---- folder: A folder with a queue's file for each process that has one.


PATTERN = "queue-*.db"


class Folder:
    """Gives each process the first file that no other one has open."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, open_file: Callable[[Path], EventQueue]) -> EventQueue:
        """Return the first queue that can be opened."""
        for number in count():  # ends: there are no more processes
            try:
                return open_file(self._path / f"queue-{number}.db")
            except QueueInUseError:
                continue
        raise AssertionError("there is always a next number")

    def adopt_into(self, queue: EventQueue) -> None:
        """
        Move what processes that have ended left to a queue; their files stay for later ones.

        Raises:
            OSError, sqlite3.Error: of a file that cannot be opened, after all others.
        """
        failed: Exception | None = None
        for other in sorted(self._path.glob(PATTERN)):
            if other == queue.path:
                continue
            try:
                queue.take_over(other)
            except QueueInUseError:
                continue
            except Exception as err:
                failed = err
        if failed is not None:
            raise failed


# ---- sender: One request at a time to the gateway, ended by a deadline whatever the server does.


CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S = 5.0, 15.0
"""The gateway answers within 5 s; what is between may take its time."""

UPLOAD_BYTES_PER_S = 10_000
"""So slow may a network be: large bodies get more time."""

ANSWER_BYTES_MAX = 1 << 20
GZIP_BYTES_MIN = 1_000
GZIP_LEVEL = 5


class Sender:
    """
    Posts to the gateway.

    Attributes:
        compresses: whether bodies go compressed.
    """

    def __init__(self, url: str, write_key: str, transport: httpx.BaseTransport | None) -> None:
        """
        Connect to nothing yet.

        Raises:
            ValueError: the url or the key cannot be one.
        """
        _check(url, write_key)
        self.compresses = True
        self._is_aborted = False
        self._socket: socket.socket | None = None
        options: dict[str, Any] = {
            "base_url": url,
            "auth": (write_key, ""),
            "timeout": httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            "headers": {
                "User-Agent": f"gateway-client-python/{VERSION}",
                "Accept-Encoding": "identity",  # what is inflated has no bound
            },
            "limits": httpx.Limits(max_connections=1),
            "transport": transport,
        }
        try:
            self._http = httpx.Client(**options)
        except Exception as err:  # a proxy that httpx cannot use, certificates that are not there
            logger.warning("the environment's proxies and certificates are ignored: %s", err)
            self._http = httpx.Client(**options, trust_env=False)

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """
        Send one request and read its answer.

        Raises:
            DeliveryError: the answer is too long, or did not come in time.
            httpx.RequestError: there is none. Others may come from below, too.
        """
        head = {**headers, "Content-Type": "application/json"}
        if self.compresses and len(body) >= GZIP_BYTES_MIN:
            body, head["Content-Encoding"] = gzip.compress(body, GZIP_LEVEL, mtime=0), "gzip"
        self._is_aborted = False
        self._http.cookies.clear()  # those of a portal would make requests too large for the gateway
        deadline = threading.Timer(ANSWER_TIMEOUT_S + len(body) / UPLOAD_BYTES_PER_S, self.abort)
        deadline.daemon = True
        deadline.start()
        try:
            with self._http.stream(
                "POST", "/v1/events", content=body, headers=head, extensions={"trace": self._trace}
            ) as answer:
                return Answer(answer.status_code, answer.headers, _content_of(answer))
        except Exception as err:
            if self._is_aborted:
                raise DeliveryError("no answer in time") from err
            raise
        finally:
            deadline.cancel()

    def abort(self) -> None:
        """End the request that is under way; called from another thread."""
        self._is_aborted = True
        if self._socket is not None:
            with suppress(OSError):
                # That of the plain socket wakes who reads from it, also through TLS.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Note the socket of a new connection."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            if self._is_aborted:
                info["return_value"].close()
                raise DeliveryError("no connection in time")


def _check(url: str, write_key: str) -> None:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as err:
        raise ValueError(f"{url!r} is no URL: {err}") from err
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"{url!r} is no URL of a gateway: https://events.example.com is one")
    if not write_key or not isinstance(write_key, str):
        raise ValueError("the write key is missing")


def _content_of(answer: httpx.Response) -> bytes:
    """Read an answer up to a bound. Raises DeliveryError, zlib.error."""
    is_read = answer.is_stream_consumed  # by a transport that has it in memory
    content = bytearray()
    for chunk in answer.iter_bytes() if is_read else answer.iter_raw():
        content += chunk
        if len(content) > ANSWER_BYTES_MAX:
            raise DeliveryError(f"{answer.status_code}, and more than {ANSWER_BYTES_MAX:,} bytes")
    if is_read or answer.headers.get("Content-Encoding", "identity").lower() == "identity":
        return bytes(content)
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(bytes(content), ANSWER_BYTES_MAX)


# ---- delivery: The thread that delivers. Whatever it meets, it waits and tries again; only `close` ends it.


LINGER_S = 0.2
"""How long a batch that is not full waits for more events, unless a caller waits in `flush`."""

BACKOFF_S, BACKOFF_MAX_S = 0.5, 60.0
KEY_REFUSED_PAUSE_MAX_S = 600.0
"""Between tries while the key is refused: that takes a person."""

FLUSH_PAUSE_MAX_S = 1.0
"""Between tries while a caller waits in `flush`, unless the gateway asks for more."""

REFUSED_ALONE_MAX = 3
"""So often is an event sent again alone, each time after the gateway has answered a request without it."""

TELL_AGAIN_S = 3600.0
ADOPT_S = 10.0
CLOSE_GRACE_S = 0.4

OnRejected = Callable[[DeadLetter], object]
OnProblem = Callable[[Exception, datetime], object]


class Delivery:
    """
    Sends batches one at a time, oldest first, and does what the answers say.

    Attributes:
        last_error: of the last try, None if that has succeeded.
    """

    def __init__(
        self,
        queue: EventQueue,
        sender: Sender,
        folder: Folder | None,
        *,
        on_rejected: OnRejected | None,
        on_problem: OnProblem | None,
    ) -> None:
        """Begin to deliver."""
        self._queue, self._sender, self._folder = queue, sender, folder
        self._on_rejected, self._on_problem = on_rejected, on_problem
        self._changed = threading.Condition()
        self._waiting_in_flush = 0
        self._is_hurried = False
        self._is_closing = False
        self._batch_events = BATCH_EVENTS
        self._refused_alone = 0
        self._failures = 0
        self._failing_since: datetime | None = None
        self._tell_at = 0.0
        self._adopt_at = self._tell_of_files_at = 0.0
        self.last_error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="gateway-client", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look at the queue again."""
        with self._changed:
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Try at once, and return whether nothing waits within the time."""
        if threading.current_thread() is self._thread:
            return not self._queue.size
        end = time.monotonic() + min(timeout_s, threading.TIMEOUT_MAX)
        with self._changed:
            self._waiting_in_flush += 1
            self._is_hurried = True
            self._adopt_at = 0.0 if self._folder is not None else self._adopt_at
            self._changed.notify_all()
            try:
                while self._queue.size or self._is_adoption_due():
                    if self._is_closing or not self._changed.wait(end - time.monotonic()):
                        return not self._queue.size
                return True
            finally:
                self._waiting_in_flush -= 1

    def close(self, timeout_s: float) -> bool:
        """Deliver for so long, then end, whatever is under way; return whether nothing is left."""
        is_own = threading.current_thread() is self._thread
        if not self._is_closing:
            self._queue.is_ending = True
            self.flush(timeout_s)
            with self._changed:
                self._is_closing = True
                self._changed.notify_all()
        if not is_own:
            self._end()
        return not self._queue.size

    def _end(self) -> None:
        self._thread.join(CLOSE_GRACE_S)
        if self._thread.is_alive():
            self._sender.abort()
            self._thread.join(CLOSE_GRACE_S)
        # A thread that still waits, for a name or in a callback, finds a closed queue.
        self._queue.close()

    # ---- the thread

    def _run(self) -> None:
        try:
            while self._wait_for_events():
                pause_s, is_asked = BACKOFF_MAX_S, False
                try:
                    self._adopt()
                    pause_s, is_asked = self._try()
                    self._tell()
                except Exception:  # nothing may end this thread
                    logger.exception("an unforeseen error")
                self._sleep(pause_s, is_asked=is_asked)
            self._say_farewell()
        finally:
            self._queue.close()
            self._sender.close()

    def _say_farewell(self) -> None:
        """Tell the gateway that the session has ended: a hint, once, and only if it has answered last."""
        with suppress(Exception):
            batch = self._queue.farewell() if self.last_error is None else None
            if batch is not None:
                self._sender.post(batch.body(now_text()), batch.headers())

    def _wait_for_events(self) -> bool:
        """Wait for something to do; return False at the end."""
        with self._changed:
            self._changed.wait_for(self._has_work, ADOPT_S if self._folder is not None else None)
            self._changed.wait_for(
                lambda: self._is_closing or self._waiting_in_flush or self._queue.size >= BATCH_EVENTS,
                LINGER_S,
            )
            return not self._is_closing

    def _has_work(self) -> bool:
        is_told = self._queue.told.empty()
        return self._is_closing or bool(self._queue.size) or self._is_adoption_due() or not is_told

    def _sleep(self, pause_s: float, *, is_asked: bool) -> None:
        """Wait before the next try, shorter for who waits in `flush`."""
        with self._changed:
            self._changed.notify_all()
            if pause_s and self._waiting_in_flush and not is_asked:
                pause_s = min(pause_s, FLUSH_PAUSE_MAX_S)
            self._changed.wait_for(lambda: self._is_closing or (self._is_hurried and not is_asked), pause_s)
            self._is_hurried = False

    def _try(self) -> tuple[float, bool]:
        """Send one batch once; return the pause before the next, and whether the gateway asks for it."""
        try:
            if self._queue.must_ask_source or self._refused_alone:
                self._ask()
            batch = self._queue.next_batch(self._batch_events)
            if batch is None:
                return 0.0, False
            verdicts = self._verdicts_on(batch)
            letters = self._queue.settle(batch, verdicts)
            with suppress(sqlite3.Error):
                self._queue.shrink()
        except Exception as err:  # nothing may end this thread
            return self._pause_after(err)
        for letter in letters:
            self._queue.told.put(letter)
        if Fate.AGAIN in (verdict.fate for verdict in verdicts):
            return self._pause_after(DeliveryError("some events were not taken yet"))
        self._failures, self._failing_since, self.last_error = 0, None, None
        self._batch_events = min(BATCH_EVENTS, self._batch_events + max(1, self._batch_events // 4))
        return 0.0, False

    def _verdicts_on(self, batch: Batch) -> list[Verdict]:
        """
        Send a batch, and return the verdicts on its events.

        A body that is not taken goes again in halves, down to one event, which becomes a dead letter: at
        once if the gateway says that it is about the body, and if it may be about all requests, only if
        the gateway answers others meanwhile.
        """
        try:
            answer = self._sender.post(batch.body(now_text()), batch.headers())
            if answer.is_gateways:
                self._queue.learn_source(answer.headers.get("Gateway-Source", ""))
            verdicts = judge(batch, answer)
        except UndecidedError as err:
            is_alone = len(batch.events) == 1
            if err.is_about_the_encoding and self._sender.compresses:
                self._sender.compresses = False
            elif not err.answer.is_gateways or err.may_be_about_this_body:
                self._batch_events = max(1, len(batch.events) // 2)
                self._refused_alone += is_alone and err.may_be_about_this_body
            is_sure = err.is_about_this_body and err.answer.is_gateways  # others may say so of every request
            if is_alone and (is_sure or self._refused_alone > REFUSED_ALONE_MAX):
                self._refused_alone = 0
                return [Verdict(Fate.REJECTED, EVENT_REFUSED, str(err))]
            err.is_halved = err.is_about_this_body and not is_alone
            raise
        except (sqlite3.Error, httpx.ConnectError, httpx.ConnectTimeout):
            raise
        except Exception:  # no answer, perhaps for the body's size
            self._batch_events = max(1, len(batch.events) // 2)
            raise
        self._refused_alone = 0
        return verdicts

    def _ask(self) -> None:
        """Send no event. Raises UndecidedError if it is not the gateway that answers, or others."""
        answer = self._sender.post(b'{"batch":[]}', {})
        if not answer.is_gateways or answer.status >= 400:
            raise UndecidedError(answer)
        self._queue.learn_source(answer.headers.get("Gateway-Source", ""))

    def _pause_after(self, err: Exception) -> tuple[float, bool]:
        """Return a pause with full jitter, longer after each failure, and not shorter than asked for."""
        if isinstance(err, UndecidedError) and err.is_halved:
            return 0.0, False
        self._failures += 1
        is_key_refused = isinstance(err, UndecidedError) and err.is_about_the_key
        base, longest_s = (4, KEY_REFUSED_PAUSE_MAX_S) if is_key_refused else (2, BACKOFF_MAX_S)
        pause_s = random.uniform(0, min(longest_s, BACKOFF_S * base ** min(self._failures, 30)))
        asked_s, is_asked = 0.0, False
        if isinstance(err, UndecidedError):
            asked_s = err.answer.retry_after_s
            is_asked = err.answer.is_gateways and asked_s > 0
        self._failing_since = self._failing_since or datetime.now(UTC)
        self.last_error = err
        is_due = self._failures == 1 or time.monotonic() >= self._tell_at
        if is_due and not self._is_closing:
            self._tell_at = time.monotonic() + TELL_AGAIN_S
            self._tell_of(err, self._failing_since)
        return max(asked_s, pause_s), is_asked

    # ---- files of others

    def _is_adoption_due(self) -> bool:
        return self._folder is not None and time.monotonic() >= self._adopt_at

    def _adopt(self) -> None:
        """Take the events of processes that have ended."""
        if self._folder is None or not self._is_adoption_due():
            return
        try:
            self._folder.adopt_into(self._queue)
        except Exception as err:  # nothing may end this thread
            if time.monotonic() >= self._tell_of_files_at:
                self._tell_of_files_at = time.monotonic() + TELL_AGAIN_S
                self._tell_of(err, datetime.now(UTC))
        self._adopt_at = time.monotonic() + ADOPT_S

    # ---- who wants to know

    def _tell(self) -> None:
        """Tell what the queue has to say."""
        while not self._queue.told.empty():
            told = self._queue.told.get_nowait()
            if isinstance(told, DeadLetter):
                logger.warning("%s will not be stored: %s, %s", told.place, told.code, told.message)
                _call(self._on_rejected, told)
            else:
                self._tell_of(told, datetime.now(UTC))

    def _tell_of(self, err: Exception, since: datetime) -> None:
        logger.warning("since %s: %s: %s", since.isoformat(timespec="seconds"), type(err).__name__, err)
        _call(self._on_problem, err, since)


def _call(callback: Callable[..., object] | None, *told: Any) -> None:
    """Call the application back; its errors are not this thread's."""
    if callback is None:
        return
    try:
        callback(*told)
    except BaseException:
        logger.exception("a callback failed")


# ---- vocabulary: The calls of analytics: what each makes of its arguments is an event.


LIBRARY = {"name": "gateway-client-python", "version": VERSION}

_Queued = TypeVar("_Queued")


class Options(TypedDict, total=False):
    """What each call may say besides."""

    anonymous_id: str | None
    context: Mapping[str, Any] | None


class UserOptions(Options, total=False):
    """What calls about a user may say besides; without an id the event gets those that are kept."""

    user_id: str | None


class Vocabulary(ABC, Generic[_Queued]):
    """
    Track, identify, page, screen, group and alias.

    Each queues an event with the time of the call.
    """

    @abstractmethod
    def _say(self, event: dict[str, Any]) -> _Queued:
        """Queue an event, with what is kept about the user."""

    def track(
        self, event: str, *, properties: Mapping[str, Any] | None = None, **options: Unpack[UserOptions]
    ) -> _Queued:
        """Queue an action of a user."""
        return self._say(_event("track", options, event=event, properties=properties or {}))

    def identify(
        self,
        user_id: str | None = None,
        *,
        traits: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> _Queued:
        """Queue who the user is; the id is kept for later events until `reset`."""
        return self._say(_event("identify", {**options, "user_id": user_id}, traits=traits or {}))

    def page(
        self,
        name: str | None = None,
        *,
        properties: Mapping[str, Any] | None = None,
        **options: Unpack[UserOptions],
    ) -> _Queued:
        """Queue a view of a page."""
        return self._say(_event("page", options, name=name, properties=properties or {}))

    def screen(
        self,
        name: str | None = None,
        *,
        properties: Mapping[str, Any] | None = None,
        **options: Unpack[UserOptions],
    ) -> _Queued:
        """Queue a view of a screen."""
        return self._say(_event("screen", options, name=name, properties=properties or {}))

    def group(
        self, group_id: str, *, traits: Mapping[str, Any] | None = None, **options: Unpack[UserOptions]
    ) -> _Queued:
        """Queue which group the user belongs to."""
        return self._say(_event("group", options, groupId=group_id, traits=traits or {}))

    def alias(self, user_id: str, previous_id: str | None = None, **options: Unpack[Options]) -> _Queued:
        """Queue that two ids are one user's; without the previous one it is the id that was kept."""
        return self._say(_event("alias", {**options, "user_id": user_id}, previousId=previous_id))


def _event(kind: str, options: UserOptions, **fields: Any) -> dict[str, Any]:
    """Return an event without the fields that are None."""
    ids = {"userId": options.get("user_id"), "anonymousId": options.get("anonymous_id")}
    return {
        "type": kind,
        **{name: value for name, value in ids.items() if value},
        **{name: value for name, value in fields.items() if value is not None},
        "context": {"library": LIBRARY, **(options.get("context") or {})},
        "timestamp": now_text(),
    }


# ---- client: The client that applications use.


BeforeSend = Callable[[dict[str, Any]], Mapping[str, Any] | None]


class Client(Vocabulary[Place | None]):
    """
    Queues events in a file and delivers them from a thread of its own.

    Safe to use from several threads. A process that forks makes its client afterwards.
    """

    def __init__(  # noqa: PLR0913 - these are what an application chooses
        self,
        url: str,
        write_key: str,
        path: str | os.PathLike[str],
        *,
        on_rejected: OnRejected | None = None,
        on_problem: OnProblem | None = None,
        before_send: BeforeSend | None = None,
        queue_events_max: int = 100_000,
        when_full: WhenFull = "raise",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """
        Open the file, which is made if it is not there, and begin to deliver what waits in it.

        Args:
            url: of the gateway, without a path.
            write_key: names the source.
            path: of the queue, on a local disk: a file for one process, or a folder, in which each process
                has a file and delivers what those that ended have left. A path that ends in `/` is a
                folder, which is made if it is not there.
            on_rejected: called from the client's thread for each new dead letter.
            on_problem: called from there with an error and the time since when it lasts: after the first
                try to deliver that fails and then once an hour, and for each problem of the file.
            before_send: returns the event to be queued instead of the one it gets; None drops it.
            queue_events_max: how many events may wait.
            when_full: whether a call then raises QueueFullError, or the oldest events are dropped.
            transport: how httpx sends, for proxies and tests.

        Raises:
            ValueError: url or key cannot be one.
            QueueInUseError: another client has the file open.
        """
        self._sender = Sender(url, write_key, transport)
        place = Path(path).absolute()  # a daemon leaves its folder
        folder = Folder(place) if _is_folder(path, place) else None

        def open_file(path: Path) -> EventQueue:
            return EventQueue(path, queue_events_max, when_full, target=f"{url} {write_key}")

        self._queue = open_file(place) if folder is None else folder.open(open_file)
        self._before_send = before_send
        self._process = os.getpid()
        self._delivery = Delivery(
            self._queue, self._sender, folder, on_rejected=on_rejected, on_problem=on_problem
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- events

    def send(self, event: Mapping[str, Any]) -> Place | None:
        """Queue one event of any type, as it is; see `send_all`. None: it is not to be sent."""
        places = self.send_all([event])
        return places[0] if places else None

    def send_all(self, events: Sequence[Mapping[str, Any]]) -> list[Place]:
        """
        Queue events in one commit: when it returns, they survive the end of the process and of power.

        Args:
            events: JSON objects without `sequence`; dates, decimals, UUIDs, sets and bytes become text,
                numbers and arrays. A `messageId` is not needed; one that this installation sends again
                within the window is stored once.

        Raises:
            ValueError, TypeError: an event is no JSON, too large, or has a sequence.
            QueueFullError: the gateway has not been there for long; nothing was queued.
            ClosedError: the client was closed.
            sqlite3.Error: the file cannot be written; nothing was queued.
        """
        self._check_process()
        if self._queue.is_closed or self._queue.is_ending:
            raise ClosedError("the client is closed")
        if self._queue.is_opted_out:
            return []
        if self._before_send is not None:
            hook = self._before_send
            events = [kept for event in events if (kept := hook(dict(event))) is not None]
        places = self._queue.add([Queued.of(event) for event in events])
        self._delivery.wake()
        return places

    def _say(self, event: dict[str, Any]) -> Place | None:
        kind, user_id = event["type"], event.get("userId")
        kept = self._queue.setting("user")
        if kind == "alias" and "previousId" not in event:
            event["previousId"] = kept or self.anonymous_id
        if kind in ("identify", "alias") and user_id and not self._queue.is_opted_out:
            self._queue.keep({"user": str(user_id).encode(errors="replace").decode()})
        elif not user_id and kept and "anonymousId" not in event:
            event["userId"] = kept
        if kind == "identify" or not ("userId" in event or "anonymousId" in event):
            event.setdefault("anonymousId", self.anonymous_id)
        return self.send(event)

    # ---- who it is

    @property
    def client_id(self) -> str:
        """The id of this installation."""
        return self._queue.client_id

    @property
    def anonymous_id(self) -> str:
        """The id of a user who is not known, until `reset`."""
        return self._queue.setting("anonymous") or self.client_id

    def reset(self) -> None:
        """Forget the user, at logout: who comes next has another anonymous id."""
        self._queue.keep({"user": "", "anonymous": secrets.token_hex(16)})

    def opt_out(self) -> None:
        """Delete all that is queued and kept, and drop what is queued later, also by later processes."""
        try:
            self._queue.opt_out()
        finally:
            self._delivery.wake()

    def opt_in(self) -> None:
        """Take events again."""
        self._queue.keep({"opted_out": ""})

    # ---- delivery

    def flush(self, timeout: float = 10.0) -> bool:
        """Try at once, and return whether every event is delivered or a dead letter within the time."""
        self._check_process()
        return self._delivery.flush(timeout)

    def close(self, timeout: float = 5.0) -> bool:
        """
        Deliver for so long, then end within a second; return whether nothing is left.

        What is left waits in the file. Closing again does nothing.
        """
        if os.getpid() != self._process:  # the file is the parent's
            return not self._queue.size
        return self._delivery.close(timeout)

    def dead_letters(self) -> list[DeadLetter]:
        """Return the events that will not be stored, oldest first."""
        return self._queue.dead_letters()

    def retry_dead_letters(self) -> int:
        """Queue all dead letters that can be read again, and return how many these are."""
        count = self._queue.retry_dead_letters()
        self._delivery.wake()
        return count

    @property
    def waiting(self) -> int:
        """How many events are neither delivered nor dead letters."""
        return self._queue.size

    @property
    def oldest_age_s(self) -> float | None:
        """How long the oldest event has waited, by the clock; None if none waits."""
        return self._queue.oldest_age_s()

    @property
    def last_error(self) -> Exception | None:
        """Why the last try to deliver has failed; None if it has not."""
        return self._delivery.last_error

    @property
    def is_durable(self) -> bool:
        """Whether events survive the process: False if the file cannot be opened."""
        return self._queue.is_durable

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("a client does not survive a fork: make it in the process that uses it")


def _is_folder(path: str | os.PathLike[str], place: Path) -> bool:
    """Whether a path is a folder's, which is made if its name says so."""
    is_named_so = os.fspath(path).endswith(os.sep)
    if is_named_so:
        with suppress(OSError):  # then its files cannot be opened either, which is told
            place.mkdir(mode=0o700, exist_ok=True)
    return is_named_so or place.is_dir()


# ---- aio: The client for asyncio: no call blocks the event loop.


_Told = TypeVar("_Told")


class AsyncClient(Vocabulary[Awaitable[Place | None]]):
    """
    The calls of Client, to be awaited.

    They run one after the other in a thread of their own. One that is cancelled may have queued its
    events. Callbacks are called from threads.
    """

    def __init__(self, url: str, write_key: str, path: str | os.PathLike[str], **options: Any) -> None:
        """Take the arguments of Client; the first call opens the file, and raises what that raises."""
        self._make = partial(Client, url, write_key, path, **options)
        self._client: Client | None = None
        self._thread = ThreadPoolExecutor(1, "gateway-client-queue")

    async def __aenter__(self) -> Self:
        await self._run(lambda client: None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def send(self, event: Mapping[str, Any]) -> Place | None:
        """Queue one event of any type."""
        return await self._run(lambda client: client.send(event))

    async def send_all(self, events: Sequence[Mapping[str, Any]]) -> list[Place]:
        """Queue events in one commit."""
        return await self._run(lambda client: client.send_all(events))

    async def flush(self, timeout: float = 10.0) -> bool:
        """Wait until every event is delivered or a dead letter, and return whether that is so."""
        client = await self._run(lambda client: client)
        return await asyncio.to_thread(client.flush, timeout)

    async def close(self, timeout: float = 5.0) -> bool:
        """Deliver for so long, then end within a second; return whether nothing is left."""
        loop = asyncio.get_running_loop()
        with suppress(RuntimeError):  # it was closed before
            await loop.run_in_executor(self._thread, lambda: None)  # the first call may be opening the file
        self._thread.shutdown(wait=False)
        return self._client is None or await asyncio.to_thread(self._client.close, timeout)

    async def dead_letters(self) -> list[DeadLetter]:
        """Return the events that will not be stored, oldest first."""
        return await self._run(Client.dead_letters)

    async def retry_dead_letters(self) -> int:
        """Queue all dead letters that can be read again, and return how many these are."""
        return await self._run(Client.retry_dead_letters)

    async def reset(self) -> None:
        """Forget the user."""
        await self._run(Client.reset)

    async def opt_out(self) -> None:
        """Delete all that is queued and kept, and drop what is queued later."""
        await self._run(Client.opt_out)

    async def opt_in(self) -> None:
        """Take events again."""
        await self._run(Client.opt_in)

    @property
    def sync(self) -> Client:
        """The client below, for its properties. Raises RuntimeError before the first call."""
        if self._client is None:
            raise RuntimeError("nothing was called yet")
        return self._client

    def _say(self, event: dict[str, Any]) -> Awaitable[Place | None]:
        return self._run(lambda client: client._say(event))

    async def _run(self, call: Callable[[Client], _Told]) -> _Told:
        def run() -> _Told:
            if self._client is None:
                self._client = self._make()
            return call(self._client)

        try:
            called = asyncio.get_running_loop().run_in_executor(self._thread, run)
        except RuntimeError as err:
            raise ClosedError("the client is closed") from err
        return await called
