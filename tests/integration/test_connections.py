"""
Claim: whatever arrives on a connection, a request that has begun is answered as the HTTP contract
says, in order, and no client can keep a connection, or memory, longer than it may.
"""

import re
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import orjson
import pytest

from app.http.penalties import FREE
from tests.support.gateway import Gateway
from tests.support.http import AUTH, new_event, post, stored
from tests.support.raw_http import RawConnection, request
from tests.support.waiting import PATIENCE_S, until

SUCCESS = b'{"success":true}'
POST = b"POST /v1/batch?writeKey=web HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
STRICT = b"Prefer: handling=strict\r\n"
REFUSED = request(b"{", head=STRICT)


PATIENT = {
    "app.http.body:BodyLimits.grace_s": 300,
    "app.http.port:ConnectionLimits.rest_timeout_s": 300,
    "app.http.port:ConnectionLimits.head_timeout_s": 300,
    "app.http.port:ConnectionLimits.send_timeout_s": 300,
}
"""A gateway that a slow machine does not keep waiting for too long."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    settings = {"GATEWAY_PARTITIONS": "2"}
    constants = {**PATIENT, "app.http.port:ConnectionLimits.head_bytes_max": 4096}
    with Gateway(tmp_path_factory.mktemp("gateway"), settings, constants=constants) as running:
        yield running


@pytest.fixture(scope="module")
def hasty_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that waits for nobody."""
    settings = {"GATEWAY_PARTITIONS": "2"}
    constants = {
        "app.http.body:BodyLimits.grace_s": 1,
        "app.http.port:ConnectionLimits.rest_timeout_s": 1,
        "app.http.port:ConnectionLimits.head_timeout_s": 0.3,
        "app.http.port:ConnectionLimits.head_bytes_max": 4096,
        "app.http.port:ConnectionLimits.send_timeout_s": 0.5,
        "app.main:SEND_TIMEOUT_S": 0.5,
    }
    with Gateway(tmp_path_factory.mktemp("gateway"), settings, constants=constants) as running:
        yield running


@pytest.fixture
def connection(gateway: Gateway) -> Iterator[RawConnection]:
    with RawConnection(gateway.port) as connection:
        yield connection


@pytest.fixture
def hasty(hasty_gateway: Gateway) -> Iterator[RawConnection]:
    """A connection to the gateway that waits for nobody."""
    with RawConnection(hasty_gateway.port) as connection:
        yield connection


# ---- requests that cannot be parsed


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS on a plain port
        b"nonsense\r\n\r\n",
        b"POST /v1/batch HTTP/9.9\r\n\r\n",
        b"POST /v1/b\xfftch HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        POST.replace(b"POST", b"CONNECT") + b"Content-Length: 2\r\n\r\n{}",
        POST.replace(b"Host: x\r\n", b"") + b"Origin: https://shop.example\r\n\r\n",
        POST + b"Host: x\r\n\r\n",
        POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        POST + b"Content-Length: +2\r\n\r\n{}",
        POST + b"Content-Length : 2\r\n\r\n{}",
        POST + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
        POST + b"Transfer-Encoding: gzip\r\n\r\n{}",
        POST + b"X-Folded: a\r\n b\r\n\r\n",
        POST + b"X-Zero: a\0b\r\n\r\n",
        POST + b"X-\x01: a\r\n\r\n",
        CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"2\r\n{}xx0\r\n\r\n",
        CHUNKED + b"-2\r\n{}\r\n",
        CHUNKED + b"ffffffffffffffffff\r\n{}\r\n",
    ],
)
def test_malformed_request_gets_json_and_a_close(connection: RawConnection, data: bytes) -> None:
    connection.send(data.replace(b"Host: x\r\n", b"Host: x\r\nOrigin: https://shop.example\r\n"))
    answer = connection.answer()
    assert (answer.status, answer.code) == (400, "bad_request")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["connection"] == "close"
    assert "retry-after" in answer.headers["access-control-expose-headers"].lower()
    assert answer.headers["access-control-allow-origin"] in ("https://shop.example", "*")
    assert answer.headers["gateway-request-id"]
    assert connection.is_closed()


@pytest.mark.parametrize(
    "data",
    [
        b"GET /" + b"x" * 5_000 + b" HTTP/1.1\r\n\r\n",
        POST + b"X-Large: " + b"x" * 5_000 + b"\r\n\r\n",
        POST + b"X-Large: " + b"x" * 300_000,
        POST + b"".join(b"X-%d: x\r\n" % number for number in range(400)) + b"\r\n",
    ],
)
def test_head_too_large_is_refused(connection: RawConnection, data: bytes) -> None:
    connection.send(data)
    answer = connection.answer()
    assert (answer.status, answer.code) == (400, "head_too_large")
    assert connection.is_closed()


def test_head_in_single_bytes_is_as_good_as_any(connection: RawConnection) -> None:
    connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in request():
        connection.send(bytes([byte]))
    assert connection.answer().body == SUCCESS


@pytest.mark.parametrize(
    "framing",
    [
        b"1\r\n \r\n" * 60_000,
        b"1;" + b"x" * 200_000,
        b"0\r\nX-Trailer: " + b"x" * 200_000,
    ],
)
def test_framing_that_outweighs_the_body_is_refused(connection: RawConnection, framing: bytes) -> None:
    connection.send(CHUNKED + framing)
    assert connection.answer().code in ("bad_request", "head_too_large")
    assert connection.is_closed()


@pytest.mark.parametrize("trailer", [b"X: y\r\n" * 100_000, b"X-Large: " + b"y" * 600_000])
def test_trailers_have_the_limit_of_a_head(connection: RawConnection, trailer: bytes) -> None:
    body = b" " * 400_000 + b'{"batch":[]}'  # as much framing as this were allowed
    connection.send(CHUNKED + b"%x\r\n%b\r\n0\r\n" % (len(body), body) + trailer)
    assert connection.answer().code == "head_too_large"
    assert connection.is_closed()


def test_head_beside_the_end_of_a_body_is_not_measured_with_it(connection: RawConnection) -> None:
    event = new_event(padding="x" * 6_000)
    body = orjson.dumps({"batch": [event]})
    first, second = request(body), request()
    connection.send(first[:200])
    time.sleep(0.1)  # so that the rest arrives in a read of its own
    connection.send(first[200:] + second[:40])
    assert connection.answer().body == SUCCESS
    connection.send(second[40:])
    assert connection.answer().body == SUCCESS


def test_trailers_are_not_headers(connection: RawConnection, gateway: Gateway) -> None:
    event = new_event()
    body = orjson.dumps({"batch": [event]})
    connection.send(
        CHUNKED + b"%x\r\n%b\r\n0\r\nX-Write-Key: other\r\nContent-Encoding: gzip\r\n\r\n" % (len(body), body)
    )
    assert connection.answer().body == SUCCESS
    (line,) = [line for line in stored(gateway) if line["messageId"] == event["messageId"]]
    assert line["source"] == "web"


# ---- several requests on one connection


def test_pipelined_requests_are_answered_in_order(connection: RawConnection) -> None:
    event = new_event()
    sent = request(orjson.dumps({"batch": [event]}))
    connection.send(sent + REFUSED + request() + sent)
    answers = [connection.answer() for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 400, 200, 200]
    assert answers[3].headers["gateway-duplicates"] == "1"


@pytest.mark.parametrize("broken", [b"nonsense\r\n\r\n", CHUNKED + b"zz\r\n", b"GET /" + b"x" * 5_000])
def test_broken_request_does_not_answer_for_the_one_before_it(
    connection: RawConnection, broken: bytes
) -> None:
    connection.send(request() + REFUSED + broken)
    assert connection.answer().status == 200
    assert connection.answer().code == "invalid_json"
    assert connection.answer().code in ("bad_request", "head_too_large")
    assert connection.is_closed()


def test_endless_pipeline_is_cut_with_an_answer(connection: RawConnection) -> None:
    connection.send(request() * 500)
    answers = [connection.answer()]
    while answers[-1].status == 200:
        answers.append(connection.answer())
    assert answers[-1].code == "overloaded"
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 30
    assert connection.is_closed()


def test_offer_of_another_protocol_is_passed_over(connection: RawConnection) -> None:
    offers = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    websocket = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n"
    body = orjson.dumps({"batch": [new_event()]})
    connection.send(request(body, head=offers) + request(body, head=websocket) + request(body))
    answers = [connection.answer() for _ in range(3)]
    assert [answer.body for answer in answers] == [SUCCESS] * 3
    assert [answer.headers["gateway-duplicates"] for answer in answers] == ["0", "1", "1"]


# ---- clients that stop


def test_head_that_does_not_come_in_time_ends_the_connection(hasty_gateway: Gateway) -> None:
    for head in (b"", b"\r\n", b"POST /v1/batch HT", POST + b"Content-"):
        with RawConnection(hasty_gateway.port) as connection:
            connection.send(head)
            assert connection.is_closed()


def test_head_that_drips_ends_the_connection(hasty: RawConnection) -> None:
    hasty.send(POST)
    hasty.socket.settimeout(0.05)

    def has_ended() -> bool:
        try:
            hasty.send(b"X-")
            return hasty.is_closed()
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    until(has_ended)


def test_second_head_on_a_connection_has_its_time_too(hasty: RawConnection) -> None:
    hasty.send(request())
    assert hasty.answer().body == SUCCESS
    time.sleep(0.5)  # idle for longer than a head may take
    hasty.send(request())
    assert hasty.answer().body == SUCCESS
    hasty.send(b"POST /v1")
    assert hasty.is_closed()


@pytest.mark.parametrize("begin", [POST + b"Content-Length: 100\r\n\r\n{", CHUNKED + b"5\r\n{"])
def test_body_that_does_not_come_in_time_is_answered(hasty: RawConnection, begin: bytes) -> None:
    hasty.send(begin)
    answer = hasty.answer()
    assert (answer.status, answer.code) == (503, "body_timeout")
    assert 1 <= int(answer.headers["retry-after"]) <= 30
    assert answer.headers["connection"] == "close"
    assert hasty.is_closed()


@pytest.mark.parametrize("begin", [POST + b"Content-Length: 100\r\n\r\n{", CHUNKED + b"5\r\n{"])
def test_half_a_body_is_answered_though_no_more_can_come(connection: RawConnection, begin: bytes) -> None:
    connection.send(begin)
    connection.socket.shutdown(socket.SHUT_WR)
    answer = connection.answer()
    assert (answer.status, answer.code) == (503, "body_truncated")
    assert "retry-after" in answer.headers
    assert connection.is_closed()


def test_what_a_slow_or_broken_link_causes_is_counted_apart(gateway: Gateway, hasty_gateway: Gateway) -> None:
    for of, failure, other in (
        (gateway, "body_truncated", "body_timeout"),
        (hasty_gateway, "body_timeout", "body_truncated"),
    ):
        before = link_failures(of)
        with RawConnection(of.port) as connection:
            connection.send(POST + b"Content-Length: 100\r\n\r\n{")
            if failure == "body_truncated":
                connection.socket.shutdown(socket.SHUT_WR)
            assert connection.answer().status == 503
        until(lambda: link_failures(of) != before)  # noqa: B023 - waited for at once
        assert link_failures(of) == {failure: before[failure] + 1, other: before[other]}


def link_failures(gateway: Gateway) -> dict[str, float]:
    metrics = httpx.get(f"{gateway.admin_url}/metrics").text
    told = re.findall(r'^gateway_http_link_failures_total\{code="(\w+)"\} (\S+)', metrics, flags=re.MULTILINE)
    return {code: float(count) for code, count in told}


def test_client_that_ends_its_side_still_gets_its_answers(connection: RawConnection) -> None:
    connection.send(request() + REFUSED)
    connection.socket.shutdown(socket.SHUT_WR)
    assert [connection.answer().status for _ in range(2)] == [200, 400]
    assert connection.is_closed()


@pytest.mark.regression("Garbage behind a request took the request's answer.")
def test_half_closed_connection_gets_the_answer_before_the_garbage_and_one_for_it(
    connection: RawConnection,
) -> None:
    event = new_event()
    connection.send(request(orjson.dumps({"batch": [event]})) + b"nonsense\r\n\r\n")
    connection.socket.shutdown(socket.SHUT_WR)
    assert connection.answer().body == SUCCESS
    assert connection.answer().code == "bad_request"
    assert connection.is_closed()


@pytest.mark.regression("A head begun behind a request had no deadline.")
def test_head_begun_behind_a_request_has_its_time_too(hasty: RawConnection) -> None:
    hasty.send(request() + b"POST /v1")
    assert hasty.answer().body == SUCCESS
    assert hasty.is_closed()


@pytest.mark.parametrize("is_served", [True, False])
def test_final_answer_instead_of_100_continue_ends_the_connection(
    connection: RawConnection, is_served: bool
) -> None:
    size = len(b'{"batch":[]}') if is_served else 9_000_000
    connection.send(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % size)
    if is_served:
        assert connection.socket.recv(len(b"HTTP/1.1 100 Continue\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        connection.send(b'{"batch":[]}')
    answer = connection.answer()
    assert answer.code == (None if is_served else "body_too_large")
    assert answer.headers.get("connection") == (None if is_served else "close")
    if is_served:
        connection.send(request())
        assert connection.answer().body == SUCCESS
    else:
        assert connection.is_closed()


def test_rest_of_a_refused_body_is_thrown_away(connection: RawConnection) -> None:
    connection.send(POST + b"Content-Length: 9000000\r\n\r\n")
    assert connection.answer().code == "body_too_large"
    connection.send(b"x" * 9_000_000)
    connection.send(request())
    assert connection.answer().body == SUCCESS


def test_rest_of_a_refused_body_has_its_time_too(hasty: RawConnection) -> None:
    hasty.send(POST + b"Content-Length: 9000000\r\n\r\nx")
    assert hasty.answer().code == "body_too_large"
    hasty.send(b"x")
    assert hasty.is_closed()


def test_client_that_reads_no_answers_loses_the_connection(hasty_gateway: Gateway) -> None:
    batch = request(orjson.dumps([new_event() for _ in range(2_000)]), path="/v1/events?writeKey=web")
    with RawConnection(hasty_gateway.port, receive_buffer=4_096) as connection:
        connection.socket.settimeout(0.2)

        def is_lost() -> bool:
            try:
                connection.send(batch)
            except TimeoutError:
                return False
            except ConnectionError:
                return True
            return False

        until(is_lost)


def test_answer_that_fits_into_buffers_is_not_left_unread_for_ever(hasty_gateway: Gateway) -> None:
    batch = request(orjson.dumps([new_event() for _ in range(300)]), path="/v1/events?writeKey=web")
    before = hasty_gateway.stats()["totals"]["accepted"]
    with RawConnection(hasty_gateway.port, receive_buffer=2_048) as connection:
        connection.send(batch)
        until(lambda: hasty_gateway.stats()["totals"]["accepted"] >= before + 300)
        until(lambda: hasty_gateway.stats()["connections"]["open"] == 0)


# ---- many connections


def test_idle_connections_make_room_for_new_ones(tmp_path: Path) -> None:
    settings = {"GATEWAY_PARTITIONS": "2", "GATEWAY_CONNECTIONS_MAX": "50"}
    with Gateway(tmp_path, settings, constants=PATIENT) as gateway:
        idle = [RawConnection(gateway.port) for _ in range(300)]
        try:
            with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
                for _ in range(5):
                    assert post(client, "/v1/batch", {"batch": [new_event()]}).content == SUCCESS
            until(lambda: gateway.stats()["connections"]["evicted"] >= 250)
            told = gateway.stats()["connections"]
            assert told["open"] <= 51
            assert told["refused"] == 0
        finally:
            for connection in idle:
                connection.socket.close()


def test_crowd_of_idle_and_slow_sockets_keeps_nobody_out(tmp_path: Path) -> None:
    settings = {"GATEWAY_PARTITIONS": "2"}
    with Gateway(tmp_path, settings, constants=PATIENT) as gateway:
        silent, resting, slow = ([RawConnection(gateway.port) for _ in range(150)] for _ in range(3))
        try:
            for connection in resting:
                connection.send(request())
            for connection in resting:
                assert connection.answer().body == SUCCESS
            for connection in slow:
                connection.send(POST + b"Content-Length: 8000000\r\n\r\n")
            with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
                for _ in range(20):
                    for connection in slow:
                        connection.send(b" ")
                    assert post(client, "/v1/batch", {"batch": [new_event()]}).content == SUCCESS
            until(lambda: gateway.stats()["body_memory"]["used_bytes"] == 150 * 20)
            for connection in slow:
                connection.socket.shutdown(socket.SHUT_WR)
            assert {connection.answer().code for connection in slow} == {"body_truncated"}
            until(lambda: gateway.stats()["body_memory"]["used_bytes"] == 0)
        finally:
            for connection in (*silent, *resting, *slow):
                connection.socket.close()


def test_connection_without_room_is_answered(tmp_path: Path) -> None:
    settings = {"GATEWAY_PARTITIONS": "2", "GATEWAY_CONNECTIONS_MAX": "3"}
    with Gateway(tmp_path, settings, constants=PATIENT) as gateway:
        busy = [RawConnection(gateway.port) for _ in range(3)]
        try:
            for connection in busy:
                connection.send(POST + b"Content-Length: 12\r\n\r\n{")
            until(lambda: gateway.stats()["connections"]["idle"] == 0)
            with RawConnection(gateway.port) as refused:
                refused.send(request())
                answer = refused.answer()
                assert (answer.status, answer.code) == (503, "too_many_connections")
                assert 1 <= int(answer.headers["retry-after"]) <= 30
                assert answer.headers["access-control-allow-origin"] == "*"
                assert refused.is_closed()
            for connection in busy:
                connection.send(b'"batch":[]}')
                assert connection.answer().body == SUCCESS
            assert httpx.post(f"{gateway.url}/v1/batch", content=b'{"batch":[]}', auth=AUTH).is_success
        finally:
            for connection in busy:
                connection.socket.close()


def test_crowd_of_one_address_leaves_room_for_the_others(tmp_path: Path) -> None:
    settings = {"GATEWAY_PARTITIONS": "2", "GATEWAY_CONNECTIONS_MAX": "64"}
    with Gateway(tmp_path, settings, constants=PATIENT) as gateway:
        crowd = [RawConnection(gateway.port, source="127.0.0.2") for _ in range(64)]
        try:
            for connection in crowd:
                connection.send(POST + b"Content-Length: 12\r\n\r\n{")
            until(lambda: gateway.stats()["connections"]["idle"] == 0)
            others = [RawConnection(gateway.port) for _ in range(8)]
            for other in others:
                other.send(request())
                assert other.answer().body == SUCCESS
            assert crowd[0].answer().code == "too_many_connections"  # it has waited longest
            with RawConnection(gateway.port, source="127.0.0.2") as one_more:
                one_more.send(request())
                assert one_more.answer().code == "too_many_connections"
            crowd[-1].send(b'"batch":[]}')
            assert crowd[-1].answer().body == SUCCESS
        finally:
            for connection in (*crowd, *others):
                connection.socket.close()


@pytest.mark.regression("A crowd with delayed refusals took the connections of everybody else.")
def test_crowd_whose_refusals_are_held_back_leaves_room_for_the_others(tmp_path: Path) -> None:
    settings = {"GATEWAY_PARTITIONS": "2", "GATEWAY_CONNECTIONS_MAX": "64"}
    held = {**PATIENT, "app.round:DELAY_S": 2 * PATIENCE_S}
    with Gateway(tmp_path, settings, constants=held) as gateway, ExitStack() as stack:
        bad = request(b"{", path="/v1/events?writeKey=web", head=b"Prefer: handling=strict\r\n")
        crowd = [stack.enter_context(RawConnection(gateway.port, source="127.0.0.2")) for _ in range(64)]
        for _ in range(int(FREE)):
            crowd[0].send(bad)
            assert crowd[0].answer().code == "invalid_json"
        for connection in crowd:
            connection.send(bad * 2)
        until(lambda: gateway.stats()["connections"]["idle"] == 0)
        for _ in range(8):
            other = stack.enter_context(RawConnection(gateway.port))
            other.send(request())
            assert other.answer().body == SUCCESS
        answered = [connection for connection in crowd if has_answer(connection)]
        assert len(answered) >= 8
        assert answered[0].answer().code == "invalid_json"  # what it waited for
        assert answered[0].is_closed()
        assert gateway.stats()["connections"]["refused"] == 0
        gateway.kill()  # to end, it waits for the refusals that are held back


def has_answer(connection: RawConnection) -> bool:
    return bool(select.select([connection.socket], [], [], 0.01)[0])


def test_behind_a_trusted_proxy_the_forwarded_address_has_the_limit_once_it_is_crowded(
    tmp_path: Path,
) -> None:
    settings = {
        "GATEWAY_CONNECTIONS_MAX": "16",
        "GATEWAY_TRUSTED_PROXIES": "127.0.0.0/8, ::1",
        "GATEWAY_PARTITIONS": "2",
    }
    half = POST + b"X-Forwarded-For: 203.0.113.7\r\nContent-Length: 12\r\n\r\n{"
    with Gateway(tmp_path, settings, constants=PATIENT) as gateway, ExitStack() as stack:
        crowd = [stack.enter_context(RawConnection(gateway.port)) for _ in range(8)]
        for waiting in crowd:
            waiting.send(half)
        until(lambda: gateway.stats()["connections"]["idle"] == 0)
        with RawConnection(gateway.port) as other:
            other.send(request(head=b"X-Forwarded-For: 203.0.113.7, 127.0.0.2\r\n"))
            assert other.answer().code == "too_many_connections"
        for forwarded in (b"203.0.113.7, 203.0.113.8", b"203.0.113.7, unknown"):
            with RawConnection(gateway.port) as other:
                other.send(request(head=b"X-Forwarded-For: %b\r\n" % forwarded))
                assert other.answer().body == SUCCESS
        for waiting in crowd:
            waiting.send(b'"batch":[]}')
            assert waiting.answer().body == SUCCESS
        with RawConnection(gateway.port) as other:
            other.send(request(head=b"X-Forwarded-For: 203.0.113.7\r\n"))
            assert other.answer().body == SUCCESS


def test_unknown_client_behind_a_proxy_is_counted_and_its_events_have_no_address(tmp_path: Path) -> None:
    settings = {"GATEWAY_TRUSTED_PROXIES": "127.0.0.1", "GATEWAY_PARTITIONS": "2"}
    with (
        Gateway(tmp_path, settings, constants=PATIENT) as gateway,
        httpx.Client(base_url=gateway.url, auth=AUTH) as client,
    ):
        for forwarded in ("unknown", "203.0.113.7,", "_hidden"):
            post(client, "/v1/events", new_event(messageId=forwarded), **{"X-Forwarded-For": forwarded})
        post(client, "/v1/events", new_event(messageId="absent"))
        post(client, "/v1/events", new_event(messageId="known"), **{"X-Forwarded-For": "[2001:db8::7]:80"})
        assert client.get("/health").status_code == 200
        told = {line["messageId"]: line["value"].get("context", {}).get("ip") for line in stored(gateway)}
        metrics = httpx.get(f"{gateway.admin_url}/metrics").text
    known = told.pop("known")
    assert (known, set(told.values()), len(told)) == ("2001:db8::7", {None}, 4)
    assert "gateway_http_unknown_clients_total 4.0" in metrics
    assert gateway.log_path.read_text().count("clients behind a trusted proxy are unknown") == 1


def test_event_tells_where_it_came_from(tmp_path: Path) -> None:
    events = [new_event(), new_event(context={"page": "x"}), new_event(context={"ip": "192.0.2.9"})]
    settings = {"GATEWAY_TRUSTED_PROXIES": "127.0.0.1", "GATEWAY_PARTITIONS": "2"}
    with (
        Gateway(tmp_path, settings, constants=PATIENT) as gateway,
        httpx.Client(base_url=gateway.url, auth=AUTH) as client,
    ):
        first = post(client, "/v1/events", events, **{"X-Forwarded-For": "203.0.113.7"})
        again = post(client, "/v1/events", events, **{"X-Forwarded-For": "198.51.100.1"})
        assert first.content == again.content
        assert again.headers["Gateway-Duplicates"] == "3"
        told = {line["messageId"]: line["value"]["context"]["ip"] for line in stored(gateway)}
        assert [told[event["messageId"]] for event in events] == ["203.0.113.7", "203.0.113.7", "192.0.2.9"]
        assert post(client, "/v1/events", new_event()).status_code == 200


def test_address_can_be_left_out(tmp_path: Path) -> None:
    with Gateway(tmp_path, {"GATEWAY_CONTEXT_IP": "false", "GATEWAY_PARTITIONS": "2"}) as gateway:
        httpx.post(f"{gateway.url}/v1/events", content=orjson.dumps(new_event()), auth=AUTH)
        (line,) = stored(gateway)
        assert "context" not in line["value"]


# ---- memory


def test_bodies_beyond_the_budget_are_refused_and_the_others_served(tmp_path: Path) -> None:
    settings = {
        "GATEWAY_PARTITIONS": "2",
        "GATEWAY_BODY_BYTES_MAX": "1MiB",
        "GATEWAY_BODY_MEMORY": "4MiB",
    }
    body = orjson.dumps({"batch": [new_event(padding="x" * 1000) for _ in range(800)]})
    head = POST + b"Content-Length: %d\r\n\r\n" % len(body)
    with Gateway(tmp_path, settings, constants=PATIENT) as gateway:
        announced = [RawConnection(gateway.port) for _ in range(20)]
        try:
            for connection in announced:
                connection.send(head + body[:1000])  # an announcement alone takes no memory
            with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
                assert post(client, "/v1/batch", {"batch": [new_event()]}).content == SUCCESS
            for connection in announced:
                connection.send(body[1000:-1])  # two fit; the rest is refused at the third
            until(lambda: gateway.stats()["body_memory"]["refused"] >= 18)
            told = gateway.stats()["body_memory"]
            assert told["limit_bytes"] == 4 * 1024**2
            assert told["peak_bytes"] <= told["limit_bytes"] // 2  # all of one address
            for connection in announced:
                connection.send(body[-1:])
            answers = [connection.answer() for connection in announced]
            assert {answer.status for answer in answers} == {200, 503}
            for answer in answers:
                if answer.status == 503:
                    assert answer.code == "memory_full"
                    assert 1 <= int(answer.headers["retry-after"]) <= 30
            # whoever was refused comes again on the same connection
            for connection in announced:
                connection.send(head + body)
                assert connection.answer().body == SUCCESS
            until(lambda: gateway.stats()["body_memory"]["used_bytes"] == 0)
        finally:
            for connection in announced:
                connection.socket.close()
        assert len(stored(gateway)) == 801
