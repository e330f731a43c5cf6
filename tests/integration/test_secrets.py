"""
Claim: no write key, secret or word of an event gets into logs, metrics, statistics or error answers,
whatever is sent and whatever fails, also when everything is logged.
"""

import gzip
import itertools
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from tests.fault.conftest import kafka_log
from tests.support.gateway import Gateway
from tests.support.http import cli
from tests.support.kafka import KafkaBroker
from tests.support.processes import free_port
from tests.support.waiting import PATIENCE_S

KEY = "planted-key-good"
DISABLED_KEY = "planted-key-disabled"
UNKNOWN_KEY = "planted-key-unknown"
IDENTITY_SECRET = "planted-identity-secret"
PASSWORD = "planted-sasl-password"

PLANTED = re.compile(rb"planted-(?!id-)[a-z-]+")
"""Everything that must show up nowhere; message ids must not either, but receipts name them."""
PLANTED_IDS = re.compile(rb"planted-id-[a-z-]+")

EVENT = {
    "messageId": "planted-id-good",
    "type": "track",
    "event": "planted-event-name",
    "userId": "planted-user",
    "properties": {"planted-property": "planted-value", "email": "planted-mail"},
    "context": {"ip": "planted-ip"},
    "writeKey": KEY,
}
BAD_ITEMS = [
    "planted-item-text",
    {"messageId": ["planted-bad-id"], "event": "planted-bad-event"},
    {"messageId": "planted-id-deep", "a": orjson.Fragment(b"[" * 40 + b'"planted-deep-value"' + b"]" * 40)},
    {"messageId": "planted-id-large", "a": "planted-large-value" * 60_000},
    EVENT | {"event": "planted-conflict"},
]
BODIES: list[tuple[bytes, dict[str, str]]] = [
    (orjson.dumps(EVENT), {}),
    (orjson.dumps({"batch": [EVENT, *BAD_ITEMS], "context": {"planted-context": 1}, "writeKey": KEY}), {}),
    (
        orjson.dumps({"event": "planted-without-id", "writeKey": KEY}),
        {"Idempotency-Key": "planted-idempotency"},
    ),
    (b'{"messageId":"planted-id-cut","event":"planted-cut', {}),
    (b'{"n":1e999,"event":"planted-number"}', {}),
    (b'"planted-document"', {}),
    (b"planted-plain-text", {"Content-Encoding": "gzip"}),
    (gzip.compress(b'{"event":"planted-compressed"}')[:-9], {"Content-Encoding": "gzip"}),
    (b"planted-encoding", {"Content-Encoding": "planted-encoding-name"}),
    (orjson.dumps({"event": "planted-keyless"}), {}),
    (orjson.dumps(EVENT), {"Idempotency-Key": "planted-idempotency" * 20}),
]
HEADERS: list[dict[str, str]] = [
    {},
    {"Authorization": "Bearer planted-bearer-token", "Cookie": "session=planted-cookie"},
    {"X-Write-Key": f"{UNKNOWN_KEY}:planted-key-part", "X-Forwarded-For": "planted-address"},
    {"X-Write-Key": DISABLED_KEY, "Prefer": "planted-preference", "User-Agent": "planted-agent"},
    {"X-Write-Key": KEY, "Gateway-Client": "planted-client"},
]
TARGETS = [
    "/v1/events",
    "/v1/batch",
    f"/v1/batch?writeKey={UNKNOWN_KEY}&token=planted-query-token",
    "/v1/planted-path/planted-path-too?planted-query=planted-query-value",
]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    entries = [
        {"key": KEY, "source": "web", "name": "Web"},
        {"key": DISABLED_KEY, "source": "old", "enabled": False},
    ]
    path.write_bytes(orjson.dumps(entries))
    return path


@pytest.fixture
def settings(key_file: Path) -> dict[str, str]:
    return {
        "GATEWAY_IDENTITY_SECRET": IDENTITY_SECRET,
        "GATEWAY_WRITE_KEYS_FILE": str(key_file),
        "GATEWAY_LOGGING_LEVEL": "debug",
        "GATEWAY_PARTITIONS": "2",
    }


def everything(url: str) -> Iterator[httpx.Response]:
    """Send every body with every set of headers to every target."""
    with httpx.Client(base_url=url, auth=None) as client:
        for target in TARGETS:
            for headers in HEADERS:
                for body, more in BODIES:
                    yield client.post(target, content=body, headers=headers | more)
        yield client.get(f"/v1/events?writeKey={UNKNOWN_KEY}")
        yield client.options("/v1/events", headers={"Origin": "https://example.org"})


def garble(port: int) -> bytes:
    """Send something that is no HTTP, and return what comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"planted-method planted-target\r\nplanted-header\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def observed(gateway: Gateway) -> list[bytes]:
    """Return everything an operator looks at."""
    pages = ("/metrics", "/admin/v1/stats", "/readyz?verbose", "/planted-page")
    answers = [httpx.get(f"{gateway.admin_url}{page}") for page in pages]
    return [*map(whole, answers), gateway.log_path.read_bytes()]


def whole(answer: httpx.Response) -> bytes:
    return repr(answer.headers.raw).encode() + answer.content


def assert_silent(texts: Iterable[bytes], *, ids_allowed: bool = False) -> None:
    for text in texts:
        assert PLANTED.search(text) is None, text[-3000:]
        assert ids_allowed or PLANTED_IDS.search(text) is None, text[-3000:]


def test_nothing_planted_shows_up(tmp_path: Path, settings: dict[str, str]) -> None:
    with Gateway(tmp_path / "gateway", settings) as gateway:
        answers = list(everything(gateway.url))
        assert {200, 400, 401, 404, 405} <= {answer.status_code for answer in answers}
        reasons = {entry["code"] for answer in answers for entry in rejected_in(answer)}
        assert reasons == {
            "not_an_object", "message_id_invalid", "event_too_deep", "event_too_large", "conflict",
            "unreadable",
        }  # fmt: skip
        assert_silent(map(whole, answers), ids_allowed=True)
        assert_silent([garble(gateway.port)])
        assert_silent(observed(gateway))
    assert_silent([gateway.log_path.read_bytes()])


def rejected_in(answer: httpx.Response) -> list[dict[str, object]]:
    if answer.status_code != 200 or not answer.content:
        return []
    rejected: list[dict[str, object]] = answer.json().get("rejected", [])
    return rejected


def test_nothing_planted_shows_up_while_requests_are_refused(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    env = {**settings, "GATEWAY_DISK_FREE_MIN": "100000TiB", "GATEWAY_LOGGING_FORMAT": "json"}
    gateway = Gateway(tmp_path / "gateway", env)
    gateway.start(wait=False)
    try:
        gateway.wait_until_lanes_serve()
        answers = list(everything(gateway.url))
        assert 503 in {answer.status_code for answer in answers}
        assert_silent(map(whole, answers))
        assert_silent(observed(gateway))
    finally:
        gateway.stop()


def test_nothing_planted_shows_up_while_the_log_fails(
    private_kafka_broker: KafkaBroker, tmp_path: Path, settings: dict[str, str]
) -> None:
    env = {**settings, **kafka_log(private_kafka_broker.bootstrap_servers).env, "GATEWAY_PARTITIONS": "2"}
    with Gateway(tmp_path / "gateway", env) as gateway:
        answers: list[httpx.Response] = []
        for number in itertools.count():
            event = EVENT | {"messageId": f"planted-id-{number}"}
            answers.append(httpx.post(f"{gateway.url}/v1/events", content=orjson.dumps(event)))
            if answers[-1].status_code != httpx.codes.OK:
                break
            private_kafka_broker.kill()
        assert answers[-1].status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert_silent(map(whole, answers), ids_allowed=True)
        assert_silent(observed(gateway))
    assert_silent([gateway.log_path.read_bytes()])


@pytest.mark.parametrize(
    "env",
    [
        {"GATEWAY_IDENTITY_SECRET": "planted-short"},
        {"GATEWAY_IDENTITY_SECRET": IDENTITY_SECRET * 5},
        {"GATEWAY_KAFKA_SECURITY_PROTOCOL": "planted-protocol"},
        {"GATEWAY_KAFKA_SASL_USERNAME": "", "GATEWAY_KAFKA_SASL_PASSWORD": PASSWORD},
        {},
    ],
)
def test_start_that_fails_names_no_secret(
    env: dict[str, str], tmp_path: Path, settings: dict[str, str]
) -> None:
    sasl = {
        "GATEWAY_LOG": "kafka",
        "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",
        "GATEWAY_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "GATEWAY_KAFKA_SASL_USERNAME": "gateway",
        "GATEWAY_KAFKA_SASL_PASSWORD": PASSWORD,
        "GATEWAY_START_TIMEOUT": "0",
    }
    done = cli(Gateway(tmp_path / "gateway", {**settings, **sasl, **env}), "serve")
    assert done.returncode in (1, 2)
    assert done.stderr
    assert_silent([done.stdout, done.stderr])


@pytest.mark.parametrize(
    "text",
    [
        f"- key: {KEY}\n  source: [planted-source\n",
        f"- key: {KEY}\n  source: web\n- key: {KEY}\n  source: app\n",
        f"- key: {KEY}\n  key_sha256: planted-digest\n  source: web\n",
        f"{KEY}: web\n",
        f"- {{{KEY}: web}}\n",
        f"- {{key: abc, source: web, quotas: {{{KEY}: 5}}}}\n",
    ],
)
def test_key_file_that_is_wrong_is_not_quoted(
    text: str, key_file: Path, tmp_path: Path, settings: dict[str, str]
) -> None:
    key_file.write_text(text)
    done = cli(Gateway(tmp_path / "gateway", settings), "serve")
    assert done.returncode == 2
    assert str(key_file).encode() in done.stderr
    assert_silent([done.stdout, done.stderr])
