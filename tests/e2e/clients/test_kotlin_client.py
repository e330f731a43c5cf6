"""
Claim: the Kotlin client's calls do what the Python client's do: they say what other SDKs say, keep the user
until `reset`, leave nothing after an opt-out, go compressed, and dead letters are sent again. No event, no
answer and no row of its file stops it.
"""

import json
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from clients.conformance.proxy import LOSE_REQUEST, PASS, Canned, Fault, Proxy, size_of
from tests.e2e.clients.kotlin import KotlinClient
from tests.support.fault_proxy import Message
from tests.support.forked import COMMAND
from tests.support.gateway import Gateway
from tests.support.waiting import PATIENCE_S

REFUSED = Canned(413, b"<html>Too large</html>")
PERSON = "a-person-of-interest"
REQUESTS_MAX = 50
"""Of a client that makes pauses; one that makes none sends several hundred."""

OpenClient = Callable[..., KotlinClient]
Stored = Callable[[], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway"), {"GATEWAY_PARTITIONS": "1"}) as running:
        yield running


@pytest.fixture
def proxy(gateway: Gateway) -> Iterator[Proxy]:
    with Proxy(gateway.port) as running:
        yield running


@pytest.fixture
def open_client(proxy: Proxy, tmp_path: Path) -> Iterator[OpenClient]:
    """Start the client on one queue; each test is a source of its own."""
    opened: list[KotlinClient] = []

    def start(**options: Any) -> KotlinClient:
        opened.append(KotlinClient(url=proxy.url, key=tmp_path.name, folder=tmp_path, **options))
        return opened[-1]

    yield start
    for client in opened:
        client.kill()


@pytest.fixture
def stored(gateway: Gateway, tmp_path: Path) -> Stored:
    """Return the events of the test's source, in the log's order."""

    def read() -> list[dict[str, Any]]:
        printed = subprocess.run(
            [COMMAND, "events"], env=gateway.environment, capture_output=True, check=True
        ).stdout
        records = map(json.loads, printed.splitlines())
        return [record["value"] for record in records if record["source"] == tmp_path.name]

    return read


def test_every_call_says_what_other_sdks_say(open_client: OpenClient, stored: Stored) -> None:
    client = open_client()
    anonymous = client.ids()["anonymous"]
    client.call("action", event="Seen", properties={"n": 1})
    client.call("identify", userId="u1", traits={"plan": "pro"})
    client.call("page", name="Home", properties={"n": 2}, context={"locale": "de"})
    client.call("screen", name="Start")
    client.call("group", groupId="g1", traits={"size": 3})
    client.call("alias", userId="u2")
    client.call("action", event="Seen", userId="u9", anonymousId="a9")
    client.call("reset")
    client.call("action", event="Seen")
    after = client.ids()["anonymous"]
    assert client.flush(PATIENCE_S)
    assert after not in (anonymous, client.client)
    library = {"name": "gateway-client-kotlin", "version": "1.0.0"}
    said = stored()
    contexts = [event.pop("context") for event in said]
    assert all(context["library"] == library for context in contexts)
    assert contexts[2]["locale"] == "de"
    names = ("event", "name", "userId", "anonymousId", "groupId", "previousId", "traits", "properties")
    found = [{name: event[name] for name in ("type", *names) if name in event} for event in said]
    assert found == [
        {"type": "track", "event": "Seen", "anonymousId": anonymous, "properties": {"n": 1}},
        {"type": "identify", "userId": "u1", "anonymousId": anonymous, "traits": {"plan": "pro"}},
        {"type": "page", "name": "Home", "userId": "u1", "properties": {"n": 2}},
        {"type": "screen", "name": "Start", "userId": "u1", "properties": {}},
        {"type": "group", "groupId": "g1", "userId": "u1", "traits": {"size": 3}},
        {"type": "alias", "userId": "u2", "previousId": "u1"},
        {"type": "track", "event": "Seen", "userId": "u9", "anonymousId": "a9", "properties": {}},
        {"type": "track", "event": "Seen", "anonymousId": after, "properties": {}},
    ]


def test_the_user_is_kept_for_the_next_process(open_client: OpenClient, stored: Stored) -> None:
    client = open_client()
    client.call("identify", userId="half of a pair: \ud83d")
    client.call("identify", userId="u1")
    client.kill()
    client = open_client()
    client.call("action", event="Seen")
    assert client.flush(PATIENCE_S)
    assert [event["userId"] for event in stored()][1:] == ["u1", "u1"]


def test_a_hook_changes_and_drops_events(open_client: OpenClient, stored: Stored) -> None:
    client = open_client()
    places = [
        client.call("action", event="Seen", properties={"hidden": hidden}) for hidden in (False, True, False)
    ]
    assert [place and place[1] for place in places] == [1, None, 2]
    assert client.flush(PATIENCE_S)
    assert [event["seen"] for event in stored()] == [True, True]


def test_who_opts_out_leaves_nothing(
    open_client: OpenClient, stored: Stored, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.choose = lambda _request: LOSE_REQUEST
    (tmp_path / "queue.db.corrupt-1").write_text(PERSON)
    client = open_client()
    client.call("identify", userId=PERSON)
    client.call("optOut")
    assert client.call("identify", userId=PERSON) is None
    assert client.state()["waiting"] == 0
    assert client.ids()["client"] != client.client
    assert client.dead_letters() == []
    client.kill()
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert [name for name, content in files.items() if PERSON.encode() in content] == []
    proxy.choose = lambda _request: PASS
    client = open_client()
    assert client.call("action", event="Seen", properties={"n": 1}) is None
    client.call("optIn")
    assert client.call("action", event="Seen", properties={"n": 2}) is not None
    assert client.flush(PATIENCE_S)
    assert [(event["anonymousId"], event["properties"]) for event in stored()] == [(client.client, {"n": 2})]


def test_an_opt_out_while_a_batch_is_under_way_leaves_nothing_to_send(
    open_client: OpenClient, stored: Stored, proxy: Proxy
) -> None:
    client = open_client()

    proxy.choose = lambda request: LOSE_REQUEST if request.events() else PASS
    client.call("action", event="Seen")
    assert not client.flush(0.5)
    client.call("optOut")
    proxy.choose = lambda _request: PASS
    assert client.flush(PATIENCE_S)
    client.call("optIn")
    client.call("action", event="Later")
    assert client.flush(PATIENCE_S)
    assert [event["event"] for event in stored()] == ["Later"]


def test_dead_letters_are_sent_again_as_new_events(
    open_client: OpenClient, stored: Stored, proxy: Proxy
) -> None:
    client = open_client()
    proxy.choose = lambda request: REFUSED if size_of(request) > 2_000 else PASS
    client.track([{"type": "track", "event": "small"}, {"type": 5, "event": "wrong"}])
    client.track([{"type": "track", "event": "large", "text": " ".join(map(str, range(2_000)))}])
    assert client.flush(PATIENCE_S)
    codes = {"wrong": "type_invalid", "large": "event_refused"}
    assert {letter["event"]["event"]: letter["code"] for letter in client.dead_letters()} == codes
    proxy.choose = lambda _request: PASS
    assert client.retry_dead_letters() == 2
    assert client.flush(PATIENCE_S)
    assert [letter["event"]["event"] for letter in client.dead_letters()] == ["wrong"]
    assert [event["event"] for event in stored()] == ["small", "large"]
    assert stored()[1]["messageId"].endswith("-3")
    assert client.retry_dead_letters() == 1


def test_large_bodies_go_compressed_until_somebody_refuses_that(
    open_client: OpenClient, stored: Stored, proxy: Proxy
) -> None:
    seen: list[tuple[bool, bool]] = []

    def refuse_once(request: Message) -> Fault:
        is_gzip = b"content-encoding: gzip" in request.head.lower()
        is_first = bool(size_of(request) > 100 and not seen)
        if size_of(request) > 100:
            seen.append((is_gzip, size_of(request) < 5_000))
        return Canned(415, b"") if is_first else PASS

    proxy.choose = refuse_once
    client = open_client()
    client.track([{"type": "track", "event": "x" * 10_000}] * 3)
    assert client.flush(PATIENCE_S)
    client.close()
    assert len(stored()) == 3
    assert seen[:2] == [(True, True), (False, False)]
    assert not any(is_gzip for is_gzip, _ in seen[1:])


def seen(*numbers: int) -> list[dict[str, Any]]:
    return [{"type": "track", "event": f"Seen {number}"} for number in numbers]


def test_the_oldest_go_when_it_is_full_and_that_is_wanted(
    open_client: OpenClient, stored: Stored, proxy: Proxy
) -> None:
    proxy.choose = lambda request: LOSE_REQUEST if request.events() else PASS
    client = open_client(eventsMax=3, dropsOldest=True)
    client.track(seen(1, 2))
    assert not client.flush(0.5)
    client.track(seen(3))
    client.track(seen(4, 5))
    assert client.state()["waiting"] == 3
    proxy.choose = lambda _request: PASS
    assert client.flush(PATIENCE_S)
    assert [event["event"] for event in stored()] == ["Seen 3", "Seen 4", "Seen 5"]


def test_the_age_of_the_oldest_counts_over_processes_and_in_files_that_did_not_note_it(
    open_client: OpenClient, stored: Stored, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.choose = lambda _request: LOSE_REQUEST
    client = open_client()
    assert client.state() == {"waiting": 0, "isDurable": True}
    client.track(seen(1))
    client.kill()
    client = open_client()
    age_ms = client.state()["oldestAgeMs"]
    assert age_ms > 0
    client.track(seen(2))
    assert client.state()["oldestAgeMs"] >= age_ms
    client.kill()
    with closing(sqlite3.connect(tmp_path / "queue.db")) as db:
        db.execute("ALTER TABLE events DROP COLUMN queued_at_ms")
    proxy.choose = lambda _request: PASS
    client = open_client()
    assert client.flush(PATIENCE_S)
    assert [event["event"] for event in stored()] == ["Seen 1", "Seen 2"]


@pytest.mark.regression("The Kotlin client threw errors of the platform for events that are in themselves.")
def test_what_is_no_event_is_refused(open_client: OpenClient) -> None:
    client = open_client()
    assert client.thrown_by_odd_events() == ["IllegalArgumentException"] * 7
    assert client.state()["waiting"] == 0


@pytest.mark.regression(
    "A proxy that answered 413 to every request was asked without a pause, and made dead letters of all."
)
@pytest.mark.parametrize("is_source_known", [False, True])
def test_while_all_is_too_large_for_somebody_nothing_is_a_dead_letter(
    open_client: OpenClient, stored: Stored, proxy: Proxy, is_source_known: bool
) -> None:
    client = open_client()
    if is_source_known:
        client.track(seen(0))
        assert client.flush(PATIENCE_S)
    proxy.choose = lambda _request: REFUSED
    begin = proxy.requests
    client.track(seen(1, 2, 3))
    assert not client.flush(3.0)
    assert proxy.requests - begin < REQUESTS_MAX
    assert client.state()["waiting"] == 3
    proxy.choose = lambda _request: PASS
    assert client.flush(PATIENCE_S)
    assert client.dead_letters() == []
    assert [event["event"] for event in stored()][-3:] == ["Seen 1", "Seen 2", "Seen 3"]


@pytest.mark.regression("A row of the Kotlin client's file that had another type stopped its queue.")
@pytest.mark.parametrize(
    "damage",
    ["UPDATE sessions SET last = 'x' WHERE id = 1", "UPDATE sessions SET session = x'00ff' WHERE id = 1"],
)
def test_a_row_that_is_damaged_and_can_be_read_costs_its_session_alone(
    open_client: OpenClient, stored: Stored, proxy: Proxy, tmp_path: Path, damage: str
) -> None:
    proxy.choose = lambda _request: LOSE_REQUEST
    for number in (1, 2):
        client = open_client()
        client.track(seen(number))
        client.kill()
    with closing(sqlite3.connect(tmp_path / "queue.db", isolation_level=None)) as db:
        db.execute(damage)
    proxy.choose = lambda _request: PASS
    client = open_client()
    client.track(seen(3))
    assert client.flush(PATIENCE_S)
    assert [event["event"] for event in stored()] == ["Seen 2", "Seen 3"]
    assert list(tmp_path.glob("queue.db.corrupt-*"))


def test_a_client_id_that_is_damaged_is_replaced_and_the_queue_set_aside(
    open_client: OpenClient, stored: Stored, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.choose = lambda _request: LOSE_REQUEST
    client = open_client()
    client.track(seen(1))
    client.kill()
    with closing(sqlite3.connect(tmp_path / "queue.db", isolation_level=None)) as db:
        db.execute("UPDATE installation SET client = 'a b'")
    proxy.choose = lambda _request: PASS
    client = open_client()
    client.track(seen(2))
    assert client.flush(PATIENCE_S)
    assert [event["event"] for event in stored()] == ["Seen 2"]
    assert list(tmp_path.glob("queue.db.corrupt-*"))


def test_files_are_their_owners(open_client: OpenClient, tmp_path: Path) -> None:
    (tmp_path / "queue.db").touch(0o644)
    client = open_client()
    client.track(seen(1))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("queue.db*")}
    assert modes == dict.fromkeys(("queue.db", "queue.db-wal", "queue.db-ballast"), 0o600)


@pytest.mark.regression(
    "The Kotlin client on a disk that took no write any more sent the first batch for ever."
)
@pytest.mark.parametrize("is_mended", [True, False])
def test_on_a_disk_that_takes_no_write_any_more_all_that_waits_is_sent(
    open_client: OpenClient, stored: Stored, proxy: Proxy, is_mended: bool
) -> None:
    proxy.choose = lambda request: LOSE_REQUEST if request.events() else PASS
    client = open_client()
    client.track(seen(*range(500)))
    limits = client.limit_files(0)
    proxy.choose = lambda _request: PASS
    assert client.flush(PATIENCE_S)
    assert not client.state()["isDurable"]
    if is_mended:
        client.limit_files(limits)
        client.track(seen(500))
        assert client.state()["isDurable"]
        assert client.flush(PATIENCE_S)
    client.kill()
    again = open_client()
    assert again.state()["waiting"] == (0 if is_mended else 500)
    assert again.flush(PATIENCE_S)
    assert [event["event"] for event in stored()] == [f"Seen {n}" for n in range(500 + is_mended)]


@pytest.mark.regression(
    "What the Kotlin client had sent on a disk that took no write was stored twice after an eviction."
)
def test_what_was_sent_beyond_what_the_disk_could_note_is_not_stored_twice(
    open_client: OpenClient, stored: Stored, proxy: Proxy
) -> None:
    proxy.choose = lambda request: LOSE_REQUEST if request.events() else PASS
    client = open_client()
    client.track(seen(*range(500)))
    client.limit_files(0)
    proxy.choose = lambda _request: PASS
    assert client.flush(PATIENCE_S)
    client.kill()

    def evicted(request: Message) -> Fault:
        """As if 450 had been rejected, and the session were evicted and the window over."""
        numbers = [int(event["event"].removeprefix("Seen ")) for event in request.events()]
        if 450 not in numbers:
            return PASS
        code = {450: "type_invalid"}
        answer = {
            "receipts": [{"sequence": n + 1} for n in numbers if n < 450],
            "rejected": [
                {"index": index, "code": code.get(n, "session_expired"), "message": ""}
                for index, n in enumerate(numbers)
                if n >= 450
            ],
        }
        return Canned(200, json.dumps(answer).encode(), is_gateways=True)

    proxy.choose = evicted
    again = open_client()
    assert again.flush(PATIENCE_S)
    assert [event["event"] for event in stored()] == [f"Seen {n}" for n in range(500)]
    letters = [letter["event"]["event"] for letter in again.dead_letters()]
    assert letters == [f"Seen {n}" for n in range(450, 500)]
