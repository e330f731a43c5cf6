"""The harness of a Python client that is wrong on purpose, in the way that its argument names."""

import sys
from collections.abc import Callable
from typing import Any

from clients.conformance.harness import python_client

gateway_client: Any = sys.modules["gateway_client"]  # that the harness has found


def acknowledges_without_verdict() -> None:
    """Take every answer for a success."""

    def judge(batch: Any, _answer: Any) -> list[Any]:
        return [gateway_client.Verdict(gateway_client.Fate.DONE)] * len(batch.events)

    gateway_client.judge = judge


def renumbers_on_retry() -> None:
    """Send each try in a session of its own."""
    headers = gateway_client.Batch.headers
    gateway_client.Batch.headers = lambda batch: headers(batch) | {"Gateway-Session": gateway_client.ksuid()}


def drops_on_413() -> None:
    """Give up what is too large, without a dead letter."""
    judge = gateway_client.judge

    def dropping(batch: Any, answer: Any) -> list[Any]:
        if answer.status == gateway_client.TOO_LARGE:
            return [gateway_client.Verdict(gateway_client.Fate.DONE)] * len(batch.events)
        return list(judge(batch, answer))

    gateway_client.judge = dropping


def moves_without_id() -> None:
    """Let events lose their identity when they go on in another session."""
    gateway_client.Queued.moved_from = lambda event, _place: event


def keeps_in_memory() -> None:
    """Confirm events that no file has."""
    init = gateway_client.QueueFile.__init__
    gateway_client.QueueFile.__init__ = lambda file, _path: init(file, None)


def obeys_proxies() -> None:
    """Let whoever asks for a pause hold up a flush."""
    pause_after = gateway_client.Delivery._pause_after

    def asked(delivery: Any, err: Exception) -> tuple[float, bool]:
        return pause_after(delivery, err)[0], True

    gateway_client.Delivery._pause_after = asked


def asks_too_soon() -> None:
    """Try again while the gateway has asked for a pause."""
    pause_after = gateway_client.Delivery._pause_after

    def hurried(delivery: Any, err: Exception) -> tuple[float, bool]:
        return pause_after(delivery, err)[0], False

    gateway_client.Delivery._pause_after = hurried


def never_halves() -> None:
    """Send the same batch again and again."""
    verdicts_on = gateway_client.Delivery._verdicts_on

    def whole(delivery: Any, batch: Any) -> Any:
        try:
            return verdicts_on(delivery, batch)
        finally:
            delivery._batch_events = gateway_client.BATCH_EVENTS

    gateway_client.Delivery._verdicts_on = whole


def never_asks() -> None:
    """Send events before the source of the key is known."""
    gateway_client.Delivery._ask = lambda _delivery: None


def ends_at_its_leisure() -> None:
    """Wait for the answer that is under way."""
    gateway_client.CLOSE_GRACE_S = 60.0


def gives_up_after_401() -> None:
    """Stop when the key is refused."""
    pause_after = gateway_client.Delivery._pause_after

    def stop(delivery: Any, err: Exception) -> Any:
        if getattr(err, "is_about_the_key", False):
            sys.exit()
        return pause_after(delivery, err)

    gateway_client.Delivery._pause_after = stop


def gives_up_damaged_queues() -> None:
    """Begin an empty queue instead."""
    gateway_client.salvage = lambda _path: gateway_client.Contents({}, [], {}, [])


def hides_rejections() -> None:
    """Keep no dead letters."""
    gateway_client.bury = lambda _db, _letters: None


WRONG: dict[str, Callable[[], None]] = {
    wrong.__name__: wrong
    for wrong in (
        acknowledges_without_verdict,
        renumbers_on_retry,
        drops_on_413,
        moves_without_id,
        keeps_in_memory,
        obeys_proxies,
        asks_too_soon,
        never_halves,
        never_asks,
        ends_at_its_leisure,
        gives_up_after_401,
        gives_up_damaged_queues,
        hides_rejections,
    )
}

if __name__ == "__main__":
    WRONG[sys.argv[1]]()
    python_client.main()
