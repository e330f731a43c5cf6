"""The thread that delivers. Whatever it meets, it waits and tries again; only `close` ends it."""

import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import httpx

from .answers import Fate, UndecidedError, Verdict, judge
from .event_queue import EventQueue
from .folder import Folder
from .model import BATCH_EVENTS, EVENT_REFUSED, Batch, DeadLetter, DeliveryError, logger, now_text
from .sender import Sender

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
