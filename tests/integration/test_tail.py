"""Claim: who listens sees what a real gateway decides, and who does not read costs it nothing."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import orjson
import pytest

from app.admin.tail import BURST, LISTENERS_MAX
from tests.support.forked import COMMAND
from tests.support.gateway import Gateway
from tests.support.http import AUTH, new_event, post
from tests.support.raw_http import RawConnection
from tests.support.waiting import PATIENCE_S, until


class Tailed:
    """The lines of a tail as they come."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.missed = 0
        assert self.next("hello")

    def next(self, *kinds: str) -> dict[str, Any]:
        """Return the next line of a kind, of an event if none is named; silence fails the test."""
        kinds = kinds or ("event",)
        for line in self._lines:
            document: dict[str, Any] = orjson.loads(line)
            if document["kind"] == "missed":
                self.missed += document["events"]
            if document["kind"] in kinds:
                return document
        raise AssertionError(f"the tail ended before a line of {kinds}")


@contextmanager
def tailing(gateway: Gateway, path: str = "/admin/v1/tail", **query: str) -> Iterator[Tailed]:
    url = gateway.admin_url + path
    with httpx.stream("GET", url, params=query) as answer:
        assert answer.status_code == 200, answer.read()
        yield Tailed(answer.iter_lines())


def test_each_verdict_is_told_with_its_place(client: httpx.Client, gateway: Gateway) -> None:
    event = new_event(properties={"email": "a@example.org"})
    with tailing(gateway) as tail:
        receipt = post(client, "/v1/events", [event]).json()["receipts"][0]
        post(client, "/v1/events", [event, event | {"event": "Other"}, 5])
        client.post("/v1/events", content=b"{")
        told = [tail.next() for _ in range(5)]
    assert [(one["verdict"], one["code"]) for one in told] == [
        ("accepted", None),
        ("duplicate", None),
        ("conflict", "conflict"),
        ("rejected", "not_an_object"),
        ("refused", "invalid_json"),
    ]
    place = {name: receipt[name] for name in ("partition", "offset")}
    assert all(place.items() <= one.items() for one in told[:3])
    assert [one.get("differs") for one in told] == [None, None, ["event"], None, None]
    assert b"example.org" not in orjson.dumps(told)


def test_a_client_session_and_its_refusals_are_told(client: httpx.Client, gateway: Gateway) -> None:
    session = client.post("/v1/sessions", headers={"Gateway-Client": "phone-7"}).json()["session"]
    headers = {"Gateway-Client": "phone-7", "Gateway-Session": session, "Prefer": "handling=strict"}
    with tailing(gateway, verdict="refused,accepted") as tail:
        post(client, "/v1/events", [new_event(sequence=1), new_event(sequence=3)], **headers)
        told = [tail.next(), tail.next()]
    assert [(one["client"], one["sequence"], one["verdict"], one["code"]) for one in told] == [
        ("phone-7", 1, "accepted", None),
        ("phone-7", 3, "refused", "sequence_gap"),
    ]


def test_values_are_told_only_on_their_own_path(client: httpx.Client, gateway: Gateway) -> None:
    event = new_event(properties={"price": 5})
    with tailing(gateway, "/admin/v1/tail/values", id=event["messageId"]) as tail:
        post(client, "/v1/events", [new_event(), event])
        assert tail.next()["value"]["properties"] == {"price": 5}


def test_a_wrong_filter_and_one_listener_too_many_are_refused(gateway: Gateway) -> None:
    url = f"{gateway.admin_url}/admin/v1/tail"
    assert httpx.get(url, params={"verdict": "accepted,lost"}).status_code == 400
    assert httpx.get(url, params={"id": "x" * 1001}).status_code == 400
    with ExitStack() as stack:
        for _ in range(LISTENERS_MAX):
            until(lambda: stack.enter_context(httpx.stream("GET", url)).status_code == 200)
        refused = stack.enter_context(httpx.stream("GET", url))
        assert (refused.status_code, orjson.loads(refused.read())["code"]) == (503, "too_many_connections")

    def is_taken() -> bool:
        with httpx.stream("GET", url) as answer:
            return answer.status_code == 200

    until(is_taken)  # those that left are noticed by themselves


def test_a_listener_that_does_not_read_misses_samples_and_delays_nobody(own_gateway: Gateway) -> None:
    with (
        own_gateway as gateway,
        httpx.Client(base_url=gateway.url, auth=AUTH) as client,
        RawConnection(gateway.admin_port) as deaf,
    ):
        deaf.send(b"GET /admin/v1/tail HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with tailing(gateway) as tail:
            # As one request, of more than a listener is ever allowed at once: however slow the machine is.
            post(client, "/v1/events", [new_event(userId="u" * 100) for _ in range(5 * int(BURST))])
            assert tail.next("missed")["events"] > 0
            last = new_event()
            until(lambda: _is_seen(client, tail, last))


def _is_seen(client: httpx.Client, tail: Tailed, event: dict[str, Any]) -> bool:
    """Send an event, and say whether a sample of it was taken before any was missed."""
    post(client, "/v1/events", [event])
    missed = tail.missed
    while tail.missed == missed:
        if tail.next("event", "missed").get("message_id") == event["messageId"]:
            return True
    return False


def test_what_was_kept_apart_is_there_for_who_comes_later(client: httpx.Client, gateway: Gateway) -> None:
    event = new_event()
    for sent in (event, event | {"event": "Other"}, event | {"event": "Other"}):
        post(client, "/v1/events", [sent])
    kept = httpx.get(f"{gateway.admin_url}/admin/v1/tail/apart").json()["events"][0]
    assert (kept["message_id"], kept["code"], kept["times"]) == (event["messageId"], "conflict", 2)
    assert kept["reason"] == "another event with this messageId was accepted before"
    assert kept["offset"] is not None


def test_history_has_what_was_decided(client: httpx.Client, gateway: Gateway) -> None:
    post(client, "/v1/events", [new_event()])

    def has_all() -> bool:
        told = httpx.get(f"{gateway.admin_url}/admin/v1/history").json()
        return bool(sum(told["accepted"]) == gateway.stats()["totals"]["accepted"])

    until(has_all)


@pytest.fixture
def command(gateway: Gateway) -> Iterator[subprocess.Popen[str]]:
    """`gateway tail` as JSON."""
    process = subprocess.Popen(
        [COMMAND, "tail", "--verdict", "duplicate", "--source", "web", "-o", "json"],
        env=gateway.environment | {"GATEWAY_ADMIN_URL": gateway.admin_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_the_command_prints_what_it_is_asked_for(
    client: httpx.Client, gateway: Gateway, command: subprocess.Popen[str]
) -> None:
    events = [new_event(event="two\u2028lines\x85or three"), new_event()]  # ends of lines, but not of JSON's
    assert command.stderr is not None
    assert "following" in command.stderr.readline()
    post(client, "/v1/events", [*events, *events])
    assert command.stdout is not None
    for event in events:
        told = orjson.loads(command.stdout.readline())
        assert (told["verdict"], told["message_id"]) == ("duplicate", event["messageId"])
        assert told["event"] == event["event"]


def test_a_listener_does_not_hold_a_stop_up(own_gateway: Gateway) -> None:
    own_gateway.start()
    with tailing(own_gateway) as tail:
        assert own_gateway.stop() == 0
        with pytest.raises(AssertionError, match="the tail ended"):
            tail.next()
    assert "Cancel" not in own_gateway.log_tail()


def test_the_command_says_why_it_ends(own_gateway: Gateway) -> None:
    own_gateway.start()
    environment = own_gateway.environment | {"GATEWAY_ADMIN_URL": own_gateway.admin_url}
    wrong = subprocess.run(
        [COMMAND, "tail", "--verdict", "lost"], env=environment, capture_output=True, text=True, check=False
    )
    assert (wrong.returncode, "verdict must be of" in wrong.stderr) == (2, True)
    process = subprocess.Popen(
        [COMMAND, "tail"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        assert "following" in process.stderr.readline()
        own_gateway.stop()
        assert process.wait(PATIENCE_S) == 1
        assert "the gateway has ended the tail" in process.stderr.read()
    finally:
        process.kill()
        process.communicate()
