"""
Claim: whatever befalls the Python client, the network, its sessions and its time, in any order, each event it
has queued is stored once, or is a dead letter that says why not.
"""

import random
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from clients.python.src.gateway_client import Client, ClosedError, DeadLetter
from tests.e2e.clients.conftest import ClientFactory
from tests.e2e.clients.test_python_client import use_sessions, wait_until_ended
from tests.support.gateway_in_process import (
    DAY_MS,
    GatewayInProcess,
    answer_lost,
    answered,
    half_an_answer,
    killed_after,
    killed_before,
    not_connected,
)
from tests.support.waiting import PATIENCE_S

STEPS = 25
FLUSH_S = 0.5
SESSIONS_MAX = 40
HISTORIES = 12
FAULTS = [not_connected, answer_lost, half_an_answer, answered(503), killed_before, killed_after]

pytestmark = pytest.mark.filterwarnings(  # a process that is "killed" is a thread that ends
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayInProcess]:
    """Its window is a day, so that most histories leave it."""
    day_s = DAY_MS / 1000
    bounds = {"window": day_s, "session_lease": 100 * day_s, "sessions_max": SESSIONS_MAX}
    with GatewayInProcess(tmp_path / "gateway", **bounds, retention=101 * day_s) as gateway:
        yield gateway


class History:
    """One client's life, and what it has queued."""

    def __init__(
        self, gateway: GatewayInProcess, open_client: ClientFactory, rng: random.Random, path: Path
    ) -> None:
        self.gateway, self.open_client, self.rng, self.path = gateway, open_client, rng, path
        self.good: list[int] = []
        self.bad: list[int] = []
        self.letters: list[DeadLetter] = []
        self.is_forgettable = False
        self.client: Client = open_client()

    def step(self) -> None:
        many = [self.queue, self.fail]
        few = [self.end, self.pass_time, self.evict, self.restore, self.lose_disk]
        self.rng.choice([*many, *many, *few])()

    def queue(self, counts: Sequence[int] = (1, 3, 130)) -> None:
        self.revive()
        first = len(self.good) + len(self.bad) + 1
        count = self.rng.choice(counts)
        bad = {n for n in range(first, first + count) if self.rng.random() < 0.05}
        try:
            self.client.send_all([self.event(n, is_bad=n in bad) for n in range(first, first + count)])
        except ClosedError:  # it has just been killed
            return
        self.bad += bad
        self.good += [n for n in range(first, first + count) if n not in bad]
        if self.client.flush(self.rng.choice([0.0, 0.02, 0.1])):
            self.is_forgettable = True

    def event(self, n: int, *, is_bad: bool) -> dict[str, Any]:
        named = {"messageId": f"id-{n}"} if self.rng.random() < 0.05 else {}
        return {"type": 5 if is_bad else "track", "event": "Tested", **named, "properties": {"n": n}}

    def fail(self) -> None:
        self.gateway.faults += self.rng.choices(FAULTS, k=self.rng.randint(1, 3))

    def end(self) -> None:
        self.client.close(timeout=0)

    def pass_time(self) -> None:
        """Up to a few windows, and never so much that the session is forgotten."""
        self.gateway.clock.ms += round(self.rng.choice([0.1, 0.6, 1.5, 3]) * DAY_MS)

    def evict(self) -> None:
        """Once, until all is delivered: evicted twice, a session is forgotten."""
        if self.is_forgettable:
            use_sessions(
                self.gateway, self.client.client_id, SESSIONS_MAX // self.gateway.settings.log.partitions
            )
            self.is_forgettable = False

    def restore(self) -> None:
        """A backup is opened beside the original, perhaps after an eviction; both deliver what they have."""
        self.end()
        wait_until_ended(self.client)
        backup = self.path.with_name(f"backup-{time.monotonic_ns()}.db")
        shutil.copy(self.path, backup)
        self.evict()
        for path in self.rng.sample([self.path, backup], 2):
            end = time.monotonic() + PATIENCE_S
            client = self.open_client(path)
            while not client.flush(FLUSH_S):
                assert time.monotonic() < end
                if not client._delivery._thread.is_alive():
                    client = self.open_client(path)
            self.letters += client.dead_letters()
            client.close(timeout=0)
        self.is_forgettable = True

    def lose_disk(self) -> None:
        """The disk takes no write until the process ends; its session may be over when the next begins."""
        good = len(self.good)
        self.queue()
        if not self.client.flush(FLUSH_S) or len(self.good) == good:
            return  # the session may be over, and what is moved in memory alone is known for the window
        self.gateway.faults.extendleft([not_connected] * self.rng.choice([0, 1]))
        self.queue([130, 350])
        with suppress(sqlite3.Error, AttributeError):  # it has just been killed
            self.client._queue.file.db.execute("PRAGMA query_only = 1")
        self.client.flush(self.rng.choice([0.02, 0.1, 0.3]))
        self.end()
        self.pass_time()
        self.evict()

    def revive(self) -> None:
        """Begin another process if the last one has ended."""
        if not self.client._delivery._thread.is_alive():
            wait_until_ended(self.client)
            self.client = self.open_client()

    def finish(self) -> None:
        self.gateway.faults.clear()
        end = time.monotonic() + PATIENCE_S
        self.revive()
        while not self.client.flush(FLUSH_S):
            assert time.monotonic() < end
            self.revive()  # a fault that was under way may have killed it


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_every_event_is_stored_once_or_is_a_dead_letter(
    gateway: GatewayInProcess, open_client: ClientFactory, seed: int, tmp_path: Path
) -> None:
    history = History(gateway, open_client, random.Random(seed), tmp_path / "queue.db")
    for _ in range(STEPS):
        history.step()
    history.finish()

    stored = [record.value["properties"]["n"] for record in gateway.stored()]
    stored = sorted(n for n in stored if n > 0)
    assert len(set(stored)) == len(stored), "an event is stored twice"
    letters = {
        letter.event["properties"]["n"]: letter.code
        for letter in [*history.letters, *history.client.dead_letters()]
    }
    expired = {n for n, code in letters.items() if code == "session_expired"}
    assert set(letters) - expired == set(history.bad) - expired
    assert set(history.good) <= set(stored) | expired
    assert not set(stored) & set(history.bad)
