"""The client that applications use."""

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from .delivery import Delivery, OnProblem, OnRejected
from .event_queue import EventQueue, WhenFull
from .folder import Folder
from .model import ClosedError, DeadLetter, Place, Queued
from .sender import Sender
from .vocabulary import Vocabulary

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
