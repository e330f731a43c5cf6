"""
The cost of the live tail in the ingest: the CPU that it adds to a request.

    .venv/bin/python -m loadtests.bench.tail_cost

Within a request it is less than the noise, so the calls are repeated without a request; the result is the
smallest of several rounds. The events are those of the other benchmarks, 740 bytes each.
"""

import time
from collections.abc import Callable
from typing import Any

from app.admin.tail import Listener, Tail, Wanted
from app.cli.load.events import event as event_bytes
from app.http.body_memory import BodyMemory, MemoryReservation
from app.http.request_context import RequestContext
from app.ingest.decision_observer import DecisionObserver
from app.ingest.receipts import CODES, REASONS
from dedupe.decide.admission import Admission
from dedupe.model.clock import SystemClock
from dedupe.model.identity import Identity, fingerprint_of
from dedupe.model.types import Event
from dedupe.submission import Outcomes

EVENTS = 100
ROUNDS = 7
CONTEXT = RequestContext(MemoryReservation(BodyMemory(0)), source="bench", request_id="bench-1")


def main() -> None:
    """Print the table."""
    print("| a request of 100 events | who listens | us a request | us an event |")
    print("|---|---|---|---|")
    for name, who, work, times in _cases():
        request_us = _least_us(work, times)
        print(f"| {name} | {who} | {request_us:.3f} | {request_us / EVENTS:.4f} |")


def _cases() -> list[tuple[str, str, Callable[[], None], int]]:
    new, again = (_outcomes(kind) for kind in (Admission.NEW, Admission.DUPLICATE))
    cases = [
        ("all new", "nobody", _request(_tail(0), new), 200_000),
        ("all known", "nobody", _request(_tail(0), again), 20_000),
    ]
    others = "nothing of it: another source"
    cases.append(("all new", f"one, {others}", _request(_tail(1, source="other"), new), 2_000))
    cases.append(("all new", "one, all that it may have", _request(_tail(1), new), 2_000))
    cases.append(("all new", "eight, all that they may have", _request(_tail(8), new), 500))
    cases.append(("all new", "the console: events are held", _request(_holding(), new), 2_000))
    return cases


def _tail(listeners: int, **wanted: Any) -> Tail:
    tail = Tail(SystemClock(), codes=CODES, reasons=REASONS)
    for _ in range(listeners):
        assert isinstance(tail.listen(Wanted(**wanted)), Listener)
    return tail


def _holding() -> Tail:
    return Tail(SystemClock(), codes=CODES, reasons=REASONS, is_always_held=True)


def _outcomes(admission: Admission) -> Outcomes:
    return Outcomes([admission] * EVENTS, list(range(EVENTS)))


def _request(observer: DecisionObserver | None, outcomes: Outcomes) -> Callable[[], None]:
    """Return what app.ingest.routes.events adds to a request."""
    identity = Identity(b"a secret of the benchmark")
    events = []
    for number in range(EVENTS):
        message_id, value = f"id-{number}", event_bytes(number)
        key = identity.message_key("bench", message_id)
        events.append(Event(key, 0, fingerprint_of(value), "bench", message_id, value))
    quarantined: list[Event] = []

    def add() -> None:
        if observer is not None and observer.is_on:
            CONTEXT.watched = [*events, *quarantined]
        new = outcomes.admissions.count(Admission.NEW)
        if observer is not None and (observer.is_on or quarantined or new < len(outcomes.admissions)):
            observer.decided(events, outcomes, quarantined, CONTEXT)

    return add


def _least_us(work: Callable[[], None], times: int) -> float:
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(times):
            work()
        rounds.append((time.process_time() - began) / times)
    return min(rounds) * 1e6


if __name__ == "__main__":
    main()
