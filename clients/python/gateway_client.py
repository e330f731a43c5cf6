"""
A client that loses no event and has none stored twice: it keeps each in a file until the gateway has it.

An event gets its place, a sequence in a client session, in the commit that makes it durable, and before
it is sent for the first time; it keeps that place however often it is sent. Batches go out one at a
time, oldest first, so what is stored of a session has no gaps and the 512 sequences that the gateway
takes ahead of its watermark are never exceeded. README.md says what an application must know.

Copy this file into your project; it needs Python 3.11 and httpx.
"""

import json
import logging
import os
import random
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx

BATCH_EVENTS = 100
"""At most 512: so many sequences above the acknowledged ones a session may have under way."""

BATCH_BYTES = 500_000
EVENT_BYTES_MAX = 700_000
"""The gateway's own limit is 800 KiB by default, with what it adds to an event."""

DEAD_LETTERS_MAX = 10_000
"""Older ones are deleted: the gateway has them in its quarantine."""

LINGER_S = 0.2
"""How long a batch that is not full waits for more events, unless a caller waits in `flush`."""

BACKOFF_S, BACKOFF_MAX_S = 0.5, 60.0
RETRY_AFTER_MAX_S = 300.0
CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S = 5.0, 15.0
"""The gateway answers within 5 s; what is between may take its time."""

OK, REQUEST_TIMEOUT, TOO_MANY_REQUESTS = 200, 408, 429
CLIENT_ERRORS = range(400, 500)

SESSION_IS_OVER = frozenset({"session_expired", "session_fenced"})
"""Codes which say that the session takes no new events."""

KSUID_EPOCH_S = 1_400_000_000
BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

logger = logging.getLogger(__name__)


class QueueInUseError(Exception):
    """Another client has this file open."""


class QueueFullError(Exception):
    """So many events wait already that no more are taken; none of the call's was."""


class StoppedError(Exception):
    """The gateway refuses this client's requests as such (400, 401): its configuration must change."""


class Place(NamedTuple):
    """Which event it is: GET /v1/sessions/{session} tells what the gateway has of the session."""

    session: str  # a KSUID
    sequence: int  # from 1


class DeadLetter(NamedTuple):
    """An event that the gateway will not take; it keeps a copy in its quarantine."""

    place: Place
    code: str  # a row of "Events that are kept apart" in docs/http-api.md
    message: str
    event: dict[str, Any]


class Client:
    """
    Queues events in a file and delivers them from a thread of its own.

    Safe to use from several threads. A process that forks makes its client afterwards.
    """

    def __init__(
        self,
        url: str,
        write_key: str,
        path: str | os.PathLike[str],
        *,
        on_rejected: Callable[[DeadLetter], None] | None = None,
        on_stopped: Callable[[StoppedError], None] | None = None,
        queue_events_max: int = 100_000,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """
        Open the file, which is made if it is not there, and begin to deliver what waits in it.

        Args:
            url: of the gateway, without a path.
            write_key: names the source.
            path: of the queue; on a local disk, one for each process.
            on_rejected: called from the client's thread for each new dead letter.
            on_stopped: called from there once if the client stops for good.
            queue_events_max: how many events may wait.
            transport: how httpx sends, for proxies and tests.

        Raises:
            QueueInUseError: another client has the file open.
            sqlite3.Error: the file cannot be opened, or is none of ours.
        """
        self._http = httpx.Client(
            base_url=url,
            auth=(write_key, ""),
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            transport=transport,
        )
        self._queue = _Queue(path, queue_events_max)
        self.client_id = self._queue.client_id
        self._on_rejected, self._on_stopped = on_rejected, on_stopped
        self._changed = threading.Condition()
        self._waiting_in_flush = 0
        self._is_closing = False
        self._stopped: StoppedError | None = None
        self._failures = 0
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="gateway-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def track(
        self,
        event: str,
        *,
        user_id: str | None = None,
        anonymous_id: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Place:
        """Queue an action of a user, now; without an id it is this installation's. Raises as `send`."""
        who = {"userId": user_id, "anonymousId": anonymous_id}
        said = {name: value for name, value in who.items() if value} or {"anonymousId": self.client_id}
        return self.send(
            {"type": "track", "event": event, **said, "properties": properties or {}, "timestamp": _now()}
        )

    def send(self, event: Mapping[str, Any]) -> Place:
        """Queue one event of any type; see `send_all`."""
        return self.send_all([event])[0]

    def send_all(self, events: Sequence[Mapping[str, Any]]) -> list[Place]:
        """
        Queue events in one commit: when it returns, they survive the end of the process and of power.

        Args:
            events: JSON objects without `sequence`. A `messageId` is not needed; one that this
                installation sends again within the window is stored once.

        Raises:
            ValueError, TypeError: an event is no JSON, too large, or has a sequence.
            QueueFullError: the gateway has not been there for long.
            sqlite3.Error: the file cannot be written; nothing was queued.
        """
        if os.getpid() != self._process:
            raise RuntimeError("a client does not survive a fork: make it in the process that uses it")
        places = self._queue.add([_Queued.of(event) for event in events])
        with self._changed:
            self._changed.notify_all()
        return places

    def flush(self, timeout: float = 10.0) -> bool:
        """
        Wait until every event is delivered or a dead letter; return whether that is so in time.

        Raises StoppedError if that will never be.
        """
        end = time.monotonic() + timeout
        with self._changed:
            self._waiting_in_flush += 1
            self._changed.notify_all()
            try:
                while self._queue.size:
                    if self._stopped is not None:
                        raise self._stopped
                    if not self._changed.wait(end - time.monotonic()):
                        return not self._queue.size
                return True
            finally:
                self._waiting_in_flush -= 1

    def close(self, timeout: float = 5.0) -> bool:
        """
        Deliver for so long, then end; return whether nothing is left. What is left waits in the file.

        An answer that is being waited for may take 15 s more. Closing again does nothing.
        """
        if self._is_closing:
            return not self._queue.size
        try:
            return self.flush(timeout)
        except StoppedError:
            return False
        finally:
            with self._changed:
                self._is_closing = True
                self._changed.notify_all()
            self._thread.join()

    def dead_letters(self) -> list[DeadLetter]:
        """Return the newest DEAD_LETTERS_MAX events that the gateway would not take, oldest first."""
        return self._queue.dead_letters()

    @property
    def waiting(self) -> int:
        """How many events are neither delivered nor dead letters."""
        return self._queue.size

    # ---- the thread

    def _run(self) -> None:
        try:
            while self._wait_for_events():
                pause_s = self._deliver()
                with self._changed:
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._is_closing, pause_s)
        finally:
            self._http.close()
            self._queue.close()

    def _wait_for_events(self) -> bool:
        """Wait for something to deliver; return False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or (self._queue.size and self._stopped is None))
            self._changed.wait_for(
                lambda: self._is_closing or self._waiting_in_flush or self._queue.size >= BATCH_EVENTS,
                LINGER_S,
            )
            return not self._is_closing

    def _deliver(self) -> float:
        """Send one batch once; return how long to wait before the next."""
        try:
            batch = self._queue.next_batch()
            answer = self._http.post("/v1/events", content=batch.body(_now()), headers=self._headers(batch))
            if answer.status_code in CLIENT_ERRORS and _is_final(answer):
                return self._stop(answer)
            verdicts = judge(batch, answer)
            letters = self._queue.settle(batch, verdicts)
        except (httpx.RequestError, sqlite3.Error, _NoAnswerError) as err:
            return self._pause_after(err)
        self._tell(letters)
        if Fate.AGAIN in (verdict.fate for verdict in verdicts):
            return self._pause_after(_NoAnswerError("some events were not taken yet"))
        self._failures = 0
        return 0.0

    def _headers(self, batch: "_Batch") -> dict[str, str]:
        return {
            "Gateway-Client": self.client_id,
            "Gateway-Session": batch.session,
            "Gateway-Acknowledged-Through": str(batch.first_sequence - 1),
            "Content-Type": "application/json",
        }

    def _pause_after(self, err: Exception) -> float:
        """Return a pause with full jitter, longer after each failure, and not shorter than asked for."""
        self._failures += 1
        longest_s = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** min(self._failures, 30))
        asked_s = err.retry_after_s if isinstance(err, _NoAnswerError) else 0.0
        pause_s = max(asked_s, random.uniform(0, longest_s))
        logger.info("not delivered, trying again in %.1f s: %s: %s", pause_s, type(err).__name__, err)
        return pause_s

    def _stop(self, answer: httpx.Response) -> float:
        """Send nothing any more: the same request would get the same answer."""
        self._stopped = StoppedError(f"{answer.status_code} {answer.text}")
        logger.error("the gateway refuses all requests of this client: %s", self._stopped)
        if self._on_stopped is not None:
            _call(self._on_stopped, self._stopped)
        return 0.0

    def _tell(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            logger.warning("%s will not be stored: %s, %s", letter.place, letter.code, letter.message)
            if self._on_rejected is not None:
                _call(self._on_rejected, letter)


# ---- what an answer says


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


class _NoAnswerError(Exception):
    """The answer decides nothing: what was sent may be stored or not."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def judge(batch: "_Batch", answer: httpx.Response) -> list[Verdict]:
    """
    Return the verdict on each event of a batch. An event that the answer does not name is undecided.

    Raises:
        _NoAnswerError: it is not the gateway's 200.
    """
    document = _json_of(answer) if answer.status_code == OK else None
    if document is None:
        raise _NoAnswerError(f"{answer.status_code} {answer.text[:200]}", _retry_after_s(answer))
    stored = {receipt.get("sequence") for receipt in _objects(document, "receipts")}
    rejected = {told.get("index"): told for told in _objects(document, "rejected")}
    return [
        _verdict(sequence in stored, rejected.get(index))
        for index, sequence in enumerate(
            range(batch.first_sequence, batch.first_sequence + len(batch.events))
        )
    ]


def _verdict(is_stored: bool, told: Mapping[str, Any] | None) -> Verdict:
    if is_stored:
        return Verdict(Fate.DONE)
    if told is None or told.get("retriable"):
        return Verdict(Fate.AGAIN)
    code, message = str(told.get("code")), str(told.get("message"))
    return Verdict(Fate.SESSION_OVER if code in SESSION_IS_OVER else Fate.REJECTED, code, message)


def _is_final(answer: httpx.Response) -> bool:
    """Whether the gateway itself says no: others, such as a hotel's portal, give no code."""
    if answer.status_code in (REQUEST_TIMEOUT, TOO_MANY_REQUESTS):
        return False
    return "code" in (_json_of(answer) or {})


def _json_of(answer: httpx.Response) -> dict[str, Any] | None:
    try:
        document = answer.json()
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _objects(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = document.get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _retry_after_s(answer: httpx.Response) -> float:
    """Return what is asked for in seconds; a date would need a clock that is right, and counts as nothing."""
    text = answer.headers.get("Retry-After", "")
    return min(float(text), RETRY_AFTER_MAX_S) if text.isascii() and text.isdigit() else 0.0


def _call(callback: Callable[..., None], told: object) -> None:
    """Call the application back; its errors are not this thread's."""
    try:
        callback(told)
    except Exception:
        logger.exception("a callback failed")


# ---- what is kept


class _Queued(NamedTuple):
    """One event: its JSON never changes."""

    content: bytes
    has_id: bool

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Self:
        if event.get("sequence") is not None:
            raise ValueError("an event's sequence is given by the client")
        content = json.dumps(event, separators=(",", ":"), allow_nan=False).encode()
        if len(content) > EVENT_BYTES_MAX:
            raise ValueError(
                f"an event may have {EVENT_BYTES_MAX:,} bytes, and this one has {len(content):,}"
            )
        return cls(content, event.get("messageId") is not None)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Events of one session without a gap, the oldest that wait."""

    session_id: int
    session: str
    first_sequence: int
    events: Sequence[_Queued]
    sent_before: int
    """Sequences up to it were sent before, so they may be stored already."""
    doubtful_through: int
    """Of these, sequences up to it may be stored or not once the session is over: _settlement."""

    def body(self, sent_at: str) -> bytes:
        return b'{"batch":[%b],"firstSequence":%d,"sentAt":"%b"}' % (
            b",".join(event.content for event in self.events),
            self.first_sequence,
            sent_at.encode(),
        )


_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS installation (client TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS sessions (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session TEXT NOT NULL UNIQUE,
        last INTEGER NOT NULL DEFAULT 0,
        sent_through INTEGER NOT NULL DEFAULT 0,
        doubtful_through INTEGER NOT NULL DEFAULT 0
    )""",
    """CREATE TABLE IF NOT EXISTS events (
        session_id INTEGER NOT NULL REFERENCES sessions,
        sequence INTEGER NOT NULL,
        content BLOB NOT NULL,
        has_id INTEGER NOT NULL,
        PRIMARY KEY (session_id, sequence)
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS dead_letters (
        id INTEGER PRIMARY KEY,
        session TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        code TEXT NOT NULL,
        message TEXT NOT NULL,
        content BLOB NOT NULL
    )""",
)


class _Queue:
    """
    The file: events that wait, the sessions they are in, dead letters.

    Each run of a process numbers its events in a session of its own, made at its first event. A file
    that was restored from a backup, or copied with its machine, therefore never gives a sequence to
    two events, whatever it has forgotten. Earlier sessions still deliver what waits in them.
    """

    def __init__(self, path: str | os.PathLike[str], events_max: int) -> None:
        self._events_max = events_max
        self._lock = threading.Lock()
        self._current: int | None = None
        self.size: int = 0
        self._db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")  # until the process ends, however it does
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")  # less would lose events with the power
            with self._transaction() as db:
                for statement in _SCHEMA:
                    db.execute(statement)
                self.client_id = _client_of(db)
                (self.size,) = db.execute("SELECT count(*) FROM events").fetchone()
        except sqlite3.OperationalError as err:
            self._db.close()
            if "locked" in str(err):
                raise QueueInUseError(f"another client has {os.fspath(path)} open") from err
            raise
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def add(self, events: Sequence[_Queued]) -> list[Place]:
        """Give events their places. Raises QueueFullError."""
        with self._lock:
            if self.size + len(events) > self._events_max:
                raise QueueFullError(f"{self.size:,} events wait already")
            with self._transaction() as db:
                session_id = self._current or _new_session(db)
                session, last = db.execute(
                    "SELECT session, last FROM sessions WHERE id = ?", (session_id,)
                ).fetchone()
                _append(db, session_id, last, events)
            self._current = session_id
            self.size += len(events)
        return [Place(session, last + 1 + index) for index in range(len(events))]

    def next_batch(self) -> _Batch:
        """Return the oldest events that wait, at least one, and note that they are being sent."""
        with self._lock, self._transaction() as db:
            rows = db.execute(
                "SELECT * FROM events ORDER BY session_id, sequence LIMIT ?",
                (BATCH_EVENTS,),
            ).fetchall()
            session_id, first, *_ = rows[0]
            events, size = list[_Queued](), 0
            for index, (of_session, sequence, content, has_id) in enumerate(rows):
                size += len(content)
                if (of_session, sequence) != (session_id, first + index) or (events and size > BATCH_BYTES):
                    break
                events.append(_Queued(content, bool(has_id)))
            session, sent_before, doubtful_through = db.execute(
                "SELECT session, sent_through, doubtful_through FROM sessions WHERE id = ?", (session_id,)
            ).fetchone()
            through = first + len(events) - 1
            if through > sent_before:
                db.execute("UPDATE sessions SET sent_through = ? WHERE id = ?", (through, session_id))
        return _Batch(session_id, session, first, events, sent_before, doubtful_through)

    def settle(self, batch: _Batch, verdicts: Sequence[Verdict]) -> list[DeadLetter]:
        """Do what an answer says, and return the new dead letters."""
        done, moved, letters, doubtful_through = _settlement(batch, verdicts)
        with self._lock:
            current = self._current
            with self._transaction() as db:
                db.executemany(
                    "DELETE FROM events WHERE session_id = ? AND sequence = ?",
                    [(batch.session_id, sequence) for sequence in done],
                )
                db.execute(
                    "UPDATE sessions SET doubtful_through = ? WHERE id = ?",
                    (doubtful_through, batch.session_id),
                )
                _bury(db, letters)
                if any(verdict.fate is Fate.SESSION_OVER for verdict in verdicts):
                    current = _new_session(db) if current in (None, batch.session_id) else current
                    _move(db, batch.session_id, moved, current)
                db.execute(
                    "DELETE FROM sessions WHERE id IS NOT ?"
                    " AND NOT EXISTS (SELECT 1 FROM events WHERE session_id = sessions.id)",
                    (current,),
                )
            self._current = current
            self.size += len(moved) - len(done)
        return letters

    def dead_letters(self) -> list[DeadLetter]:
        with self._lock:
            rows = self._db.execute(
                "SELECT session, sequence, code, message, content FROM dead_letters ORDER BY id"
            ).fetchall()
        return [
            DeadLetter(Place(session, sequence), code, message, json.loads(content))
            for session, sequence, code, message, content in rows
        ]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it is durable, or nothing has happened."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


class _Settlement(NamedTuple):
    """What becomes of a batch."""

    done: list[int]
    """Sequences of events that do not wait there any more."""
    moved: list[_Queued]
    """Of these, to go on in another session."""
    letters: list[DeadLetter]
    doubtful_through: int


def _settlement(batch: _Batch, verdicts: Sequence[Verdict]) -> _Settlement:
    """
    Return what becomes of each event.

    A session that is over takes no new event, but of each that is stored it says so: all up to its
    watermark for good, those above while they are in the dedupe window. What is stored of a session has
    no gaps, so nothing above the watermark is, and what was refused goes on in another session. The
    exception is an event that was sent before, unanswered, behind one that may have left its place
    empty, because it was rejected or its messageId was known. Nobody can tell whether it is stored:
    it becomes a dead letter rather than be stored twice.
    """
    found = _Settlement([], [], [], batch.doubtful_through)
    doubtful_through = batch.doubtful_through
    for sequence, (event, verdict) in enumerate(
        zip(batch.events, verdicts, strict=True), batch.first_sequence
    ):
        is_over = verdict.fate is Fate.SESSION_OVER
        if verdict.fate is not Fate.AGAIN:
            found.done.append(sequence)
        if is_over and sequence > doubtful_through:
            found.moved.append(event)
        elif is_over or verdict.fate is Fate.REJECTED:
            place = Place(batch.session, sequence)
            found.letters.append(DeadLetter(place, verdict.code, verdict.message, json.loads(event.content)))
        if sequence <= batch.sent_before and (verdict.fate is Fate.REJECTED or event.has_id):
            doubtful_through = batch.sent_before
    return found._replace(doubtful_through=doubtful_through)


def _client_of(db: sqlite3.Connection) -> str:
    """Return the id of this installation, made once."""
    row = db.execute("SELECT client FROM installation").fetchone()
    if row is None:
        row = (secrets.token_hex(16),)
        db.execute("INSERT INTO installation VALUES (?)", row)
    client: str = row[0]
    return client


def _new_session(db: sqlite3.Connection) -> int:
    made = db.execute("INSERT INTO sessions (session) VALUES (?)", (ksuid(),))
    assert made.lastrowid is not None
    return made.lastrowid


def _append(db: sqlite3.Connection, session_id: int, last: int, events: Sequence[_Queued]) -> None:
    """Put events behind the last one of a session."""
    db.executemany(
        "INSERT INTO events VALUES (?, ?, ?, ?)",
        [(session_id, last + 1 + index, *event) for index, event in enumerate(events)],
    )
    db.execute("UPDATE sessions SET last = ? WHERE id = ?", (last + len(events), session_id))


def _move(db: sqlite3.Connection, over: int, refused: Sequence[_Queued], current: int) -> None:
    """Put refused events of a session that is over into another, and those of it that were never sent."""
    unsent = db.execute(
        "SELECT content, has_id FROM events WHERE session_id = ?"
        " AND sequence > (SELECT sent_through FROM sessions WHERE id = ?) ORDER BY sequence",
        (over, over),
    ).fetchall()
    db.execute(
        "DELETE FROM events WHERE session_id = ?"
        " AND sequence > (SELECT sent_through FROM sessions WHERE id = ?)",
        (over, over),
    )
    (last,) = db.execute("SELECT last FROM sessions WHERE id = ?", (current,)).fetchone()
    _append(db, current, last, [*refused, *(_Queued(content, has_id) for content, has_id in unsent)])


def _bury(db: sqlite3.Connection, letters: Sequence[DeadLetter]) -> None:
    if not letters:
        return
    db.executemany(
        "INSERT INTO dead_letters (session, sequence, code, message, content) VALUES (?, ?, ?, ?, ?)",
        [(*place, code, message, json.dumps(event)) for place, code, message, event in letters],
    )
    db.execute(
        "DELETE FROM dead_letters WHERE id <= (SELECT max(id) FROM dead_letters) - ?", (DEAD_LETTERS_MAX,)
    )


def ksuid() -> str:
    """Return a new KSUID: 4 bytes of time, which sort it roughly, and 16 random ones, in base 62."""
    seconds = max(0, int(time.time()) - KSUID_EPOCH_S) % 2**32
    number = int.from_bytes(seconds.to_bytes(4, "big") + secrets.token_bytes(16), "big")
    digits = ""
    for _ in range(27):
        number, digit = divmod(number, 62)
        digits = BASE62[digit] + digits
    return digits


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
