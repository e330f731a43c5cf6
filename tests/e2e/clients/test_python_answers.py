"""
Claim: whatever answers the Python client gets, it delivers all once the gateway answers, or keeps an event
that nobody takes as a dead letter; no answer ends its thread, stops it, fills its memory or holds up its end.

A server of the test answers by script, byte for byte, before it answers as the gateway does.
"""

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.python.src.gateway_client import Client, delivery, sender
from clients.python.src.gateway_client.model import EVENT_REFUSED
from tests.support.waiting import PATIENCE_S

CLOSE_S = 0.2
CLOSE_S_MAX = PATIENCE_S / 2
"""On any machine; whoever waits for what these tests hold back takes longer."""
HTML = b"<html>Please log in</html>"
REQUESTS_MAX = 100
"""Of a client that makes pauses; one that makes none sends several hundred."""

Answer = Callable[[socket.socket, bytes], None]
"""Writes to a connection that has sent this body; the connection ends afterwards."""


def answered(status: int, content: bytes = b"", *, is_gateways: bool = False, head: str = "") -> Answer:
    """Return an answer as servers give it."""
    request_id = "Gateway-Request-Id: 1-a\r\n" if is_gateways else ""
    begin = f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\nConnection: close\r\n"
    return raw(f"{begin}{request_id}{head}\r\n".encode() + content)


def by_gateway(status: int, content: bytes = b"") -> Answer:
    """Return what the gateway itself says."""
    return answered(status, content, is_gateways=True)


def raw(content: bytes) -> Answer:
    """Return any bytes."""
    return lambda connection, _body: connection.sendall(content)


def repeated(begin: bytes, part: bytes, pause_s: float) -> Answer:
    """Return an answer that never ends."""

    def answer(connection: socket.socket, _body: bytes) -> None:
        connection.sendall(begin)
        while True:
            connection.sendall(part)
            time.sleep(pause_s)  # as the server of the script does

    return answer


class ScriptedServer:
    """Answers as the script says, then as a gateway that stores all."""

    def __init__(self, script: list[Answer], always: Callable[[list[Any]], Answer | None]) -> None:
        self.script, self.always = script, always
        self.stored: dict[tuple[str, int], Any] = {}
        self.bodies: list[dict[str, Any]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def numbers(self) -> list[int]:
        return sorted(event["properties"]["n"] for event in self.stored.values())

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                _head, body = _request_of(connection)
                document = json.loads(gzip.decompress(body) if body[:1] == b"\x1f" else body)
                self.bodies.append(document)
                scripted = self.script.pop(0) if self.script else self.always(document["batch"])
                (scripted or by_gateway(200, self._stored(document)))(connection, body)
            except OSError:
                pass  # the client has hung up

    def _stored(self, document: dict[str, Any]) -> bytes:
        first = document.get("firstSequence", 0)
        for index, event in enumerate(document["batch"]):
            self.stored["s", first + index] = event
        receipts = [{"sequence": first + index} for index in range(len(document["batch"]))]
        return json.dumps({"success": True, "receipts": receipts}).encode()


def _request_of(connection: socket.socket) -> tuple[bytes, bytes]:
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536) or _gone()
    head, _, body = received.partition(b"\r\n\r\n")
    (length,) = (
        int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
    )
    while len(body) < length:
        body += connection.recv(65536) or _gone()
    return head, body


def _gone() -> bytes:
    raise ConnectionError


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedServer]]:
    servers: list[ScriptedServer] = []

    def start(
        *script: Answer, always: Callable[[list[Any]], Answer | None] = lambda _: None
    ) -> ScriptedServer:
        servers.append(ScriptedServer(list(script), always))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def client_of(hurried: None, tmp_path: Path) -> Iterator[Callable[..., Client]]:
    opened: list[Client] = []

    def make(server: ScriptedServer, **options: Any) -> Client:
        opened.append(Client(server.url, "web", tmp_path / "queue.db", **options))
        return opened[-1]

    yield make
    for client in opened:
        client.close(timeout=0)


def events(count: int) -> list[dict[str, Any]]:
    return [{"type": "track", "event": "Seen", "properties": {"n": n}} for n in range(count)]


WITHOUT_A_VERDICT = {
    **{f"{status} html": answered(status, HTML) for status in (200, 201, 204, 304, 500, 502, 503, 504, 599)},
    **{f"{status} html": answered(status, HTML) for status in (400, 401, 402, 403, 404, 405, 407, 408, 429)},
    **{
        f"{status} html": answered(status, HTML)
        for status in (406, 409, 410, 411, 414, 415, 418, 422, 451, 499)
    },
    **{
        f"{status} with a code": answered(status, b'{"code":1020,"message":"no"}')
        for status in (200, 400, 401, 403, 404, 415)
    },
    **{
        f"gateway's {status} {code}": by_gateway(status, json.dumps({"code": code, "message": "no"}).encode())
        for status, code in (
            (401, "invalid_write_key"),
            (403, "scope_missing"),
            (404, "not_found"),
            (405, "method_not_allowed"),
            (400, "of a version to come"),
            (400, "unsupported_encoding"),
            (503, "outcome_unknown"),
            (500, "internal"),
        )
    },
    **{
        f"redirected {status}": answered(status, head="Location: http://127.0.0.1:1/\r\n")
        for status in (301, 302, 307, 308)
    },
    "proxy's receipts": answered(200, b'{"success":true,"receipts":[{"sequence":1}]}'),
    "empty": by_gateway(200),
    "empty object": by_gateway(200, b"{}"),
    "null": by_gateway(200, b"null"),
    "sequence is a list": by_gateway(200, b'{"receipts":[{"sequence":[1]}]}'),
    "sequence is true": by_gateway(200, b'{"receipts":[{"sequence":true}]}'),
    "sequence is a text": by_gateway(200, b'{"receipts":[{"sequence":"1"}]}'),
    "receipts are no list": by_gateway(200, b'{"receipts":{"sequence":1},"rejected":7}'),
    "index is an object": by_gateway(200, b'{"rejected":[{"index":{},"code":"x"},{"index":[0],"code":"x"}]}'),
    "code is no text": by_gateway(200, b'{"rejected":[{"index":0,"code":{}}]}'),
    "deep": by_gateway(200, b"[" * 100_000),
    "deep in an object": by_gateway(200, b'{"receipts":' + b"[" * 100_000),
    "a number too long": by_gateway(200, b'{"receipts":[{"sequence":' + b"1" * 10_000 + b"}]}"),
    "no UTF-8": by_gateway(200, b'{"receipts":"\xff\xfe"}'),
    "longer than an answer may be": by_gateway(200, b" " * (sender.ANSWER_BYTES_MAX + 1)),
    "bad gzip": answered(200, b"no gzip", is_gateways=True, head="Content-Encoding: gzip\r\n"),
    "a bomb": answered(
        200, gzip.compress(bytes(50_000_000)), is_gateways=True, head="Content-Encoding: gzip\r\n"
    ),
    "an unknown encoding": answered(200, b"x", is_gateways=True, head="Content-Encoding: br\r\n"),
    "SSH": raw(b"SSH-2.0-OpenSSH_9.2p1\r\n"),
    "nothing": raw(b""),
    "half a head": raw(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "cut": raw(b'HTTP/1.1 200 OK\r\nGateway-Request-Id: 1-a\r\nContent-Length: 99\r\n\r\n{"receipts":[]}'),
    "two lengths": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}"),
    "101": raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x00"),
    "a huge head": raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000 + b"\r\n\r\n"),
    "cookies": answered(200, HTML, head="Set-Cookie: " + "c" * 60_000 + "=1\r\n"),
}


@pytest.mark.parametrize("answer", WITHOUT_A_VERDICT.values(), ids=WITHOUT_A_VERDICT.keys())
def test_an_answer_that_decides_nothing_is_asked_again(
    serve: Callable[..., ScriptedServer], client_of: Callable[..., Client], answer: Answer
) -> None:
    server = serve(*[answer] * 4)
    client = client_of(server)
    client.send_all(events(3))
    assert client.flush(PATIENCE_S)
    assert server.numbers == [0, 1, 2]
    assert client.dead_letters() == []


@pytest.mark.parametrize(
    "answer",
    {
        "endless": repeated(b"HTTP/1.1 200 OK\r\n\r\n", bytes(65536), 0),
        "endless head": repeated(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.0001),
        "endless 100": repeated(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.001),
        "dripping": repeated(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b" ", 0.05),
        "dripping head": repeated(b"HTTP/1.1 200 OK\r\nX: ", b"y", 0.05),
        "silent": repeated(b"", b"", 0.05),
    }.items(),
    ids=lambda named: named[0],
)
def test_an_answer_without_an_end_has_one_and_holds_up_nobody(
    serve: Callable[..., ScriptedServer],
    client_of: Callable[..., Client],
    monkeypatch: pytest.MonkeyPatch,
    answer: tuple[str, Answer],
) -> None:
    monkeypatch.setattr(sender, "ANSWER_TIMEOUT_S", PATIENCE_S)
    server = serve(always=lambda _: answer[1])
    client = client_of(server)
    client.send_all(events(3))
    begin = time.monotonic()
    assert not client.close(CLOSE_S)
    assert time.monotonic() - begin < CLOSE_S_MAX
    monkeypatch.setattr(sender, "ANSWER_TIMEOUT_S", 0.3)
    server = serve(answer[1])
    client = client_of(server)
    assert client.flush(PATIENCE_S)
    assert server.numbers == [0, 1, 2]


def too_large(limit: int, answer: Answer) -> Callable[[list[Any]], Answer | None]:
    """Refuse bodies with more than so many bytes of events."""
    return lambda batch: answer if len(json.dumps(batch)) > limit else None


TOO_LARGE = {
    "nginx": answered(413, HTML),
    "a firewall": answered(403, HTML),
    **{
        code: by_gateway(400, json.dumps({"code": code, "message": "no"}).encode())
        for code in ("body_too_large", "body_too_complex", "invalid_json", "too_many_events", "to come")
    },
}


@pytest.mark.parametrize("answer", TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_a_body_that_is_not_taken_is_halved_down_to_the_event_that_is_not(
    serve: Callable[..., ScriptedServer],
    client_of: Callable[..., Client],
    monkeypatch: pytest.MonkeyPatch,
    answer: Answer,
) -> None:
    monkeypatch.setattr(delivery, "KEY_REFUSED_PAUSE_MAX_S", 0.01)
    server = serve(always=too_large(5_000, answer))
    client = client_of(server)
    queued = events(100)
    queued[30]["properties"]["text"] = "x" * 6_000
    client.send_all(queued)
    assert client.flush(PATIENCE_S)
    assert server.numbers == [n for n in range(100) if n != 30]
    (letter,) = client.dead_letters()
    assert (letter.code, letter.event["properties"]["n"]) == (EVENT_REFUSED, 30)
    server.always = lambda _: None
    assert client.retry_dead_letters() == 1
    assert client.flush(PATIENCE_S)
    assert server.numbers == list(range(100))
    assert server.bodies[-1]["batch"][0]["messageId"] == letter.place.message_id


@pytest.mark.regression(
    "A proxy that answered 413 to every request was asked without a pause, and made dead letters of all."
)
@pytest.mark.parametrize("status", [403, 413])
@pytest.mark.parametrize("is_source_known", [False, True])
def test_while_all_is_refused_on_the_way_nothing_is_a_dead_letter(
    serve: Callable[..., ScriptedServer],
    client_of: Callable[..., Client],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    is_source_known: bool,
) -> None:
    monkeypatch.setattr(delivery, "BACKOFF_S", 0.05)
    server = serve(always=lambda _: answered(status, HTML))
    client = client_of(server)
    if is_source_known:
        refused, server.always = server.always, lambda _: None
        client.send_all(events(1))
        assert client.flush(PATIENCE_S)
        server.always = refused
    begin = len(server.bodies)
    client.send_all(events(3))
    assert not client.flush(1.0)
    assert (client.waiting, client.dead_letters()) == (3, [])
    assert str(status) in str(client.last_error)
    assert len(server.bodies) - begin < REQUESTS_MAX
    server.always = lambda _: None
    assert client.flush(PATIENCE_S)
    assert client.dead_letters() == []


def test_portals_give_the_client_no_cookies(
    serve: Callable[..., ScriptedServer], client_of: Callable[..., Client]
) -> None:
    heads: list[bytes] = []
    server = serve(answered(200, HTML, head="Set-Cookie: portal=1\r\n"))
    original = _request_of

    def noted(connection: socket.socket) -> tuple[bytes, bytes]:
        head, body = original(connection)
        heads.append(head)
        return head, body

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "_request_of", noted)
        client = client_of(server)
        client.send_all(events(1))
        assert client.flush(PATIENCE_S)
    assert len(heads) == 3  # the first two ask for the source
    assert not any(b"portal" in head for head in heads)
    assert all(b"gateway-client-python/" in head for head in heads)
