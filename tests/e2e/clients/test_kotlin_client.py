"""
Claim: the Kotlin client's calls do what the Python client's do: they say what other SDKs say, keep the user
until `reset`, leave nothing after an opt-out, go compressed, and dead letters are sent again.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.conformance.proxy import LOSE_REQUEST, PASS, Canned, Fault, Proxy, size_of
from tests.e2e.clients.kotlin import KotlinClient
from tests.support.fault_proxy import Message
from tests.support.forked import COMMAND
from tests.support.gateway import Gateway

TIMEOUT_S = 60.0
REFUSED = Canned(413, b"<html>Too large</html>")
PERSON = "a-person-of-interest"

OpenClient = Callable[[], KotlinClient]
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

    def start() -> KotlinClient:
        opened.append(KotlinClient(url=proxy.url, key=tmp_path.name, folder=tmp_path))
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
    assert client.flush(TIMEOUT_S)
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
    assert client.flush(TIMEOUT_S)
    assert [event["userId"] for event in stored()][1:] == ["u1", "u1"]


def test_a_hook_changes_and_drops_events(open_client: OpenClient, stored: Stored) -> None:
    client = open_client()
    places = [
        client.call("action", event="Seen", properties={"hidden": hidden}) for hidden in (False, True, False)
    ]
    assert [place and place[1] for place in places] == [1, None, 2]
    assert client.flush(TIMEOUT_S)
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
    assert client.ids()["waiting"] == 0
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
    assert client.flush(TIMEOUT_S)
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
    assert client.flush(TIMEOUT_S)
    client.call("optIn")
    client.call("action", event="Later")
    assert client.flush(TIMEOUT_S)
    assert [event["event"] for event in stored()] == ["Later"]


def test_dead_letters_are_sent_again_as_new_events(
    open_client: OpenClient, stored: Stored, proxy: Proxy
) -> None:
    client = open_client()
    proxy.choose = lambda request: REFUSED if size_of(request) > 2_000 else PASS
    client.track([{"type": "track", "event": "small"}, {"type": 5, "event": "wrong"}])
    client.track([{"type": "track", "event": "large", "text": " ".join(map(str, range(2_000)))}])
    assert client.flush(TIMEOUT_S)
    codes = {"wrong": "type_invalid", "large": "event_refused"}
    assert {letter["event"]["event"]: letter["code"] for letter in client.dead_letters()} == codes
    proxy.choose = lambda _request: PASS
    assert client.retry_dead_letters() == 2
    assert client.flush(TIMEOUT_S)
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
    assert client.flush(TIMEOUT_S)
    client.close()
    assert len(stored()) == 3
    assert seen[:2] == [(True, True), (False, False)]
    assert not any(is_gzip for is_gzip, _ in seen[1:])
