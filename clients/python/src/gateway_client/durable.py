"""What keeps rows whatever befalls their file: damage, deletion, a full disk, no file at all."""

import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from queue import SimpleQueue
from typing import Concatenate, ParamSpec, TypeVar

from .model import ClosedError, DamagedQueueError, DeadLetter, NotDurableError, QueueInUseError
from .queue_file import SET_ASIDE, QueueFile, is_damage, is_no_room, open_with_ballast, set_aside
from .salvage import Contents, contents_of, salvage, take_in

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
