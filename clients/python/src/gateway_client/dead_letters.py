"""The table of events that will not be stored."""

import json
import sqlite3
from collections.abc import Sequence

from .model import EVENT_DAMAGED, EVENT_REFUSED, DeadLetter, Place, event_of

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
