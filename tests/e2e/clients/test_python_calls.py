"""
Claim: the Python client's calls do what applications of other SDKs expect, from threads, callbacks, signal
handlers, coroutines and several processes, and who must know of a problem is told.
"""

import asyncio
import base64
import json
import os
import random
import signal
import subprocess
import sys
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from clients.python.src.gateway_client import (
    VERSION,
    AsyncClient,
    Client,
    ClosedError,
    DamagedQueueError,
    DeadLetter,
    DeliveryError,
    Place,
    delivery,
)
from clients.python.src.gateway_client.event_queue import EventQueue
from tests.e2e.clients.conftest import ClientFactory
from tests.e2e.clients.test_python_client import BAD, events, numbers, wait_until_ended
from tests.support.gateway_in_process import URL, GatewayInProcess, answered, not_connected
from tests.support.waiting import PATIENCE_S, until

ADOPT_S = 0.1


def stored(gateway: GatewayInProcess) -> list[dict[str, Any]]:
    return [record.value for record in gateway.stored()]


# ---- the calls of analytics


def test_every_call_says_what_other_sdks_say(gateway: GatewayInProcess, open_client: ClientFactory) -> None:
    client = open_client()
    anonymous = client.anonymous_id
    client.track("Seen", properties={"n": 1})
    client.identify("u1", traits={"plan": "pro"})
    client.page("Home", properties={"n": 2}, context={"locale": "de"})
    client.screen("Start")
    client.group("g1", traits={"size": 3})
    client.alias("u2")
    client.track("Seen", user_id="u9", anonymous_id="a9")
    client.reset()
    client.track("Seen")
    assert client.flush(PATIENCE_S)
    assert client.anonymous_id not in (anonymous, client.client_id)
    library = {"name": "gateway-client-python", "version": VERSION}
    said = sorted(stored(gateway), key=lambda event: event["timestamp"])
    assert all(event.pop("context")["library"] == library for event in said)
    names = (
        "type",
        "event",
        "name",
        "userId",
        "anonymousId",
        "groupId",
        "previousId",
        "traits",
        "properties",
    )
    found = [{name: event[name] for name in names if name in event} for event in said]
    expected = [
        {"type": "track", "event": "Seen", "anonymousId": anonymous, "properties": {"n": 1}},
        {"type": "identify", "userId": "u1", "anonymousId": anonymous, "traits": {"plan": "pro"}},
        {"type": "page", "name": "Home", "userId": "u1", "properties": {"n": 2}},
        {"type": "screen", "name": "Start", "userId": "u1", "properties": {}},
        {"type": "group", "groupId": "g1", "userId": "u1", "traits": {"size": 3}},
        {"type": "alias", "userId": "u2", "previousId": "u1"},
        {"type": "track", "event": "Seen", "userId": "u9", "anonymousId": "a9", "properties": {}},
        {"type": "track", "event": "Seen", "anonymousId": client.anonymous_id, "properties": {}},
    ]
    assert sorted(found, key=json.dumps) == sorted(expected, key=json.dumps)


def test_the_user_is_kept_for_the_next_process(gateway: GatewayInProcess, open_client: ClientFactory) -> None:
    client = open_client()
    client.identify("half of a pair: \ud83d")
    client.identify("u1")
    client.close(PATIENCE_S)
    client = open_client()
    client.track("Seen", properties={"n": 1})
    assert client.flush(PATIENCE_S)
    assert [event["userId"] for event in stored(gateway)][1:] == ["u1", "u1"]


def test_what_has_a_form_in_json_is_taken_in_it(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    client = open_client()
    id_ = UUID(int=1)
    values = {
        "moment": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "price": Decimal("12.5"),
        "nothing": Decimal("NaN"),
        "id": id_,
        "set": {3, 1},
        "bytes": b"abc",
        "large": 2**1024,
        "points": [[0, 0]] * 65_000,
    }
    client.track("Seen", properties={"n": 1, **values})
    assert client.flush(PATIENCE_S)
    (event,) = stored(gateway)
    found = event["properties"]
    assert (found["moment"], found["day"]) == ("2026-01-02T03:04:05+00:00", "2026-01-02")
    assert (found["price"], found["nothing"], found["id"]) == (12.5, "NaN", str(id_))
    assert (found["set"], found["bytes"]) == ([1, 3], base64.b64encode(b"abc").decode())
    assert len(found["points"]) == 65_000


@pytest.mark.parametrize("wrong", [None, [], "text", {"deep": json.loads("[" * 900 + "]" * 900)}])
def test_what_is_no_event_is_refused_or_a_dead_letter(open_client: ClientFactory, wrong: Any) -> None:
    client = open_client()
    if isinstance(wrong, dict):
        client.send(wrong)
        assert client.flush(PATIENCE_S)
        assert len(client.dead_letters()) == 1
    else:
        with pytest.raises(TypeError):
            client.send(wrong)


def test_a_closed_client_refuses_events(open_client: ClientFactory) -> None:
    client = open_client()
    client.close()
    with pytest.raises(ClosedError):
        client.track("Seen")
    assert client.close()


def test_a_hook_changes_and_drops_events(gateway: GatewayInProcess, open_client: ClientFactory) -> None:
    def hook(event: dict[str, Any]) -> dict[str, Any] | None:
        return event | {"seen": True} if event["properties"]["n"] != 2 else None

    client = open_client(before_send=hook)
    assert len(client.send_all(events(1, 3))) == 2
    assert client.send(events(2, 2)[0]) is None
    assert client.flush(PATIENCE_S)
    assert [(event["properties"]["n"], event["seen"]) for event in stored(gateway)] == [(1, True), (3, True)]


def test_who_opts_out_leaves_nothing(
    gateway: GatewayInProcess, open_client: ClientFactory, tmp_path: Path
) -> None:
    gateway.faults += [not_connected] * 1000
    client = open_client()
    client.identify("a-person-of-interest")
    client.opt_out()
    assert client.track("Seen") is None
    assert (client.waiting, client.dead_letters()) == (0, [])
    client.close()
    assert b"a-person-of-interest" not in (tmp_path / "queue.db").read_bytes()
    gateway.faults.clear()
    client = open_client()
    assert client.track("Seen", properties={"n": 1}) is None
    client.opt_in()
    client.track("Seen", properties={"n": 2})
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [2]


# ---- who is told


@pytest.mark.parametrize(
    "url", ["", "gateway.example.com", "ftp://gateway", "http://", "http://a:b:c", None, "/v1"]
)
def test_a_url_that_is_none_is_refused_at_once(tmp_path: Path, url: Any) -> None:
    with pytest.raises(ValueError, match="URL"):
        Client(url, "web", tmp_path / "queue.db")
    with pytest.raises(ValueError, match="key"):
        Client(URL, "", tmp_path / "queue.db")


def test_problems_are_told_after_the_first_failure_and_then_hourly(
    gateway: GatewayInProcess, open_client: ClientFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[Exception, datetime]] = []
    gateway.faults += [not_connected, answered(500)] * 5
    client = open_client(on_problem=lambda err, since: told.append((err, since)))
    assert (client.oldest_age_s, client.last_error) == (None, None)
    client.send_all(events(1, 1))
    until(lambda: client.last_error)
    age = client.oldest_age_s
    assert age is not None
    assert 0 <= age < PATIENCE_S
    assert client.flush(PATIENCE_S)
    assert [type(err) for err, _ in told] == [httpx.ConnectError]
    assert abs((datetime.now(UTC) - told[0][1]).total_seconds()) < PATIENCE_S
    monkeypatch.setattr(delivery, "TELL_AGAIN_S", 0.0)
    gateway.faults += [answered(500)] * 3
    client.send_all(events(2, 2))
    assert client.flush(PATIENCE_S)
    assert len(told) == 4
    assert isinstance(told[-1][0], DeliveryError)
    assert (client.oldest_age_s, client.last_error) == (None, None)


def test_flush_does_not_sit_out_a_pause(
    gateway: GatewayInProcess, open_client: ClientFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_client()
    monkeypatch.setattr(delivery, "BACKOFF_S", 600.0)
    monkeypatch.setattr(delivery, "BACKOFF_MAX_S", 600.0)
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    gateway.faults += [not_connected]
    client.send_all(events(1, 6))
    until(lambda: client.last_error)
    assert client.flush(PATIENCE_S)


def test_proxies_that_cannot_be_used_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for proxy in ("socks5://127.0.0.1:1", "gopher://127.0.0.1:1"):
        monkeypatch.setenv("ALL_PROXY", proxy)
        Client("http://127.0.0.1:1", "web", tmp_path / "queue.db").close(timeout=0)


# ---- from where it is called


def test_callbacks_may_call_the_client(gateway: GatewayInProcess, open_client: ClientFactory) -> None:
    done: list[bool] = []

    def on_rejected(letter: DeadLetter) -> None:
        client.track("Rejected", properties={"n": 2})
        done.append(client.flush(PATIENCE_S))
        done.append(client.close(PATIENCE_S))
        raise SystemExit

    client = open_client(on_rejected=on_rejected)
    client.send_all([BAD, *events(1, 1)])
    wait_until_ended(client)
    assert done == [False, False]
    client = open_client()
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [1, 2]


def test_signal_handlers_may_call_the_client_while_it_is_at_work(
    gateway: GatewayInProcess, open_client: ClientFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_client()
    main, is_handled = threading.main_thread(), threading.local()
    signalled: list[Place | None] = []
    append = EventQueue._append

    def interrupted(queue: EventQueue, *arguments: Any) -> list[Place]:
        places = append(queue, *arguments)
        if threading.current_thread() is main and not vars(is_handled):
            is_handled.now = True
            signal.raise_signal(signal.SIGUSR1)
            del is_handled.now
        return places

    def handler(_number: int, _frame: object) -> None:
        signalled.append(client.track("Signalled", properties={"n": 1000 + len(signalled)}))

    monkeypatch.setattr(EventQueue, "_append", interrupted)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        places = [place for n in range(1, 21) for place in client.send_all(events(n, n))]
    finally:
        signal.signal(signal.SIGUSR1, before)
    monkeypatch.undo()
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [*range(1, 21), *range(1000, 1020)]
    assert len({*places, *signalled}) == 40


async def test_coroutines_do_not_wait_for_disk_or_gateway(
    gateway: GatewayInProcess, hurried: None, tmp_path: Path
) -> None:
    async with AsyncClient(URL, "web", tmp_path / "queue.db", transport=gateway.transport) as client:
        gateway.faults += [not_connected] * 2
        places = await asyncio.gather(*(client.track("Seen", properties={"n": n}) for n in range(1, 51)))
        assert [place.sequence for place in places if place] == list(range(1, 51))
        await client.identify("u1")
        await client.send_all(events(51, 52))
        assert await client.flush(PATIENCE_S)
        assert client.sync.waiting == 0
        assert await client.dead_letters() == []
    with pytest.raises(ClosedError):
        await client.track("Late")
    assert await client.close()
    assert len(stored(gateway)) == 53


@pytest.mark.regression("A client that was closed while it opened kept its file.")
async def test_a_client_that_is_closed_while_it_opens_leaves_its_file(
    gateway: GatewayInProcess, hurried: None, tmp_path: Path
) -> None:
    path = tmp_path / "queue.db"
    client = AsyncClient(URL, "web", path, transport=gateway.transport)
    opening = asyncio.ensure_future(client.track("Seen"))
    await asyncio.sleep(0)
    opening.cancel()
    await client.close()
    with Client(URL, "web", path, transport=gateway.transport) as other:
        assert other.is_durable


def test_a_daemon_that_leaves_its_folder_keeps_its_file(
    gateway: GatewayInProcess, hurried: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Client(URL, "web", "queue.db", transport=gateway.transport) as client:
        monkeypatch.chdir(tmp_path / "elsewhere")
        client.send_all(events(1, 2))
        assert client.flush(PATIENCE_S)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # which is why its child does nothing
def test_a_fork_leaves_the_file_to_its_parent(
    gateway: GatewayInProcess, open_client: ClientFactory, tmp_path: Path
) -> None:
    gateway.faults += [not_connected] * 1000
    client = open_client()
    client.send_all(events(1, 2))
    child = os.fork()
    if child == 0:
        client.close(PATIENCE_S)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "queue.db-wal").exists()
    gateway.faults.clear()
    client.send_all(events(3, 3))
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [1, 2, 3]


# ---- several processes


def test_a_folder_has_a_file_for_each_process_and_delivers_what_the_dead_left(
    gateway: GatewayInProcess, open_client: ClientFactory, tmp_path: Path
) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    gateway.faults += [not_connected] * 1000
    dead = [open_client(folder) for _ in range(4)]
    for number, client in enumerate(dead):
        client.send_all(events(10 * number + 1, 10 * number + 5))
    assert len(list(folder.glob("queue-?.db"))) >= len(dead)
    for client in dead[1:]:
        client.close(timeout=0)
    gateway.faults.clear()
    living = open_client(folder)
    assert living.flush(PATIENCE_S)
    assert dead[0].flush(PATIENCE_S)
    assert numbers(gateway) == [10 * number + n for number in range(4) for n in range(1, 6)]
    living.close()
    assert open_client(folder).close(PATIENCE_S)


def test_what_a_killed_process_left_is_adopted_later(
    gateway: GatewayInProcess, open_client: ClientFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "ADOPT_S", ADOPT_S)
    folder = tmp_path / "queues"
    folder.mkdir()
    living = open_client(folder)
    script = (
        "import os, sys\nfrom clients.python.gateway_client import Client\n"
        "Client('http://127.0.0.1:1', 'web', sys.argv[1]).track('Seen', properties={'n': 1})\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, folder], timeout=PATIENCE_S, check=False)
    until(lambda: numbers(gateway) == [1])
    assert living.close()


@pytest.mark.regression("A damaged file of an ended process was adopted never, or for ever.")
def test_what_can_be_read_of_a_dead_process_file_is_adopted(
    gateway: GatewayInProcess, open_client: ClientFactory, tmp_path: Path
) -> None:
    folder, told = tmp_path / "queues", list[Exception]()
    folder.mkdir()
    gateway.faults += [not_connected] * 1000
    living, dead = open_client(folder, on_problem=lambda err, _since: told.append(err)), open_client(folder)
    dead.send_all([{"type": "track", "properties": {"n": n, "text": "x" * 300}} for n in range(1, 301)])
    dead.close(timeout=0)
    (path,) = (path for path in folder.glob("queue-?.db") if path.stat().st_size > 100_000)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(5_000))
    gateway.faults.clear()
    assert living.flush(PATIENCE_S)
    assert len(numbers(gateway)) > 200
    until(lambda: DamagedQueueError in [type(err) for err in told])
    assert [path.name for path in folder.glob("*.corrupt-*") if not path.name.endswith("-wal")]
    asked = len(gateway.requests)
    assert living.flush(PATIENCE_S)  # adopts again: the damaged file is not there any more
    assert len(gateway.requests) == asked
