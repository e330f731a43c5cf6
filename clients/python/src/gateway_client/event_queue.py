"""Events that wait, the sessions they are in, dead letters: all that survives the process."""

import hashlib
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

from .answers import Verdict
from .dead_letters import buried, bury
from .durable import Durable, alone
from .model import (
    BATCH_EVENTS,
    EVENT_DAMAGED,
    Batch,
    ClosedError,
    DeadLetter,
    OtherSourceError,
    Place,
    Queued,
    QueueFullError,
    event_of,
    is_header,
    ksuid,
    whole_run,
)
from .settlement import settlement_of

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
