"""
Claim: whatever befalls the file of the Python client's queue, the application starts, somebody is told, and
what can be read of it is sent.

The gateway's edge and lanes are real, its log and clock simulated; disks are full by a limit of SQLite.
"""

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from clients.python.src.gateway_client import (
    Client,
    DamagedQueueError,
    NotDurableError,
    OtherSourceError,
    QueueFullError,
    queue_file,
)
from clients.python.src.gateway_client.model import EVENT_DAMAGED
from tests.e2e.clients.conftest import ClientFactory
from tests.e2e.clients.test_python_client import events, numbers, wait_until_ended
from tests.support.gateway_in_process import (
    GatewayInProcess,
    answered,
    killed_after,
    killed_before,
    not_connected,
)
from tests.support.waiting import PATIENCE_S, until

COUNT = 500
PAGE = 4096

pytestmark = pytest.mark.filterwarnings(  # a process that is "killed" is a thread that ends
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)


class Told:
    """What an application was told."""

    def __init__(self) -> None:
        self.problems: list[Exception] = []

    def __call__(self, err: Exception, since: datetime) -> None:
        self.problems.append(err)

    @property
    def kinds(self) -> list[type[Exception]]:
        return [type(err) for err in self.problems]

    def wait_for(self, kind: type[Exception]) -> None:
        until(lambda: kind in self.kinds, kind.__name__)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


def leave_waiting(gateway: GatewayInProcess, open_client: ClientFactory, count: int = COUNT) -> None:
    """Queue events in a process that is killed before it sends one."""
    gateway.faults += [killed_before]
    client = open_client()
    client.send_all(events(1, count))
    wait_until_ended(client)


# ---- damage


def overwrite(path: Path, at: int, size: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(os.urandom(size))


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


DAMAGES: dict[str, tuple[Callable[[Path], object], int]] = {
    "header": (lambda path: overwrite(path, 0, 100), COUNT),
    "first page": (lambda path: overwrite(path, 0, PAGE), COUNT),
    "middle": (lambda path: overwrite(path, path.stat().st_size // 2 // PAGE * PAGE, PAGE), COUNT - 150),
    "middle of a page": (lambda path: overwrite(path, path.stat().st_size // 2 + 500, 2 * PAGE), COUNT - 300),
    "a byte": (lambda path: overwrite(path, path.stat().st_size // 2 + 100, 1), COUNT - 150),
    "sessions": (lambda path: overwrite(path, 5 * PAGE, PAGE), 0),
    "cut": (lambda path: cut(path, path.stat().st_size * 2 // 3), COUNT // 3),
    "cut within a page": (lambda path: cut(path, path.stat().st_size * 2 // 3 + 99), COUNT // 3),
    "cut to a rest": (lambda path: cut(path, 50), 0),
    "a diary": (lambda path: path.write_text("a diary" * 1000), 0),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_set_aside_and_what_is_readable_is_sent(
    gateway: GatewayInProcess, open_client: ClientFactory, path: Path, told: Told, name: str
) -> None:
    damage, least = DAMAGES[name]
    leave_waiting(gateway, open_client)
    damage(path)
    client = open_client(on_problem=told)
    client.send_all(events(COUNT + 1, COUNT + 1))
    assert client.flush(PATIENCE_S)
    found = numbers(gateway)
    assert len(set(found)) == len(found)
    assert len(found) >= least + 1
    assert COUNT + 1 in found
    if DamagedQueueError in told.kinds:
        assert list(path.parent.glob("queue.db.corrupt-*Z"))
        assert len(told.problems) == 1
    letters = client.dead_letters()
    assert {letter.code for letter in letters} <= {EVENT_DAMAGED}
    assert DamagedQueueError in told.kinds or len(found) + len(letters) == COUNT + 1


def test_events_on_whole_pages_are_found_without_the_tree_that_leads_to_them(
    gateway: GatewayInProcess, open_client: ClientFactory, path: Path, told: Told
) -> None:
    gateway.faults += [killed_before]
    client = open_client()
    large = [event | {"text": "x" * (n % 5 * 700)} for n, event in enumerate(events(1, COUNT))]
    client.send_all(large)
    wait_until_ended(client)
    cut(path, path.stat().st_size // 2)
    client = open_client(on_problem=told)
    assert client.flush(PATIENCE_S)
    found = numbers(gateway)
    assert len(found) == len(set(found)) > COUNT // 3
    told.wait_for(DamagedQueueError)


def test_a_file_that_is_damaged_in_use_is_mended_in_use(
    gateway: GatewayInProcess, open_client: ClientFactory, path: Path, told: Told
) -> None:
    leave_waiting(gateway, open_client)
    gateway.faults += [not_connected] * 3
    client = open_client(on_problem=told)
    for at in range(PAGE * 8, path.stat().st_size, PAGE * 8):
        overwrite(path, at, PAGE)
    assert client.flush(PATIENCE_S)
    client.send_all(events(COUNT + 1, COUNT + 1))
    assert client.flush(PATIENCE_S)
    assert len(numbers(gateway)) == len(set(numbers(gateway)))
    assert COUNT + 1 in numbers(gateway)


def test_a_queue_whose_wal_was_not_copied_says_so(
    open_client: ClientFactory, path: Path, told: Told, tmp_path: Path, gateway: GatewayInProcess
) -> None:
    gateway.faults += [not_connected] * 1000
    client = open_client()
    client.send_all(events(1, 3))
    shutil.copy(path, tmp_path / "copy.db")
    other = open_client(tmp_path / "copy.db", on_problem=told)
    other.flush(0.1)
    told.wait_for(DamagedQueueError)
    assert "-wal is missing" in str(told.problems[0])


@pytest.mark.parametrize("loss", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_queue_that_was_deleted_or_emptied_says_so(
    gateway: GatewayInProcess, open_client: ClientFactory, path: Path, told: Told, loss: Callable[[Path], Any]
) -> None:
    leave_waiting(gateway, open_client, 3)
    loss(path)
    client = open_client(on_problem=told)
    client.send_all(events(4, 4))
    assert client.flush(PATIENCE_S)
    told.wait_for(DamagedQueueError)


def test_a_file_that_is_deleted_in_use_is_written_anew(
    gateway: GatewayInProcess, open_client: ClientFactory, path: Path, told: Told
) -> None:
    gateway.faults += [not_connected, not_connected, killed_before]
    client = open_client(on_problem=told)
    client.send_all(events(1, 3))
    path.unlink()
    client.send_all(events(4, 5))
    assert path.exists()
    told.wait_for(DamagedQueueError)
    wait_until_ended(client)
    assert open_client().flush(PATIENCE_S)
    assert numbers(gateway) == [1, 2, 3, 4, 5]


def test_without_a_file_events_are_in_memory(
    gateway: GatewayInProcess, open_client: ClientFactory, tmp_path: Path, told: Told
) -> None:
    client = open_client(tmp_path / "none" / "queue.db", on_problem=told)
    assert not client.is_durable
    client.send_all(events(1, 3))
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [1, 2, 3]
    told.wait_for(NotDurableError)


# ---- a full disk


def fill_the_disk(client: Client) -> None:
    """Let nothing more be added, and only the ballast make room for what deletes."""
    file = client._queue.file
    (pages,) = file.db.execute("PRAGMA page_count").fetchone()
    file.db.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_refuses_events_and_delivers_those_it_has(
    gateway: GatewayInProcess, open_client: ClientFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.faults += [not_connected] * 1000
    client = open_client()
    fill_the_disk(client)
    queued = 0
    with suppress(sqlite3.OperationalError):
        while True:
            client.send_all(events(queued + 1, queued + 1))
            queued += 1
    gateway.faults.clear()
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == list(range(1, queued + 1))
    client.send_all(events(queued + 1, queued + 1))


def test_what_waits_is_sent_before_anything_is_written(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    leave_waiting(gateway, open_client)
    with pytest.MonkeyPatch.context() as patch:

        def full(file: queue_file.QueueFile) -> Any:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

        patch.setattr(queue_file.QueueFile, "transaction", full)
        client = open_client()
        assert not client.flush(0.5)
        assert client.waiting == COUNT
        assert len(numbers(gateway)) == 100
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == list(range(1, COUNT + 1))


@pytest.mark.parametrize("is_mended", [True, False])
def test_on_a_disk_that_takes_no_write_any_more_all_that_waits_is_sent(
    gateway: GatewayInProcess, open_client: ClientFactory, path: Path, told: Told, is_mended: bool
) -> None:
    gateway.faults += [not_connected] * 1000
    client = open_client(on_problem=told)
    client.send_all(events(1, COUNT))
    file = client._queue.file
    file.db.execute("PRAGMA query_only = 1")  # as of a disk that turns read-only
    gateway.faults.clear()
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == list(range(1, COUNT + 1))
    assert not client.is_durable
    told.wait_for(NotDurableError)
    with pytest.raises(sqlite3.OperationalError):
        client.send_all(events(COUNT + 1, COUNT + 1))
    if is_mended:
        file.db.execute("PRAGMA query_only = 0")
        client.send_all(events(COUNT + 1, COUNT + 1))
        assert client._queue.file is file
    client.close(PATIENCE_S)
    again = open_client()
    assert again.waiting == (0 if is_mended else COUNT)
    assert again.flush(PATIENCE_S)
    assert numbers(gateway) == list(range(1, COUNT + 1 + is_mended))


def test_an_opt_out_reaches_the_file_of_a_disk_that_took_no_write_for_a_while(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    gateway.faults += [not_connected] * 1000
    client = open_client()
    client.send_all(events(1, 3))
    file = client._queue.file
    file.db.execute("PRAGMA query_only = 1")
    gateway.faults.clear()
    assert client.flush(PATIENCE_S)
    file.db.execute("PRAGMA query_only = 0")
    client.opt_out()
    client.close(PATIENCE_S)
    again = open_client()
    assert again.waiting == 0
    assert again.send({"type": "track", "event": "Seen"}) is None


def test_the_ballast_is_given_up_for_room(open_client: ClientFactory, path: Path) -> None:
    ballast = path.with_name("queue.db-ballast")
    client = open_client()
    assert ballast.stat().st_size == queue_file.BALLAST_BYTES
    assert client._queue.file.give_up_ballast()
    assert not ballast.exists()
    client.close()
    open_client()
    assert ballast.exists()


def test_files_are_their_owners_and_shrink(
    gateway: GatewayInProcess, open_client: ClientFactory, path: Path
) -> None:
    leave_waiting(gateway, open_client, 20)
    gateway.faults += [not_connected] * 3
    client = open_client()
    for _ in range(6):
        client.send_all([event | {"text": "x" * 50_000} for event in events(1, 20)])
    large = path.stat().st_size
    assert client.flush(PATIENCE_S)
    files = [path, path.with_name("queue.db-wal"), path.with_name("queue.db-ballast")]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    client.close()
    assert path.stat().st_size < large / 4


def test_the_oldest_go_when_it_is_full_and_that_is_wanted(
    gateway: GatewayInProcess, open_client: ClientFactory, told: Told
) -> None:
    gateway.faults += [not_connected] * 1000
    client = open_client(queue_events_max=5, when_full="drop_oldest", on_problem=told)
    client.send_all(events(1, 5))
    client.send_all(events(6, 8))
    assert client.waiting == 5
    with pytest.raises(QueueFullError):
        client.send_all(events(1, 6))
    gateway.faults.clear()
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [4, 5, 6, 7, 8]
    told.wait_for(QueueFullError)


@pytest.mark.regression("With when_full='drop_oldest' a disk that was full cost the oldest events for none.")
def test_nothing_is_dropped_for_events_that_find_no_room(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    gateway.faults += [not_connected] * 1000
    client = open_client(queue_events_max=3, when_full="drop_oldest")
    client.send_all(events(1, 3))
    with pytest.MonkeyPatch.context() as patch:

        def full(*_: Any) -> Any:
            raise sqlite3.OperationalError("database or disk is full")

        patch.setattr(client._queue, "_append", full)
        with pytest.raises(sqlite3.OperationalError):
            client.send_all(events(4, 5))
    assert client.waiting == 3
    gateway.faults.clear()
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [1, 2, 3]


# ---- sources


def sourced(name: str) -> Any:
    """Let the gateway tell its source, as if it had no name for it before."""

    def answer(request: Any, send: Any) -> Any:
        found = send(request)
        found.headers["Gateway-Source"] = name
        return found

    return answer


def leave_events_of_a_source(gateway: GatewayInProcess, open_client: ClientFactory) -> None:
    """Have a client deliver event 1 for the source aaaa, and end with events 2 and 3 in its queue."""
    gateway.asks_meet_faults = True
    gateway.faults += [sourced("aaaa"), sourced("aaaa"), killed_before]
    client = open_client()
    client.send_all(events(1, 1))
    assert client.flush(PATIENCE_S)
    client.send_all(events(2, 3))
    wait_until_ended(client)


def test_a_queue_waits_for_the_key_of_its_source(
    gateway: GatewayInProcess, open_client: ClientFactory, told: Told
) -> None:
    leave_events_of_a_source(gateway, open_client)
    gateway.faults += [sourced("bbbb")] * 3
    client = open_client(write_key="other", on_problem=told)
    client.send_all(events(4, 4))
    assert client.flush(PATIENCE_S)
    told.wait_for(OtherSourceError)
    assert numbers(gateway) == [1, 4]
    client.close()
    gateway.faults.clear()
    gateway.faults += [sourced("aaaa")] * 3
    client = open_client()
    assert client.flush(PATIENCE_S)
    assert client.close()
    assert numbers(gateway) == [1, 2, 3, 4]


@pytest.mark.regression("A full queue with when_full='drop_oldest' dropped events that wait for another key.")
def test_what_waits_for_another_key_is_not_dropped_for_newer_events(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    leave_events_of_a_source(gateway, open_client)
    gateway.faults += [sourced("bbbb")] * 2
    client = open_client(write_key="other", queue_events_max=3, when_full="drop_oldest")
    client.send_all(events(4, 4))
    assert client.flush(PATIENCE_S)
    gateway.faults += [not_connected] * 1000
    client.send_all(events(5, 7))
    client.send_all(events(8, 8))
    assert client.waiting == 3
    client.close(timeout=0)
    gateway.faults.clear()
    gateway.faults += [sourced("aaaa")] * 3
    client = open_client()
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [1, 2, 3, 4]


def test_another_key_of_the_same_source_goes_on(
    gateway: GatewayInProcess, open_client: ClientFactory, told: Told
) -> None:
    leave_events_of_a_source(gateway, open_client)
    gateway.faults += [answered(503), sourced("aaaa"), sourced("aaaa")]
    client = open_client(write_key="rotated", on_problem=told)
    assert client.flush(PATIENCE_S)
    assert OtherSourceError not in told.kinds
    assert sorted(stored["properties"]["n"] for _, stored in gateway.by_source()) == [1, 2, 3]


@pytest.mark.regression("An event whose first answer was lost went to another source, too.")
def test_an_event_whose_first_answer_is_lost_does_not_go_to_another_source(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    gateway.asks_meet_faults = True
    gateway.faults += [sourced("aaaa"), killed_after]
    client = open_client()
    client.send_all(events(1, 1))
    wait_until_ended(client)
    gateway.faults += [sourced("bbbb"), sourced("bbbb")]
    client = open_client(write_key="other")
    client.send_all(events(2, 2))
    assert client.flush(PATIENCE_S)
    client.close()
    gateway.faults += [sourced("aaaa"), sourced("aaaa")]
    assert open_client().flush(PATIENCE_S)
    assert sorted(stored["properties"]["n"] for _, stored in gateway.by_source()) == [1, 2]


def test_a_file_of_the_first_version_is_continued(
    gateway: GatewayInProcess, open_client: ClientFactory, path: Path
) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in (
        "PRAGMA journal_mode = WAL",
        "CREATE TABLE installation (client TEXT NOT NULL)",
        "INSERT INTO installation VALUES ('an-old-client')",
        "CREATE TABLE sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL UNIQUE,"
        " last INTEGER NOT NULL, sent_through INTEGER NOT NULL, doubtful_through INTEGER NOT NULL)",
        "INSERT INTO sessions VALUES (7, '2dlpu8idjvw2es2uvixfliYNu0q', 2, 1, 0)",
        "CREATE TABLE events (session_id INTEGER NOT NULL REFERENCES sessions, sequence INTEGER NOT NULL,"
        " content BLOB NOT NULL, has_id INTEGER NOT NULL, PRIMARY KEY (session_id, sequence)) WITHOUT ROWID",
        """INSERT INTO events VALUES (7, 1, CAST('{"type":"track","properties":{"n":1}}' AS BLOB), 0)""",
        """INSERT INTO events VALUES (7, 2, CAST('{"type":"track","properties":{"n":2}}' AS BLOB), 0)""",
        "CREATE TABLE dead_letters (id INTEGER PRIMARY KEY, session TEXT NOT NULL, sequence INTEGER NOT NULL,"
        " code TEXT NOT NULL, message TEXT NOT NULL, content BLOB NOT NULL)",
        "INSERT INTO dead_letters VALUES (1, '2dlpu8idjvw2es2uvixfliYNu0q', 9, 'conflict', 'no', '{}')",
    ):
        db.execute(statement)
    db.close()
    client = open_client()
    assert client.client_id == "an-old-client"
    assert [letter.code for letter in client.dead_letters()] == ["conflict"]
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [1, 2]
    assert gateway.requests[0].headers["Gateway-Session"] == "2dlpu8idjvw2es2uvixfliYNu0q"
