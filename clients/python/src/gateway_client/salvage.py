"""What can be read of a queue's file, however damaged it is, and how it gets into another one."""

import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from .carving import carved_events
from .model import EVENT_DAMAGED
from .queue_file import PAGE_BYTES, make_schema

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
