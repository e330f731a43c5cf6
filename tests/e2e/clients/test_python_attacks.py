"""
Claim: what proxies, resolvers, clocks, disks and applications do at the wrong moment neither stops the Python
client nor loses or doubles what it has confirmed.
"""

import math
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clients.python.src.gateway_client import Client, DamagedQueueError, NotDurableError, event_queue, model
from clients.python.src.gateway_client.queue_file import QueueFile
from tests.e2e.clients.conftest import ClientFactory
from tests.e2e.clients.test_python_answers import CLOSE_S, CLOSE_S_MAX, ScriptedServer, serve  # noqa: F401 - a fixture
from tests.e2e.clients.test_python_answers import answered as answer
from tests.e2e.clients.test_python_client import BAD, events, numbers, wait_until_ended
from tests.e2e.clients.test_python_storage import Told
from tests.support.gateway_in_process import GatewayInProcess, not_connected
from tests.support.waiting import PATIENCE_S

YEAR_S = 31_536_000
PERSON = "a-person-of-interest"
WRITES_MAX = 40
"""More than what a client writes in the test of a full disk."""


@pytest.fixture
def told() -> Told:
    return Told()


# ---- the network


@pytest.mark.parametrize("asked", [str(YEAR_S), "9" * 5_000, "-1", "1e9", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_who_asks_for_a_year_gets_five_minutes_and_a_proxy_holds_up_no_flush(
    serve: Callable[..., ScriptedServer],  # noqa: F811
    hurried: None,
    tmp_path: Path,
    asked: str,
) -> None:
    head = f"Retry-After: {asked}\r\n"
    server = serve(answer(429, head=head), answer(503, head=head), answer(429, head=head, is_gateways=True))
    with Client(server.url, "web", tmp_path / "queue.db") as client:
        client.send_all(events(1, 3))
        end = time.monotonic() + PATIENCE_S
        while server.script and time.monotonic() < end:
            client.flush(CLOSE_S)
        assert server.script == []
        began = time.monotonic()
        client.close(CLOSE_S)
        assert time.monotonic() - began < CLOSE_S_MAX
    with Client(server.url, "web", tmp_path / "queue.db") as client:
        assert client.flush(PATIENCE_S)
    assert server.numbers == [1, 2, 3]


def test_a_name_that_is_not_found_or_not_answered_holds_up_nobody(
    serve: Callable[..., ScriptedServer],  # noqa: F811
    hurried: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, is_over = serve(), threading.Event()
    resolve: Any = socket.getaddrinfo

    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    def silent(*arguments: Any, **named: Any) -> Any:
        is_over.wait(PATIENCE_S)
        return resolve(*arguments, **named)

    path = tmp_path / "queue.db"
    clients: list[Client] = []
    for fault in (unknown, silent):
        monkeypatch.setattr(socket, "getaddrinfo", fault)
        clients.append(Client(server.url.replace("127.0.0.1", "localhost"), "web", path))
        if fault is unknown:
            clients[0].send_all(events(1, 3))
        began = time.monotonic()
        assert not clients[-1].close(CLOSE_S)
        assert time.monotonic() - began < CLOSE_S_MAX
    is_over.set()
    wait_until_ended(clients[-1])
    monkeypatch.undo()
    with Client(server.url, "web", path) as client:
        assert client.flush(PATIENCE_S)
    assert server.numbers == [1, 2, 3]


def test_flush_takes_any_time(gateway: GatewayInProcess, open_client: ClientFactory) -> None:
    client = open_client()
    client.send_all(events(1, 3))
    assert client.flush(math.inf)
    client.send_all(events(4, 4))
    assert client.close(math.inf)
    assert numbers(gateway) == [1, 2, 3, 4]


@pytest.mark.parametrize("moment_s", [-(10.0**10), 0.0, 2.0**32, 250e9])
def test_a_clock_of_any_year_numbers_and_delivers(
    gateway: GatewayInProcess, open_client: ClientFactory, monkeypatch: pytest.MonkeyPatch, moment_s: float
) -> None:
    gateway.faults += [not_connected] * 1000
    client = open_client()
    client.send_all(events(1, 2))
    for module in (model, event_queue):
        monkeypatch.setattr(module.time, "time", lambda: moment_s)
    assert (client.oldest_age_s or 0.0) >= 0
    client.send_all(events(3, 4))
    client.close(timeout=0)
    gateway.faults.clear()
    client = open_client()  # a session of that year
    places = client.send_all(events(5, 6))
    assert {len(place.session) for place in places} == {27}
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [1, 2, 3, 4, 5, 6]


# ---- the disk


def test_a_queue_that_a_folder_replaces_goes_on_in_memory(
    gateway: GatewayInProcess, open_client: ClientFactory, tmp_path: Path, told: Told
) -> None:
    path = tmp_path / "queue.db"
    gateway.faults += [not_connected] * 1000
    client = open_client(path, on_problem=told)
    client.send_all(events(1, 3))
    path.rename(tmp_path / "elsewhere.db")
    path.mkdir(mode=0o755)
    client.send_all(events(4, 5))
    assert not client.is_durable
    assert path.stat().st_mode & 0o777 == 0o755
    gateway.faults.clear()
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [1, 2, 3, 4, 5]
    told.wait_for(DamagedQueueError)
    told.wait_for(NotDurableError)


def test_dead_letters_of_a_file_that_was_deleted_in_use_are_sent_again(
    gateway: GatewayInProcess, open_client: ClientFactory, tmp_path: Path
) -> None:
    client = open_client()
    client.send_all([BAD, *events(1, 1)])
    assert client.flush(PATIENCE_S)
    (tmp_path / "queue.db").unlink()
    assert client.retry_dead_letters() == 1
    assert client.flush(PATIENCE_S)
    assert len(client.dead_letters()) == 1
    assert client.is_durable


class Disk:
    """A disk that is full from the n-th write on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes_left = WRITES_MAX
        self.is_full = False
        transaction, erase = QueueFile.transaction, QueueFile.erase

        def write(file: QueueFile) -> Any:
            if not file.is_in_transaction:
                self._note_write()
            return transaction(file)

        def erase_too(file: QueueFile) -> None:
            self._note_write()
            erase(file)

        monkeypatch.setattr(QueueFile, "transaction", write)
        monkeypatch.setattr(QueueFile, "erase", erase_too)
        monkeypatch.setattr(QueueFile, "give_up_ballast", lambda _file: False)

    def _note_write(self) -> None:
        self.writes_left -= 1
        if self.writes_left < 0:
            self.is_full = True
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error


@pytest.mark.parametrize("writes", range(0, 13))
def test_a_disk_that_is_full_from_any_write_on_loses_and_doubles_nothing(
    gateway: GatewayInProcess, open_client: ClientFactory, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    disk, confirmed = Disk(monkeypatch), list[int]()
    client = open_client()
    disk.writes_left = writes

    def attempt(work: Callable[[], Any]) -> bool:
        try:
            work()
        except sqlite3.OperationalError:
            assert disk.is_full
            return False
        return True

    for number in range(1, 4):
        if attempt(lambda number=number: client.send_all(events(number, number))):  # type: ignore[misc]
            confirmed.append(number)
        client.flush(CLOSE_S)
        attempt(lambda: client.identify("u1", traits={}))
        attempt(client.retry_dead_letters)
    disk.writes_left = WRITES_MAX
    assert client.flush(PATIENCE_S)
    client.send_all(events(9, 9))
    client.close(PATIENCE_S)
    assert open_client().flush(PATIENCE_S)
    stored = [r.value["properties"]["n"] for r in gateway.stored() if r.value["type"] == "track"]
    assert sorted(stored) == [*confirmed, 9]


# ---- consent


def test_an_opt_out_on_a_full_disk_gives_up_the_ballast_and_leaves_nothing(
    gateway: GatewayInProcess, open_client: ClientFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gateway.faults += [not_connected] * 1000
    (tmp_path / "queue.db.corrupt-20260101T000000Z").write_text(PERSON)
    (tmp_path / "queue.db.corrupt-20260101T000000Z-wal").write_text(PERSON)
    client = open_client()
    client.identify(PERSON)
    transaction = QueueFile.transaction

    def write(file: QueueFile) -> Any:
        if (tmp_path / "queue.db-ballast").exists():
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return transaction(file)

    monkeypatch.setattr(QueueFile, "transaction", write)
    client.opt_out()
    monkeypatch.undo()
    assert client.waiting == 0
    assert client.track("Seen") is None
    client.close(timeout=0)
    contents = [path.read_bytes() for path in tmp_path.iterdir() if path.is_file()]
    assert not any(PERSON.encode() in content for content in contents)


@pytest.mark.regression("An event that was made while somebody opted out was queued and sent.")
def test_an_event_that_is_made_during_an_opt_out_is_dropped(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    def opting_out(event: dict[str, Any]) -> dict[str, Any]:
        client.opt_out()
        return event

    client = open_client(before_send=opting_out)
    assert client.track("Seen", properties={"n": 1}) is None
    assert client.waiting == 0
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == []
