"""
Claim: the Python client delivers every event it has queued once, or says why not, whatever answers it gets.

The gateway's edge and lanes are real, its log and clock simulated.
"""

import gzip
import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.ingest.client_sessions import is_ksuid
from clients.python.src.gateway_client import (
    Client,
    DeadLetter,
    Place,
    QueueFullError,
    QueueInUseError,
    delivery,
    model,
)
from clients.python.src.gateway_client.model import BATCH_EVENTS, ksuid
from tests.e2e.clients.conftest import ClientFactory
from tests.support.gateway_in_process import (
    DAY_MS,
    Fault,
    GatewayInProcess,
    Send,
    answer_lost,
    answered,
    half_an_answer,
    killed_after,
    killed_before,
    not_connected,
)
from tests.support.waiting import PATIENCE_S

LEASE_DAYS, WINDOW_DAYS = 30, 7
SESSIONS_OF_A_PARTITION = 4
BAD = {"type": 5, "event": "Bad"}
LOGIN = b"<html>Please log in</html>"
TOO_FAR = {"index": 0, "code": "sequence_window_exceeded", "retriable": True}

pytestmark = pytest.mark.filterwarnings(  # a process that is "killed" is a thread that ends
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)


def events(first: int, last: int) -> list[dict[str, Any]]:
    return [{"type": "track", "event": "Tested", "properties": {"n": n}} for n in range(first, last + 1)]


def numbers(gateway: GatewayInProcess) -> list[int]:
    """Return the numbers of all stored events, in order."""
    return sorted(stored.value["properties"]["n"] for stored in gateway.stored())


def assert_sessions_whole(gateway: GatewayInProcess) -> None:
    """Each session has its sequences from 1 on, every one once."""
    found: dict[bytes, list[int]] = {}
    for stored in gateway.stored():
        assert stored.session is not None
        found.setdefault(stored.session.session_hash, []).append(stored.session.sequence)
    for sequences in found.values():
        assert sorted(sequences) == list(range(1, len(sequences) + 1))


def session_of(gateway: GatewayInProcess, client: Client, session: str) -> dict[str, Any]:
    """Return what GET /v1/sessions says."""
    with gateway.http() as http:
        answer = http.get(f"/v1/sessions/{session}", headers={"Gateway-Client": client.client_id})
    told: dict[str, Any] = answer.raise_for_status().json()
    return told


def passed(request: httpx.Request, send: Send) -> httpx.Response:
    """No fault: the next one befalls the next request."""
    return send(request)


def use_sessions(gateway: GatewayInProcess, client_id: str, count: int) -> None:
    """Store an event in each of so many other sessions: the window moves, and the oldest sessions go."""
    with gateway.http() as http:
        for _ in range(count):
            headers = {"Gateway-Client": client_id, "Gateway-Session": ksuid()}
            body = {"batch": events(0, 0), "firstSequence": 1}
            http.post("/v1/events", json=body, headers=headers).raise_for_status()


def own(gateway: GatewayInProcess) -> list[int]:
    """Return the numbers of the stored events that `use_sessions` did not send."""
    return [n for n in numbers(gateway) if n > 0]


def wait_until_ended(client: Client) -> None:
    """Wait for the thread of a client whose process was "killed"."""
    client._delivery._thread.join(PATIENCE_S)
    assert not client._delivery._thread.is_alive()


def test_a_session_is_whole_acknowledged_and_agrees_with_the_gateway(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    client = open_client()
    places = client.send_all(events(1, 250))
    assert client.flush(PATIENCE_S)
    place = client.track("Seen", user_id="u1", properties={"n": 251})
    assert place is not None
    places.append(place)
    assert client.flush(PATIENCE_S)
    session = places[0].session
    assert places == [Place(session, sequence) for sequence in range(1, 252)]
    assert numbers(gateway) == list(range(1, 252))
    assert_sessions_whole(gateway)
    assert [request.headers["Gateway-Acknowledged-Through"] for request in gateway.requests] == [
        "0",
        "100",
        "200",
        "250",
    ]
    assert session_of(gateway, client, session) == {
        "client": client.client_id,
        "session": session,
        "epoch": 0,
        "watermark": 251,
        "acknowledgedThrough": 250,
        "highest": 251,
        "missing": [],
    }


@pytest.mark.parametrize(
    "fault",
    [
        not_connected,
        answer_lost,
        half_an_answer,
        answered(503, b'{"code":"outcome_unknown","message":"it may be stored"}', Retry_After="0"),
        answered(429, b'{"code":"overloaded","message":"later"}'),
        answered(408),
        answered(500),
        answered(302, Location="http://hotel.example/"),
        answered(200, LOGIN),
        answered(200, b"[]"),
        answered(200, b'{"success":true}'),
        answered(200, b'{"success":true,"receipts":[{"messageId":"a","partition":0,"offset":0}]}'),
        answered(200, json.dumps({"success": True, "receipts": [], "rejected": [TOO_FAR]}).encode()),
        answered(403, LOGIN),
        answered(404, LOGIN),
    ],
)
def test_whatever_decides_nothing_is_asked_again(
    gateway: GatewayInProcess, open_client: ClientFactory, fault: Fault
) -> None:
    client = open_client()
    gateway.faults += [fault, fault]
    client.send_all(events(1, 1))
    assert client.flush(PATIENCE_S)
    assert len(gateway.requests) >= 3
    assert numbers(gateway) == [1]
    assert client.dead_letters() == []


def test_retry_after_is_honoured(gateway: GatewayInProcess, open_client: ClientFactory) -> None:
    times: list[float] = []

    def late(request: httpx.Request, send: Any) -> httpx.Response:
        times.append(time.monotonic())
        return (
            answered(503, Retry_After="1", Gateway_Request_Id="a-1")(request, send)
            if len(times) == 1
            else send(request)
        )

    gateway.faults += [late, late]
    client = open_client()
    client.send_all(events(1, 1))
    assert client.flush(PATIENCE_S)
    assert times[1] - times[0] >= 1


def test_pauses_grow_with_failures_and_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    longest: list[float] = []
    monkeypatch.setattr(delivery, "LINGER_S", 0.0)

    def shortest(_low: float, high: float) -> float:
        longest.append(high)
        return 0.0

    monkeypatch.setattr(random, "uniform", shortest)
    client = Client(
        "http://nowhere",
        "web",
        tmp_path / "queue.db",
        transport=httpx.MockTransport(lambda _: httpx.Response(500)),
    )
    client.send_all(events(1, 1))
    while len(longest) < 9:
        time.sleep(0.001)
    client.close(timeout=0)
    assert longest[:9] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize("killed", [killed_before, killed_after])
def test_the_next_process_delivers_what_was_queued_and_begins_a_session(
    gateway: GatewayInProcess, open_client: ClientFactory, killed: Fault
) -> None:
    client = open_client()
    gateway.faults += [killed]
    (first, *_) = client.send_all(events(1, 150))
    wait_until_ended(client)
    client = open_client()
    (second, *_) = client.send_all(events(151, 160))
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == list(range(1, 161))
    assert_sessions_whole(gateway)
    assert first.session != second.session
    assert session_of(gateway, client, first.session)["watermark"] == 150
    assert session_of(gateway, client, second.session)["watermark"] == 10


def test_a_rejected_event_is_a_dead_letter_and_its_session_goes_on(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    told: list[DeadLetter] = []
    client = open_client(on_rejected=told.append)
    session = client.send_all([*events(1, 1), BAD, *events(2, 2)])[0].session
    assert client.flush(PATIENCE_S)
    client.send_all(events(3, 3))
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [1, 2, 3]
    (letter,) = told
    assert (letter.place, letter.code, letter.event) == (Place(session, 2), "type_invalid", BAD)
    assert session_of(gateway, client, session)["watermark"] == 4
    client.close()
    assert open_client().dead_letters() == [letter]


def test_rejected_events_never_take_a_session_beyond_its_window(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    client = open_client()
    client.send_all([*events(1, 1), *[BAD] * 700, *events(2, 2)])
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [1, 2]
    assert gateway.quarantined() == {"type_invalid": 700}  # events of two sequences are two
    assert len(client.dead_letters()) == 700


def test_an_error_of_a_callback_is_none_of_the_client(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    client = open_client(on_rejected=lambda letter: 1 / 0)
    client.send_all([BAD, *events(1, 1)])
    assert client.flush(PATIENCE_S)
    client.send_all(events(2, 2))
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [1, 2]


def test_a_wrong_key_is_told_once_and_asked_again(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    told: list[Exception] = []
    client = open_client(on_problem=lambda err, since: told.append(err))
    refused = answered(401, b'{"code":"invalid_write_key","message":"unknown"}', Gateway_Request_Id="a-1")
    gateway.faults += [refused] * 3
    client.send_all(events(1, 2))
    assert client.flush(PATIENCE_S)
    assert [str(err) for err in told] == ['401 {"code":"invalid_write_key","message":"unknown"}']
    assert (client.last_error, numbers(gateway)) == (None, [1, 2])


def test_a_file_has_one_client(open_client: ClientFactory, tmp_path: Path) -> None:
    client = open_client()
    with pytest.raises(QueueInUseError):
        open_client()
    script = (
        "import sys; from clients.python.src.gateway_client import *\n"
        "try: Client('http://nowhere', 'web', sys.argv[1])\n"
        "except QueueInUseError: print('in use')"
    )
    other = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "queue.db"],
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert other.stdout == b"in use\n"
    client.close()
    open_client()


def test_what_cannot_be_queued_is_refused_at_once(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    client = open_client(queue_events_max=3)
    for wrong in ({"sequence": 1}, {"value": float("nan")}, {"text": "x" * model.EVENT_BYTES_MAX}):
        with pytest.raises(ValueError, match=r"sequence|JSON|bytes"):
            client.send(wrong)
    with pytest.raises(TypeError):
        client.send({"value": object()})
    with pytest.raises(QueueFullError):
        client.send_all(events(1, 4))
    client.send_all(events(1, 3))
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [1, 2, 3]


def test_large_events_go_in_batches_the_gateway_takes(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    client = open_client()
    client.send_all([event | {"text": "x" * 300_000} for event in events(1, 5)])
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [1, 2, 3, 4, 5]
    assert len(gateway.requests) == 5


def test_a_copied_file_gives_no_place_to_two_events(
    gateway: GatewayInProcess, open_client: ClientFactory, tmp_path: Path
) -> None:
    gateway.faults += [killed_before]
    client = open_client()
    client.send_all(events(1, 3))
    wait_until_ended(client)
    shutil.copy(tmp_path / "queue.db", tmp_path / "copy.db")
    for first, name in ((11, "queue.db"), (21, "copy.db")):
        client = open_client(tmp_path / name)
        client.send_all(events(first, first + 4))
        assert client.flush(PATIENCE_S)
        assert client.dead_letters() == []
    assert numbers(gateway) == [1, 2, 3, *range(11, 16), *range(21, 26)]


@pytest.mark.parametrize("clock_s", [0.0, -1e9, 1e12])
def test_a_wild_clock_makes_sessions_all_the_same(monkeypatch: pytest.MonkeyPatch, clock_s: float) -> None:
    monkeypatch.setattr(time, "time", lambda: clock_s)
    assert is_ksuid(ksuid())
    assert ksuid() != ksuid()


# ---- offline for long


def test_a_phone_offline_for_longer_than_the_window_is_recognised(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    client = open_client()
    gateway.faults += [killed_after]
    session = client.send_all(events(1, 50))[0].session
    wait_until_ended(client)
    gateway.clock.ms += (WINDOW_DAYS + 3) * DAY_MS
    use_sessions(gateway, client.client_id, 1)
    client = open_client()
    assert client.flush(PATIENCE_S)
    assert own(gateway) == list(range(1, 51))
    assert session_of(gateway, client, session)["watermark"] == 50
    assert (
        b'"stale":true'
        in gateway.http()
        .post(
            "/v1/events", content=gateway.requests[0].content, headers=_session_headers(gateway.requests[0])
        )
        .content
    )


def _session_headers(request: httpx.Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name.startswith("gateway-")}


@pytest.mark.parametrize("fault", [killed_before, killed_after])
def test_a_session_whose_lease_is_over_goes_on_in_another(
    gateway: GatewayInProcess, open_client: ClientFactory, fault: Fault
) -> None:
    client = open_client()
    client.send_all(events(1, 10))
    assert client.flush(PATIENCE_S)
    gateway.faults += [fault]
    old = client.send_all(events(11, 10 + 3 * BATCH_EVENTS))[0].session
    wait_until_ended(client)
    gateway.clock.ms += LEASE_DAYS * DAY_MS + 1
    client = open_client()
    new = client.send_all(events(1001, 1001))[0].session
    assert client.flush(PATIENCE_S)
    assert numbers(gateway) == [*range(1, 11 + 3 * BATCH_EVENTS), 1001]
    assert_sessions_whole(gateway)
    assert client.dead_letters() == []
    stored = BATCH_EVENTS if fault is killed_after else 0
    assert session_of(gateway, client, old)["watermark"] == 10 + stored
    assert session_of(gateway, client, new)["watermark"] == 1 + 3 * BATCH_EVENTS - stored
    assert gateway.quarantined()["session_expired"] <= BATCH_EVENTS


def test_a_session_that_expires_in_use_goes_on_in_another(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    client = open_client()
    for first in (1, 3, 5):
        client.send_all(events(first, first + 1))
        assert client.flush(PATIENCE_S)
        gateway.clock.ms += LEASE_DAYS * DAY_MS + 1
    assert numbers(gateway) == [1, 2, 3, 4, 5, 6]
    assert_sessions_whole(gateway)


@pytest.mark.parametrize("days", [0, WINDOW_DAYS + 1])
def test_an_evicted_session_goes_on_in_another_and_nothing_is_stored_twice(
    gateway: GatewayInProcess, open_client: ClientFactory, days: int
) -> None:
    client = open_client()
    gateway.faults += [killed_after]
    session = client.send_all(events(1, BATCH_EVENTS + 20))[0].session
    wait_until_ended(client)
    gateway.clock.ms += days * DAY_MS
    use_sessions(gateway, client.client_id, SESSIONS_OF_A_PARTITION)
    client = open_client()
    assert client.flush(PATIENCE_S)
    assert own(gateway) == list(range(1, BATCH_EVENTS + 21))
    assert client.dead_letters() == []
    assert session_of(gateway, client, session)["expired"] is True
    assert gateway.quarantined() == {"session_expired": 20}


@pytest.mark.parametrize(
    "first", [BAD, {"type": "track", "event": "Paid", "messageId": "order-17", "properties": {"n": 0}}]
)
def test_of_an_evicted_session_what_nobody_can_tell_is_not_stored_twice(
    gateway: GatewayInProcess, open_client: ClientFactory, first: dict[str, Any]
) -> None:
    client = open_client()
    client.send(first)
    assert client.flush(PATIENCE_S)
    rejected = len(client.dead_letters())
    gateway.faults += [killed_after]
    client.send_all([first, *events(1, 2)])
    wait_until_ended(client)
    gateway.clock.ms += (WINDOW_DAYS + 1) * DAY_MS
    use_sessions(gateway, client.client_id, SESSIONS_OF_A_PARTITION)
    client = open_client()
    client.send_all(events(3, 3))
    assert client.flush(PATIENCE_S)
    assert own(gateway) == [1, 2, 3]
    letters = client.dead_letters()[2 * rejected :]
    assert [(letter.code, letter.event["properties"]["n"]) for letter in letters] == [
        ("session_expired", 1),
        ("session_expired", 2),
    ]


@pytest.mark.regression(
    "What a Python client had sent on a disk that took no write was stored twice after an eviction."
)
def test_what_was_sent_beyond_what_the_disk_could_note_is_not_stored_twice(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    last = 5 * BATCH_EVENTS
    gateway.faults = deque([not_connected] * 1000)
    client = open_client()
    client.send_all([*events(1, last - 50), BAD, *events(last - 48, last)])
    client._queue.file.db.execute("PRAGMA query_only = 1")  # as of a disk that turns read-only
    gateway.faults = deque([passed] * 4 + [killed_after])
    wait_until_ended(client)
    sent = [n for n in range(1, last + 1) if n != last - 49]
    assert own(gateway) == sent
    gateway.clock.ms += (WINDOW_DAYS + 1) * DAY_MS
    use_sessions(gateway, client.client_id, SESSIONS_OF_A_PARTITION)
    client = open_client()
    assert client.waiting == last
    client.send_all(events(last + 1, last + 1))
    assert client.flush(PATIENCE_S)
    assert own(gateway) == [*sent, last + 1]
    expired = [letter for letter in client.dead_letters() if letter.code == "session_expired"]
    assert [letter.event["properties"]["n"] for letter in expired] == list(range(last - 48, last + 1))


def test_events_of_every_session_are_counted_once_by_the_gateway(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    for first in (1, 11, 21):
        client = open_client()
        client.send_all(events(first, first + 9))
        assert client.close(PATIENCE_S)
    sessions = Counter(stored.session.session_hash for stored in gateway.stored() if stored.session)
    assert sorted(sessions.values()) == [10, 10, 10]


def test_two_copies_of_an_evicted_session_store_their_events_once(
    gateway: GatewayInProcess, open_client: ClientFactory, tmp_path: Path
) -> None:
    client = open_client()
    client.send_all(events(1, 3))
    assert client.flush(PATIENCE_S)
    gateway.faults += [killed_before]
    session = client.send_all(events(4, 150))[0].session
    wait_until_ended(client)
    shutil.copy(tmp_path / "queue.db", tmp_path / "copy.db")
    use_sessions(gateway, client.client_id, SESSIONS_OF_A_PARTITION)
    clients = [open_client(tmp_path / name) for name in ("queue.db", "copy.db")]
    for number, copy in enumerate(clients, 1):
        copy.send_all(events(1000 * number, 1000 * number + 5))
    for copy in clients:
        assert copy.flush(PATIENCE_S)
        assert copy.dead_letters() == []
    assert own(gateway) == [*range(1, 151), *range(1000, 1006), *range(2000, 2006)]
    moved = [stored.value["messageId"] for stored in gateway.stored() if stored.value["properties"]["n"] == 5]
    assert moved == [f"{session}-5"]


def test_the_last_batch_of_a_session_says_so(gateway: GatewayInProcess, open_client: ClientFactory) -> None:
    gateway.faults += [killed_before]
    client = open_client()
    client.send_all(events(1, BATCH_EVENTS + 1))
    wait_until_ended(client)
    gateway.requests.clear()
    client = open_client()
    client.send_all(events(201, 201))
    assert client.flush(PATIENCE_S)
    gateway.faults += [not_connected]
    client.send_all(events(202, 202))
    assert client.close(PATIENCE_S)
    said = [
        (body["batch"][0]["properties"]["n"], body.get("ended")) for body in map(body_of, gateway.requests)
    ]
    assert said[:3] == [(1, None), (101, True), (201, None)]
    assert said[-1] == (202, True)


def test_a_client_that_has_delivered_all_says_so_as_it_closes(
    gateway: GatewayInProcess, open_client: ClientFactory
) -> None:
    client = open_client()
    client.send_all(events(1, 2))
    assert client.flush(PATIENCE_S)
    assert client.close(PATIENCE_S)
    assert open_client().close(PATIENCE_S)
    first, last = map(body_of, gateway.requests)
    assert "ended" not in first
    assert (last["batch"], last["firstSequence"], last["ended"]) == ([], 3, True)


def body_of(request: httpx.Request) -> dict[str, Any]:
    """Return what a request says."""
    is_compressed = request.headers.get("Content-Encoding") == "gzip"
    body: dict[str, Any] = json.loads(gzip.decompress(request.content) if is_compressed else request.content)
    return body
